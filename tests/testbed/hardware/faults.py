"""Every fault there is, by what it is about: importing a module registers its faults.

Faults compose: each changes its own part of a `Machine`.
"""

from testbed.hardware import (
    faults_case,
    faults_host,
    faults_load,
    faults_memory,
    faults_nccl,
    faults_pace,
    faults_peers,
    faults_sick,
)
from testbed.hardware.fault import FAULTS, Fault, Parameter, find

__all__ = ["FAULTS", "Fault", "Parameter", "find"]

MODULES = (
    faults_pace,
    faults_peers,
    faults_sick,
    faults_memory,
    faults_host,
    faults_case,
    faults_nccl,
    faults_load,
)
"""Slowed down; links and P2P; the GPU or the driver; memory and errors; what stands around the GPUs;
supplies, fans and air; what only an NCCL run or the load probe meets."""
