"""The verdict that remediation acts on: False stands as long as the taint of a fault, `fail` also while it
waits for a slot.

A taint has hysteresis and a slot in the budget; so has the condition, and the label has the hysteresis.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nodegauge_judge import Verdict
from nodegauge_operator import names
from nodegauge_operator.api.report import DesiredNode, GateState, Outcome
from nodegauge_operator.core.decision import decide
from nodegauge_operator.core.pod_outcome import RunEnd
from nodegauge_operator.names import Reason
from support.judging import saying
from support.objects import INTERVAL, LOST, NOW, STALE, APolicy, AReport, make_node, make_policy, make_report
from support.properties import tried

pytestmark = pytest.mark.usefixtures("stated_answers")
TITAN = make_node()
QUIET = make_policy().of({"taints": {"causes": {"p2p": "None", "thermal": "None"}}})
OBSERVING = make_policy().observing()


def after(
    *runs: str, policy: APolicy | None = None, slot: bool = True, report: AReport | None = None, n: int = 0
) -> AReport:
    """A report after a run per text, an interval apart, the first at number `n`; `lost` reads nothing."""
    report = report or make_report()
    for number, text in enumerate(runs, start=n):
        result = saying(text, load="=n" not in text)
        end = LOST if text == "lost" else RunEnd(outcome=Outcome.READ, reason="Read", result=result)
        report = report.after(end, node=TITAN, at=NOW + number * INTERVAL, policy=policy, slot=slot)
    return report


def shown(report: AReport) -> tuple[str, str, str, str]:
    """The label health, the condition with its reason, and the verdict of the last runs alone."""
    desired = report.status.desired
    label = desired.labels.get(names.LABEL_HEALTH, "")
    return label, desired.condition, desired.reason, report.status.raw_verdict.value


FAILED, WAITS = ("fail", "False", "FaultsFound"), ("fail", "Unknown", "HeldBack")
LOST_GPU, REFUSED, TWICE = ("gpu-lost=b",), ("p2p-refused=b",), ("p2p-refused=b", "p2p-refused=b")


@pytest.mark.parametrize(
    ("runs", "how", "expected"),
    [
        pytest.param(REFUSED, {}, ("warn", "True", "Unconfirmed", "fail"), id="first-of-two"),
        pytest.param(TWICE, {}, (*FAILED, "fail"), id="confirmed"),
        pytest.param(LOST_GPU, {}, (*FAILED, "fail"), id="one-is-enough"),
        pytest.param(LOST_GPU, {"slot": False}, (*WAITS, "fail"), id="no-slot"),
        pytest.param((*LOST_GPU, ""), {"slot": False}, (*WAITS, "pass"), id="no-slot-good"),
        pytest.param((*LOST_GPU, "", ""), {}, (*FAILED, "pass"), id="not-cleared"),
        pytest.param(("hot=b", "hot=b", "hot=n"), {}, (*FAILED, "pass"), id="idle"),
        pytest.param((*LOST_GPU, "", "", ""), {}, ("pass", "True", "Validated", "pass"), id="cleared"),
        pytest.param(TWICE, {"policy": QUIET}, ("warn", "True", "TaintDisabled", "fail"), id="effect-none"),
        pytest.param(("hot=b gpu-lost=b",), {"policy": QUIET}, (*FAILED, "fail"), id="another-cause"),
    ],
)
def test_fail_is_confirmed_and_false_has_a_slot(
    runs: tuple[str, ...], how: dict[str, Any], expected: tuple[str, ...]
) -> None:
    """Anything less is a warning that says why; the raw verdict of the last run is in the report."""
    report = after(*runs, **how)
    assert shown(report) == expected
    assert report.status.verdict.value == expected[0]


@pytest.mark.parametrize(
    ("runs", "how", "text"),
    [
        (REFUSED, {}, "Not confirmed: "),
        (REFUSED, {}, "unhealthy=p2p not confirmed, 1 of 2 bad runs"),
        (LOST_GPU, {"slot": False}, "held back: the limit of tainted nodes (20%) or"),
        ((*LOST_GPU, ""), {}, "good runs 1 of 3"),
        ((*LOST_GPU, ""), {}, "Not cleared yet; last verdict pass."),
        (TWICE, {"policy": QUIET}, "unhealthy=p2p not set, its effect is None"),
    ],
)
def test_condition_and_summary_say_why(runs: tuple[str, ...], how: dict[str, Any], text: str) -> None:
    """What keeps the verdict from being that of the last run."""
    report = after(*runs, **how)
    for message in (report.status.desired.message, report.status.summary):
        assert text in message, message


def test_a_taint_keeps_its_condition_while_nothing_is_read() -> None:
    """Missing data lifts no taint, so it does not end what remediation waits for either."""
    report = after("gpu-lost=b", "lost").seen(node=TITAN, at=NOW + INTERVAL + STALE)
    assert shown(report) == (*FAILED, "unknown")
    assert "OOMKilled" in report.status.desired.message
    assert set(report.status.desired.labels) == {names.LABEL_HEALTH}
    assert report.status.change.reason == Reason.STALE


def test_a_policy_that_observes_fails_what_it_would_taint() -> None:
    """In the report alone, after as many runs; the node stays untouched."""
    report = after("p2p-refused=b", policy=OBSERVING, slot=False)
    assert (report.status.verdict, report.status.raw_verdict) == (Verdict.WARN, Verdict.FAIL)
    report = after("p2p-refused=b", report=report, n=1, policy=OBSERVING, slot=False)
    assert (report.status.verdict, report.status.desired) == (Verdict.FAIL, DesiredNode())


def test_a_fault_that_gives_way_waits_for_a_slot_again() -> None:
    """Its taint goes, and comes back with a slot."""
    report = after(*TWICE)
    node = TITAN.tainted(f"{names.TAINT_UNHEALTHY}=p2p")
    context = report.context(node=node, at=NOW + 2 * INTERVAL)
    report = replace(report, status=decide(replace(context, gives_way=True)))
    assert (shown(report)[:3], report.status.desired.taints) == (WAITS, [])
    report = report.seen(node=TITAN, at=NOW + 2 * INTERVAL)
    assert (shown(report)[:3], len(report.status.desired.taints)) == (FAILED, 1)


def test_what_an_incident_holds_back_is_a_warning() -> None:
    """Its cause is not the node's."""
    context = after(*LOST_GPU, slot=False).context(node=TITAN, at=NOW + INTERVAL)
    status = decide(replace(context, incidents={"gpu-lost": "i-1"}))
    assert (status.verdict, status.desired.condition) == (Verdict.WARN, "True")
    assert status.desired.reason == Reason.HELD_BACK


