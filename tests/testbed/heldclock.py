"""A clock that stands still until it is told to move, for a probe, the driver under it, and the hardware.

The driver reads it from a file, so a process needs `env()` before it loads the driver; `patched()` has the
probe that runs in this process read and wait by it.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import patch

from nodegauge_probes.collectors import sampling

VARIABLE = "NODEGAUGE_SIM_CLOCK"
START_NS = 1_000_000 * 10**9
"""A machine that has been up for eleven days."""


class HeldClock:
    """CLOCK_BOOTTIME in nanoseconds, shared with the driver and with forked children."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(START_NS.to_bytes(8, "little"))
        with path.open("r+b") as file:
            self._now = mmap.mmap(file.fileno(), 8)

    def env(self) -> dict[str, str]:
        """What the driver needs to go by it."""
        return {VARIABLE: str(self.path)}

    def ns(self) -> int:
        """Now."""
        return int.from_bytes(self._now[:], "little")

    def seconds(self) -> float:
        """Now."""
        return self.ns() / 1e9

    def set(self, nanoseconds: int) -> None:
        """Go to this moment, also a past one."""
        self._now[:] = nanoseconds.to_bytes(8, "little")

    def sleep(self, seconds: float) -> None:
        """Let time pass at once: a nanosecond at least, so that who polls gets on."""
        self.set(self.ns() + max(1, round(seconds * 1e9)))

    @contextmanager
    def patched(self) -> Iterator[None]:
        """The probe in this process goes by this clock."""
        watch = partial(sampling.watch, clock=self.seconds, sleep=self.sleep)
        with (
            patch.object(time, "clock_gettime_ns", lambda _: self.ns()),
            patch.object(time, "monotonic", self.seconds),
            patch.object(time, "sleep", self.sleep),
            patch.object(sampling, "watch", watch),
        ):
            yield
