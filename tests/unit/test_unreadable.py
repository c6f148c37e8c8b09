"""A node that nobody can read: tainted only if its policy asks for it, and only while its peers are read."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import support.objects as objects
import support.results as made
from nodegauge_contract import Problem, ProblemKind
from nodegauge_judge import Verdict
from nodegauge_operator import names
from nodegauge_operator.api.report import GateState, Outcome
from nodegauge_operator.core.pod_outcome import RunEnd
from support.api_server import NODES
from support.objects import INTERVAL, NOW, make_policy, make_report, read
from support.virtual_operator import VirtualTimeOperator, on_virtual_time

NODE = objects.make_node()
TAINTS: dict[str, Any] = {"taints": {"causes": {"unreadable": "NoSchedule"}}}
ASKING = make_policy().of(TAINTS)
RUNS = 5
UNREADABLE = ["unhealthy=unreadable:NoSchedule"]
GOOD = read(made.titan())


def problem(kind: ProblemKind) -> RunEnd:
    return read(replace(made.titan(), gpus=[], problem=Problem(kind=kind, message="in trouble")))


def lost(reason: str, outcome: Outcome = Outcome.UNKNOWN) -> RunEnd:
    return RunEnd(outcome=outcome, reason=reason, message="no result")


HUNG = problem(ProblemKind.CALL_HUNG)


def after(
    *ends: RunEnd,
    report: objects.AReport | None = None,
    policy: objects.APolicy = ASKING,
    start: float = NOW,
    peers: bool = True,
    **how: Any,
) -> objects.AReport:
    """A report after a run per end, an interval apart; `peers`: other nodes are read all the while."""
    report = report or make_report()
    for n, end in enumerate(ends):
        at = start + n * INTERVAL
        read_at = at - 60 if peers else NOW - INTERVAL
        known: dict[str, Any] = {"node": NODE, "policy": policy, "at": at, "peer_read_at": read_at}
        report = report.after(end, **known | how)
    return report


def taints(report: objects.AReport) -> list[str]:
    return [f"{t.key.removeprefix(names.PREFIX)}={t.value}:{t.effect}" for t in report.status.desired.taints]


@pytest.mark.parametrize(
    "end",
    [
        HUNG,
        problem(ProblemKind.DRIVER_NOT_LOADED),
        problem(ProblemKind.DRIVER_MISMATCH),
        lost("DeadlineExceeded"),
        lost("KubeletSilent"),
        lost("NoReading"),
        lost("ResultUnreadable"),
        lost("StartError"),
    ],
)
@pytest.mark.parametrize("first", [(GOOD,), ()])
def test_as_many_hard_failures_in_a_row_as_the_policy_says(end: RunEnd, first: tuple[RunEnd, ...]) -> None:
    before = after(*first, *[end] * (RUNS - 1))
    assert taints(before) == []
    report = after(*first, *[end] * RUNS)
    assert (taints(report), report.status.desired.condition) == (UNREADABLE, "False")
    assert report.status.desired.labels[names.LABEL_HEALTH] == "fail"
    assert report.status.verdict is Verdict.FAIL
    assert f"tainted {UNREADABLE[0]} after {RUNS} bad runs" in report.status.change.message
    two = ASKING.of(TAINTS | {"hysteresis": {"unreadableRuns": 2}})
    assert taints(after(*first, end, end, policy=two)) == UNREADABLE


@pytest.mark.parametrize(
    "ends",
    [
        pytest.param([objects.BUSY], id="not-scheduled"),
        pytest.param([lost("Preempted", Outcome.SKIPPED)], id="preempted"),
        *(
            pytest.param([lost(reason)], id=reason)
            for reason in (
                *("Evicted", "ErrImagePull", "ImagePullBackOff", "NotStarted", "PodDeleted", "OOMKilled"),
                *("WrongRun", "ReportRefused", "ResultTooOld", "Terminated", "ContainerStatusUnknown"),
            )
        ),
        pytest.param([problem(ProblemKind.LIBRARY_NOT_FOUND)], id="no-driver-in-the-container"),
        pytest.param([read(replace(made.titan(), gpus=[]))], id="hidden-gpus"),
        pytest.param([HUNG, lost("NoReading")], id="each-time-another"),
        pytest.param([HUNG, HUNG, HUNG, HUNG, GOOD], id="read-now-and-then"),
    ],
)
def test_anything_else_never_taints(ends: list[RunEnd]) -> None:
    """Failures of the cluster, of the image, or of the installation; and those that are not in a row."""
    assert taints(after(GOOD, *ends * 12)) == []


def test_a_full_node_in_between_neither_counts_nor_resets() -> None:
    assert taints(after(GOOD, *[HUNG, objects.BUSY] * (RUNS - 1))) == []
    assert taints(after(GOOD, *[HUNG, objects.BUSY] * RUNS)) == UNREADABLE


def test_by_default_missing_data_changes_nothing() -> None:
    """Promise 1: the node carries what it would carry without this cause, and the report has no gate."""
    quiet = make_policy()
    report = after(GOOD, *[HUNG] * 12, policy=quiet)
    late = after(GOOD, HUNG, policy=quiet).seen(node=NODE, policy=quiet, at=NOW + 12 * INTERVAL)
    assert (report.status.gates, taints(report)) == ([], [])
    assert report.status.desired.labels == late.status.desired.labels == {}
    assert report.status.desired.condition == late.status.desired.condition == "Unknown"
    strict = make_policy().of({"taints": {"effect": "NoExecute"}})
    assert taints(after(GOOD, *[HUNG] * 12, policy=strict)) == []


def test_where_everybody_fails_nobody_is_tainted() -> None:
    """The facility, a driver or an image: no peer was read since it began; nor is the first to be unlucky
    when the others come back."""
    report = after(GOOD, *[HUNG] * 30, peers=False)
    assert taints(report) == []
    back = report.seen(node=NODE, policy=ASKING, at=NOW + 31 * INTERVAL)
    assert taints(back) == []
    assert taints(after(*[HUNG] * 2, report=back, start=NOW + 32 * INTERVAL)) == []
    assert taints(after(*[HUNG] * RUNS, report=back, start=NOW + 32 * INTERVAL)) == UNREADABLE


def test_readable_runs_lift_it() -> None:
    gated = after(GOOD, *[HUNG] * RUNS)
    start = NOW + (RUNS + 1) * INTERVAL
    assert taints(after(GOOD, GOOD, HUNG, GOOD, GOOD, report=gated, start=start)) == UNREADABLE
    assert taints(after(GOOD, GOOD, GOOD, report=gated, start=start)) == []


def test_it_takes_a_slot_although_the_reading_is_old() -> None:
    """Without one it is waiting back; missing data then neither enters it nor forgets it."""
    waiting = after(GOOD, *[HUNG] * 12, slot=False)
    assert [gate.state for gate in waiting.status.gates] == [GateState.HELD_BACK]
    at = NOW + 12 * INTERVAL + objects.STALE
    assert taints(waiting.seen(node=NODE, policy=ASKING, at=at)) == UNREADABLE
    paused = ASKING.of(TAINTS | {"budget": {"concurrentProbes": 0}})
    assert taints(waiting.seen(node=NODE, policy=paused, at=at)) == []


def test_other_gates_wait_for_a_reading_as_before() -> None:
    """A slot that is free for an unreadable node lets no older evidence in."""
    two = after(*[read(made.with_pair(made.titan(), 0, 1, read=1))] * 2, slot=False)
    late = after(*[HUNG] * RUNS, report=two, start=NOW + 9 * INTERVAL, slot=False)
    report = late.seen(node=NODE, policy=ASKING, at=NOW + 15 * INTERVAL)
    assert taints(report) == UNREADABLE


def test_a_policy_that_no_longer_asks_forgets_it() -> None:
    gated = after(GOOD, *[HUNG] * RUNS)
    report = gated.seen(node=NODE, policy=make_policy(), at=NOW + RUNS * INTERVAL + 1)
    assert (taints(report), report.status.gates) == ([], [])
    assert taints(report.seen(node=NODE, policy=ASKING, at=NOW + RUNS * INTERVAL + 2)) == []


def test_a_node_that_its_cluster_gave_up_is_not_blamed() -> None:
    """Not Ready: the kubelet is away, and Kubernetes taints the node itself."""
    assert taints(after(GOOD, *[lost("KubeletSilent")] * 12, node=NODE.not_ready())) == []


@pytest.mark.parametrize(("sick", "tainted"), [(1, 1), (6, 0)])
def test_a_fleet_whose_node_hangs_loses_that_node_alone(sick: int, tainted: int) -> None:
    async def story(operator: VirtualTimeOperator) -> None:
        await operator.begin(6, after=60, probes={"health": {"interval": "2m"}}, **TAINTS)
        hung = replace(made.titan(), gpus=[], problem=Problem(kind=ProblemKind.CALL_HUNG, message="x"))
        for n in range(sick):
            operator.cluster.results[f"node-{n}"] = hung
        await operator.after(1200)
        bodies = operator.cluster.objects[NODES].items()
        values = {name: [t.get("value") for t in body["spec"]["taints"]] for name, body in bodies}
        assert sum("unreadable" in value for value in values.values()) == tainted
        assert ("unreadable" in values["node-0"]) == bool(tainted)

    on_virtual_time(story)()
