"""When the watch probe reports, by a clock of the test."""

from __future__ import annotations

from itertools import accumulate, cycle, pairwise

import pytest

from nodegauge_probes.watch.schedule import (
    BRAKE_CHANGES,
    BRAKE_TOGETHER,
    BRAKE_WITHIN_S,
    BRAKED_S,
    SHORTEST_S,
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


class Watching:
    """A watch probe on a node; `readings`: when it took one, and why."""

    def __init__(self) -> None:
        self.state = State(boot_id="boot")
        self.readings: list[tuple[float, str]] = []
        self.values: Values = {HOT: (0, "40 °C")}
        self.reason = ""
        """The whole reason of the last reading."""

    def run(self, *, start: int, end: int) -> None:
        """One look per second."""
        for second in range(start, end):
            self.look(float(second))

    def look(self, now: float) -> None:
        """Take a reading at this second, if there is a reason to."""
        decision = decide(self.values, self.state, now=now, confirm=CONFIRM, interval=3600)
        if decision is None:
            return
        reported(self.state, decision, values=self.values, now=now)
        self.state.xids, self.reason = [], decision.why
        self.readings.append((now, decision.why.partition(":")[0]))

    def set(self, level: int, *, now: float) -> None:
        self.values[HOT] = (level, f"{40 + 30 * level} °C")
        note(self.state, [HOT], now=now)

    def hear(self, gpu: int, code: int, *, now: float, count: int = 1) -> None:
        self.state.xids.append(SeenXid(gpu=gpu, code=code, count=count, first=now, last=now))
        note(self.state, [xid_name(gpu, code)], now=now)


def test_a_calm_hour() -> None:
    """Only the regular readings come."""
    node = Watching()
    node.run(start=0, end=4000)
    confirmed = [(at, "confirmed") for at in (10.0, 70.0, 370.0)]
    assert node.readings == [(0.0, "first"), *confirmed, (3970.0, "due")]


@pytest.mark.parametrize(
    ("changes", "times"),
    [
        ((4000, 8000), [4000, 4010, 4070, 4370, 8000, 8010, 8070, 8370]),
        ((1000, 1015), [1000, 1010, 1015, 1025, 1085, 1385]),
    ],
    ids=["a fault, and its end", "in the middle of confirmations"],
)
def test_every_change_is_confirmed_alike(changes: tuple[int, int], times: list[int]) -> None:
    """It is read at once, and what it changed from is not confirmed any more."""
    node, start = Watching(), 0
    for level, at in zip((1, 0), changes, strict=True):
        node.run(start=start, end=at)
        node.set(level, now=at)
        start = at
    node.run(start=start, end=start + 1000)
    assert [at for at, why in node.readings[4:] if why != "due"] == times


def test_changes_that_come_within_a_second_are_one_reading() -> None:
    """A GPU that is lost changes one value after the other."""
    node = Watching()
    node.run(start=0, end=1000)
    for number in range(3):
        now = 1000 + 0.2 * number
        node.values |= {f"P2P GPU-{gpu}": (gpu == number, "") for gpu in range(number + 1)}
        node.state.values |= {f"P2P GPU-{number}": (0, "")}
        note(node.state, [f"P2P GPU-{number}"], now=now)
        node.look(now)
    node.look(1000 + SHORTEST_S)
    assert [at for at, _ in node.readings[4:]] == [1000, 1000 + SHORTEST_S]


def test_an_xid_is_told_once_and_not_confirmed() -> None:
    """Nor does it end the confirmations of something else."""
    node = Watching()
    node.run(start=0, end=20)
    node.hear(1, 31, now=20, count=2)
    node.run(start=20, end=21)
    assert node.reason == "changed: Xid 31 GPU-1, 2 times"
    node.run(start=21, end=1000)
    assert node.readings[2:] == [(20.0, "changed"), (80.0, "confirmed"), (380.0, "confirmed")]


def test_a_flapping_quantity_is_braked() -> None:
    """It brings a reading a minute; another quantity is not held up."""
    node = Watching()
    for second in range(1800):
        if second % 5 == 0:
            node.set(second // 5 % 2, now=second)
        node.look(float(second))
    times = [at for at, _ in node.readings if at > 300]
    assert len(times) > 20
    assert all(later - earlier >= BRAKED_S for earlier, later in pairwise(times))
    assert is_braked(node.state, HOT, now=1800)
    node.state.values["fabric GPU-0"] = ("3", "3")
    node.values["fabric GPU-0"] = ("1", "1")
    node.run(start=1801, end=1802)
    assert node.readings[-1] == (1801.0, "changed")


def test_a_braked_change_is_not_confirmed_faster_than_the_brake_allows() -> None:
    """Once it stands, what is left is confirmed a minute and more apart."""
    node = Watching()
    for second in range(10 * BRAKE_CHANGES):
        if second % 5 == 0:
            node.set(second // 5 % 2, now=second)
        node.look(float(second))
    [*_, last] = [at for at, _ in node.readings]
    node.set(1 - int(node.state.values[HOT][0] or 0), now=10 * BRAKE_CHANGES)
    node.run(start=10 * BRAKE_CHANGES, end=1000)
    after = [at for at, _ in node.readings if at > last]
    assert after == [last + BRAKED_S, last + 2 * BRAKED_S, last + 2 * BRAKED_S + CONFIRM[-1]]


@pytest.mark.parametrize("xids", [False, True])
@pytest.mark.parametrize("quantities", [1, 8])
@pytest.mark.parametrize("second", [1, 7, 300, 1800])
def test_what_flaps_brings_no_more_than_a_reading_a_minute(second: int, quantities: int, xids: bool) -> None:
    """Each reading costs the operator a judgement."""
    uneven = [second * share for share in (0.3, 1.9, 0.6, 1.2, 0.2, 1.8)]
    node, times, names = Watching(), accumulate(cycle(uneven)), cycle(range(quantities))
    node.values = {f"temperature GPU-{n}": (0, "") for n in range(quantities)}
    node.run(start=0, end=4000)
    before, hours = len(node.readings), 4
    following = next(times)
    for now in range(4000, 4000 + hours * 3600):
        changed: set[int] = set()
        while following <= now - 4000:
            changed.add(next(names))
            following = next(times)
        if xids:
            for gpu in sorted(changed):
                node.hear(gpu, 31, now=now)
        else:
            flipped = {f"temperature GPU-{n}" for n in changed}
            node.values = {
                n: (1 - int(v or 0) if n in flipped else v, "") for n, (v, _) in node.values.items()
            }
            note(node.state, sorted(flipped), now=now)
        node.look(float(now))
    unbraked = BRAKE_TOGETHER + quantities + len(CONFIRM)
    assert len(node.readings) - before <= hours * 3600 / BRAKED_S + unbraked


def test_a_fatal_xid_beside_those_of_a_job_that_fails_again_and_again_is_told_at_once() -> None:
    node = Watching()
    node.run(start=0, end=1000)
    for now in range(1000, 1200):
        if now == 1150:
            node.hear(0, 79, now=now)
        node.hear(1, 31, now=now)
        node.look(float(now))
        if now == 1150:
            assert node.readings[-1] == (1150.0, "changed")
            assert "Xid 79 GPU-0" in node.reason


def test_the_brake_is_said_once_and_let_go_of() -> None:
    """Not again with every change; an hour without one ends it."""
    state = State(boot_id="boot")
    messages = [note(state, [HOT], now=second) for second in range(2 * BRAKE_CHANGES)]
    assert [bool(message) for message in messages].index(True) == BRAKE_CHANGES
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
