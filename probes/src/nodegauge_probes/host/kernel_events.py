"""What lines of the kernel's log say of GPUs and NVSwitches, by the parser of pasted logs, and how often.

What NVML has told already is left out.  Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from nodegauge_contract import KernelEvent, KernelLog
from nodegauge_contract.model import MAX_KERNEL_EVENTS
from nodegauge_contract.paste import Statement, StatementKind
from nodegauge_contract.pasted import failures, kernel
from nodegauge_contract.pasted.statements import Gathered
from nodegauge_probes.host.kernel_log import Line, Position

NUMBERED = (StatementKind.XID, StatementKind.SXID, StatementKind.SXID_FATAL)
KINDS = frozenset(
    {
        *NUMBERED,
        StatementKind.FALLEN_OFF,
        StatementKind.RESET_REQUIRED,
        StatementKind.NVLINK_FATAL,
        StatementKind.INIT_FAILED,
        StatementKind.BAR_INVALID,
        StatementKind.GSP_FAILED,
        StatementKind.NO_DEVICES,
        StatementKind.FABRIC_LOST,
    }
)
"""What is kept.  "API mismatch" is not: a container with a library of its own brings it on a healthy node,
and NVML says it where it is true."""
OFF_THE_BUS = 79
TOLD_WITHIN_S = 10.0
"""An Xid in the log is the one of which NVML told within so many seconds.  Chosen by this project: the driver
writes both at once, and a syslog daemon and a look at the log take a few seconds."""
AGAIN_S = 3600.0
"""An event that comes back after so many seconds is news.  Chosen by this project."""
MOST_LINES = 500
"""Lines of the driver that one look parses, the newest; the others are counted.  Chosen by this project: half
a second of work at most."""
_MAY_COUNT = re.compile(
    r"Xid|off the bus|IS_LOST|lost from|RESET_REQUIRED|requires |fatal error|init_?adapter|probe |is invalid|"
    r"GSP|No NVIDIA|None of the NVIDIA|OUT_OF_SYNC|inband",
    re.IGNORECASE,
)
"""What a line of `KINDS` has in it: the parser takes a hundred times as long."""
MOST_TEXT = 160
"""Characters of a line's words."""


class HeardXid(NamedTuple):
    """An Xid that NVML told: on the GPU at this PCI address, from `first` to `last` (seconds since boot)."""

    pci: str
    code: int
    first: float
    last: float


class Log(Struct, kw_only=True):
    """What is known of the log."""

    position: Position
    """How far it was read."""
    began: float = -1.0
    """When it was looked at first, seconds since boot; -1 before that."""
    events: list[KernelEvent] = []
    """What its lines say, the newest last."""
    dropped: int = 0
    """Events without room, and those without a readable time from before the first look."""
    news: int = 0
    """Grows with each event that is new, or comes back."""


def statements(text: str) -> list[Statement]:
    """What one line says; an Xid or SXid says all of its line."""
    gathered = Gathered()
    kernel.read([text], gathered)
    if not any(each.kind in NUMBERED for each in gathered.statements.values()):
        failures.read([text], gathered)
    return [each for each in gathered.statements.values() if each.kind in KINDS]


def add(log: Log, lines: Iterable[Line], *, heard: Sequence[HeardXid], now: float) -> None:
    """Add what these lines say; `now`: seconds since boot."""
    is_first = log.began < 0
    log.began = now if is_first else log.began
    of_driver = [line for line in lines if "nv" in line.text.lower() and _MAY_COUNT.search(line.text)]
    log.dropped += max(0, len(of_driver) - MOST_LINES)
    for line in of_driver[-MOST_LINES:]:
        for statement in statements(line.text):
            if line.at is None and is_first:
                log.dropped += 1
            elif not was_heard(statement, at=line.at if line.at is not None else now, heard=heard):
                _count(log, statement, at=int(line.at if line.at is not None else now))


def was_heard(statement: Statement, *, at: float, heard: Sequence[HeardXid]) -> bool:
    """Whether NVML told the same Xid of the same GPU at this time."""
    code = OFF_THE_BUS if statement.kind == StatementKind.FALLEN_OFF else statement.code
    if statement.kind not in (StatementKind.XID, StatementKind.FALLEN_OFF):
        return False
    return any(
        each.code == code
        and (not statement.subject or each.pci.startswith(statement.subject))
        and each.first - TOLD_WITHIN_S <= at <= each.last + TOLD_WITHIN_S
        for each in heard
    )


def document(log: Log, *, unread: str) -> KernelLog:
    """The log's part of a result; `unread`: why it cannot be read, or empty."""
    return KernelLog(
        unread=unread[:128], lost=log.position.lost, events=list(log.events), dropped=log.dropped
    )


def _count(log: Log, statement: Statement, *, at: int) -> None:
    key = (statement.kind, statement.subject, statement.code)
    known = next((each for each in log.events if (each.kind, each.subject, each.code) == key), None)
    log.news += known is None or at - known.last > AGAIN_S
    if known is None:
        subject, text = statement.subject, statement.text[:MOST_TEXT]
        known = KernelEvent(
            kind=statement.kind, subject=subject, code=statement.code, count=0, first=at, last=at, text=text
        )
    others = [each for each in log.events if each is not known]
    before = at < int(log.began)
    log.events = [*others, replace(known, count=known.count + 1, last=max(at, known.last), before=before)]
    if len(log.events) > MAX_KERNEL_EVENTS:
        log.events = log.events[1:]
        log.dropped += 1
