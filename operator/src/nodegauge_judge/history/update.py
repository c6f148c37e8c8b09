"""What of this run is worth remembering for the next one.

Links: only a whole and clean reading counts, for a lost link must stay a lost link.  Counters: those of every
GPU that was read, as long as the clock they belong to is the same for all of them; a run that comes too early
to be judged leaves them as they were, so that what happens between frequent runs is still seen by one.
Errors of a GPU that could not be read are counted on from when it last could: it may come back with more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil

from msgspec.structs import replace

from nodegauge_judge import load, visibility
from nodegauge_judge.answers import GpuAnswers, was_bad
from nodegauge_judge.case import Case, text
from nodegauge_judge.checks import thermal
from nodegauge_judge.history import growth
from nodegauge_judge.history.gpu_history import (
    LOAD_ROWS,
    Counts,
    GpuMemory,
    LinkMemory,
    PortMemory,
)
from nodegauge_judge.history.node_history import History
from nodegauge_judge.interconnect import link_counts
from nodegauge_judge.model import Answer

_PORTS = frozenset({"nics", "nics.ports"})
"""Names in `omitted` of a document that does not have all ports."""


def remember(case: Case, answers: GpuAnswers) -> History:
    """The history after this run, which was readable."""
    whole, early = visibility.is_complete(case), case.growth.interval.early
    boot, driver = text(case.result.host.boot_id), text(case.result.system.driver)
    known = case.history
    if not whole and (boot, driver) != (known.boot, known.driver):
        gone = {key: replace(gpu, counts=Counts()) for key, gpu in known.gpus.items()}
        return replace(known, boottime_ms=None, gpus=gone).trimmed()
    gpus = dict(_gpus(case, answers, early=early))
    if not whole:
        unread = {
            key: replace(gpu, counts=_waiting(gpu.counts, early=early)) for key, gpu in known.gpus.items()
        }
        gpus = unread | {key: gpu for key, gpu in gpus.items() if key in unread}
    now = case.result.host.boottime_ms
    return History(
        boot=boot,
        driver=driver,
        boottime_ms=known.boottime_ms if early else now if isinstance(now, int) and now >= 0 else None,
        gpus=gpus,
        ports=known.ports if early else _ports(case),
    ).trimmed()


def _ports(case: Case) -> dict[str, PortMemory]:
    """Ports that are up, and those that were: a port that went down is not forgotten while it is there, and
    one that became slower goes on being known by its highest rate.  Errors are those of this run or none."""
    names, known = case.result.nics.names, case.history.ports
    here = {f"{names[p.nic]}/{p.port}" for p in case.result.nics.ports if p.nic < len(names)}
    told = case.result.problem is None and not _PORTS.intersection(case.result.omitted)
    kept = {
        key: replace(port, errors=None, downs=None) for key, port in known.items() if key in here or not told
    }
    up = {
        key: replace(port, rate=max(port.rate, known[key].rate if key in known else 0))
        for key, port in growth.ports_up(case.result).items()
    }
    return kept | up


def _gpus(case: Case, answers: GpuAnswers, *, early: bool) -> Iterator[tuple[str, GpuMemory]]:
    doubtful = link_counts.uncertain(case)
    clean = not case.lanes.mig and visibility.is_complete(case)
    for place, key in enumerate(case.keys):
        if key is None:
            continue
        past = case.past(place)
        before = past or GpuMemory()
        links = before.links
        if clean and place not in doubtful:
            links = past.links.after(case.lanes.sums[place]) if past else LinkMemory(case.lanes.sums[place])
        idle = load.idle_watts(case, place)
        yield (
            key,
            GpuMemory(
                links=links,
                counts=_counts(case, place, early=early),
                idle_dw=None if idle is None else max(1, ceil(idle * 10)),
                bad=_bad(case, place, key=key, answers=answers),
                warm=thermal.warm(case, place),
            ),
        )


def _counts(case: Case, place: int, *, early: bool) -> Counts:
    gpu, past = case.result.gpus[place], case.past(place)
    before = past.counts if past is not None else Counts()
    if gpu.error is not None:
        return _waiting(before, early=early)
    now = case.growth.counts[place]
    if not early:
        return now
    return Counts() if growth.went_back(now, before) else before


def _waiting(before: Counts, *, early: bool) -> Counts:
    """What stays known of a GPU that was not read: all of it where the interval goes on, else what is judged
    by number and not by time, so that an error made meanwhile is still a new one."""
    if early:
        return before
    return Counts(ecc_uncorrected=before.ecc_uncorrected, link_recovery_failed=before.link_recovery_failed)


def _bad(case: Case, place: int, *, key: str, answers: GpuAnswers) -> tuple[str, ...]:
    """A row's bad GPUs: those of its last bad run, and those that were not good then since an earlier one."""
    return tuple(
        row for row in LOAD_ROWS if row in answers and _stays_bad(case, place, key, row=row, gpus=answers)
    )


def _stays_bad(case: Case, place: int, key: str, *, row: str, gpus: Mapping[str, tuple[Answer, ...]]) -> bool:
    answer, before = gpus[row][place], key in was_bad(case, row)
    if Answer.BAD not in gpus[row]:
        return before
    return answer is Answer.BAD or (before and answer is not Answer.GOOD)
