"""What every scenario has: lines of progress, a wait, and an error for what is not as it should be."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from testbed.errors import TestbedError
from testbed.wait import wait_for

MOST_SECONDS = 240.0
"""Outer bound of how long it takes until all is as it should be; what it took is printed."""
LOOK_SECONDS = 0.2
"""A look reads the whole fleet."""
interrupted = threading.Event()
"""Nothing is waited for any more."""


class Wrong(Exception):
    """Something is not as it was, or not as it should be; the text says what."""


class Progress:
    """Lines with the time since the beginning."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._began:6.1f} s] {text}", flush=True)


def until(reached: Callable[[], object], *, what: str, seen: Callable[[], object]) -> None:
    """Wait until something is so; `Wrong` says what was waited for, and what was seen last.  After an
    interruption it ends the thread."""

    def over() -> object:
        return interrupted.is_set() or reached()

    try:
        wait_for(over, seconds=MOST_SECONDS, what=what, every=LOOK_SECONDS)
    except TestbedError as error:
        raise Wrong(f"{error}: {seen()}") from error
    if interrupted.is_set():
        raise SystemExit(f"interrupted while waiting for {what}")
