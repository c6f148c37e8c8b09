"""What the rows of a report ask for: taints, labels, places in the budget, and the verdict that others act
on: False stands as long as the taint of a fault, `fail` also while it waits for a slot."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import support.results as made
from nodegauge_judge import Verdict, judge_health
from nodegauge_operator import names
from nodegauge_operator.api.report import DesiredNode, GateState, Outcome
from nodegauge_operator.api.times import stamp
from nodegauge_operator.core import gates
from nodegauge_operator.core.decision import decide
from nodegauge_operator.core.pod_outcome import RunEnd
from nodegauge_operator.names import Reason
from support.judging import saying
from support.objects import INTERVAL, LOST, NOW, STALE, AReport, make_node, make_policy, make_report
from support.properties import tried

pytestmark = pytest.mark.usefixtures("stated_answers")

NODE = make_node()
HOT_TWICE = ["hot=b", "hot=b"]
THERMAL, GPU_LOST = "throttled=thermal:NoSchedule", "unhealthy=gpu-lost:NoSchedule"


def after(*answers: str, report: AReport | None = None, n: int = 0, **how: Any) -> AReport:
    """A report after a run per text, an interval apart, the first at number `n`."""
    report = report or make_report()
    for number, text in enumerate(answers, start=n):
        report = run(report, text, at=NOW + number * INTERVAL, **how)
    return report


def run(report: AReport, text: str, *, at: float, load: bool | None = None, **how: Any) -> AReport:
    """The report after one more run of which the judge said this (`lost`: nothing was read); the node carries
    what the report asks."""
    loaded = "=n" not in text if load is None else load
    read = RunEnd(outcome=Outcome.READ, reason="Read", result=saying(text, load=loaded))
    end = LOST if text == "lost" else read
    return report.after(end, node=NODE.tainted(*taint_keys(report)), at=at, **how)


def looked_at(report: AReport, *, at: float, **how: Any) -> AReport:
    return report.seen(node=NODE.tainted(*taint_keys(report)), at=at, **how)


def taint_keys(report: AReport) -> list[str]:
    return [taint.key for taint in report.status.desired.taints]


def taints(report: AReport) -> list[str]:
    """The taints that the report asks for, as kubectl writes them, without our prefix."""
    return [
        f"{t.key.removeprefix(names.PREFIX)}={t.value}:{t.effect}".replace("=:", ":")
        for t in report.status.desired.taints
    ]


def states(report: AReport) -> dict[str, GateState]:
    return {row.code: row.state for row in report.status.gates}


def test_one_taint_per_key_and_the_worst_cause_is_its_value() -> None:
    report = after("p2p-refused=b nvlink-degraded=b gpu-lost=b hot=b", "p2p-refused=b gpu-lost=b hot=b")
    assert taints(report) == [THERMAL, GPU_LOST]
    assert taints(after("p2p-refused=b nvlink-degraded=b", "p2p-refused=b nvlink-degraded=b")) == [
        "unhealthy=p2p:NoSchedule"
    ]


def test_effects_are_the_policy_s_cause_by_cause() -> None:
    answers = "p2p-refused=b gpu-lost=b"
    for setting, expected in (
        ({"effect": "NoExecute"}, ["unhealthy=gpu-lost:NoExecute"]),
        ({"causes": {"gpu-lost": "PreferNoSchedule"}}, ["unhealthy=gpu-lost:PreferNoSchedule"]),
        ({"causes": {"gpu-lost": "None"}}, ["unhealthy=p2p:NoSchedule"]),
        ({"effect": "None", "causes": {"p2p": "NoExecute"}}, ["unhealthy=p2p:NoExecute"]),
        ({"effect": "None"}, []),
    ):
        policy = make_policy().of({"taints": setting})
        assert taints(after(answers, answers, policy=policy)) == expected


@pytest.mark.parametrize("slot", [True, False])
def test_a_cause_without_effect_is_labelled_and_needs_no_room(slot: bool) -> None:
    policy = make_policy().of({"taints": {"causes": {"thermal": "None"}}})
    report = after(*HOT_TWICE, policy=policy, slot=slot)
    assert (taints(report), states(report)["hot"]) == ([], GateState.GATED)
    assert report.status.desired.labels["nodegauge.dev/throttled"] == "thermal"


def test_observe_holds_nothing_while_the_states_go_on() -> None:
    observing = make_policy().observing()
    report = after(*HOT_TWICE, policy=observing, slot=False)
    assert (taints(report), states(report)["hot"]) == ([], GateState.GATED)
    assert states(looked_at(report, at=NOW + INTERVAL, slot=False)) == {"hot": GateState.HELD_BACK}
    assert taints(looked_at(report, at=NOW + INTERVAL, slot=False)) == []
    assert taints(looked_at(report, at=NOW + INTERVAL)) == [THERMAL]
    assert gates.taints(after(*HOT_TWICE).status, policy=observing) == []


def test_what_the_judge_does_not_answer_is_not_good() -> None:
    known = after("gpu-lost=b").status.gates
    judged = judge_health(made.titan())
    silent = replace(judged, answers={})
    for judgement, good in ((judged, 1), (silent, 0)):
        [gate] = gates.after_run(known, judgement, policy=make_policy().spec.hysteresis, now=NOW + INTERVAL)
        assert gate.good == good


def test_a_taint_that_waited_for_its_slot_counts_its_time_from_the_slot() -> None:
    at = NOW + 6 * INTERVAL
    [gate] = looked_at(after(*3 * HOT_TWICE, slot=False), at=at).status.gates
    assert (gate.state, gate.entered_at) == (GateState.GATED, stamp(at))


def test_idle_runs_keep_what_is_held_back_and_a_good_one_lets_nothing_enter() -> None:
    report = after(*HOT_TWICE, slot=False)
    assert (taints(report), states(report)["hot"]) == ([], GateState.HELD_BACK)
    assert report.status.desired.labels["nodegauge.dev/throttled"] == "thermal"
    assert taints(looked_at(report, at=NOW + INTERVAL + 1, slot=False)) == []
    assert taints(looked_at(report, at=NOW + INTERVAL + 1)) == [THERMAL]
    at = NOW + 2 * INTERVAL
    idle = run(report, "hot=n", at=at, load=False, slot=False)
    assert taints(looked_at(idle, at=at)) == [THERMAL]
    good = run(report, "", at=at, slot=False)
    assert taints(looked_at(good, at=at)) == []
    assert taints(run(good, "hot=b", at=at + INTERVAL)) == [THERMAL]
    for n in (1, 2):
        good = run(good, "", at=at + n * INTERVAL)
    assert states(good) == {"hot": GateState.WATCHING}


def test_a_gated_node_takes_further_causes_without_another_place() -> None:
    report = after("gpu-lost=b")
    report = run(report, "gpu-lost=b hot=b", at=NOW + INTERVAL, slot=False)
    report = run(report, "gpu-lost=b hot=b", at=NOW + 2 * INTERVAL, slot=False)
    assert taints(report) == [THERMAL, GPU_LOST]


def test_the_label_says_none_only_where_load_was_judged() -> None:
    for report in (
        *(after(text, load=False) for text in ("hot=n", "")),
        *(after(text) for text in ("power-brake=u", "memory-hot=b")),
    ):
        assert "nodegauge.dev/throttled" not in report.status.desired.labels
    for text in ("memory-hot=u hot=n", ""):
        assert after(text, load=True).status.desired.labels["nodegauge.dev/throttled"] == "none"
    report = run(after(""), "hot=n", at=NOW + INTERVAL)
    assert report.status.desired.labels["nodegauge.dev/throttled"] == "none"


def test_psu_and_throttled_expire_like_health() -> None:
    end = RunEnd(outcome=Outcome.READ, reason="Read", result=saying("", psu="fault"))
    report = make_report().after(end, node=NODE)
    assert report.status.desired.labels["nodegauge.dev/psu"] == "fault"
    old = looked_at(report.after(LOST, node=NODE, at=NOW + INTERVAL), at=NOW + STALE + 1)
    assert not old.status.desired.labels.keys() & {
        "nodegauge.dev/psu",
        "nodegauge.dev/throttled",
        names.LABEL_HEALTH,
    }
    again = run(report, "", at=NOW + INTERVAL)
    assert "nodegauge.dev/psu" not in again.status.desired.labels


def test_a_row_of_another_version_holds_nothing_and_is_kept_for_a_while() -> None:
    report = after(*HOT_TWICE)
    row = replace(report.status.gates[0], code="melted")
    status = replace(report.status, gates=[row])
    report = replace(report, status=status).seen(node=NODE, at=NOW + INTERVAL)
    assert (taints(report), states(report)) == ([], {"melted": GateState.GATED})
    report = run(report, "", at=NOW + 2 * INTERVAL)
    assert states(report) == {"melted": GateState.GATED}
    assert states(looked_at(report, at=NOW + 8 * 86_400)) == {}


def test_the_condition_names_the_taint_and_stays_the_same_while_it_stands() -> None:
    report = after(*HOT_TWICE)
    message = report.status.desired.message
    assert "tainted throttled=thermal:NoSchedule since" in message
    assert "a GPU is hot, GPU 0 [hot]" in message
    assert run(report, "hot=b", at=NOW + 2 * INTERVAL).status.desired.message == message
    back = after(*HOT_TWICE, slot=False).status.desired.message
    assert (
        "throttled=thermal held back: the limit of tainted nodes (20%) or of new taints (5% an hour)" in back
    )


@pytest.mark.parametrize(
    ("slot", "answers", "reason", "text"),
    [
        (True, HOT_TWICE, Reason.TAINTED, "tainted throttled=thermal:NoSchedule after 2 bad runs: GPU 0:"),
        (
            True,
            ["gpu-lost=b"],
            Reason.TAINTED,
            "tainted unhealthy=gpu-lost:NoSchedule after 1 bad run: GPU 0:",
        ),
        (False, HOT_TWICE, Reason.HELD_BACK, "throttled=thermal held back: the limit of tainted nodes (20%)"),
        (True, [*HOT_TWICE, "", "", ""], Reason.TAINT_LIFTED, "throttled=thermal:NoSchedule lifted"),
    ],
)
def test_changes_of_a_taint_are_events(slot: bool, answers: list[str], reason: Reason, text: str) -> None:
    report = after(*answers, slot=slot)
    change = report.status.change
    assert (change.reason, text in change.message) == (reason, True)
    assert change.type == ("Normal" if reason is Reason.TAINT_LIFTED else "Warning")
    again = looked_at(report, at=NOW + len(answers) * INTERVAL + 60, slot=slot)
    assert again.status.change == change


def test_on_trial_the_taint_is_off_and_the_label_absent() -> None:
    report = run(after("", "hot=b", "hot=b"), "hot=n", at=NOW + 3 * INTERVAL, load=False)
    report = looked_at(report, at=NOW + 2 * INTERVAL + 3600)
    assert states(report) == {"hot": GateState.PROBATION}
    assert taints(report) == []
    report = run(report, "hot=n", at=NOW + 7 * INTERVAL, load=False)
    assert "nodegauge.dev/throttled" not in report.status.desired.labels
    for n in (8, 9, 10):
        report = run(report, "", at=NOW + n * INTERVAL)
    assert report.status.desired.labels["nodegauge.dev/throttled"] == "none"


def test_no_data_lifts_nothing_on_trial() -> None:
    report = run(after(*HOT_TWICE), "hot=n", at=NOW + 2 * INTERVAL, load=False)
    unread = looked_at(report, at=NOW + 2 * INTERVAL + STALE + 3600)
    assert taints(unread) == [THERMAL]
    seen = run(unread, "hot=n", at=NOW + 2 * INTERVAL + STALE + 3700, load=False)
    assert (taints(seen), states(seen)) == ([], {"hot": GateState.PROBATION})
    lost = report.after(LOST, node=NODE.tainted(*taint_keys(report)), at=NOW + 3 * INTERVAL)
    lost = looked_at(lost, at=NOW + 3 * INTERVAL + STALE + 3600)
    assert (taints(lost), "nodegauge.dev/throttled" in lost.status.desired.labels) == ([THERMAL], False)


def test_a_trial_is_an_event_and_so_is_each_return() -> None:
    seen = set()
    report, at = after(*HOT_TWICE), NOW + INTERVAL
    for hours in (1, 4):
        report = run(report, "hot=n", at=at + hours * 3600 - INTERVAL, load=False)
        at += hours * 3600 + 1
        report = looked_at(report, at=at)
        change = report.status.change
        assert change.reason == Reason.ON_PROBATION
        seen.add((change.run, change.reason))
        at += INTERVAL
        report = run(report, "hot=b", at=at)
        change = report.status.change
        assert change.reason == Reason.TAINTED
        seen.add((change.run, change.reason))
    assert len(seen) == 4


def test_an_event_of_a_taint_that_healing_did_not_lift_says_why() -> None:
    off = make_policy().of({"taints": {"effect": "None"}})
    change = looked_at(after("gpu-lost=b"), at=NOW + 1, policy=off).status.change
    assert change.reason == Reason.TAINT_LIFTED
    assert "the policy no longer asks for this taint" in change.message
    report = after(*HOT_TWICE, slot=False)
    for n in range(2, 7):
        report = run(report, "hot=n", at=NOW + n * INTERVAL, load=False, slot=False)
    assert states(report) == {"hot": GateState.PROBATION}
    assert "lifted" not in report.status.desired.message


SET = make_policy().of({"taints": {"unvalidated": "Set"}})


def test_unvalidated_stands_until_the_first_pass_or_warn() -> None:
    assert taints(after("gpu-lost=b", policy=SET)) == [GPU_LOST, "unvalidated:NoSchedule"]
    passed = after("", policy=SET)
    assert (taints(passed), passed.status.passed_at != "") == ([], True)
    assert taints(run(passed, "p2p-refused=b", at=NOW + INTERVAL, policy=SET)) == []
    assert taints(after("gpu-lost=b")) == [GPU_LOST]
    older = replace(passed, status=replace(passed.status, passed_at=""))  # a version that does not note it
    assert taints(older.seen(node=NODE, policy=SET, at=NOW + 1)) == []


QUIET = make_policy().of({"taints": {"causes": {"p2p": "None", "thermal": "None"}}})
OBSERVING = make_policy().observing()


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
    report = after(*runs, **how)
    for message in (report.status.desired.message, report.status.summary):
        assert text in message, message


def test_a_taint_keeps_its_condition_while_nothing_is_read() -> None:
    """Missing data lifts no taint, so it does not end what remediation waits for either."""
    report = after("gpu-lost=b", "lost").seen(node=NODE, at=NOW + INTERVAL + STALE)
    assert shown(report) == (*FAILED, "unknown")
    assert "OOMKilled" in report.status.desired.message
    assert set(report.status.desired.labels) == {names.LABEL_HEALTH}
    assert report.status.change.reason == Reason.STALE


def test_a_policy_that_observes_fails_what_it_would_taint() -> None:
    report = after("p2p-refused=b", policy=OBSERVING, slot=False)
    assert (report.status.verdict, report.status.raw_verdict) == (Verdict.WARN, Verdict.FAIL)
    report = after("p2p-refused=b", report=report, n=1, policy=OBSERVING, slot=False)
    assert (report.status.verdict, report.status.desired) == (Verdict.FAIL, DesiredNode())


def test_a_fault_that_gives_way_waits_for_a_slot_again() -> None:
    report = after(*TWICE)
    node = NODE.tainted(f"{names.TAINT_UNHEALTHY}=p2p")
    context = report.context(node=node, at=NOW + 2 * INTERVAL)
    report = replace(report, status=decide(replace(context, gives_way=True)))
    assert (shown(report)[:3], report.status.desired.taints) == (WAITS, [])
    report = report.seen(node=NODE, at=NOW + 2 * INTERVAL)
    assert (shown(report)[:3], len(report.status.desired.taints)) == (FAILED, 1)


def test_what_an_incident_holds_back_is_a_warning() -> None:
    context = after(*LOST_GPU, slot=False).context(node=NODE, at=NOW + INTERVAL)
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
        report = run(report, text, at=at, policy=policy, slot=slot)
        desired = report.status.desired
        tainted = any(taint.key in names.TAINTS_OF_FAULTS for taint in desired.taints)
        waits = any(gate.state is GateState.HELD_BACK for gate in report.status.gates)
        assert (desired.labels.get(names.LABEL_HEALTH) == "fail") == (tainted or waits)
        assert (desired.condition == "False") == tainted
        assert not (waits and desired.condition == "True")
        assert (report.status.verdict is Verdict.FAIL) == (tainted or waits) or policy is OBSERVING
        entered = {gate.state for gate in report.status.gates} & {GateState.HELD_BACK, GateState.GATED}
        assert not (entered and report.status.verdict is Verdict.PASS)
