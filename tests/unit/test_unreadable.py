"""A node that nobody can read: said at once, tainted after a while, and only while something else works."""

from typing import Any

import pytest
from msgspec.structs import replace

import support.objects as objects
import support.results as made
from nodegauge_contract import Problem, ProblemKind
from nodegauge_judge import Verdict
from nodegauge_operator import names
from nodegauge_operator.api.report import GateState, Outcome
from nodegauge_operator.api.times import stamp
from nodegauge_operator.core import planner
from nodegauge_operator.core.pod_outcome import RunEnd
from support.api_server import NODES
from support.objects import INTERVAL, NOW, make_policy, make_report, read
from support.virtual_operator import VirtualTimeOperator, on_virtual_time

NODE = objects.make_node()
TAINTS: dict[str, Any] = {"taints": {"causes": {"unreadable": "NoSchedule"}}}
ASKING = make_policy().of(TAINTS)
OFF = make_policy().of({"taints": {"effect": "None"}})
RUNS = 5
SOFT = ["unhealthy=unreadable:PreferNoSchedule"]
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
    peers: bool | None = True,
    **how: Any,
) -> objects.AReport:
    """A report after a run per end, an interval apart; `peers`: other nodes are read all the while, or fail
    as well, or there are none."""
    report = report or make_report()
    for n, end in enumerate(ends):
        at = start + n * INTERVAL
        read_at = at - 60 if peers else NOW - INTERVAL
        known: dict[str, Any] = {"node": NODE, "policy": policy, "at": at, "peer_read_at": read_at}
        known |= {"peer_unreadable_at": NOW + 2 * INTERVAL} if peers is False else {}
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
    for count, busy in ((RUNS - 1, []), (RUNS, UNREADABLE)):  # a full node between neither counts nor resets
        assert taints(after(*first, *[end, objects.BUSY] * count)) == busy
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
    assert taints(after(GOOD, *ends * 12)) == []


def test_by_default_a_driver_that_does_not_answer_is_avoided_and_not_blamed() -> None:
    """Promise 1: no verdict follows from missing data, and a policy that sets no taints has no gate."""
    quiet, strict = make_policy(), make_policy().of({"taints": {"effect": "NoExecute"}})
    late = after(GOOD, HUNG, policy=quiet).seen(node=NODE, policy=quiet, at=NOW + 12 * INTERVAL)
    for policy in (quiet, strict):
        report = after(GOOD, *[HUNG] * 12, policy=policy)
        assert taints(report) == SOFT
        assert report.status.desired.labels == late.status.desired.labels == {}
        assert report.status.desired.condition == late.status.desired.condition == "Unknown"
        assert report.status.verdict is Verdict.UNKNOWN
    assert after(GOOD, *[HUNG] * 12, policy=OFF).status.gates == []
    read_again = after(GOOD, report=report, policy=strict, start=NOW + 13 * INTERVAL).status
    assert (read_again.verdict, read_again.desired.reason) == (Verdict.WARN, "Warnings")
    assert f"tainted {SOFT[0]}" in read_again.desired.message


@pytest.mark.parametrize(
    "end", [problem(ProblemKind.DRIVER_NOT_LOADED), lost("NoReading"), lost("StartError")]
)
def test_by_default_what_a_roll_out_explains_sets_no_taint(end: RunEnd) -> None:
    """Of a driver, of the probe's image, of the runtime: it may come to one node after the other."""
    assert after(GOOD, *[end] * 12, policy=make_policy()).status.gates == []


ANOTHER_DRIVER = replace(made.titan(), gpus=[], problem=HUNG.result.problem)
ANOTHER_DRIVER = replace(ANOTHER_DRIVER, system=replace(made.titan().system, driver="999.1"))


@pytest.mark.parametrize(
    ("first", "end", "node", "peers", "tainted"),
    [
        pytest.param(GOOD, HUNG, NODE, None, True, id="alone"),
        pytest.param(GOOD, HUNG, NODE, False, False, id="with its peers"),
        pytest.param(HUNG, HUNG, NODE, None, False, id="never read"),
        pytest.param(GOOD, read(ANOTHER_DRIVER), NODE, None, False, id="another driver"),
        pytest.param(GOOD, HUNG, NODE.booted("boot-2"), None, False, id="another boot"),
        pytest.param(GOOD, lost("KubeletSilent"), NODE, None, False, id="no word of its own"),
    ],
)
def test_a_node_that_had_answered_needs_no_peer(
    first: RunEnd, end: RunEnd, node: objects.ANode, peers: bool | None, tainted: bool
) -> None:
    """With two nodes of which the other is read every two hours, five failures would take eight hours."""
    report = after(*[end] * RUNS, report=after(first), node=node, peers=peers, start=NOW + INTERVAL)
    assert taints(report) == (UNREADABLE if tainted else [])


