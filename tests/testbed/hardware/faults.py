"""Every fault there is, by what it is about: importing a module registers its faults.

Faults compose: each changes its own part of a `Machine`.
"""

from testbed.hardware import faults_around, faults_gpu, faults_peers, faults_runs
from testbed.hardware.fault import FAULTS, Fault, Parameter, find

__all__ = ["FAULTS", "MODULES", "Fault", "Parameter", "find"]

MODULES = (faults_gpu, faults_peers, faults_around, faults_runs)
