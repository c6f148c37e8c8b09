"""The GPUs that hang on the PCI bus, whatever the driver says: sysfs shows them without access to a GPU.

A GPU that fell off the bus keeps its folder until the bus is scanned again, and its configuration space reads
all ones.  A container sees every function of the node here, also of GPUs that it was not given.
"""

from __future__ import annotations

from pathlib import Path

from nodegauge_contract import Bus, Unavailable
from nodegauge_contract.model import MAX_GPUS
from nodegauge_probes.host.sysfs import listing, text_of

NVIDIA = "0x10de"
DISPLAYS = ("0x0300", "0x0302")
"""VGA controller, and 3D controller (a GPU without a display)."""

FOLDER = "bus/pci/devices"
IDS = 4
"""Vendor and device: the first bytes of a configuration space, never all ones on a device that answers."""


def bus(root: Path) -> Bus:
    """NVIDIA's GPUs by address; `silent` are those that answer nothing."""
    if not (root / FOLDER).is_dir():
        return Bus(gpus=Unavailable("no PCI tree in sysfs"))
    found = [name for name in sorted(listing(root / FOLDER)) if _is_gpu(root / FOLDER / name)][:MAX_GPUS]
    return Bus(gpus=found, silent=[name for name in found if _is_silent(root / FOLDER / name)])


def _is_gpu(device: Path) -> bool:
    kind = text_of(device / "class")
    return text_of(device / "vendor") == NVIDIA and isinstance(kind, str) and kind.startswith(DISPLAYS)


def _is_silent(device: Path) -> bool:
    """Whether the device reads as all ones; one whose configuration space cannot be read is not known."""
    try:
        with (device / "config").open("rb") as file:
            return file.read(IDS) == b"\xff" * IDS
    except OSError:
        return False
