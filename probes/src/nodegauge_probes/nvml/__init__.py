"""NVML: the only package that imports pynvml. Every call returns a value or the reason why there is none."""
