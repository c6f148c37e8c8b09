"""How a run ends: only a result of this very run is read; everything else is unknown or skipped, with why."""

from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Problem, ProblemKind
from nodegauge_operator.api.policy import Limits
from nodegauge_operator.api.report import Outcome
from nodegauge_operator.core.model import NodeView
from nodegauge_operator.core.pod_outcome import RunEnd, of_reading, wake_at
from nodegauge_operator.core.probes.registry import KINDS
from support.messages import hostile
from support.objects import NOW, APod, make_context, make_node, make_pod, make_report, reading_of

DEADLINE = 60.0
OVERTIME = 60.0
DAY = 86_400.0


def end_of(pod: APod, *, at: float = NOW, node: NodeView | None = None, **known: Any) -> RunEnd | None:
    """The end of a pod's run, by the default limits; `known` as for `make_context`."""
    start = {"node": node or make_node(), "report": make_report(node), "pods": (pod,), "now": at}
    return KINDS[pod.probe].ending(pod, make_context(**start | known))


def test_a_result_of_this_run_is_read() -> None:
    end = end_of(make_pod().running().with_result(made.h100()))
    assert (end.outcome, end.reason) == (Outcome.READ, "Read")
    assert len(end.result.gpus) == 8


@pytest.mark.parametrize("reason", ["DeadlineExceeded", "Evicted", "Terminated"])
def test_a_whole_result_counts_whatever_became_of_the_pod(reason: str) -> None:
    pod = make_pod().running(NOW + 10).with_result(made.titan())
    failed = replace(pod, phase="Failed", terminated=replace(pod.terminated, exit_code=1, reason="Error"))
    killed = replace(pod, phase="Failed", reason=reason)
    for one in (replace(pod, phase="Running"), failed, killed, pod.vanished(), pod.deleting()):
        assert end_of(one).outcome is Outcome.READ


@pytest.mark.parametrize("name", sorted(set(hostile(make_pod(number=2))) - {"no GPUs"}))
def test_what_is_no_result_of_this_run_is_unknown(name: str) -> None:
    pod = make_pod(number=2).running()
    end = end_of(pod.leaving(hostile(pod)[name]))
    assert end.outcome is Outcome.UNKNOWN
    assert end.result is None
    assert end.reason
    assert 0 < len(end.message) <= 1000


