"""A container's memory limit, kept by looking: who holds more than `limits.memory` is OOMKilled.

Without cgroups, so it differs from a kernel's: what counts is the private and shared memory that the
container's processes hold when somebody looks (RssAnon and RssShmem of /proc/PID/status), not page cache; all
processes die; and a process may hold more than its limit until the next look.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from testbed.kubelet.errors import NotSimulated
from testbed.kubelet.process import ContainerProcess

Object = dict[str, Any]

LOOK_SECONDS = 0.2
COUNTED = ("RssAnon:", "RssShmem:")
UNITS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


def limit_of(container: Object) -> int | None:
    """`limits.memory` in bytes; None without one.  NotSimulated for a unit that is not known here."""
    text = str(container.get("resources", {}).get("limits", {}).get("memory", ""))
    if not text:
        return None
    number = text.rstrip("KMGi")
    if not number.isdigit() or text[len(number) :] not in UNITS:
        raise NotSimulated(f"the simulated kubelet knows no memory limit such as {text}: use Mi or Gi")
    return int(number) * UNITS[text[len(number) :]]


async def enforce(process: ContainerProcess, limit: int | None) -> bool:
    """Return True once the container was killed for its memory; for ever otherwise."""
    while limit is not None:
        if taken(process.pid) > limit:
            process.signal(signal.SIGKILL)
            return True
        await asyncio.sleep(LOOK_SECONDS)
    await asyncio.Event().wait()
    return False


def taken(first: int) -> int:
    """Bytes that a process and those below it hold."""
    return sum(_counted(pid) for pid in _family(first))


def _family(first: int) -> Iterator[int]:
    yield first
    for children in Path(f"/proc/{first}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # it has just ended
            for child in children.read_text().split():
                yield from _family(int(child))


def _counted(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(COUNTED))
