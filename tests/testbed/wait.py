"""How every program here waits: by polling, with a deadline that a busy machine does not reach; progress."""

import sys
import textwrap
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

from testbed.errors import TestbedError

T = TypeVar("T")

DEADLINE_SECONDS = 300.0
"""Chosen by this project: only a failure waits so long, and a machine at load 8 does not."""
POLL_SECONDS = 0.05
LATE_SHARE, LATE_SECONDS = 0.05, 0.25
"""A look may be late by this share of the time waited already, and by so much at most: twenty looks
a second at an API server take a fifth of a core, there and here."""
WIDTH = 110
SHOWN_CHARACTERS = 1000
"""Of one value that a condition saw."""


class Progress:
    """Lines with the time since the beginning, WIDTH characters at most."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        line = f"[{time.monotonic() - self._began:6.1f} s] {text}"
        wrapper = textwrap.TextWrapper(
            WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
        )
        print(wrapper.fill(line), flush=True)


def wait_for(
    condition: Callable[[], T],
    *,
    what: str,
    seconds: float = DEADLINE_SECONDS,
    every: float = POLL_SECONDS,
    interrupted: threading.Event | None = None,
) -> T:
    """Poll until `condition` is truthy and return it; TestbedError after `seconds` says what it returned.
    `every`: seconds between two looks, at first."""
    began = time.monotonic()
    while not (result := condition()):
        if interrupted is not None and interrupted.is_set():
            raise SystemExit(f"interrupted while waiting for {what}")
        waited = time.monotonic() - began
        if waited > seconds:
            result, seen = _last_look(condition)
            if result:
                return result
            raise TestbedError(f"not within {seconds:g} s: {what}; seen last: {seen}")
        time.sleep(max(every, min(waited * LATE_SHARE, LATE_SECONDS)))
    return result


def _last_look(condition: Callable[[], T]) -> tuple[T, str]:
    """The condition's result, and in words what the functions returned that it called itself."""
    code, seen = getattr(condition, "__code__", None), []

    def note(frame: FrameType, event: str, value: Any) -> None:
        caller, called = frame.f_back, frame.f_code
        if event != "return" or caller is None or code is None or called.co_name.startswith("<"):
            return
        # A generator or comprehension inside the condition counts as the condition.
        where = caller.f_code
        if where.co_filename == code.co_filename and where.co_qualname.startswith(code.co_qualname):
            seen.append(f"{called.co_name}() was {repr(value)[:SHOWN_CHARACTERS]}")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        result = condition()
    finally:
        sys.setprofile(before)
    return result, ", ".join(seen) or repr(result)
