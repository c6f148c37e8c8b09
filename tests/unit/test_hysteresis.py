"""One row's way in and out of its gate: the state machine of promise 4, run by run and between runs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nodegauge_judge import Answer, Cause, Finding, Gate, GateKind, Judged, Severity
from nodegauge_operator.api.policy import Hysteresis
from nodegauge_operator.api.report import NEVER, GateState, GateStatus, stamp, unstamp
from nodegauge_operator.core import hysteresis
from nodegauge_operator.core.hysteresis import GateRule
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

    def runs(self, answers: str, *, every: float = 15 * MINUTE) -> Life:
        """A run per letter (bad, good, no-load, unsure), each so long after the one before."""
        for letter in answers:
            self.now += every
            answer = LETTERS[letter]
            evidence = Finding(
                code="hot", severity=Severity.FAIL, subject="GPU 3", message=f"at {self.now:.0f}"
            )
            self.gate = hysteresis.answered(
                self.gate, code="hot", answer=answer, finding=evidence, now=self.now
            )
            self.wait(0)
        return self

    def wait(self, duration: float) -> Life:
        """Time passes."""
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


@pytest.mark.parametrize(
    ("gate", "answers", "state"),
    [
        (LOADED, "b", WATCHING),
        (LOADED, "bb", GATED),
        (LOADED, "bgb", WATCHING),
        (LOADED, "bnb", GATED),
        (LOADED, "bnnunb", GATED),
        (LOADED, "gnu", None),
        (LOADED, "bg", None),
        (ALWAYS, "bb", GATED),
        (ALWAYS, "bub", GATED),
        (AT_ONCE, "b", GATED),
        (AT_ONCE, "nu", None),
    ],
)
def test_it_enters_after_the_row_s_runs_in_a_row(gate: Gate, answers: str, state: GateState | None) -> None:
    """Two bad runs, one for a lost GPU; a good one between breaks the row, runs that say nothing do not."""
    assert Life(gate).runs(answers).state is state


def test_the_policy_s_runs_count_for_rows_that_need_more_than_one() -> None:
    """A lost GPU is as lost with enterRuns: 5."""
    assert Life(LOADED, enter_runs=3).runs("bb").state is WATCHING
    assert Life(LOADED, enter_runs=3).runs("bbb").state is GATED
    assert Life(LOADED, enter_runs=1).runs("b").state is GATED
    assert Life(AT_ONCE, enter_runs=5).runs("b").state is GATED


@pytest.mark.parametrize(
    ("answers", "state"),
    [
        ("gg", GATED),
        ("ggg", WATCHING),
        ("ggbg", GATED),
        ("ggbggg", WATCHING),
        ("gngug", WATCHING),
        ("nnnnnnn", GATED),
        ("uuuuuuu", GATED),
    ],
)
def test_it_leaves_after_three_good_runs_in_a_row(answers: str, state: GateState) -> None:
    """A bad one starts the count anew; no-load and unsure neither count nor break it."""
    life = Life(LOADED, probation_after=()).runs("bb").runs(answers)
    assert life.state is state
    if state is WATCHING:
        assert (life.field("left_at"), life.field("bad")) == (stamp(life.now), 0)


def test_the_dwell_is_kept_and_then_time_alone_lets_it_leave() -> None:
    """Ten minutes at least, whatever quick runs say; no further run is needed after that."""
    life = Life(ALWAYS).runs("bb")
    entered = life.now
    life.runs("ggg", every=60)
    assert life.state is GATED
    assert life.due_at == entered + 10 * MINUTE
    assert life.wait(entered + 10 * MINUTE - 1 - life.now).state is GATED
    assert life.wait(1).state is WATCHING


@pytest.mark.parametrize("answer", ["n", "g", "u"])
def test_a_loaded_row_is_lifted_on_trial_after_an_hour(answer: str) -> None:
    """Once a run was readable since the last bad one: blind, it stays."""
    life = Life(LOADED).runs("bb")
    entered = life.now
    assert life.wait(30 * DAY).state is GATED
    life = Life(LOADED).runs("bb").runs(answer)
    assert life.due_at == entered + HOUR
    assert life.wait(entered + HOUR - 1 - life.now).state is GATED
    assert life.wait(1).state is TRIAL
    assert life.field("left_at") == stamp(entered + HOUR)


def on_trial(**policy: Any) -> Life:
    """A row that has just been lifted on trial."""
    life = Life(LOADED, **policy).runs("bb").runs("n").wait(HOUR)
    assert life.state is TRIAL
    return life


def test_on_trial_one_bad_run_enters_again() -> None:
    """At once, and it counts as a relapse."""
    life = on_trial().runs("nnb")
    assert (life.state, life.field("relapses")) == (GATED, 1)
    assert life.field("entered_at") == stamp(life.now)


def test_a_trial_ends_after_three_good_runs_under_load_or_a_day() -> None:
    """Good runs from before it do not count; nor do idle ones."""
    assert on_trial().runs("gg").state is TRIAL
    assert on_trial().runs("ggg").state is WATCHING
    life = on_trial()
    began = life.now
    assert life.due_at == began + DAY
    assert life.runs("nnnn").wait(began + DAY - 1 - life.now).state is TRIAL
    assert life.wait(1).state is WATCHING
    before = Life(LOADED).runs("bbgg").wait(HOUR)
    assert before.state is TRIAL
    assert before.runs("gg").state is TRIAL


def test_each_relapse_waits_longer_and_the_last_step_is_kept() -> None:
    """1 h, 4 h, 24 h, 24 h, ..."""
    life = Life(LOADED).runs("bb")
    for relapses, hours in enumerate((1, 4, 24, 24, 24)):
        assert life.field("relapses") == relapses
        entered = unstamp(life.field("entered_at"))
        life.runs("n")
        assert life.wait(entered + hours * HOUR - 1 - life.now).state is GATED
        assert life.wait(1).state is TRIAL
        life.runs("b")


def test_a_return_after_more_than_a_week_is_no_relapse() -> None:
    """Within the window it is, also after the trial; later everything is forgotten."""
    life = on_trial().runs("ggg")
    left = unstamp(life.field("left_at"))
    soon = Life(LOADED)
    soon.gate, soon.now = life.gate, left + 7 * DAY - 30 * MINUTE
    assert soon.runs("bb").field("relapses") == 1
    late = Life(LOADED)
    late.gate, late.now = life.gate, left + 7 * DAY
    assert late.wait(1).gate is None
    assert late.runs("bb").field("relapses") == 0


def test_after_leaving_it_takes_the_row_s_runs_to_enter_again() -> None:
    """Only a trial re-enters after one."""
    life = Life(ALWAYS).runs("bbggg")
    assert life.state is WATCHING
    assert life.runs("b").state is WATCHING
    assert life.runs("b").state is GATED
    assert life.field("relapses") == 1


def test_one_bad_run_long_ago_is_not_the_first_of_two() -> None:
    """Idle for longer than the window in between: the row starts anew."""
    assert Life(LOADED).runs("b").runs("n" * 3).runs("b").state is GATED
    assert Life(LOADED).runs("b").wait(7 * DAY + 1).runs("b").state is WATCHING


@pytest.mark.parametrize("spoilt", ["", "soon", "0001-01-01T00:00:00Z", stamp(NOW + 900 * DAY)])
@pytest.mark.parametrize("field", ["entered_at", "since", "left_at", "bad_at"])
def test_an_absurd_stamp_neither_traps_a_node_nor_heals_it(field: str, spoilt: str) -> None:
    """The clock stepped back, or somebody edited the report: the time begins anew."""
    life = Life(ALWAYS).runs("bb")
    life.gate = replace(life.gate, **{field: spoilt})
    assert life.runs("gg").wait(HOUR).state is GATED
    assert life.runs("g").state is WATCHING


def test_two_clocks_that_differ_a_little_do_not_rewrite_each_other() -> None:
    """A second operator's clock is minutes ahead: its stamps stand."""
    life = Life(ALWAYS).runs("bb")
    row = life.gate
    assert hysteresis.aged(row, rule=life.rule, now=life.now - 200) == row


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
    """Whatever state a report is in: the rule comes to rest at once, and says when it moves next."""
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
    """At any time: gated means enough bad runs, one on trial, and less than three good ones since."""
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


def test_a_fault_is_as_old_as_its_first_entry_over_all_trials() -> None:
    """Trials that end together on many nodes are no news; a fault that was gone for good is."""
    life = Life().runs("bb")
    first = life.field("fault_at")
    assert first == stamp(life.now)
    life.runs("n").wait(2 * HOUR)
    assert life.state is TRIAL
    life.runs("b")
    assert (life.state, life.field("fault_at")) == (GATED, first)
    life.wait(HOUR).runs("ggg")
    assert (life.state, life.field("fault_at")) == (WATCHING, "")
    life.runs("bb")
    assert life.field("fault_at") == stamp(life.now)


def test_a_row_that_idle_runs_can_judge_goes_on_no_trial() -> None:
    """Broken P2P is broken at rest too: only good runs lift it."""
    life = Life(ALWAYS).runs("bb").runs("u").wait(365 * DAY)
    assert life.state is GATED
