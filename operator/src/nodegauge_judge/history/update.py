"""What the history keeps of this run for the next one.

Links: only a complete reading counts, and none that falls short of what the model has; otherwise a lost link
would become the expected state.  Counters: those of every GPU that was read, all from the same moment.  A run
too soon after the last one leaves them unchanged, so that a later run judges the whole interval.  For a GPU
that could not be read, the old error counts stay: it may come back with more.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from msgspec.structs import replace

from nodegauge_judge import activity, coverage, throttle, visibility
from nodegauge_judge.case import Case, text
from nodegauge_judge.gate_answers import GATED, GpuAnswers, was_bad
from nodegauge_judge.history import growth
from nodegauge_judge.history.model import Counts, GpuHistory, History, LinkHistory, PortHistory
from nodegauge_judge.interconnect import board, nvlink_state
from nodegauge_judge.model import Answer
from nodegauge_judge.rules import clocks, memory_life, thermal

_PORTS = frozenset({"nics", "nics.ports"})
"""Names in `omitted` of a document that lacks ports."""


def remember(case: Case, answers: GpuAnswers) -> History:
    """The history after this run, which was readable."""
    whole, early = visibility.is_complete(case), case.growth.interval.early
    boot, driver = text(case.result.host.boot_id), text(case.result.system.driver)
    known = case.history
    if not whole and (boot, driver) != (known.boot, known.driver):
        gone = {key: replace(gpu, counts=Counts()) for key, gpu in known.gpus.items()}
        kept = replace(known, boottime_ms=None, gpus=gone)
        return replace(kept, **case.known_xids).trimmed()
    gpus = dict(_gpus(case, answers, early=early))
    if not whole:
        unread = {
            key: replace(gpu, counts=_kept_unread(gpu.counts, early=early)) for key, gpu in known.gpus.items()
        }
        gpus = unread | {key: gpu for key, gpu in gpus.items() if key in unread}
    now = case.result.host.boottime_ms
    return History(
        boot=boot,
        driver=driver,
        boottime_ms=known.boottime_ms if early else now if isinstance(now, int) and now >= 0 else None,
        gpus=gpus,
        ports=known.ports if early else _ports(case),
        clock=clocks.remembered(case),
        foreign=len(visibility.foreign(case)) if whole and visibility.bus_read(case) else known.foreign,
        answered=coverage.remembered(case) if whole else known.answered,
        **case.known_xids,
    ).trimmed()


def _ports(case: Case) -> dict[str, PortHistory]:
    """Ports that are up, and ports that were: a port that went down stays known while the device exists, and
    a slower one keeps its highest rate.  Error counts are those of this run or none."""
    names, known = case.result.nics.names, case.history.ports
    here = {f"{names[p.nic]}/{p.port}" for p in case.result.nics.ports if p.nic < len(names)}
    listed = case.result.problem is None and not _PORTS.intersection(case.result.omitted)
    kept = {
        key: replace(port, errors=None, downs=None, counts=())
        for key, port in known.items()
        if key in here or not listed
    }
    up = {
        key: replace(port, rate=max(port.rate, known[key].rate if key in known else 0))
        for key, port in case.growth.ports_up.items()
    }
    return kept | up


def _gpus(case: Case, answers: GpuAnswers, *, early: bool) -> Iterator[tuple[str, GpuHistory]]:
    doubtful = nvlink_state.uncertain(case) | nvlink_state.short_of_model(case)
    clean = not board.hides_links(case) and visibility.is_complete(case)
    bad_bits = _bad_bits(case, answers)
    for gpu_index, key in enumerate(case.keys):
        if key is None:
            continue
        past = case.past(gpu_index)
        before = past or GpuHistory()
        links = before.links
        if clean and gpu_index not in doubtful:
            links = (
                past.links.after(case.lanes.sums[gpu_index])
                if past
                else LinkHistory(case.lanes.sums[gpu_index])
            )
        idle = activity.idle_watts(case, gpu_index)
        pages, minutes = memory_life.pages_then(case, gpu_index)
        yield (
            key,
            GpuHistory(
                links=links,
                counts=_counts(case, gpu_index, early=early),
                idle_dw=None if idle is None else max(1, ceil(idle * 10)),
                bad=sum(
                    1 << bit
                    for bit, gpus, before in bad_bits
                    if _stays_bad(gpus, gpu_index=gpu_index, before=key in before)
                ),
                warm=thermal.warm(case, gpu_index),
                braked=throttle.braked_runs(case, gpu_index),
                pages=pages,
                pages_minutes=minutes,
            ),
        )


def _counts(case: Case, gpu_index: int, *, early: bool) -> Counts:
    gpu, past = case.result.gpus[gpu_index], case.past(gpu_index)
    before = past.counts if past is not None else Counts()
    if gpu.error is not None:
        return _kept_unread(before, early=early)
    now = case.growth.counts[gpu_index]
    if not early:
        return now
    return Counts() if growth.went_back(now, before) else before


def _kept_unread(before: Counts, *, early: bool) -> Counts:
    """What stays known of a GPU that was not read: all counters if the run was too early, else only the error
    counts that do not depend on time, so that an error made meanwhile is still new."""
    if early:
        return before
    return Counts(ecc_uncorrected=before.ecc_uncorrected, link_faults=before.link_faults)


def _bad_bits(case: Case, answers: GpuAnswers) -> list[tuple[int, tuple[Answer, ...], set[str]]]:
    """Of each rule on which a GPU is or was bad: its bit, the answer of each GPU, and the keys of those that
    were bad."""
    bits = [
        (rule.history_bit, answers[rule.code], was_bad(case, rule))
        for rule in GATED
        if rule.history_bit is not None
    ]
    return [entry for entry in bits if entry[2] or Answer.BAD in entry[1]]


def _stays_bad(gpus: tuple[Answer, ...], *, gpu_index: int, before: bool) -> bool:
    """Bad in this run; or bad before, unless this run was bad for another GPU and good for this one."""
    if Answer.BAD not in gpus:
        return before
    answer = gpus[gpu_index]
    return answer is Answer.BAD or (before and answer is not Answer.GOOD)
