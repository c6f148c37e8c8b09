"""Every fault there is, by what it is about: importing a module registers its faults.

Faults compose: each changes its own part of a `Machine`.
"""

from testbed.hardware import (
    faults_host,
    faults_memory,
    faults_nccl,
    faults_pace,
    faults_peers,
    faults_sick,
)
from testbed.hardware.fault import FAULTS, Fault, Parameter, find

__all__ = ["FAULTS", "Fault", "Parameter", "find"]

MODULES = (faults_pace, faults_peers, faults_sick, faults_memory, faults_host, faults_nccl)
"""Slowed down; links and P2P; the GPU or the driver; memory and errors; what stands around the GPUs;
what only an NCCL run meets."""
