"""Simulated GPU hardware: a machine of some profile in a folder, that can be loaded, broken and healed.
Profile + condition (what was done to it) -> `Machine` (what is true now) -> the driver's state file and the
fake sysfs and procfs, replaced in one step each.  It knows nothing of probes."""

from testbed.hardware.faults import FAULTS
from testbed.hardware.machine import HardwareError
from testbed.hardware.plugged import Hardware, attach, plug

__all__ = ["FAULTS", "Hardware", "HardwareError", "attach", "plug"]