DAY_LATER = NOW + 86_400


def test_an_outage_of_yesterday_hides_no_node() -> None:
    report = after(GOOD, start=DAY_LATER - INTERVAL, peers=False)
    assert taints(after(*[HUNG] * RUNS, report=report, start=DAY_LATER, peers=False)) == UNREADABLE


CALL = "nvmlDeviceGetTemperature did not return for GPU 3 within 10 s"


def test_a_failed_reading_is_said_at_once_and_shown_after_minutes() -> None:
    """The report and an event name the call and since when; the node's condition and its label follow after
    `unreadAfter`, those of topology after `staleAfterIntervals`."""
    policy, ago = ASKING.of({"probes": {"health": {"unreadAfter": "4m"}}}), NOW + INTERVAL
    hung = replace(made.titan(), gpus=[], problem=Problem(kind=ProblemKind.CALL_HUNG, message=CALL))
    report = after(GOOD, read(hung), policy=policy)
    for text in (report.status.summary, report.status.change.message):
        assert f"Not readable since {stamp(ago)}" in text
        assert CALL in text
    assert report.status.verdict is Verdict.UNKNOWN
    assert (report.status.desired.condition, shown(report)) == ("True", ["pass", "nvlink"])
    late = objects.make_snapshot(node=NODE, policy=policy, report=report, now=ago + 239)
    assert planner.wake_at(late) == ago + 240
    for at, condition in ((ago + 239, "True"), (ago + 240, "Unknown")):
        report = report.seen(node=NODE, policy=policy, at=at)
        assert report.status.desired.condition == condition
    assert (report.status.desired.reason, shown(report)) == ("Unreadable", [None, "nvlink"])
    assert CALL in report.status.desired.message
    back = after(lost("Evicted"), lost("KubeletSilent"), report=report, policy=policy, start=at + 60)
    observed = back.seen(node=NODE, policy=policy.observing(), at=at + 1000)
    for seen in (back, observed.seen(node=NODE, policy=policy, at=at + 1060)):
        assert (seen.status.desired.condition, shown(seen)) == ("Unknown", [None, "nvlink"])
    assert observed.status.conditions[0].status == "Unknown"
    read_again = after(GOOD, report=back, policy=policy, start=at + 1120)
    assert (read_again.status.verdict, shown(read_again)) == (Verdict.PASS, ["pass", "nvlink"])


def shown(report: objects.AReport) -> list[str | None]:
    return [report.status.desired.labels.get(key) for key in (names.LABEL_HEALTH, names.LABEL_INTERCONNECT)]


def test_where_everybody_fails_nobody_is_tainted() -> None:
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
    report = gated.seen(node=NODE, policy=OFF, at=NOW + RUNS * INTERVAL + 1)
    assert (taints(report), report.status.gates) == ([], [])
    assert taints(report.seen(node=NODE, policy=ASKING, at=NOW + RUNS * INTERVAL + 2)) == []


def test_a_node_that_its_cluster_gave_up_is_not_blamed() -> None:
    """Not Ready: the kubelet is away, and Kubernetes taints the node itself."""
    assert taints(after(GOOD, *[lost("KubeletSilent")] * 12, node=NODE.not_ready())) == []


@pytest.mark.parametrize(
    ("nodes", "sick", "tainted"), [(6, 1, 1), (6, 6, 0), (2, 1, 1), (2, 2, 0), (1, 1, 1)]
)
def test_a_fleet_whose_node_hangs_loses_that_node_alone(nodes: int, sick: int, tainted: int) -> None:
    async def story(operator: VirtualTimeOperator) -> None:
        await operator.begin(nodes, after=60, probes={"health": {"interval": "2m"}}, **TAINTS)
        hung = replace(made.titan(), gpus=[], problem=Problem(kind=ProblemKind.CALL_HUNG, message="x"))
        for n in range(sick):
            operator.cluster.results[f"node-{n}"] = hung
        await operator.after(1200)
        bodies = operator.cluster.objects[NODES].items()
        values = {name: [t.get("value") for t in body["spec"]["taints"]] for name, body in bodies}
        assert sum("unreadable" in value for value in values.values()) == tainted
        assert ("unreadable" in values["node-0"]) == bool(tainted)

    on_virtual_time(story)()
