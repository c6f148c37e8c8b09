"""What the container says about itself: CPU throttling, kills for memory, the size of /dev/shm.

Control groups of both versions, below the given sysfs root; a file that is not there is a reason, never a
zero.  In a container the group is usually the root of what it sees; on a machine it is a path.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from nodegauge_contract import Int, Unavailable

SHM = Path("/dev/shm")
CPU_CONTROLLERS = ("cpu", "cpu,cpuacct", "cpuacct,cpu")


class Cgroup:
    """This process's control group."""

    def __init__(self, *, sysfs: Path, procfs: Path) -> None:
        self._root = sysfs / "fs/cgroup"
        self._paths = _own_paths(procfs / "self/cgroup")

    def throttled_periods(self) -> Int:
        """`nr_throttled` of cpu.stat: periods in which a CFS limit stopped this group."""
        files = [*self._files("", "cpu.stat")]
        files += [file for name in CPU_CONTROLLERS for file in self._files(name, "cpu.stat")]
        return _counted(files, "nr_throttled")

    def kills(self) -> Int:
        """How often the kernel killed in this group for lack of memory."""
        files = [*self._files("", "memory.events"), *self._files("memory", "memory.oom_control")]
        return _counted(files, "oom_kill")

    def _files(self, controller: str, name: str) -> Iterator[Path]:
        """Where a file can be: in this process's group, or in the one that the container sees as its root."""
        mounts = (controller,) if controller else ("", "unified")
        for mount in mounts:
            for path in dict.fromkeys((self._paths.get(controller, ""), "")):
                yield self._root / mount / path / name


def shm_bytes(path: Path = SHM) -> Int:
    """The size of the file system under /dev/shm."""
    try:
        told = os.statvfs(path)
    except OSError as error:
        return Unavailable(f"{path}: {error.strerror}")
    return told.f_frsize * told.f_blocks


def growth(before: Int, after: Int) -> Int:
    """By how much a counter grew, or why nobody knows."""
    for value in (before, after):
        if isinstance(value, Unavailable):
            return value
    assert isinstance(before, int)
    assert isinstance(after, int)
    return after - before if after >= before else Unavailable("the counter went back")


def _own_paths(file: Path) -> dict[str, str]:
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


def _counted(files: list[Path], name: str) -> Int:
    """The number behind `name` in the first of `files` that has it."""
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
