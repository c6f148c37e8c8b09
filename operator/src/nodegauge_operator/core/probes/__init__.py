"""The probes as the operator sees them: their pods, and what a finished run does to the report."""
