"""Where a model fits and what a step costs: bigger GPUs, more GPUs, or offload to CPU and NVMe.  All
arithmetic."""
