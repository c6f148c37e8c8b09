"""Stands where nccl4py would: a fake for tests, see `nccl.bindings.nccl`."""
