"""What a node's NodeHistory should hold: its days, and the record of its faults.

The day that goes on is kept in the report, where each run adds to it.  It is written once it is over, and
before that only with a change of faults, so that a node costs about one write a day.  What was written is
noted in the report by the next run, with that run's own write: an operator that is killed in between writes
the same once more, which changes nothing.  Nothing here decides anything about the node.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from nodegauge_judge import GpuIdentity, History, Severity
from nodegauge_operator.api.fault import Fault
from nodegauge_operator.api.node_history import (
    MAX_DAYS,
    Day,
    NodeHistory,
    NodeRecord,
    XidSeen,
    date_of,
    noted,
)
from nodegauge_operator.api.report import ReportStatus
from nodegauge_operator.api.times import SKEW_SECONDS, stamp, unstamp
from nodegauge_operator.core.actions import WriteHistory, WrittenHistory
from nodegauge_operator.core.context import HEALTH, Context
from nodegauge_operator.core.probes.kind import share_of

SPREAD_SECONDS = 6 * 3600.0
"""Nodes write a day that is over at their own time within so long after midnight (UTC).  Chosen by this
project: 5,000 nodes then make one write in four seconds."""
KEPT_SECONDS = 30 * 86_400.0
"""How long a history outlives its node.  Chosen by this project: a vendor's ticket is open for weeks."""
NONE, NEVER_ANY = "none", ""


def after_run(context: Context, status: ReportStatus) -> ReportStatus:
    """The status with the day's verdict, and what was written until this run."""
    days = noted(status.days, Day(verdict=status.verdict), now=context.now)
    written = context.written
    if written is None:
        return replace(status, days=days)
    left = {date: text for date, text in days.items() if date not in written.closed}
    return replace(status, days=left, recorded=written.faults)


def due_write(context: Context, status: ReportStatus) -> WriteHistory | None:
    """The write after which the NodeHistory holds what it should; None if it does."""
    today = date_of(context.now)
    closed = frozenset(date for date in status.days if date < today)
    written = context.written or WrittenHistory(faults=status.recorded)
    known = context.after(status).faults
    mark = _mark(known) or (NONE if written.faults else NEVER_ANY)
    changed = mark != written.faults
    due = context.now % 86_400.0 >= SPREAD_SECONDS * share_of(context.node.name)
    if not changed and not (due and closed - written.closed):
        return None
    return WriteHistory(
        node=context.node,
        installation=context.defaults.installation,
        days=_too_old(context.now) | {date: text for date, text in status.days.items() if date <= today},
        written=WrittenHistory(closed=closed, faults=mark),
        record=_record(context, status, known) if changed else None,
    )


def is_over(history: NodeHistory, *, now: float) -> bool:
    """Whether the history of a node that is gone may go: it never had a fault, or has been gone for long."""
    gone = unstamp(history.gone_at)
    return history.record is None or 0.0 < gone <= now - KEPT_SECONDS


def is_unmarked(history: NodeHistory, *, now: float) -> bool:
    """Whether it has to be noted that the node is gone: nobody did, or a clock that was ahead."""
    return not 0.0 < unstamp(history.gone_at) <= now + SKEW_SECONDS


def _too_old(now: float) -> dict[str, str | None]:
    """The days before the last `MAX_DAYS`, as many again, each to be removed: what is there is not read."""
    today = datetime.fromtimestamp(now, UTC).date()
    return {str(today - timedelta(days=ago)): None for ago in range(MAX_DAYS, 2 * MAX_DAYS)}


def _mark(known: list[Fault]) -> str:
    """Digest of the faults and their states; empty for none.  Warnings come and go, and change no record."""
    states = sorted(f"{fault.code}={fault.state}" for fault in known if fault.severity is Severity.FAIL)
    return hashlib.sha256(" ".join(states).encode()).hexdigest()[:16] if states else ""


def _record(context: Context, status: ReportStatus, known: list[Fault]) -> NodeRecord:
    health, versions = status.probe[HEALTH], status.versions
    ended = [probe.last_run.finished_at for probe in status.probes if probe.last_run is not None]
    return NodeRecord(
        written_at=max(ended, default=stamp(context.now)),
        node_uid=context.node.uid,
        policy=status.policy,
        verdict=status.verdict,
        product=status.gpus.product,
        driver=status.gpus.driver or versions.driver,
        vbios=versions.vbios,
        kernel=versions.kernel,
        boot_id=health.boot_id,
        gpus=[
            GpuIdentity(index=gpu.index, uuid=gpu.uuid, serial=gpu.serial, pci=gpu.pci)
            for gpu in status.gpus.known()
        ],
        faults=known,
        transitions=status.transitions,
        xids=_xids(health.history),
    )


def _xids(history: str) -> list[XidSeen]:
    """Those that the judge remembers, by `GPU NUMBER`."""
    known = History.decode(history) or History()
    return [
        XidSeen(xid=int(number), gpu=gpu, count=seen.total, last_seen=stamp(seen.times[-1][0]))
        for key, seen in sorted(known.xids.items())
        for gpu, _, number in [key.rpartition(" ")]
        if seen.times and number.isdigit()
    ]
