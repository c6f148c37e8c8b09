"""Lets a machine feel the simulated CUDA: `driver/src/cuda.c` appends `NS UUID PID PERCENT` to STATE.loads; a
GPU's load is the largest last announcement of a living process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed.hardware.plugged import LOADS, Hardware

POLL_S = 0.05


@contextmanager
def following(hardware: Hardware) -> Iterator[None]:
    stop, last = threading.Event(), dict[int, int]()

    def follow() -> None:
        while not stop.wait(POLL_S):
            announced = announcements(hardware.directory / LOADS)
            if announced or last:
                now = {number: announced.get(uuid, 0) for number, uuid in enumerate(hardware.uuids)}
                if changed := {gpu: n for gpu, n in now.items() if last.get(gpu, 0) != n}:
                    hardware.load_each(changed)
                last.update(now)

    thread = threading.Thread(target=follow, name="loads")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        if running := [gpu for gpu, percent in last.items() if percent]:
            hardware.load_each(dict.fromkeys(running, 0))


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
