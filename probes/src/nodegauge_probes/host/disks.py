"""NVMe controllers in /sys/class/nvme: state, uncorrected PCIe errors, and the alarm of their temperature.

Readable without privilege.  Wear and media errors need the controller's SMART log, which only root may ask
for.  Sources: the kernel's drivers/nvme/host/sysfs.c (`state`), Documentation/ABI/testing/sysfs-bus-pci-
devices-aer_stats (errors since the device was found) and drivers/nvme/host/hwmon.c (`temp1_alarm` is the
controller's own critical warning).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from nodegauge_contract import Disk, Int, Unavailable
from nodegauge_contract.model import MAX_DISKS
from nodegauge_probes.host.kernel import lines_of, listing, natural, text_of
from nodegauge_probes.host.pci import numa_node_in

FOLDER = "class/nvme"
_CONTROLLER = re.compile(r"nvme\d{1,4}")
NO_ALARM = Unavailable("no temperature alarm in sysfs")


def disks(root: Path, add: Callable[[Disk], None]) -> None:
    """Call `add` with every controller, up to the document's limit."""
    names = [name for name in listing(root / FOLDER) if _CONTROLLER.fullmatch(name)]
    for name in sorted(names, key=natural)[:MAX_DISKS]:
        add(_disk(root / FOLDER / name))


def _disk(folder: Path) -> Disk:
    return Disk(
        name=folder.name,
        model=text_of(folder / "model"),
        state=text_of(folder / "state"),
        fatal=_total(folder / "device/aer_dev_fatal", "TOTAL_ERR_FATAL"),
        nonfatal=_total(folder / "device/aer_dev_nonfatal", "TOTAL_ERR_NONFATAL"),
        too_hot=_alarm(folder),
        numa_node=numa_node_in(folder / "device"),
    )


def _total(path: Path, name: str) -> Int:
    """The number after `name`; a device without AER has no such file."""
    lines = lines_of(path)
    if isinstance(lines, Unavailable):
        return lines
    pairs = (line.split() for line in lines)
    number = next((pair[1] for pair in pairs if len(pair) == 2 and pair[0] == name), "")
    return min(int(number), 2**63 - 1) if number.isdecimal() else Unavailable(f"no {name}")


def _alarm(folder: Path) -> Int:
    """Of the controller's hwmon chip; older kernels hang it below the PCI device."""
    for parent in (folder, folder / "device"):
        for name in (*listing(parent / "hwmon"), *listing(parent)):
            chip = parent / "hwmon" / name if (parent / "hwmon" / name).is_dir() else parent / name
            alarm = text_of(chip / "temp1_alarm") if name.startswith("hwmon") else None
            if isinstance(alarm, str) and alarm.isdecimal():
                return int(alarm != "0")
    return NO_ALARM
