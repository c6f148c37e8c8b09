"""Output of nccl-tests (`all_reduce_perf` and its siblings), parsed into a result document."""
