"""The parent's side of `protocol`: the lines of the process that drives the GPUs, bounded and checked.

It contains a driver that may be broken: its output must neither grow without bound nor become a number that
was never measured.
"""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable

import msgspec

from nodegauge_probes.load.protocol import MAX_LINE, MAX_OUTPUT, Line, decode_line

CHUNK = 64 * 1024


class InvalidOutput(Exception):
    """The process wrote a line that violates the protocol."""


class Lines:
    """Bytes of the process as lines, bounded; raises `InvalidOutput`."""

    def __init__(self, take: Callable[[Line], None]) -> None:
        self._take = take
        self._rest = b""
        self._bytes = 0

    def feed(self, data: bytes) -> None:
        self._bytes += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE or self._bytes > MAX_OUTPUT:
            raise InvalidOutput("more output than allowed")
        for text in lines:
            try:
                line = decode_line(text)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                raise InvalidOutput(f"not a protocol line: {text[:60]!r}") from None
            self._take(line)


def poll(selector: selectors.BaseSelector, *, wait: float) -> bool:
    """Read each pipe once; returns whether there was any data."""
    if not selector.get_map():
        time.sleep(wait)
        return False
    received = False
    for key, _ in selector.select(wait):
        try:
            data = os.read(key.fd, CHUNK)
        except BlockingIOError:
            continue
        if not data:
            selector.unregister(key.fd)
        received = received or bool(data)
        key.data(data)
    return received
