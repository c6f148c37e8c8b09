"""When the watch probe reports, by a clock of the test."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, cycle, pairwise

import pytest

from nodegauge_probes.watch.schedule import (
    BRAKE_CHANGES,
    BRAKE_WITHIN_S,
    LIVED_S,
    decide,
    different,
    due_after,
    is_braked,
    note,
    reported,
    xid_name,
)
from nodegauge_probes.watch.state import Pair, SeenXid, State

CONFIRM = (10.0, 60.0, 300.0)
HOT = "temperature GPU-3"
Values = dict[str, Pair]


class Lives:
    """A watch probe whose container starts again at once; `reports`: when it reported what."""

    def __init__(self) -> None:
        self.state, self.started = State(boot_id="boot"), 0.0
        self.reports: list[tuple[float, str]] = []
        self.values: Values = {HOT: (0, "40 °C")}
        self.reason = ""
        """The whole reason of the last report."""

    def run(self, *, start: int, end: int) -> None:
        """One look per second."""
        for second in range(start, end):
            now = float(second)
            if why := self.look(now):
                self.reports.append((now, why))
                self.started = now

    def look(self, now: float) -> str:
        """Why it reports at this second; empty if it does not."""
        decision = decide(
            self.values, self.state, now=now, started=self.started, confirm=CONFIRM, interval=3600
        )
        if decision is None:
            return ""
        reported(self.state, decision, values=self.values, now=now)
        self.state.xids, self.reason = [], decision.why
        return decision.why.partition(":")[0]

    def set(self, level: int, *, now: float) -> None:
        """The temperature changes its class."""
        self.values[HOT] = (level, f"{40 + 30 * level} °C")
        note(self.state, [HOT], now=now)


def test_a_calm_hour() -> None:
    """First, three confirmations at growing distances, then when it is due."""
    lives = Lives()
    lives.run(start=0, end=4000)
    confirmed = [(at, "confirmed") for at in (10.0, 70.0, 370.0)]
    assert lives.reports == [(0.0, "first"), *confirmed, (3970.0, "due")]


def test_a_fault_and_its_end_are_confirmed_alike() -> None:
    """The end matters as much: a taint leaves after several good runs."""
    lives = Lives()
    lives.run(start=0, end=4000)
    lives.set(1, now=4000)
    lives.run(start=4000, end=8000)
    lives.set(0, now=8000)
    lives.run(start=8000, end=9000)
    times = [at for at, why in lives.reports[4:] if why != "due"]
    assert times == [4000, 4010, 4070, 4370, 8000, 8010, 8070, 8370]


def test_confirmations_wait_where_the_container_ended_often() -> None:
    """A fault and its end are reported at once, also soon after the first report; what confirms them comes
    once the kubelet's back-off is over."""
    lives = Lives()
    lives.run(start=0, end=1000)
    lives.set(1, now=1000)
    lives.run(start=1000, end=1100)
    lives.set(0, now=1100)
    lives.run(start=1100, end=2000)
    times = [at for at, _ in lives.reports[4:]]
    assert times == [1000, 1010, 1100, 1100 + LIVED_S]


def test_an_xid_is_reported_once_and_not_confirmed() -> None:
    """Nor does it end the confirmations of something else."""
    lives = Lives()
    lives.run(start=0, end=20)
    lives.state.xids = [SeenXid(gpu=1, code=31, count=2, first=20, last=20)]
    lives.run(start=20, end=21)
    assert lives.reason == "changed: Xid 31 GPU-1, 2 times"
    lives.run(start=21, end=1000)
    assert lives.reports[2:] == [(20.0, "changed"), (80.0, "confirmed"), (380.0, "confirmed")]


def test_a_flapping_quantity_is_braked() -> None:
    """Its container lives so long that the kubelet's back-off ends; another quantity is not held up."""
    lives = Lives()
    for minute in range(30):
        lives.set(minute % 2, now=60 * minute)
        lives.run(start=60 * minute, end=60 * minute + 60)
    times = [at for at, _ in lives.reports if at > 300]
    assert len(times) > 1
    assert all(later - earlier >= LIVED_S for earlier, later in pairwise(times))
    assert is_braked(lives.state, HOT, now=1800)
    lives.state.values["fabric GPU-0"] = ("3", "3")
    lives.values["fabric GPU-0"] = ("1", "1")
    lives.run(start=1801, end=1802)
    assert lives.reports[-1] == (1801.0, "changed")


