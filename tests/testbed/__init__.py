"""The testbed: a real control plane, simulated nodes and simulated GPUs, on one machine without any of them.

Used by the tests and the demonstration, and by hand as `python -m testbed`.  Nothing that is installed on a
cluster imports it.
"""
