"""The probes: short programs that read a GPU node and report raw numbers without judging them.

`python -m nodegauge_probes PROBE` runs one.  Each probe is one module that says what to read and in which
order; `nvml` is the only access to the driver.  Nothing here knows Kubernetes: options and environment in, a
result document out.
"""
