"""The API server's own record of writes.  Both ends of a latency are read from its clock."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from testbed.audit import entry_of


class Write(NamedTuple):
    user: str
    kind: str
    name: str
    done: bool
    at: float


class Record:
    def __init__(self, log: Path) -> None:
        self._log = log
        self._read_to = 0
        self._writes: list[Write] = []

    def mark(self) -> None:
        self._read_to = self._log.stat().st_size
        self._writes = []

    def since_mark(self) -> Sequence[Write]:
        with self._log.open("rb") as log:
            log.seek(self._read_to)
            lines = log.read()
        whole = lines[: lines.rfind(b"\n") + 1]
        self._read_to += len(whole)
        for entry in map(entry_of, map(json.loads, whole.splitlines())):
            if entry is not None and entry.is_write:
                at = datetime.fromisoformat(entry.raw["stageTimestamp"]).timestamp()
                kind = f"{entry.verb} {entry.resource}"
                self._writes.append(Write(entry.user, kind, entry.name, 200 <= entry.code < 300, at))
        return self._writes


def latencies(written: Iterable[Write], labelled: Iterable[Write]) -> dict[str, float]:
    """Node to milliseconds from the first write of its reading to the next patch of its labels, if any."""
    starts: dict[str, float] = {}
    for write in sorted(written, key=lambda one: one.at):
        if write.done:
            starts.setdefault(write.name, write.at)
    result: dict[str, float] = {}
    for write in sorted(labelled, key=lambda one: one.at):
        start = starts.get(write.name)
        if write.done and start is not None and write.name not in result and write.at >= start:
            result[write.name] = (write.at - start) * 1000
    return result
