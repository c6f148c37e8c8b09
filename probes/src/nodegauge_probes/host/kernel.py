"""Facts from the kernel about this boot and this container, and how short files of sysfs are read.

Boot id and CLOCK_BOOTTIME: that clock continues through suspend and ignores time synchronisation, so the
growth of a counter can be divided by its growth.  Control group (both versions) and /dev/shm: CPU throttling
and kills for lack of memory.  A missing file is a reason, never a zero.
"""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from nodegauge_contract import Flag, Int, Text, Unavailable

MAX_BYTES = 4096
SHM = Path("/dev/shm")
CPU_CONTROLLERS = ("cpu", "cpu,cpuacct", "cpuacct,cpu")


def boot_id(procfs: Path) -> Text:
    """The kernel's random id of this boot."""
    try:
        return (procfs / "sys/kernel/random/boot_id").read_text().strip()[:128]
    except (OSError, UnicodeDecodeError) as error:
        return Unavailable(f"boot_id: {type(error).__name__}")


def boottime_ms() -> int:
    """Milliseconds since boot, including suspend."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class Timex(ctypes.Structure):
    """`struct timex` of adjtimex(2); members that are not read only take up room."""

    _fields_ = [
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 256),
    ]


STA_UNSYNC = 0x0040
"""The clock is not synchronised (linux/timex.h)."""


def clock_discipline() -> tuple[Flag, Int]:
    """Whether the clock is kept in step with a source, and its largest error in microseconds, by adjtimex(2).

    Without a mode it only reads, which needs no capability; the clock is the machine's also in a container.
    """
    timex = Timex()
    if ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex)) < 0:
        refused = Unavailable(f"adjtimex: {os.strerror(ctypes.get_errno())}"[:128])
        return refused, refused
    return not timex.status & STA_UNSYNC, max(0, timex.maxerror)


def release() -> Text:
    """The kernel's release, as `uname -r` prints it."""
    return os.uname().release[:128]


def listing(folder: Path) -> list[str]:
    """Names in a folder, unsorted; empty without such a folder.

    Names that are not printable are left out: one of them would make the whole document unwritable.
    """
    try:
        return [entry.name for entry in folder.iterdir() if entry.name.isprintable()]
    except OSError:
        return []


def text_of(path: Path) -> Text:
    """A short file's text without surrounding white space, or why it cannot be read.

    A driver fails the read itself if the hardware does not answer.
    """
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES).decode("utf-8", "replace").strip()[:128]
    except FileNotFoundError:
        return Unavailable("no such file in sysfs")
    except OSError as error:
        return Unavailable(f"sysfs: {error.strerror or type(error).__name__}"[:128])


def lines_of(path: Path) -> list[str] | Unavailable:
    """A short file's lines, or why it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES).decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return Unavailable("no such file in sysfs")
    except OSError as error:
        return Unavailable(f"{path.name}: {error.strerror or type(error).__name__}"[:128])


def natural(name: str) -> list[tuple[int, str]]:
    """A sort key: mlx5_2 before mlx5_10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]


class Cgroup:
    """This process's control group.  In a container it is usually the root; on a machine it is a path."""

    def __init__(self, *, sysfs: Path, procfs: Path) -> None:
        self._root = sysfs / "fs/cgroup"
        self._paths = _cgroup_paths(procfs / "self/cgroup")

    def throttled_periods(self) -> Int:
        """`nr_throttled` of cpu.stat: periods in which a CFS limit stopped this group."""
        files = [*self._files("", "cpu.stat")]
        files += [file for name in CPU_CONTROLLERS for file in self._files(name, "cpu.stat")]
        return _counter(files, "nr_throttled")

    def oom_kills(self) -> Int:
        """How often the kernel killed a process of this group for lack of memory."""
        files = [*self._files("", "memory.events"), *self._files("memory", "memory.oom_control")]
        return _counter(files, "oom_kill")

    def _files(self, controller: str, name: str) -> Iterator[Path]:
        """Possible locations of a file: in this process's group, or in the root."""
        mounts = (controller,) if controller else ("", "unified")
        for mount in mounts:
            for path in dict.fromkeys((self._paths.get(controller, ""), "")):
                yield self._root / mount / path / name


def _cgroup_paths(file: Path) -> dict[str, str]:
    """Controller (empty for version 2) to path, without the leading slash."""
    paths = {}
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return {}
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        for controller in {controllers, *controllers.split(",")}:
            paths[controller] = path.lstrip("/")
    return paths


def _counter(files: list[Path], name: str) -> Int:
    """The number after `name` in the first of `files` that has it."""
    for file in files:
        try:
            lines = file.read_text(errors="replace").splitlines()
        except OSError:
            continue
        for line in lines:
            key, _, number = line.partition(" ")
            if key == name and number.strip().isdecimal():
                return int(number)
    return Unavailable(f"no {name} in this control group")


def shm_bytes(path: Path = SHM) -> Int:
    """The size of the file system under /dev/shm."""
    try:
        stat = os.statvfs(path)
    except OSError as error:
        return Unavailable(f"{path}: {error.strerror}")
    return stat.f_frsize * stat.f_blocks


def growth(before: Int, after: Int) -> Int:
    """By how much a counter grew, or why that is unknown."""
    if isinstance(before, Unavailable):
        return before
    if isinstance(after, Unavailable):
        return after
    return after - before if after >= before else Unavailable("the counter decreased: it was reset")
