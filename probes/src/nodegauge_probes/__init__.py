"""The probes: short programs that read a GPU node and bring home raw numbers, never an opinion.

`python -m nodegauge_probes PROBE` runs one.  `__main__` knows the probes, each probe is one module that says
what to read and in which order, and `nvml` is the only way to the driver.  Nothing here knows Kubernetes:
what a probe is told comes in as options and environment, what it found goes out as a result document.
"""
