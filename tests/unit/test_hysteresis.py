"""One row's way in and out of its gate: the state machine of promise 4, run by run and between runs."""

from functools import partial
from typing import Any, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nodegauge_judge import Answer, Cause, Finding, Gate, GateKind, Judged, Severity
from nodegauge_operator.api.policy import Hysteresis
from nodegauge_operator.api.report import GateState, GateStatus
from nodegauge_operator.api.times import NEVER, stamp
from nodegauge_operator.core import hysteresis
from nodegauge_operator.core.hysteresis import GateRule
from support.judge_results import Row, Table, rows
from support.objects import MINUTE, NOW
from support.properties import tried

HOUR = 60 * MINUTE
DAY = 24 * HOUR
LOADED = Gate(kind=GateKind.THROTTLED, cause=Cause.THERMAL, judged=Judged.UNDER_LOAD)
ALWAYS = Gate(kind=GateKind.UNHEALTHY, cause=Cause.P2P)
AT_ONCE = Gate(kind=GateKind.UNHEALTHY, cause=Cause.GPU_LOST, runs=1)
BAD, GOOD, NO_LOAD, UNSURE = Answer.BAD, Answer.GOOD, Answer.NO_LOAD, Answer.UNSURE
LETTERS = {"b": BAD, "g": GOOD, "n": NO_LOAD, "u": UNSURE}
WATCHING, HELD_BACK, GATED, TRIAL = (
    GateState.WATCHING,
    GateState.HELD_BACK,
    GateState.GATED,
    GateState.PROBATION,
)


class Life:
    """One row through runs and time; a place is always free, so what is held back is gated at once."""

    def __init__(self, gate: Gate = LOADED, **policy: Any) -> None:
        self.rule = GateRule(gate=gate, policy=Hysteresis(**policy))
        self.now = NOW
        self.gate: GateStatus | None = None

    def runs(self, answers: str, *, every: float = 15 * MINUTE) -> Self:
        """A run per letter (bad, good, no-load, unsure), each so long after the one before."""
        for letter in answers:
            self.now += every
            answer = LETTERS[letter]
            evidence = Finding(code="hot", severity=Severity.FAIL, subject="GPU 3", message=f"{self.now}")
            known = {"code": "hot", "answer": answer, "finding": evidence, "now": self.now}
            self.gate = hysteresis.answered(self.gate, **known)
            self.wait(0)
        return self

    def wait(self, duration: float) -> Self:
        self.now += duration
        if self.gate is not None:
            self.gate = hysteresis.aged(self.gate, rule=self.rule, now=self.now)
        if self.gate is not None and self.gate.state is HELD_BACK:
            self.gate = replace(self.gate, state=GATED)
        return self

    @property
    def state(self) -> GateState | None:
        return self.gate.state if self.gate else None

    @property
    def due_at(self) -> float:
        return hysteresis.due_at(self.gate, rule=self.rule)

    def field(self, name: str) -> Any:
        return getattr(self.gate, name)


