"""`nodegauge cleanup`: remove everything that nodegauge wrote into a cluster."""
