"""Stands where NVIDIA's package `cuda` would: a fake for tests, see `cuda.core`."""