loaded, always, at_once = (partial(Life, gate) for gate in (LOADED, ALWAYS, AT_ONCE))
untried = partial(loaded, probation_after=())
ENTRY = NOW + 30 * MINUTE
"""When a second run in a row enters."""
FIRST = stamp(NOW + 15 * MINUTE)
TRIED = ("bbn", GATED, 45 * MINUTE - 1, GATED, 1, TRIAL)
"""Lifted on trial an hour after the entry."""
STORIES: Table = {
    # what: the row, then runs, seconds that pass, and the state or the fields that follow
    "two bad runs in a row enter, a good one between breaks the row": [
        *((row, "b", WATCHING, "b", GATED) for row in (loaded, always)),
        (loaded, "bgb", WATCHING),
        (loaded, "bg", None),
    ],
    "runs that say nothing neither count nor break the row": [
        (loaded, "bnb", GATED),
        (loaded, "bnnunb", GATED),
        (loaded, "gnu", None),
        (always, "bub", GATED),
        (at_once, "nu", None),
    ],
    "a lost GPU enters at once": [(at_once, "b", GATED)],
    "enterRuns counts for rows that need more than one run": [
        (partial(loaded, enter_runs=3), "bb", WATCHING, "b", GATED),
        (partial(loaded, enter_runs=1), "b", GATED),
        (partial(at_once, enter_runs=5), "b", GATED),
    ],
    "three good runs in a row leave": [
        (untried, "bbgg", GATED, "g", WATCHING, {"left_at": stamp(ENTRY + 45 * MINUTE), "bad": 0}),
        (untried, "bbggbg", GATED, "gg", WATCHING),
        (untried, "bbgngug", WATCHING),
        (untried, "bbnnnnnnn", GATED),
        (untried, "bbuuuuuuu", GATED),
    ],
    "a loaded row is lifted on trial after an hour": [
        (
            loaded,
            f"bb{answer}",
            GATED,
            ENTRY + HOUR,
            45 * MINUTE - 1,
            GATED,
            1,
            TRIAL,
            {"left_at": stamp(ENTRY + HOUR)},
        )
        for answer in "ngu"
    ],
    "blind, it stays": [(loaded, "bb", 30 * DAY, GATED)],
    "broken P2P is broken at rest too: it goes on no trial": [(always, "bbu", 365 * DAY, GATED)],
    "on trial one bad run enters again, and counts as a relapse": [
        (loaded, *TRIED, "nnb", GATED, {"relapses": 1, "entered_at": stamp(ENTRY + HOUR + 45 * MINUTE)})
    ],
    "three good runs under load end a trial": [(loaded, *TRIED, "gg", TRIAL, "g", WATCHING)],
    "good runs from before it do not count": [(loaded, "bbgg", 30 * MINUTE, TRIAL, "gg", TRIAL)],
    "so does a day, for idle runs do not count": [
        (loaded, *TRIED, ENTRY + HOUR + DAY, "nnnn", DAY - HOUR - 1, TRIAL, 1, WATCHING)
    ],
    "each relapse waits longer, and the last step is kept": (
        loaded,
        "b",
        *(
            step
            for relapses, hours in enumerate((1, 4, 24, 24, 24))
            for step in (
                *("b", {"relapses": relapses}, "n", hours * HOUR - 15 * MINUTE - 1, GATED),
                *(1, TRIAL),
            )
        ),
    ),
    "a return within a week is a relapse, later everything is forgotten": [
        (loaded, *TRIED, "ggg", WATCHING, 7 * DAY - 75 * MINUTE, "bb", {"relapses": 1}),
        (loaded, *TRIED, "ggg", WATCHING, 7 * DAY - 45 * MINUTE + 1, None, "bb", {"relapses": 0}),
    ],
    "after leaving it takes the row's runs to enter again": [
        (always, "bbggg", WATCHING, "b", WATCHING, "b", GATED, {"relapses": 1})
    ],
    "one bad run long ago is not the first of two": [
        (loaded, "bnnnb", GATED),
        (loaded, "b", 7 * DAY + 1, "b", WATCHING),
    ],
    "a fault is as old as its first entry over all trials; one that was gone for good is news": (
        loaded,
        *("bb", {"fault_at": stamp(ENTRY)}, "n", 2 * HOUR, TRIAL, "b", GATED, {"fault_at": stamp(ENTRY)}),
        *(HOUR, "ggg", WATCHING, {"fault_at": ""}),
        *("bb", {"fault_at": stamp(ENTRY + 15 * MINUTE + 2 * HOUR + 15 * MINUTE + HOUR + 75 * MINUTE)}),
    ),
    "it was first seen with the first bad run of the row that confirms it": [
        (loaded, "b", {"seen_at": FIRST}, "b", GATED, {"seen_at": FIRST}, "gg", {"seen_at": FIRST}),
        (loaded, "bgb", {"seen_at": stamp(ENTRY + 15 * MINUTE)}),
        (loaded, *TRIED, "b", GATED, {"seen_at": FIRST}, "ggg", WATCHING, {"seen_at": ""}),
        (at_once, "b", GATED, {"seen_at": ""}),
    ],
}


