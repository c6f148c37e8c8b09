"""Mode Watch: which end of a container is news, beside health pods, nodes of its name and full lists."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Problem, ProblemKind, RepeatedXid, Result, WatchReport, Xids
from nodegauge_operator import names
from support.api_server import NODES, PODS, REPORTS
from support.judging import saying
from support.watched import BAD, BOOTED, Watched, at, watched_once

NO_DRIVER = Result(
    probe="health", problem=Problem(kind=ProblemKind.DRIVER_NOT_LOADED, call="nvmlInit", message="gone")
)
FATAL = 79
HIDDEN = replace(made.titan(), gpus=made.titan().gpus[:1])


LOST = Problem(kind=ProblemKind.GPU_LOST, call="nvmlDeviceGetPowerUsage", message="gone")


@pytest.fixture
def node(stated_answers: None) -> Watched:
    """A node whose container has reported once that all is well; results say what the judge answers."""
    return watched_once()


def is_open(node: Watched) -> bool:
    """Whether it is without the taint of a node that has not passed a run."""
    taints = node.cluster.objects[NODES]["node-1"]["spec"].get("taints") or []
    return names.TAINT_UNVALIDATED not in [taint["key"] for taint in taints]


def heard(node: Watched, *new: int, repeated: tuple[RepeatedXid, ...] = ()) -> Result:
    """What a container reports in 20 seconds: these Xids of GPU 1, a second before, and earlier ones."""
    up = int(node.cluster.now + 20) - BOOTED
    xids = Xids(registered=True, seen=list(new), counts=[at(up - 1)] * len(new))
    result = made.with_gpu(made.every_gpu(made.titan(), xids=Xids(registered=True)), 1, xids=xids)
    watch = WatchReport(at=up, repeated=list(repeated))
    return replace(result, host=replace(result.host, boottime_ms=up * 1000), watch=watch)


@pytest.mark.parametrize("restarts", [False, True], ids=["one operator", "a new one"])
@pytest.mark.parametrize("unread", [NO_DRIVER, HIDDEN], ids=["no driver", "a GPU is hidden"])
def test_a_container_that_could_not_read_the_node_is_not_judged_again_after_a_pod_that_could_not(
    node: Watched, unread: Result, restarts: bool
) -> None:
    """Each failed run counts once: for the time to the next, for the labels, and for the gate of unreadable
    nodes."""
    node.reports(replace(unread, watch=WatchReport(at=5000) if unread.gpus else None), granted=False)
    for runs in (3, 4, 5):
        node.end_health_pod(node.begin_health_pod(), unread)
        if restarts:
            node.resume(granted=False)
        assert (node.runs, node.probe["unread"]) == (runs, runs - 1)


def test_a_bad_report_of_a_node_whose_clock_is_behind_counts_once(node: Watched) -> None:
    """A health pod cannot read the node since, and the report came later than its time says."""
    node.cluster.pass_time(3600)
    node.pod.ahead = -600.0
    node.reports(saying(BAD), granted=False)
    node.end_health_pod(node.begin_health_pod(), NO_DRIVER)
    assert (node.runs, node.taints) == (3, [])


@pytest.mark.parametrize("ahead", [0.0, -30.0], ids=["in that second", "before it, by a clock set back"])
@pytest.mark.parametrize("restarts", [False, True], ids=["by an event", "by a list"])
def test_the_next_report_of_a_pod_counts_though_it_ends_no_later_than_the_last(
    node: Watched, ahead: float, restarts: bool
) -> None:
    """The kubelet tells whole seconds, and starts a container that ended for the first time at once."""
    catch_up = node.resume if restarts else node.catch_up
    node.pod.ahead = ahead
    node.pod.reports(replace(saying("gpu-lost=b"), watch=WatchReport(at=7)), later=0.0)
    catch_up(granted=False)
    assert (node.runs, node.taints) == (2, ["gpu-lost"])
    node.pod.reports(NO_DRIVER, later=0.0)
    catch_up(granted=False)
    assert (node.runs, node.probe["lastRun"]["outcome"]) == (3, "unknown")


BAD_AT_50 = replace(saying(BAD), watch=WatchReport(at=50))


@pytest.mark.parametrize(
    ("report", "pod", "ahead"),
    [(NO_DRIVER, NO_DRIVER, 600.0), (BAD_AT_50, made.titan(), 3600.0)],
    ids=["both failed", "a bad one, and a good pod"],
)
def test_a_report_counts_once_though_the_nodes_clock_is_ahead_and_the_operator_new(
    node: Watched, report: Result, pod: Result, ahead: float
) -> None:
    """A list does not tell when it came: it looks as if that were after what a health pod read since."""
    node.pod.ahead = ahead
    node.reports(report, granted=False)
    assert node.end_health_pod(node.begin_health_pod(), pod) == 3
    node.cluster.pass_time(60)
    node.resume(granted=False)
    assert node.runs == 3
    node.reports(replace(BAD_AT_50, watch=WatchReport(at=70)), granted=False)
    assert node.runs == 4


def test_a_failed_report_is_older_than_the_reading_that_follows_in_its_second(node: Watched) -> None:
    """The node's clock is a little ahead."""
    node.pod.ahead = 2.0
    health = node.begin_health_pod()
    node.cluster.pass_time(0.3)
    node.pod.reports(NO_DRIVER, later=0.0)
    node.deliver()
    node.cluster.pass_time(0.4)
    node.end_health_pod(health, replace(heard(node), watch=None), later=0.0)
    node.catch_up(granted=False)
    assert (node.runs, node.probe["lastRun"]["outcome"]) == (2, "read")


