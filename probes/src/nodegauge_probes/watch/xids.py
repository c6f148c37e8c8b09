"""Xids of the watch probe: counted as they come, reported, and repeated in later reports.

A report may never arrive: a newer one replaces it while the API server is away, or before anybody has read
it.  So the Xids of each report are in the following ones as well, for a reader that missed it.  What there is
no room for is counted.  Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from nodegauge_contract import RepeatedXid, WatchReport, XidCount
from nodegauge_probes.collectors import counters
from nodegauge_probes.result_builder import GpuBuilder, ResultBuilder
from nodegauge_probes.watch.state import SeenXid, State

MOST_NEW = 256
"""GPUs and codes of one report together.  Chosen by this project: 32 codes on each of 8 GPUs."""
MOST_REPEATED = 48
"""Chosen by this project, as many as the judge keeps: three on each of 16 GPUs."""
REPEATED_INTERVALS, REPEATED_S = 4, 3600.0
"""For how long Xids are repeated: four intervals between calm reports, and at least an hour.  Chosen by this
project: an Xid by itself brings one report, and the one after it may be an interval later.  Those of reports
that were not written are repeated until one is."""


def add(state: State, new: SeenXid) -> None:
    """One more, among those that are not reported yet: in a second after that of the last report, because
    readers tell by whole seconds what that had."""
    earliest = state.reported_until + 1
    new.first, new.last = max(new.first, earliest), max(new.last, earliest)
    for xid in state.xids:
        if xid.code == new.code and _is_of(xid, gpu=new.gpu, uuid=new.uuid):
            xid.count += new.count
            xid.last = new.last
            return
    if len(state.xids) < MOST_NEW:
        state.xids.append(new)
    else:
        state.lost_xids += new.count


def report(result: ResultBuilder, state: State, *, now: float, interval: float, written: bool = True) -> None:
    """Write the Xids of this report and of earlier ones into the document, and keep all for the next one.

    A document without GPUs (no driver) has none, and does not say that all are reported.  `now`: seconds
    since boot; `interval`: seconds between calm reports; `written`: whether the reports before this one
    were."""
    if written:
        state.written_until = state.reported_until
        state.lost_xids, state.told_lost = state.lost_xids - state.told_lost, 0
    since = now - max(REPEATED_S, REPEATED_INTERVALS * interval)
    recent = [xid for xid in state.reported_xids if xid.last >= since or xid.last > state.written_until]
    earlier, dropped = _fewer(recent)
    state.lost_xids += sum(xid.count for xid in dropped if xid.last > state.written_until)
    for xid in state.xids:
        if (gpu := _gpu_of(xid, result.gpus)) is not None:
            # in place of what the reading's own window counted: this probe listens longer
            count = XidCount(count=xid.count, first=int(xid.first), last=int(xid.last))
            counters.set_xid(gpu, xid.code, count)
    repeated = [_repeated(xid, gpu) for xid in earlier if (gpu := _gpu_of(xid, result.gpus)) is not None]
    if result.gpus:
        seconds = (int(xid.last) for xid in (*earlier, *state.xids))
        state.reported_until = max(state.reported_until, int(now), *seconds)
        result.watch = WatchReport(at=state.reported_until, repeated=repeated, lost=state.lost_xids)
        state.told_lost = state.lost_xids
    state.reported_xids = [*earlier, *sorted(state.xids, key=lambda xid: xid.last)]
    state.xids = []


def _repeated(xid: SeenXid, gpu: GpuBuilder) -> RepeatedXid:
    times = {"first": int(xid.first), "last": int(xid.last)}
    return RepeatedXid(gpu=gpu.index, code=xid.code, count=xid.count, **times)


def _gpu_of(xid: SeenXid, gpus: Iterable[GpuBuilder]) -> GpuBuilder | None:
    for gpu in gpus:
        uuid = gpu.identity.uuid
        if _is_of(xid, gpu=gpu.index, uuid=uuid if isinstance(uuid, str) else ""):
            return gpu
    return None


def _is_of(xid: SeenXid, *, gpu: int, uuid: str) -> bool:
    """By UUID, for a GPU that is lost may change the index of others; by index if there is no UUID."""
    return xid.uuid == uuid if xid.uuid and uuid else xid.gpu == gpu


def _fewer(xids: Sequence[SeenXid]) -> tuple[list[SeenXid], list[SeenXid]]:
    """At most `MOST_REPEATED`, oldest first, and those that were dropped.  One that comes all the time does
    not push out others: the two oldest of the most frequent become one; if all are alike rare, the oldest
    goes."""
    kept, dropped = list(xids), []
    while len(kept) > MOST_REPEATED:
        [(often, times)] = Counter(map(_kind, kept)).most_common(1)
        first, second, *_ = [*(n for n, xid in enumerate(kept) if _kind(xid) == often), 0]
        if times > 1:
            kept[second] = _joined(kept[first], kept[second])
            del kept[first]
        else:
            dropped.append(kept.pop(0))
    return kept, dropped


def _kind(xid: SeenXid) -> tuple[str | int, int]:
    return xid.uuid or xid.gpu, xid.code


def _joined(old: SeenXid, new: SeenXid) -> SeenXid:
    return SeenXid(
        gpu=new.gpu, code=new.code, uuid=new.uuid, count=old.count + new.count, first=old.first, last=new.last
    )
