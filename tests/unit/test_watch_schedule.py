"""When the watch probe reports, by a clock of the test."""

from __future__ import annotations

from itertools import pairwise

from nodegauge_probes.watch.schedule import (
    BRAKE_CHANGES,
    BRAKE_S,
    decide,
    different,
    due_after,
    is_braked,
    note,
)
from nodegauge_probes.watch.state import Pair, SeenXid, State

CONFIRM = (10.0, 60.0, 300.0)
HOT = "temperature GPU-3"
Values = dict[str, Pair]


class Lives:
    """A watch probe whose container starts again at once; `reports`: when it reported what."""

    def __init__(self) -> None:
        self.state = State(boot_id="boot")
        self.reports: list[tuple[float, str]] = []
        self.values: Values = {HOT: (0, "40 °C")}

    def run(self, *, start: int, end: int) -> None:
        """One look per second."""
        for second in range(start, end):
            now = float(second)
            decision = decide(self.values, self.state, now=now, confirm=CONFIRM, interval=3600)
            if decision is not None:
                self.reports.append((now, decision.why.partition(":")[0]))
                self.state.reports = 1 if decision.fresh else self.state.reports + 1
                self.state.confirmed, self.state.reported = decision.confirmed, now
                self.state.values, self.state.xids = dict(self.values), []

    def set(self, level: int, *, now: float) -> None:
        """The temperature changes its class."""
        self.values[HOT] = (level, f"{40 + 30 * level} °C")
        note(self.state, [HOT], now=now)


def test_a_calm_hour() -> None:
    """First, three confirmations at growing distances, then when it is due."""
    lives = Lives()
    lives.run(start=0, end=4000)
    assert lives.reports == [
        (0.0, "first"),
        (10.0, "confirmed"),
        (70.0, "confirmed"),
        (370.0, "confirmed"),
        (3970.0, "due"),
    ]


def test_a_fault_and_its_end_are_confirmed_alike() -> None:
    """The end matters as much: a taint leaves after several good runs."""
    lives = Lives()
    lives.run(start=0, end=1000)
    lives.set(1, now=1000)
    lives.run(start=1000, end=2000)
    lives.set(0, now=2000)
    lives.run(start=2000, end=3000)
    assert [at for at, _ in lives.reports[4:]] == [1000, 1010, 1070, 1370, 2000, 2010, 2070, 2370]


def test_an_xid_is_reported_once_and_not_confirmed() -> None:
    """Nor does it end the confirmations of something else."""
    lives = Lives()
    lives.run(start=0, end=20)
    lives.state.xids = [SeenXid(gpu=1, code=31, count=2, first=20, last=20)]
    lives.run(start=20, end=1000)
    assert lives.reports[2:] == [(20.0, "changed"), (80.0, "confirmed"), (380.0, "confirmed")]


def test_a_flapping_quantity_is_braked() -> None:
    """At most one report per five minutes once it changed too often; another quantity is not held up."""
    lives = Lives()
    for minute in range(30):
        lives.set(minute % 2, now=60 * minute)
        lives.run(start=60 * minute, end=60 * minute + 60)
    times = [at for at, _ in lives.reports if at > 300]
    assert times
    assert all(later - earlier >= BRAKE_S for earlier, later in pairwise(times))
    assert is_braked(lives.state, HOT, now=1800)
    lives.state.values["fabric GPU-0"] = ("3", "3")
    lives.values["fabric GPU-0"] = ("1", "1")
    lives.run(start=1801, end=1802)
    assert lives.reports[-1] == (1801.0, "changed")


def test_the_brake_is_said_once_and_let_go_of() -> None:
    """Not again with every change; ten minutes without one end it."""
    state = State(boot_id="boot")
    messages = [note(state, [HOT], now=second) for second in range(2 * BRAKE_CHANGES)]
    assert sum(map(len, messages)) == 1
    assert not is_braked(state, HOT, now=1000)


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