RUNS = st.lists(
    st.tuples(
        st.sampled_from(["", "lost", "p2p-refused=b", "gpu-lost=b", "hot=b", "hot=n", "p2p-refused=u"]),
        st.sampled_from([make_policy(), QUIET, OBSERVING]),
        st.booleans(),
        st.sampled_from([1, 30, INTERVAL, 3 * INTERVAL, 86_400.0]),
    ),
    max_size=12,
)


@given(runs=RUNS)
@tried(150)
def test_fail_false_and_taint_stand_and_go_together(runs: list[Any]) -> None:
    """Whatever runs, lacks, slots, policies and times: nobody acts on a fault that is not confirmed.  One
    that waits for a slot is `fail`, and never True."""
    report, at = make_report(), NOW
    for text, policy, slot, wait in runs:
        at += wait
        result = saying(text, load="=n" not in text)
        end = LOST if text == "lost" else RunEnd(outcome=Outcome.READ, reason="Read", result=result)
        report = report.after(end, node=TITAN, at=at, policy=policy, slot=slot)
        desired = report.status.desired
        tainted = any(taint.key in names.TAINTS_OF_FAULTS for taint in desired.taints)
        waits = any(gate.state is GateState.HELD_BACK for gate in report.status.gates)
        assert (desired.labels.get(names.LABEL_HEALTH) == "fail") == (tainted or waits)
        assert (desired.condition == "False") == tainted
        assert not (waits and desired.condition == "True")
        assert (report.status.verdict is Verdict.FAIL) == (tainted or waits) or policy is OBSERVING
        entered = {gate.state for gate in report.status.gates} & {GateState.HELD_BACK, GateState.GATED}
        assert not (entered and report.status.verdict is Verdict.PASS)