@pytest.mark.parametrize("row", rows(STORIES))
def test_a_row_enters_and_leaves_its_gate(row: Row) -> None:
    """By its runs and by time; a time of the clock is when it is due."""
    begin, *steps = row
    life = begin()
    for step in steps:
        if step is None or isinstance(step, GateState):
            assert life.state is step
        elif isinstance(step, dict):
            assert {name: life.field(name) for name in step} == step
        elif isinstance(step, str):
            life.runs(step)
        elif step > NOW:
            assert life.due_at == step
        else:
            life.wait(step)


def test_the_dwell_is_kept_and_then_time_alone_lets_it_leave() -> None:
    life = always().runs("bb").runs("ggg", every=60)
    assert life.state is GATED
    assert life.due_at == ENTRY + 10 * MINUTE
    behind = hysteresis.aged(life.gate, rule=life.rule, now=life.now - 200)
    assert behind == life.gate, "two clocks that differ a little do not rewrite each other"
    assert life.wait(7 * MINUTE - 1).state is GATED
    assert life.wait(1).state is WATCHING


@pytest.mark.parametrize("spoilt", ["", "soon", "0001-01-01T00:00:00Z", stamp(NOW + 900 * DAY)])
@pytest.mark.parametrize("field", ["entered_at", "since", "left_at", "bad_at"])
def test_an_absurd_stamp_neither_traps_a_node_nor_heals_it(field: str, spoilt: str) -> None:
    life = Life(ALWAYS).runs("bb")
    life.gate = replace(life.gate, **{field: spoilt})
    assert life.runs("gg").wait(HOUR).state is GATED
    assert life.runs("g").state is WATCHING


ROWS = st.builds(
    GateStatus,
    code=st.just("hot"),
    state=st.sampled_from(list(GateState)),
    bad=st.integers(-2, 4),
    good=st.integers(-2, 4),
    relapses=st.integers(-1, 6),
    readable_since=st.integers(-1, 3),
    **{
        field: st.sampled_from(["", "x", *(stamp(NOW + s) for s in (-9 * DAY, -2 * HOUR, -60, 0, DAY))])
        for field in ("since", "entered_at", "left_at", "bad_at")
    },
)


@given(row=ROWS, gate=st.sampled_from([LOADED, ALWAYS, AT_ONCE]), now=st.floats(NOW, NOW + 40 * DAY))
@tried(200)
def test_asking_again_changes_nothing_but_what_is_due(row: GateStatus, gate: Gate, now: float) -> None:
    rule = GateRule(gate=gate, policy=Hysteresis())
    once = hysteresis.aged(row, rule=rule, now=now)
    if once is None:
        return
    assert hysteresis.aged(once, rule=rule, now=now) == once
    due = hysteresis.due_at(once, rule=rule)
    assert due > now - 1
    if due < NEVER:
        assert hysteresis.aged(once, rule=rule, now=max(now, due) + 1) != once


@given(answers=st.text("bgnu", max_size=60), gate=st.sampled_from([LOADED, ALWAYS, AT_ONCE]))
@tried(200)
def test_a_taint_has_its_bad_runs_and_no_good_row_behind_it(answers: str, gate: Gate) -> None:
    life = Life(gate)
    need = 2 if gate.runs > 1 else 1
    judged: list[str] = []
    tried_once = False
    for letter in answers:
        life.runs(letter)
        judged += [letter] if letter in "bg" else []
        tried_once = tried_once or life.state is TRIAL
        row_of_bad = "".join(judged).rpartition("g")[2]
        if life.state is GATED:
            assert "b" in judged
            assert judged[-3:] != ["g", "g", "g"]
            assert tried_once or "b" * need in "".join(judged)
        elif len(row_of_bad) >= need:
            # it entered; only a trial after further idle runs can have lifted it since
            assert gate is LOADED
            assert letter in "nu"