def test_a_report_from_the_second_of_a_health_pods_end_is_judged_after_it(node: Watched) -> None:
    """With all that it says: the pod's run takes no Xids from it."""
    health = node.begin_health_pod()
    reading = replace(heard(node), watch=None)
    node.cluster.pass_time(3)
    node.pod.reports(made.with_gpu(heard(node, FATAL), 1, error=LOST), later=0.0)
    node.end_health_pod(health, reading, later=0.0)
    node.catch_up(granted=False)
    assert [gate["code"] for gate in node.status["gates"]] == ["gpu-lost", "xid"]


def test_a_report_counts_that_comes_in_the_second_of_a_health_pods_end(node: Watched) -> None:
    """And once: not again after the next health pod, which could not read the node."""
    health = node.begin_health_pod()
    node.end_health_pod(health, replace(heard(node), watch=None))
    node.reports(made.with_gpu(heard(node, FATAL), 1, error=LOST), later=0.0, granted=False)
    assert (node.runs, set(node.taints)) == (3, {"gpu-lost"})
    node.end_health_pod(node.begin_health_pod(), NO_DRIVER)
    assert node.runs == 4


@pytest.mark.parametrize("answer", ["", "gpu-lost=b"], ids=["passed", "had lost a GPU"])
def test_what_an_earlier_node_of_this_name_reported_says_nothing(node: Watched, answer: str) -> None:
    """Its pod is still there: what that shows opens no node that joins closed, and closes none.  What the
    container reports from now on counts."""
    node.after(answer)
    node.cluster.remove(NODES, "node-1")
    node.catch_up()
    node.cluster.pass_time(30)
    node.cluster.add_node(boot="boot-2", taints=[names.TAINT_UNVALIDATED])
    node.catch_up(granted=False)
    assert not node.cluster.objects[REPORTS]
    assert is_open(node) is False
    node.after()
    assert (node.runs, node.taints, is_open(node)) == (1, [], True)


def test_a_first_report_counts_though_the_nodes_clock_is_behind(node: Watched) -> None:
    """By that clock it came before the Node, and its pod in the second in which that was created."""
    new = Watched()
    new.pod.ahead = -30.0
    assert (new.after("gpu-lost=b"), new.runs) == (["gpu-lost"], 1)


