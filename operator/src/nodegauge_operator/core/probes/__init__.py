"""One module per kind of probe: its pod, when it is due, and what a finished run does to the report."""
