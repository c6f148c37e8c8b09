"""The wait of every scenario."""

from __future__ import annotations

import threading
from functools import partial

from testbed.wait import wait_for

MOST_SECONDS = 240.0
"""Outer bound of how long it takes until all is as it should be; what it took is printed."""
LOOK_SECONDS = 0.2
"""A look reads the whole fleet."""
interrupted = threading.Event()
"""Nothing is waited for any more."""
until = partial(wait_for, seconds=MOST_SECONDS, every=LOOK_SECONDS, interrupted=interrupted)