@pytest.mark.parametrize("goes", [False, True], ids=["it ends", "its pod goes"])
def test_what_happens_while_the_pod_is_read_again_counts(node: Watched, goes: bool) -> None:
    """Somebody deleted the report, and the answer shows the pod as it was before."""
    node.cluster.remove(REPORTS, "node-1")

    def answered(verb: str, path: str) -> None:
        if (verb, path) == ("GET", f"{PODS}/{node.pod.name}"):
            node.client.answered = lambda _verb, _path: None
            node.cluster.remove(PODS, node.pod.name) if goes else node.pod.reports(saying("gpu-lost=b"))
            node.deliver()

    node.client.answered = answered
    node.catch_up(granted=False)
    assert node.taints == ([] if goes else ["gpu-lost"])
    assert len(list(node.reconciler.watch_sets.pods.each())) == (0 if goes else 1)


@pytest.mark.parametrize("heard_by_pod", [[], [FATAL]], ids=["the container alone", "the pod, too"])
def test_a_fatal_xid_that_the_container_reports_while_a_health_pod_runs_counts_once(
    node: Watched, heard_by_pod: list[int]
) -> None:
    """At the end of that pod, whose reading is the newer one; and not with the next report, which repeats it,
    perhaps hours after its taint is gone."""
    health = node.begin_health_pod()
    reported = heard(node, FATAL)
    node.pod.reports(reported)
    node.catch_up()
    node.end_health_pod(health, replace(heard(node, *heard_by_pod), watch=None))
    assert (node.runs, node.taints) == (2, ["xid"])
    came = reported.gpus[1].xids.counts[0]
    repeated = RepeatedXid(gpu=1, code=FATAL, count=1, first=came.first, last=came.last)
    node.cluster.pass_time(600)
    for _ in range(3):
        node.reports(heard(node, repeated=[repeated]), granted=False)
    assert (node.runs, node.taints) == (5, [])


@pytest.mark.parametrize("new", [[], [FATAL]], ids=["no Xid", "an Xid"])
def test_a_report_told_of_after_a_newer_reading_counts_for_its_xids(node: Watched, new: list[int]) -> None:
    """The kubelet told of the health pod's end first: another pod reads the node, for all else that the
    report says is older than that reading, which found a fault."""
    fault = made.with_gpu(replace(heard(node), watch=None), 1, error=LOST)
    node.end_health_pod(node.begin_health_pod(), fault)
    node.pod.ahead = -2.0
    node.pod.reports(heard(node, *new), later=1.0)
    node.catch_up()
    assert (node.runs, node.taints, node.probe["verdict"]) == (2, ["gpu-lost"], "fail")
    assert len(node.run_pods) == len(new)
    if new:
        node.end_health_pod(node.start_health_pod(), replace(heard(node), watch=None))
        assert [gate["code"] for gate in node.status["gates"]] == ["gpu-lost", "xid"]
        node.catch_up()
        assert (node.runs, node.run_pods) == (3, [])


def test_only_a_health_pod_whose_run_is_still_to_be_judged_comes_first(node: Watched) -> None:
    """One that hangs was judged long ago, and may take minutes to go."""
    hanging = node.begin_health_pod()
    node.cluster.pass_time(600)
    node.catch_up(granted=False)
    assert (node.runs, node.probe["lastRun"]["reason"]) == (2, "KubeletSilent")
    assert [node.after("gpu-lost=b"), node.runs] == [["gpu-lost"], 3]
    assert [pod["metadata"]["name"] for pod in node.run_pods] == [hanging]


def test_a_report_that_comes_before_the_nodes_new_boot_id_hides_no_later_one(node: Watched) -> None:
    """Nodes and pods are told of apart: the report was judged as one of the boot before."""
    well, bad = (replace(one, host=replace(one.host, boot_id="boot-2")) for one in (saying(""), saying(BAD)))
    node.reports(well, granted=False)
    node.cluster.change(NODES, "node-1", {"status": {"nodeInfo": {"bootID": "boot-2"}}})
    for _ in range(2):
        node.reports(bad, granted=False)
    assert (node.runs, node.taints) == (4, ["p2p"])
