"""A simulated `libnvidia-ml.so.1`, which answers from a state file that `testbed.hardware` writes.  One is
linked per release, so that a function that a driver is too old for is missing from it."""
