"""The parent's side of `protocol`: the lines of the process that drives the GPUs, bounded and checked.

It contains a driver that may be broken: its output must neither grow without bound nor become a number that
was never measured.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from nodegauge_probes.load.protocol import MAX_LINE, MAX_OUTPUT, Line, decode_line
from nodegauge_probes.nccl.receiver import InvalidOutput


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
