"""Simulated GPU hardware: a machine of some profile in a folder, that can be loaded, broken and healed.

    hardware = plug("h100-sxm-8", folder)
    subprocess.run([...], env={**os.environ, **hardware.env()})   # the real pynvml sees eight H100
    hardware.fault("link-down", gpu=3, link=5)                      # ... and what runs sees it happen
    hardware.heal()

Profile + condition (what was done to it) -> `Machine` (what is true now) -> the driver's state file and the
fake sysfs and procfs, replaced in one step each.  It must not judge, and knows nothing of probes.
"""

from testbed.hardware.faults import FAULTS
from testbed.hardware.machine import HardwareError
from testbed.hardware.plugged import Hardware, attach, plug

__all__ = ["FAULTS", "Hardware", "HardwareError", "attach", "plug"]
