"""Grading one NCCL run: from a result and expectations to findings, labels and agreement with NVML.

Pure, like all of the judge.  `extract` reads a result, `measurement` is what a report keeps of it,
`floors` sets the limits, and `judge` has the two entry points.
"""
