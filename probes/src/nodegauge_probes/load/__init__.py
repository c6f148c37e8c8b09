"""The load probe: all GPUs of an idle node at work at the same time, watched by NVML.

`ptx` is the code that the GPUs run and `truth` what it must compute, `cuda` calls the driver, `child` is the
process that drives the GPUs, `protocol` its lines; `probe` starts it, samples NVML meanwhile and stops it,
and `record` and `statistics` turn all that into the document.
"""
