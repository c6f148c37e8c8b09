"""Lets a machine feel the simulated CUDA: `driver/src/cuda.c` appends `NS UUID PID PERCENT` to STATE.loads; a
GPU's load is the largest last announcement of a living process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from testbed.hardware.machine import HardwareError
from testbed.hardware.plugged import LOADS, Hardware

POLL_S = 0.05


@contextmanager
def following(*machines: Hardware) -> Iterator[None]:
    """One thread for all; an idle machine costs it a look whether a file is there."""
    paths = {hardware: hardware.directory / LOADS for hardware in machines}
    stop, felt = threading.Event(), {hardware: dict[str, int]() for hardware in machines}

    def follow() -> None:
        while not stop.wait(POLL_S):
            for hardware, path in paths.items():
                if felt[hardware] or path.exists():
                    felt[hardware] = _feel(hardware, felt[hardware], announcements(path))

    thread = threading.Thread(target=follow, name="loads")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        for hardware, before in felt.items():
            _feel(hardware, before, {})


def _feel(hardware: Hardware, before: dict[str, int], now: dict[str, int]) -> dict[str, int]:
    """Load what changed; per cent by UUID, before and `now`, which is returned."""
    if before != now:
        with suppress(HardwareError, FileNotFoundError):  # it was unplugged
            numbers = {uuid: number for number, uuid in enumerate(hardware.uuids)}
            changed = {uuid for uuid in before | now if before.get(uuid, 0) != now.get(uuid, 0)}
            hardware.load_each({numbers[uuid]: now.get(uuid, 0) for uuid in changed & numbers.keys()})
    return now


def announcements(path: Path) -> dict[str, int]:
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except FileNotFoundError:
        return {}
    latest = {(uuid, int(pid)): int(percent) for _, uuid, pid, percent in lines}
    loads: dict[str, int] = {}
    for (uuid, pid), percent in latest.items():
        if is_alive(pid):
            loads[uuid] = max(loads.get(uuid, 0), percent)
    return loads


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that ended and was not waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False
