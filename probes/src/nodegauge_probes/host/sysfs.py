"""What the kernel says about PCI devices and RDMA devices: where they hang, and on which NUMA node.

NVML has no call for the distance between a GPU and a network card; `nvidia-smi topo -m` and NCCL take it from
the same place.  Every function takes the root of a sysfs as argument, so that a recorded tree serves as well
as /sys.  Reads only, never raises for a missing or odd file: that is a reason in the value.
"""

from __future__ import annotations

import os
import re
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from nodegauge_contract import Int, Nics, Text, Unavailable
from nodegauge_contract.model import MAX_NICS

_ROOT = re.compile(r"^pci[0-9a-f]{4,8}:[0-9a-f]{2}$")
LONGEST = 4096
_FUNCTION = re.compile(r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")


class Place(Struct, frozen=True, kw_only=True):
    """A PCI function: its host bridge (`pci0000:00`), the bridges above it from the top, its NUMA node."""

    address: str
    root: str
    bridges: tuple[str, ...]
    numa: Int


def place(device: Path) -> Place | Unavailable:
    """Where the PCI function behind `device` (a link into sysfs' devices) hangs."""
    path = Path(os.path.realpath(device))
    if not path.is_dir():
        return Unavailable(f"no {device.name} in sysfs")
    parts = path.parts
    roots = [n for n, part in enumerate(parts) if _ROOT.match(part)]
    if not roots:
        return Unavailable(f"{device.name} is no PCI device")
    functions = [part for part in parts[roots[-1] + 1 :] if _FUNCTION.match(part)]
    if not functions:
        return Unavailable(f"{device.name} is no PCI device")
    return Place(
        address=functions[-1],
        root=parts[roots[-1]],
        bridges=tuple(functions[:-1]),
        numa=_numa_node(path),
    )


def gpu_place(root: Path, pci: Text) -> Place | Unavailable:
    """The place of the GPU with this PCI id."""
    return pci if isinstance(pci, Unavailable) else place(root / "bus/pci/devices" / pci)


def function_class(root: Path, address: str) -> Text:
    """The class of the PCI function at this address, as the kernel spells it: `0x068000`."""
    return text_of(root / "bus/pci/devices" / address / "class")


def numa_node(found: Place | Unavailable) -> Int:
    return found if isinstance(found, Unavailable) else found.numa


def _numa_node(path: Path) -> Int:
    try:
        number = int((path / "numa_node").read_text())
    except (OSError, ValueError) as error:
        return Unavailable(f"numa_node: {type(error).__name__}")
    return number if number >= 0 else Unavailable("numa_node is -1: the firmware does not say")


class Machine(StrEnum):
    """Whether a NUMA node that the firmware does not name can be told anyway."""

    ONE_NODE = "one NUMA node"
    SEVERAL_NODES = "several NUMA nodes"


def machine(root: Path) -> Machine:
    nodes = [name for name in listing(root / "devices/system/node") if re.fullmatch(r"node\d+", name)]
    return Machine.SEVERAL_NODES if len(nodes) > 1 else Machine.ONE_NODE


def distance(one: Place | Unavailable, other: Place | Unavailable, *, on: Machine) -> Text:
    """The path between two PCI functions in nvidia-smi's letters.

    Different host bridges: NODE on one NUMA node, SYS otherwise.  The same one and nothing shared below it:
    PHB.  A shared bridge: PIX where at most one bridge lies on either side below it (the ports of one
    switch), else PXB.  Source: the legend of `nvidia-smi topo -m`; NCCL src/graph/xml.cc walks the same way.
    """
    if isinstance(one, Unavailable):
        return one
    if isinstance(other, Unavailable):
        return other
    if one.root != other.root:
        if isinstance(one.numa, int) and isinstance(other.numa, int):
            return "NODE" if one.numa == other.numa else "SYS"
        return "NODE" if on is Machine.ONE_NODE else Unavailable("NUMA node not known")
    shared = _shared(one.bridges, other.bridges)
    if not shared:
        return "PHB"
    return "PIX" if max(len(one.bridges), len(other.bridges)) - shared <= 1 else "PXB"


def _shared(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """How many bridges two functions have in common, from the top."""
    return next(
        (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def nics(root: Path, gpus: list[Place | Unavailable]) -> Nics:
    """The RDMA devices in the order in which their drivers registered them, with all distances."""
    names = _rdma_names(root)[:MAX_NICS]
    places = [place(root / "class/infiniband" / name / "device") for name in names]
    on = machine(root)
    return Nics(
        names=names,
        pci=[where if isinstance(where, Unavailable) else where.address for where in places],
        to_gpu=[[distance(nic, gpu, on=on) for gpu in gpus] for nic in places],
        to_nic=[
            ["X" if i == j else distance(one, other, on=on) for j, other in enumerate(places)]
            for i, one in enumerate(places)
        ],
    )


def _rdma_names(root: Path) -> list[str]:
    """Registration order is the number of the device's uverbs file; devices without one follow by name."""
    order = {ibdev: number for number, ibdev in _uverbs(root)}
    names = listing(root / "class/infiniband")
    return sorted((n[:128] for n in names), key=lambda n: (order.get(n, len(order) + 10**6), natural(n)))


def _uverbs(root: Path) -> list[tuple[int, str]]:
    found = []
    for name in listing(root / "class/infiniband_verbs"):
        number = re.fullmatch(r"uverbs(\d+)", name)
        if number is None:
            continue
        try:
            found.append(
                (int(number[1]), (root / "class/infiniband_verbs" / name / "ibdev").read_text().strip())
            )
        except OSError:
            continue
    return found


def listing(folder: Path) -> list[str]:
    """Names in a folder, in no order; none where there is no such folder.  Those that are no text stay out:
    one of them in a document, and none of it could be written."""
    try:
        return [entry.name for entry in folder.iterdir() if entry.name.isprintable()]
    except OSError:
        return []


def text_of(path: Path) -> Text:
    """A short file's text without the white space around it, or why there is none.

    Drivers answer a read with an error of their own where the hardware does not answer them.
    """
    try:
        with path.open("rb") as file:
            return file.read(LONGEST).decode("utf-8", "replace").strip()[:128]
    except FileNotFoundError:
        return Unavailable("no such file in sysfs")
    except OSError as error:
        return Unavailable(f"sysfs: {error.strerror or type(error).__name__}"[:128])


def natural(name: str) -> list[tuple[int, str]]:
    """A key to sort by: mlx5_2 before mlx5_10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]
