"""Mode Watch: which reading of a container is news, beside health pods, nodes of its name and full lists."""

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Problem, ProblemKind, RepeatedXid, Result, WatchReport, Xids
from nodegauge_operator import names
from nodegauge_operator.api.times import stamp
from support.api_server import NODES, PODS, READINGS, REPORTS
from support.judging import saying
from support.watched import BAD, BOOTED, Watched, at, watched_once

AWAY = Problem(kind=ProblemKind.DRIVER_NOT_LOADED, call="nvmlInit", message="gone")
NO_DRIVER = Result(probe="health", problem=AWAY)
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
    """What a container reads in 20 seconds: these Xids of GPU 1, a second before, and earlier ones."""
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
    node.reports(replace(unread, watch=WatchReport(at=5000) if unread.gpus else None), granted=False)
    for runs in (3, 4, 5):
        node.end_health_pod(node.begin_health_pod(), unread)
        if restarts:
            node.resume(granted=False)
        assert (node.runs, node.probe["unread"]) == (runs, runs - 1)


HANGS = ["nvmlDeviceGetTemperature", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetNvLinkErrorCounter"]


@pytest.mark.parametrize("call", HANGS)
def test_a_hang_is_told_with_its_call_and_a_lone_node_is_avoided_in_minutes(node: Watched, call: str) -> None:
    """By the container's own readings; nobody is needed who reads another node."""
    message = "did not return for GPU 3 within 10 s"
    hung = replace(made.titan(), problem=Problem(kind=ProblemKind.CALL_HUNG, call=call, message=message))
    node.reports(hung, granted=False)
    for text in (node.status["summary"], node.status["change"]["message"]):
        assert all(part in text for part in (f"since {stamp(node.cluster.now)}", call, "GPU 3"))
    assert (node.status["verdict"], node.taints) == ("unknown", [])
    for _ in range(4):
        node.reports(hung, granted=False, later=75.0)
    assert node.taints == ["unreadable"]
    assert [taint["effect"] for taint in node.status["desired"]["taints"]] == ["PreferNoSchedule"]
    desired = node.status["desired"]
    assert (desired["condition"], desired["reason"]) == ("Unknown", "Unreadable")
    node.after()
    assert (node.status["verdict"], node.status["desired"]["condition"]) == ("warn", "True")


@pytest.mark.parametrize("ahead", [0.0, -30.0], ids=["at that moment", "before it, by a clock set back"])
@pytest.mark.parametrize("restarts", [False, True], ids=["by an event", "by a list"])
def test_the_next_reading_of_a_pod_counts_though_it_is_no_later_than_the_last(
    node: Watched, ahead: float, restarts: bool
) -> None:
    catch_up = node.resume if restarts else node.catch_up
    node.write(replace(saying("gpu-lost=b"), watch=WatchReport(at=7)), later=0.0, ahead=ahead)
    catch_up(granted=False)
    assert (node.runs, node.taints) == (2, ["gpu-lost"])
    node.write(NO_DRIVER, later=0.0, ahead=ahead)
    catch_up(granted=False)
    assert (node.runs, node.probe["lastRun"]["outcome"]) == (3, "unknown")


def test_of_two_readings_that_nobody_saw_the_one_written_last_counts(node: Watched) -> None:
    """A container could not read the node, and a health pod did; the node's clock is a little ahead."""
    health = node.begin_health_pod()
    node.write(NO_DRIVER, later=0.3, ahead=2.0)
    node.end_health_pod(health, replace(heard(node), watch=None), later=0.4)
    node.catch_up(granted=False)
    assert (node.runs, node.probe["lastRun"]["outcome"]) == (2, "read")


def test_xids_of_a_reading_that_nobody_saw_are_in_the_next(node: Watched) -> None:
    health = node.begin_health_pod()
    lost = heard(node, FATAL)
    node.write(lost)
    node.end_health_pod(health, replace(heard(node), watch=None), later=0.0)
    assert (node.runs, node.taints) == (2, [])
    came = lost.gpus[1].xids.counts[0]
    repeated = RepeatedXid(gpu=1, code=FATAL, count=1, first=came.first, last=came.last)
    node.reports(heard(node, repeated=(repeated,)), granted=False)
    assert (node.runs, node.taints) == (3, ["xid"])


def test_a_health_pod_over_whose_reading_the_container_wrote_has_not_failed(node: Watched) -> None:
    """The operator was away for a moment, and sees the container's reading alone, which is the newer one."""
    health = node.begin_health_pod()
    pod = node.cluster.objects[PODS][health]
    node.cluster.end(pod, node.cluster.result(pod))
    node.write(saying("gpu-lost=b"), later=1.0)
    node.catch_up(granted=False)
    node.catch_up(granted=False)
    assert (node.probe.get("unread", 0), node.probe["lastRun"]["outcome"]) == (0, "read")
    assert node.taints == ["gpu-lost"]


def test_a_reading_counts_that_comes_at_the_moment_of_a_health_pods_end(node: Watched) -> None:
    health = node.begin_health_pod()
    node.end_health_pod(health, replace(heard(node), watch=None))
    node.reports(made.with_gpu(heard(node, FATAL), 1, error=LOST), later=0.0, granted=False)
    assert (node.runs, set(node.taints)) == (3, {"gpu-lost"})
    node.end_health_pod(node.begin_health_pod(), NO_DRIVER)
    assert node.runs == 4


@pytest.mark.parametrize("answer", ["", "gpu-lost=b"], ids=["passed", "had lost a GPU"])
def test_what_an_earlier_node_of_this_name_reported_says_nothing(node: Watched, answer: str) -> None:
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


def test_a_first_reading_counts_though_the_nodes_clock_is_behind(node: Watched) -> None:
    new = Watched()
    assert (new.reports(saying("gpu-lost=b"), ahead=-30.0), new.runs) == (["gpu-lost"], 1)


@pytest.mark.parametrize("goes", [False, True], ids=["the container writes", "the object goes"])
def test_what_happens_while_the_reading_is_read_again_counts(node: Watched, goes: bool) -> None:
    node.cluster.remove(REPORTS, "node-1")

    def answered(verb: str, path: str) -> None:
        if (verb, path) == ("GET", f"{READINGS}/node-1"):
            node.client.answered = lambda _verb, _path: None
            node.cluster.remove(READINGS, "node-1") if goes else node.write(saying("gpu-lost=b"))
            node.deliver()

    node.client.answered = answered
    node.catch_up(granted=False)
    assert node.taints == ([] if goes else ["gpu-lost"])
    assert len(node.cache.readings) == (0 if goes else 1)


@pytest.mark.parametrize("heard_by_pod", [[], [FATAL]], ids=["the container alone", "the pod, too"])
def test_a_fatal_xid_that_the_container_hears_while_a_health_pod_runs_counts_once(
    node: Watched, heard_by_pod: list[int]
) -> None:
    """Nor with the container's next readings, which repeat it, perhaps hours after its taint is gone."""
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
        node.reports(heard(node, repeated=(repeated,)), granted=False)
    assert (node.runs, node.taints) == (5, [])


def test_a_health_pod_that_hangs_holds_up_no_reading(node: Watched) -> None:
    """Its run was judged long ago, and it may take minutes to go."""
    hanging = node.begin_health_pod()
    node.cluster.pass_time(600)
    node.catch_up(granted=False)
    assert (node.runs, node.probe["lastRun"]["reason"]) == (2, "KubeletSilent")
    assert [node.after("gpu-lost=b"), node.runs] == [["gpu-lost"], 3]
    assert [pod["metadata"]["name"] for pod in node.run_pods] == [hanging]


def test_a_reading_that_comes_before_the_nodes_new_boot_id_hides_no_later_one(node: Watched) -> None:
    well, bad = (replace(one, host=replace(one.host, boot_id="boot-2")) for one in (saying(""), saying(BAD)))
    node.reports(well, granted=False)
    node.cluster.change(NODES, "node-1", {"status": {"nodeInfo": {"bootID": "boot-2"}}})
    for _ in range(2):
        node.reports(bad, granted=False)
    assert (node.runs, node.taints) == (4, ["p2p"])


def test_the_report_says_since_when_a_node_runs_what_it_runs(node: Watched) -> None:
    """Other nodes of its class are shown that; a change begins anew, an unreadable run changes nothing."""
    read = made.titan()
    newer = replace(read, system=replace(read.system, driver="999"))

    def versions() -> tuple[str, str]:
        return node.status["versions"]["driver"], node.status["versions"]["since"]

    node.reports(read)
    first = versions()
    node.reports(read)
    node.reports(NO_DRIVER)
    assert versions() == first
    node.reports(newer)
    changed = versions()
    assert changed[0] == "999"
    assert changed[1] > first[1]
    assert node.status["versions"]["class"] == f"{len(read.gpus)} x {read.gpus[0].name}"
    [other] = node.reconciler._fleet.other_values(node.status["versions"]["class"], but="another")
    assert (other.driver, stamp(other.since)) == changed
