"""NVML: the only package that imports pynvml. Every call returns a value or the reason why it is missing."""
