"""PCI devices in sysfs: which GPUs the bus lists, where devices are, and how far apart.

NVML has no call for the distance between a GPU and a network card; `nvidia-smi topo -m` and NCCL also read it
from sysfs.  Every function takes the root of a sysfs as argument, so that a recorded tree works like /sys.
Read only; a missing or malformed file becomes the reason of a value.
"""

from __future__ import annotations

import os
import re
from enum import StrEnum
from itertools import takewhile
from pathlib import Path

from msgspec import Struct

from nodegauge_contract import Bus, Int, Text, Unavailable
from nodegauge_contract.model import MAX_GPUS
from nodegauge_probes.host.kernel import listing, text_of

FOLDER = "bus/pci/devices"
NVIDIA = "0x10de"
DISPLAYS = ("0x0300", "0x0302")
"""VGA controller, and 3D controller (a GPU without a display)."""
DRIVER = "nvidia"
ID_BYTES = 4
"""Vendor and device: the first bytes of a configuration space, never all ones on a device that responds."""

_ROOT = re.compile(r"^pci[0-9a-f]{4,8}:[0-9a-f]{2}$")
_FUNCTION = re.compile(r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")


def bus(root: Path, *, procfs: Path) -> Bus:
    """NVIDIA's GPUs by address; `silent` are those that do not respond, `drivers` who serves them.

    A container sees every function of the node here, including GPUs that it was not given.  A GPU that fell
    off the bus keeps its folder until the next rescan, and its configuration space reads all ones.
    """
    if not (root / FOLDER).is_dir():
        return Bus(gpus=Unavailable("no PCI tree in sysfs"))
    gpus = [name for name in sorted(listing(root / FOLDER)) if _is_gpu(root / FOLDER / name)][:MAX_GPUS]
    return Bus(
        gpus=gpus,
        silent=[name for name in gpus if _is_silent(root / FOLDER / name)],
        drivers=[_driver(root / FOLDER / name, procfs) for name in gpus],
    )


def _is_gpu(device: Path) -> bool:
    kind = text_of(device / "class")
    return text_of(device / "vendor") == NVIDIA and isinstance(kind, str) and kind.startswith(DISPLAYS)


def _is_silent(device: Path) -> bool:
    """Whether the device reads as all ones; False if its configuration space cannot be read."""
    try:
        with (device / "config").open("rb") as file:
            return file.read(ID_BYTES) == b"\xff" * ID_BYTES
    except OSError:
        return False


def _driver(device: Path, procfs: Path) -> Text:
    """The kernel driver bound to the device, by its link `driver`; a device without a driver has no link.

    The NVIDIA driver stays bound to GPUs of NVreg_ExcludedGpus and says so in their `information`
    (NVIDIA/open-gpu-kernel-modules, kernel-open/nvidia/nv-procfs.c).
    """
    try:
        name = (device / "driver").readlink().name
    except FileNotFoundError:
        return Unavailable("no driver is bound")
    except OSError as error:
        return Unavailable(f"sysfs: {error.strerror or type(error).__name__}"[:128])
    return f"{name}, excluded" if name == DRIVER and _is_excluded(device.name, procfs) else name[:128]


def _is_excluded(address: str, procfs: Path) -> bool:
    try:
        text = (procfs / "driver/nvidia/gpus" / address / "information").read_text(errors="replace")
    except OSError:  # a container sees those of its own GPUs
        return False
    return re.search(r"^GPU Excluded:\s*Yes\s*$", text, re.MULTILINE) is not None


class Location(Struct, frozen=True, kw_only=True):
    """A PCI function: its host bridge (`pci0000:00`), the bridges above it from the top, its NUMA node."""

    address: str
    root: str
    bridges: tuple[str, ...]
    numa: Int


def locate(device: Path) -> Location | Unavailable:
    """The location of the PCI function behind `device` (a link into sysfs' devices)."""
    try:
        path = Path(os.path.realpath(device))
    except OSError as error:  # a device that is taken out while its links are followed
        return Unavailable(f"sysfs: {error.strerror or type(error).__name__}"[:128])
    if not path.is_dir():
        return Unavailable(f"no {device.name} in sysfs")
    parts = path.parts
    roots = [n for n, part in enumerate(parts) if _ROOT.match(part)]
    functions = [part for part in parts[roots[-1] + 1 :] if _FUNCTION.match(part)] if roots else []
    if not functions:
        return Unavailable(f"{device.name} is not a PCI device")
    return Location(
        address=functions[-1],
        root=parts[roots[-1]],
        bridges=tuple(functions[:-1]),
        numa=numa_node_in(path),
    )


def numa_node_in(path: Path) -> Int:
    """The NUMA node of the device with this folder."""
    try:
        number = int((path / "numa_node").read_text())
    except (OSError, ValueError) as error:
        return Unavailable(f"numa_node: {type(error).__name__}")
    return number if number >= 0 else Unavailable("numa_node is -1: the firmware does not say")


def locate_gpu(root: Path, pci: Text) -> Location | Unavailable:
    """The location of the GPU with this PCI id."""
    return pci if isinstance(pci, Unavailable) else locate(root / FOLDER / pci)


def numa_node(location: Location | Unavailable) -> Int:
    return location if isinstance(location, Unavailable) else location.numa


def function_class(root: Path, address: str) -> Text:
    """The class of the PCI function at this address, in the kernel's form: `0x068000`."""
    return text_of(root / FOLDER / address / "class")


class NumaNodes(StrEnum):
    """Whether the machine has one NUMA node: then a device is on it even if the firmware does not say so."""

    ONE = "one NUMA node"
    SEVERAL = "several NUMA nodes"


def numa_nodes(root: Path) -> NumaNodes:
    nodes = [name for name in listing(root / "devices/system/node") if re.fullmatch(r"node\d+", name)]
    return NumaNodes.SEVERAL if len(nodes) > 1 else NumaNodes.ONE


def distance(location: Location | Unavailable, other: Location | Unavailable, *, nodes: NumaNodes) -> Text:
    """The path between two PCI functions in nvidia-smi's letters.

    Different host bridges: NODE on one NUMA node, SYS otherwise.  The same one without a shared bridge: PHB.
    A shared bridge: PIX if at most one bridge is below it on either side (the ports of one switch), else PXB.
    Source: the legend of `nvidia-smi topo -m`; NCCL src/graph/xml.cc walks the same way.
    """
    if isinstance(location, Unavailable):
        return location
    if isinstance(other, Unavailable):
        return other
    if location.root != other.root:
        if isinstance(location.numa, int) and isinstance(other.numa, int):
            return "NODE" if location.numa == other.numa else "SYS"
        return "NODE" if nodes is NumaNodes.ONE else Unavailable("NUMA node not known")
    pairs = zip(location.bridges, other.bridges, strict=False)
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    if not shared:
        return "PHB"
    return "PIX" if max(len(location.bridges), len(other.bridges)) - shared <= 1 else "PXB"
