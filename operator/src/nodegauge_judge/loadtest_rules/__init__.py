"""Rules about load runs: slowdown, heat, results, speed, copies and rails at full power of all GPUs."""
