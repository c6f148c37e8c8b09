"""How a program ends on a signal, and how runs that share a folder take turns."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def interruptible(numbers: Sequence[signal.Signals] = SIGNALS, *, says: str = "") -> None:
    """From now on the first of these signals is a KeyboardInterrupt with its name, which leaves by way of the
    context managers, and no second one interrupts them.  A shell's background job inherits SIGINT as
    ignored."""

    def interrupt(number: int, _: object) -> None:
        for other in numbers:
            signal.signal(other, signal.SIG_IGN)
        with contextlib.suppress(OSError):  # the terminal may be gone
            os.write(sys.stderr.fileno(), f"\n{says}\n".encode() if says else b"")
        raise KeyboardInterrupt(signal.Signals(number).name)

    for number in numbers:
        signal.signal(number, interrupt)


@contextlib.contextmanager
def alone(lock: Path, *, waits: Callable[[], object]) -> Iterator[None]:
    """Hold the lock; `waits` is called where somebody else holds it."""
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waits()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