NOT_FOUND = 'exec: "python": executable file not found'
UNSTARTED = {
    reason: make_pod().finished_with(NOT_FOUND, code=128, reason=reason)
    for reason in ("StartError", "ContainerCannotRun", "ContainerStatusUnknown")
}


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        (make_pod().running().finished_with(""), "NoReading"),
        (make_pod().running().finished_with("", code=1), "NoReading"),
        (make_pod().running().finished_with("", code=137, reason="OOMKilled"), "OOMKilled"),
        (replace(make_pod().finished_with("", code=137), reason="DeadlineExceeded"), "DeadlineExceeded"),
        (make_pod().failed("DeadlineExceeded", "Pod was active too long"), "DeadlineExceeded"),
        (make_pod().failed(""), "PodFailed"),
        (make_pod().running().deleting(), "PodDeleted"),
        (make_pod().running().vanished(), "PodDeleted"),
        *((pod, reason) for reason, pod in UNSTARTED.items()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_end_without_a_reading_is_unknown(pod: APod, reason: str) -> None:
    """Where the container never ran, its message is the runtime's, which people need to read."""
    end = end_of(pod)
    assert (end.outcome, end.reason) == (Outcome.UNKNOWN, reason)
    assert (NOT_FOUND if pod in UNSTARTED.values() else "") in end.message != ""


def test_a_document_in_the_termination_message_is_no_reading() -> None:
    """Only what the probe wrote with its own token counts; the message says in words why there is none."""
    pod = make_pod().running()
    end = end_of(pod.finished_with(pod.with_result(made.titan()).wrote))
    assert (end.outcome, end.reason, end.result) == (Outcome.UNKNOWN, "NoReading", None)
    assert len(end.message) < 500
    refused = pod.finished_with("the reading is not written: 403 nodereadings is forbidden", code=1)
    end = end_of(refused)
    assert (end.outcome, end.reason) == (Outcome.UNKNOWN, "NotWritten")
    assert "403 nodereadings is forbidden" in end.message


def test_a_reading_of_another_pod_ends_no_run() -> None:
    pod = make_pod().running()
    for other in (make_pod(uid="before"), make_pod(make_node(uid="before"), uid=pod.uid)):
        reading = reading_of((other.with_result(made.titan()),))
        assert end_of(pod, reading=reading) is None
        assert end_of(pod.finished_with(""), reading=reading).reason == "NoReading"


@pytest.mark.parametrize("known", [{"distrust": "anybody may write"}, {"trusted": "another policy"}])
def test_a_reading_that_anybody_may_have_written_ends_its_run_unread(known: dict[str, str]) -> None:
    """Nothing protects readings, or not as when the pod was made; while the pod runs, its run goes on."""
    pod = make_pod().running().with_result(made.titan())
    end = end_of(pod, **known)
    assert (end.outcome, end.reason, end.result) == (Outcome.UNKNOWN, "ReadingsUnprotected", None)
    assert end.message
    assert end_of(replace(pod, terminated=None, phase="Running"), **known) is None


@pytest.mark.parametrize(
    "pod",
    [
        make_pod().running().preempted(),
        make_pod().running().preempted().deleting(),
        make_pod().running().preempted().vanished(),
        replace(make_pod().running().preempted().vanished(), phase="Failed"),
        make_pod().running().preempted().finished_with("", code=143),
        make_pod().running().preempted().finished_with("Terminated", code=143),
        make_pod().failed("OutOfcpu", "Node didn't have enough resource: cpu"),
        make_pod().failed("OutOfpods"),
        make_pod().failed("Preempting", "Preempted in order to admit critical pod"),
        replace(make_pod().running().finished_with("", code=143), reason="Preempting"),
    ],
)
def test_a_run_that_lost_its_place_is_skipped(pod: APod) -> None:
    assert end_of(pod).outcome is Outcome.SKIPPED


def test_a_preempted_probe_that_says_so_is_skipped_and_one_that_had_finished_is_read() -> None:
    """What counts is whether the document is whole."""
    pod = make_pod().running().preempted()
    cut = replace(made.titan(), problem=Problem(kind=ProblemKind.TERMINATED, message="SIGTERM"))
    assert end_of(pod.with_result(cut)).outcome is Outcome.SKIPPED
    assert end_of(pod.with_result(made.titan())).outcome is Outcome.READ
    end = end_of(make_pod().running().with_result(cut))
    assert (end.outcome, end.reason, end.message) == (Outcome.UNKNOWN, "Terminated", "SIGTERM"), "a drain"


def test_last_words_wait_for_the_end_of_their_pod() -> None:
    cut = replace(made.titan(), problem=Problem(kind=ProblemKind.TERMINATED, message="SIGTERM"))
    pod = replace(make_pod().running().with_result(cut), terminated=None, phase="Running")
    assert end_of(pod) is None
    assert end_of(pod, at=NOW + 2 * (DEADLINE + OVERTIME)).reason == "Terminated"


UNPLACED = make_pod().pending("Unschedulable", "0/3 nodes are available: 1 Too many pods.")
UNPULLED = make_pod().pending("ImagePullBackOff", "pull access denied for probe", placed=True)


@pytest.mark.parametrize(
    ("pod", "seconds", "outcome", "reason", "message"),
    [
        (UNPLACED, 60, Outcome.SKIPPED, "NotScheduled", "Too many pods"),
        (UNPULLED, 300, Outcome.UNKNOWN, "ImagePullBackOff", "pull access denied"),
        (make_pod().running(NOW + 10), 10 + DEADLINE + OVERTIME, Outcome.UNKNOWN, "KubeletSilent", ""),
    ],
)
def test_a_pod_that_goes_no_further_is_given_up_in_time(
    pod: APod, seconds: float, outcome: Outcome, reason: str, message: str
) -> None:
    assert wake_at(pod, limits=Limits(), deadline=DEADLINE) == NOW + seconds
    assert end_of(pod, at=NOW + seconds - 0.1) is None
    end = end_of(pod, at=NOW + seconds)
    assert (end.outcome, end.reason) == (outcome, reason)
    assert message in end.message


def test_overtime_is_the_policy_s() -> None:
    pod = make_pod().running(NOW + 10)
    assert wake_at(pod, limits=Limits(overtime="5s"), deadline=DEADLINE) == NOW + 10 + DEADLINE + 5
    assert wake_at(UNPLACED, limits=Limits(not_scheduled="2s"), deadline=DEADLINE) == NOW + 2


@pytest.mark.parametrize("skew", [-DAY, -3600.0, 3600.0, 10 * 365 * DAY])
def test_a_node_s_wrong_clock_ends_no_run_keeps_none_and_dates_no_reading(skew: float) -> None:
    """`startedAt` is the kubelet's clock: it may be hours off, and the limits still hold by ours."""
    pod = make_pod().running(NOW + skew)
    assert end_of(pod, at=NOW + DEADLINE) is None
    latest = NOW + 300 + DEADLINE + OVERTIME
    assert end_of(pod, at=latest).reason == "KubeletSilent"
    read = replace(make_pod().running().with_result(made.titan()), wrote_at=NOW + skew)
    assert NOW <= end_of(read, at=NOW + 30).finished_at <= NOW + 30


def test_a_reading_that_arrives_late_was_taken_when_its_node_says() -> None:
    pod = replace(make_pod().running().with_result(made.titan()), wrote_at=NOW + 10)
    part = replace(reading_of([pod]).parts[pod.probe], arrived=NOW + DAY)
    assert of_reading(part, pod, node=pod.node, now=NOW + DAY).finished_at == NOW + 10


def test_a_run_is_recognised_by_the_node_s_identity_not_by_its_name() -> None:
    before = make_pod(make_node(uid="before")).with_result(made.titan())
    now = make_node(uid="now")
    assert end_of(make_pod(now).leaving(before.wrote), node=now).reason == "WrongRun"
