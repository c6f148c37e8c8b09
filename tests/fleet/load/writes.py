"""The API server's own record of writes: which, by whom, when they were done.

Both ends of a latency are read from the API server's clock, so that nobody's watch, and nobody's load, is
part of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

import msgspec
from msgspec import Struct

READS = frozenset({"get", "list", "watch"})


class _User(Struct, frozen=True):
    username: str = ""


class _Target(Struct, frozen=True, rename="camel"):
    resource: str = ""
    subresource: str = ""
    name: str = ""


class _Status(Struct, frozen=True):
    code: int = 0


class _Event(Struct, rename="camel"):
    stage: str
    verb: str
    stage_timestamp: str
    user: _User = _User()
    object_ref: _Target = _Target()
    response_status: _Status = _Status()


_event = msgspec.json.Decoder(_Event)


class Write(Struct, frozen=True, kw_only=True):
    """One answered write, `resource` as RBAC names it (`nodes/status`).

    `at`: when it was answered, in epoch seconds.
    """

    user: str
    verb: str
    resource: str
    name: str
    code: int
    at: float

    @property
    def kind(self) -> str:
        """`patch nodes/status`."""
        return f"{self.verb} {self.resource}"

    @property
    def done(self) -> bool:
        """Accepted by the API server."""
        return 200 <= self.code < 300


class Record:
    """The writes in an audit log from `mark()` on; each line is read once."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._read_to = 0
        self._writes: list[Write] = []

    def mark(self) -> None:
        """Forget what was written until now."""
        self._read_to = self._log.stat().st_size
        self._writes = []

    def since_mark(self) -> Sequence[Write]:
        """What was written since, by anybody."""
        with self._log.open("rb") as log:
            log.seek(self._read_to)
            lines = log.read()
        whole = lines[: lines.rfind(b"\n") + 1]
        self._read_to += len(whole)
        self._writes += parse(whole.splitlines(keepends=True))
        return self._writes


def parse(lines: Iterable[bytes]) -> Iterator[Write]:
    """The answered writes among the lines of an audit log; a last line without its end is left out."""
    for line in lines:
        if not line.endswith(b"\n"):
            return
        event = _event.decode(line)
        if event.stage != "ResponseComplete" or event.verb in READS:
            continue
        target = event.object_ref
        yield Write(
            user=event.user.username,
            verb=event.verb,
            resource="/".join(filter(None, (target.resource, target.subresource))),
            name=target.name,
            code=event.response_status.code,
            at=_seconds(event.stage_timestamp),
        )


def latencies(
    ended: Iterable[Write], labelled: Iterable[Write], *, node_of: Mapping[str, str]
) -> dict[str, float]:
    """Node to milliseconds from the first write that shows its container's end, once that was answered, to
    the next patch of its labels, once that was.

    `node_of`: from pod to node.  A node whose labels were not patched is left out.
    """
    starts: dict[str, float] = {}
    for write in sorted(ended, key=lambda one: one.at):
        if write.done and write.name in node_of:
            starts.setdefault(node_of[write.name], write.at)
    result: dict[str, float] = {}
    for write in sorted(labelled, key=lambda one: one.at):
        start = starts.get(write.name)
        if write.done and start is not None and write.name not in result and write.at >= start:
            result[write.name] = (write.at - start) * 1000
    return result


def by_whom(writes: Iterable[Write], whose: Mapping[str, str], *, others: str) -> dict[str, list[Write]]:
    """By who made them: `whose` has the users, all other users are `others`."""
    result: dict[str, list[Write]] = {who: [] for who in (*whose.values(), others)}
    for write in writes:
        result[whose.get(write.user, others)].append(write)
    return result


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()


def kinds(writes: Iterable[Write], *, per: float) -> dict[str, float]:
    """How many accepted writes of each kind, divided by `per`, most first."""
    counted = Counter(write.kind for write in writes if write.done)
    return {kind: count / per for kind, count in counted.most_common()}
