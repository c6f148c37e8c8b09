"""Every fault there is: importing a module registers its faults."""

from testbed.hardware import faults_around, faults_gpu, faults_peers, faults_runs
from testbed.hardware.fault import FAULTS, Fault, Parameter, find

__all__ = ["FAULTS", "Fault", "Parameter", "find"]

MODULES = (faults_gpu, faults_peers, faults_around, faults_runs)
