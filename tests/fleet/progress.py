"""What every scenario has: lines of progress, and a wait."""

from __future__ import annotations

import threading
import time
from functools import partial

from testbed.wait import wait_for

MOST_SECONDS = 240.0
"""Outer bound of how long it takes until all is as it should be; what it took is printed."""
LOOK_SECONDS = 0.2
"""A look reads the whole fleet."""
interrupted = threading.Event()
"""Nothing is waited for any more."""
until = partial(wait_for, seconds=MOST_SECONDS, every=LOOK_SECONDS, interrupted=interrupted)


class Progress:
    """Lines with the time since the beginning."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._began:6.1f} s] {text}", flush=True)
