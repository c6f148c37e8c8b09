"""`nodegauge node`: the probes and the judge on this machine."""
