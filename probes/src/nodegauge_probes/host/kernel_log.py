"""The kernel's log, read at a bounded cost: new lines of a text file, or records of /dev/kmsg.

A syslog daemon writes the text file, which rotates: the open file is read to its end before its successor.
The device (or a FIFO in its format, `priority,sequence,microseconds,flags;text`) has numbers, so
that a reader that starts again neither loses nor doubles a record, and sees how many were overwritten.
Source: the kernel's Documentation/ABI/testing/dev-kmsg.

What a flood leaves no time for is skipped and counted.  Nothing here judges, and nothing here knows NVML.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from msgspec import Struct

from nodegauge_probes.host.kernel import boottime_ms

CHUNK_BYTES = 256 * 1024
"""Of one look.  Chosen by this project: at one look in five seconds it is 50 KB a second, some 500 lines."""
BACKLOG_BYTES = 4 * 1024 * 1024
"""A file's end that is read at first, and the most that may wait later.  Chosen by this project: a boot of a
machine with eight GPUs logs less than 1 MiB."""
RECORD_BYTES = 8192
"""At least as long as a record of /dev/kmsg (CONSOLE_EXT_LOG_MAX); a read gives one of them."""
LINE_BYTES = 1024
"""Of a line that is looked at."""
OTHER_BOOT_S = 60.0
"""How far a line's time may be off this boot's, for clocks that are set after the start."""
_RECORD = re.compile(rb"(\d{1,3}),(\d{1,19}),(\d{1,19}),[^;\n]{0,64};(.*)", re.DOTALL)
_UPTIME = re.compile(r"kernel:\s*\[\s*(\d{1,10}\.\d{1,9})\]|^\[\s*(\d{1,10}\.\d{1,9})\]")
_DATED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:Z|[+-]\d\d:?\d\d)")
_STARTS = re.compile(r"Linux version \d")


class Line(Struct, frozen=True):
    """One line: seconds since boot (None if it has no readable time), and its words."""

    at: float | None
    text: str


class Position(Struct, kw_only=True):
    """How far the log was read."""

    inode: int = 0
    """Of the text file; 0 before the first line."""
    offset: int = 0
    """Bytes of it."""
    sequence: int = -1
    """Number of the last record; -1 before the first."""
    lost: int = 0
    """Bytes or records that were skipped."""


class Clocks(Struct, frozen=True, kw_only=True):
    """Seconds since boot, and since the epoch."""

    since_boot: Callable[[], float]
    wall: Callable[[], float]


def clocks() -> Clocks:
    """Those of this machine."""
    return Clocks(since_boot=lambda: boottime_ms() / 1000, wall=time.time)


class KernelLog:
    """`read` gives what is new since `position`; raises OSError if the log cannot be read."""

    def __init__(self, path: Path, position: Position, *, clocks: Clocks) -> None:
        self.position = position
        self._path, self._clocks = path, clocks
        self._file = -1
        self._is_stream = False
        self._part, self._most = b"", CHUNK_BYTES

    def read(self) -> list[Line]:
        """The new lines of this boot, oldest first."""
        if self._file < 0:
            self._open()
        if self._is_stream:
            return list(self._records())
        lines = list(self._texts())
        starts = [n for n, line in enumerate(lines) if _STARTS.search(line)]
        dated = [self._dated(text) for text in lines[starts[-1] if starts else 0 :]]
        return [line for line in dated if line is not None]

    def close(self) -> None:
        """Close the file; the position stays."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def _open(self) -> None:
        # O_NONBLOCK: a device without news answers EAGAIN, and a FIFO without a writer does not wait.
        self._file = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        status, known = os.fstat(self._file), self.position
        self._is_stream = stat.S_ISCHR(status.st_mode) or stat.S_ISFIFO(status.st_mode)
        if self._is_stream:
            return
        if known.inode not in (0, status.st_ino):
            self._rest_of_rotated()
            known.offset = 0
        if known.inode == 0:
            known.offset, self._most = max(0, status.st_size - BACKLOG_BYTES), BACKLOG_BYTES
        known.inode = status.st_ino

    def _rest_of_rotated(self) -> None:
        """Say how much of a file is lost that was rotated while nobody read."""
        for name in (f"{self._path.name}.1", f"{self._path.name}-1"):
            try:
                status = self._path.with_name(name).stat()
            except OSError:
                continue
            if status.st_ino == self.position.inode:
                self.position.lost += max(0, status.st_size - self.position.offset)

    def _records(self) -> Iterator[Line]:
        left = CHUNK_BYTES
        while left > 0:
            try:
                data = os.read(self._file, RECORD_BYTES)
            except OSError as error:
                if error.errno == errno.EPIPE:  # overwritten: the next record's number says how many
                    continue
                if error.errno in (errno.EAGAIN, errno.EINVAL):
                    return
                raise
            if not data:
                return
            left -= len(data)
            yield from self._parsed(data)

    def _parsed(self, data: bytes) -> Iterator[Line]:
        """The device gives one record a read; a FIFO gives what is there."""
        *whole, self._part = (self._part + data).split(b"\n")
        for text in whole:
            match = _RECORD.match(text)
            if match is None:  # lines with a blank in front continue a record
                continue
            number, known = int(match[2]), self.position
            if number <= known.sequence:
                continue
            known.lost += number - known.sequence - 1 if known.sequence >= 0 else 0
            known.sequence = number
            yield Line(int(match[3]) / 1e6, match[4][:LINE_BYTES].decode("utf-8", "replace"))

    def _texts(self) -> Iterator[str]:
        known, size = self.position, os.fstat(self._file).st_size
        if size < known.offset:  # copied and truncated
            known.offset = 0
        if size - known.offset > BACKLOG_BYTES:
            known.lost += size - known.offset - CHUNK_BYTES
            known.offset = size - CHUNK_BYTES
        data = os.pread(self._file, self._most, known.offset)
        self._most = CHUNK_BYTES
        end = data.rfind(b"\n") + 1
        if end == 0 and len(data) == CHUNK_BYTES:  # a line without an end
            end = len(data)
        known.offset += end
        if end == len(data) and known.offset >= size and self._is_rotated():
            self.close()
        yield from (text[:LINE_BYTES].decode("utf-8", "replace") for text in data[:end].split(b"\n") if text)

    def _is_rotated(self) -> bool:
        """Whether another file has the name now."""
        try:
            return self._path.stat().st_ino != self.position.inode
        except FileNotFoundError:
            return False

    def _dated(self, text: str) -> Line | None:
        """The line with its time; None if it is of another boot."""
        now = self._clocks.since_boot()
        if match := _UPTIME.search(text):
            at = float(match[1] or match[2])
        elif (wall := _date_of(text)) is not None:
            at = wall - (self._clocks.wall() - now)
        else:
            return Line(None, text)
        return Line(max(0.0, at), text) if -OTHER_BOOT_S <= at <= now + OTHER_BOOT_S else None


def _date_of(text: str) -> float | None:
    """The date in a line, epoch seconds; None without one, and for one that no calendar has."""
    match = _DATED.search(text)
    with suppress(ValueError, OverflowError):
        return datetime.fromisoformat(match[0]).timestamp() if match is not None else None
    return None


def look(log: KernelLog) -> tuple[str, list[Line]]:
    """Why it cannot be read, or its new lines."""
    try:
        return "", log.read()
    except OSError as error:
        log.close()
        return error.strerror or type(error).__name__, []
