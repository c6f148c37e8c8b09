"""Which block device a folder lies on, from mountinfo and sysfs, before the folder is touched.

A number is worth something only if it comes from a disk of this machine.  So a folder counts only if a local
block device without rotating parts is behind it: what is unknown is refused with its name, as is memory,
an overlay, a network file system, and a block device whose other end is a network.

Sources: proc_pid_mountinfo(5); the kernel's Documentation/ABI/stable/sysfs-block (`queue/rotational`,
`slaves`); Documentation/ABI of nvme (`transport`: pcie, or tcp, rdma, fc, loop).
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from nodegauge_contract import NOT_READ, Int, Unavailable
from nodegauge_probes.host.kernel import listing, text_of
from nodegauge_probes.host.pci import numa_node_in

MAX_MOUNTS = 1 << 22
"""Bytes of mountinfo that are read: a node with 10,000 mounts has half of that."""
MAX_DEPTH = 8
"""Devices on top of each other: encryption on a volume on a RAID on partitions are four."""
NO_DISK = re.compile(r"(loop|ram|zram|nbd|rbd|drbd)\d")
"""Block devices by name that are no disk of this machine: files, memory and networks."""


class Backing(Struct, frozen=True, kw_only=True):
    """What a folder lies on.  `problem`: why it is no disk of this machine; empty if it is."""

    filesystem: str = ""
    device: str = ""
    numa_node: Int = NOT_READ
    folder: Path | None = None
    """The device's folder in sysfs; None if it was not found."""
    problem: str = ""


def backing_of(folder: Path, *, sysfs: Path, procfs: Path) -> Backing:
    """What `folder` lies on; it asks the kernel, never the file system."""
    mount = _mount(folder, procfs)
    if mount is None:
        return Backing(problem="its mount is not in /proc/self/mountinfo")
    number, filesystem, source = mount
    device = _device(number, source, sysfs)
    if device is None:
        return Backing(filesystem=filesystem, problem=f"{filesystem} lies on no block device of this machine")
    name = _disk(device).name
    known = Backing(filesystem=filesystem, device=name, folder=device)
    disks = _disks(_disk(device), sysfs)
    if not disks:
        return replace(known, problem=f"what {name} lies on cannot be read")
    if problem := next(filter(None, (_no_local_disk(disk) for disk in disks)), ""):
        return replace(known, problem=problem)
    nodes = {str(node): node for node in map(_numa_node, disks)}
    several = Unavailable("its disks are on several NUMA nodes")
    return replace(known, numa_node=next(iter(nodes.values())) if len(nodes) == 1 else several)


def bytes_read(device: Path) -> int | None:
    """Bytes read from the device so far (Documentation/block/stat.rst, in sectors of 512); None if unread."""
    text = text_of(device / "stat")
    parts = [] if isinstance(text, Unavailable) else text.split()
    return int(parts[2]) * 512 if len(parts) > 2 and parts[2].isdecimal() else None


def _mount(folder: Path, procfs: Path) -> tuple[str, str, str] | None:
    """Number of the device, type and source of the mount that holds the folder: the last of the longest."""
    try:
        with (procfs / "self/mountinfo").open("rb") as file:
            lines = file.read(MAX_MOUNTS).decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    best, mount = -1, None
    for line in lines:
        left, _, right = line.partition(" - ")
        own, other = left.split(), right.split()
        point = Path(_unescaped(own[4])) if len(own) > 4 and len(other) > 1 else None
        if point is not None and folder.is_relative_to(point) and len(point.parts) >= best:
            best, mount = len(point.parts), (own[2], other[0][:64], _unescaped(other[1]))
    return mount


def _unescaped(text: str) -> str:
    """mountinfo writes space, tab, newline and backslash as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _device(number: str, source: str, sysfs: Path) -> Path | None:
    """The device's folder, by number; by its source where the file system has none of its own (btrfs)."""
    name = source.removeprefix("/dev/")
    links = [f"dev/block/{number}"] if re.fullmatch(r"\d+:\d+", number) else []
    links += [f"class/block/{name}"] if source.startswith("/dev/") and "/" not in name else []
    for link in links:
        path = Path(os.path.realpath(sysfs / link))
        if path.is_dir():
            return path
    return None


def _disk(device: Path) -> Path:
    """The whole device of a partition."""
    return device.parent if (device / "partition").exists() else device


def _disks(device: Path, sysfs: Path, depth: int = 0) -> list[Path]:
    """The devices at the bottom; empty if they are too deep."""
    below = [Path(os.path.realpath(device / "slaves" / name)) for name in listing(device / "slaves")]
    if not below:
        return [device]
    if depth == MAX_DEPTH:
        return []
    return [disk for each in below for disk in _disks(_disk(each), sysfs, depth + 1)]


def _no_local_disk(disk: Path) -> str:
    """Why this is no disk of this machine without rotating parts; empty if it is."""
    if NO_DISK.match(disk.name):
        return f"{disk.name} is no disk of this machine"
    if re.search(r"/session\d+/", str(disk)):
        return f"{disk.name} comes over the network (iSCSI)"
    foreign = [how for how in _transports(disk) if how != "pcie"]
    if foreign:
        return f"{disk.name} comes over the network (NVMe over {foreign[0]})"
    rotational = text_of(disk / "queue/rotational")
    if rotational != "0":
        rotates = "rotates" if rotational == "1" else "may rotate: its queue/rotational cannot be read"
        return f"{disk.name} {rotates}"
    return ""


def _transports(disk: Path) -> list[str]:
    """How each controller of an NVMe disk is reached; several below a subsystem."""
    device = disk / "device"
    controllers = [device, *(device / name for name in listing(device) if re.fullmatch(r"nvme\d+", name))]
    return [how for each in controllers if isinstance(how := text_of(each / "transport"), str)]


def _numa_node(disk: Path) -> Int:
    """Of the disk's controller, or of what that hangs on."""
    own = numa_node_in(disk / "device")
    return own if isinstance(own, int) else numa_node_in(disk / "device/device")
