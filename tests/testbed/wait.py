"""The one way to wait for something: poll, with a deadline that a busy machine does not reach."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from testbed.errors import TestbedError

T = TypeVar("T")

DEADLINE_SECONDS = 300.0
"""Chosen by this project: only a failure waits so long, and a machine at load 8 does not."""
POLL_SECONDS = 0.05


def wait_for(
    condition: Callable[[], T], *, what: str, seconds: float = DEADLINE_SECONDS, every: float = POLL_SECONDS
) -> T:
    """Poll until `condition` is truthy and return it; TestbedError that names `what` after `seconds`."""
    end = time.monotonic() + seconds
    while not (result := condition()):
        if time.monotonic() > end:
            raise TestbedError(f"not within {seconds:g} s: {what}")
        time.sleep(every)
    return result