def away(uneven: Sequence[float], *, quantities: int, xids: bool, hours: int = 4) -> float:
    """The share of the time in which the container is away.  One quantity after the other changes, or one GPU
    after the other has an Xid, after so many seconds, again and again; a kubelet waits 10 s, doubling to
    300 s, and not after ten minutes of life."""
    lives, times = Lives(), accumulate(cycle(uneven))
    lives.values = {f"temperature GPU-{n}": (0, "40 °C") for n in range(quantities)}
    names, following = cycle(range(quantities)), next(times)
    now = backoff = missing = 0.0
    levels = [0] * quantities
    while now < hours * 3600:
        before, came = dict(lives.values), set()
        while following <= now:
            came.add(number := next(names))
            levels[number] ^= 1
            following = next(times)
        if xids:
            lives.state.xids += [SeenXid(gpu=n, code=31, count=1, first=now, last=now) for n in came]
            note(lives.state, {xid_name(n, 31) for n in came}, now=now)
        else:
            lives.values = {name: (level, "") for name, level in zip(before, levels, strict=True)}
            note(lives.state, [n for n in before if lives.values[n][0] != before[n][0]], now=now)
        if not lives.look(now):
            now += 1
            continue
        backoff = 0.0 if now - lives.started >= 600 else backoff
        missing += backoff + 1.3
        now += backoff + 3
        backoff = min(300.0, 2 * backoff) if backoff else 10.0
        lives.started = now
        while xids and following <= now:  # nobody listens meanwhile
            next(names)
            following = next(times)
    return missing / now


@pytest.mark.parametrize("xids", [False, True])
@pytest.mark.parametrize("quantities", [1, 8])
@pytest.mark.parametrize("second", [7, 300, 1800])
def test_what_flaps_does_not_keep_the_container_away(second: int, quantities: int, xids: bool) -> None:
    """Or a job that makes an Xid 31 now and then would hide a fatal one: the kubelet's back-off, which waits
    for five minutes after each end, would be all that there is."""
    uneven = [second * share for share in (0.3, 1.9, 0.6, 1.2, 0.2, 1.8)]
    assert away(uneven, quantities=quantities, xids=xids) < 0.2


def test_the_brake_is_said_once_and_let_go_of() -> None:
    """Not again with every change; an hour without one ends it."""
    state = State(boot_id="boot")
    messages = [note(state, [HOT], now=second) for second in range(2 * BRAKE_CHANGES)]
    assert sum(map(len, messages)) == 1
    assert not is_braked(state, HOT, now=2 * BRAKE_CHANGES + BRAKE_WITHIN_S)


def test_changes_that_are_old_are_forgotten() -> None:
    """The file would grow with each Xid that ever came, and be too long to be read."""
    state = State(boot_id="boot")
    for code in range(1000):
        note(state, [xid_name(0, code)], now=10.0 * code)
    assert len(state.changes) <= BRAKE_WITHIN_S / 10 + 1


def test_a_quantity_that_is_new_is_no_change() -> None:
    """The host's values may come after the first report."""
    state = State(boot_id="boot", values={"GPUs": (8, "8")})
    assert different({"GPUs": (8, "8"), "port a/1": ("ACTIVE", "ACTIVE")}, state) == []


def test_a_fleet_that_starts_at_once_is_not_due_at_once() -> None:
    """Each node up to a twentieth later, always by as much, and no moment has many of them."""
    due = [due_after(3600, node=f"gpu-{n}") for n in range(1000)]
    assert due == [due_after(3600, node=f"gpu-{n}") for n in range(1000)]
    assert 3600 <= min(due) < 3605 < 3775 < max(due) <= 3780
    assert max(sum(1 for at in due if start <= at < start + 18) for start in range(3600, 3780, 18)) < 150
