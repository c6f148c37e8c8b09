"""Settling one node against a cluster in memory: refusals, conflicts, strangers, vanished objects."""

from __future__ import annotations

import pytest

import support.results as made
from nodegauge_operator import names
from nodegauge_operator.core.model import pod_view
from nodegauge_operator.kube.errors import Forbidden, KubeError, NotFound, Refused, Unavailable
from support.api_server import EVENTS, NODES, PODS, REPORTS
from support.client import unavailable
from support.cluster import FakeCluster
from support.messages import hostile
from support.objects import INTERVAL, MINUTE, make_node
from support.operator import SteppedOperator, one_node


@pytest.fixture
def operator() -> SteppedOperator:
    """Everything there, nothing run."""
    return one_node(team="a")


@pytest.mark.parametrize("name", ["garbage", "wrong run", "no GPUs", "huge"])
def test_a_hostile_result_changes_nothing_on_the_node(operator: SteppedOperator, name: str) -> None:
    """The run is unknown with its reason, the node stays as it was, the pod goes (`test_pod_outcome`)."""
    operator.run()
    before = operator.cluster.state()["nodes"]
    operator.cluster.pass_time(INTERVAL)
    operator.reconcile()
    (pod,) = operator.cluster.pods()
    view = pod_view(pod)
    assert view is not None
    operator.cluster.end(pod, hostile(view)[name])
    operator.deliver()
    operator.reconcile()
    assert operator.cluster.state()["nodes"] == before
    assert operator.probe["lastRun"]["outcome"] == "unknown"
    assert operator.probe["lastRun"]["reason"]
    assert operator.probe["verdict"] == "pass"
    assert list(operator.cluster.pods()) == []
    reasons = {body["reason"] for body in operator.cluster.objects[EVENTS].values()}
    assert reasons == {"Validated", "ProbeFailed"}


@pytest.mark.parametrize("error", [Forbidden("exceeded quota: gpu"), Refused("admission webhook denied")])
def test_a_refused_pod_is_a_run_that_backs_off(operator: SteppedOperator, error: KubeError) -> None:
    """The words of quota or webhook stand in the report; the next try comes later; it counts as a run."""
    operator.client.refuse = lambda verb, path: error if (verb, path) == ("POST", PODS) else None
    result = operator.reconcile()
    assert result.wake_at == operator.cluster.now + 30
    assert result.waits == {}
    last = operator.probe["lastRun"]
    assert (last["outcome"], last["reason"]) == ("unknown", "CreateRefused")
    assert str(error) in last["message"]
    assert operator.runs_counted() == 1
    assert names.LABEL_HEALTH not in operator.labels


def test_a_refused_pod_while_the_report_changes_is_tried_again_once(operator: SteppedOperator) -> None:
    """A person asks for a run at that very moment: read again, then write; not a storm of refused pods."""
    operator.run()
    operator.cluster.pass_time(INTERVAL)
    posts = 0

    def refuse(verb: str, path: str) -> KubeError | None:
        nonlocal posts
        if (verb, path) != ("POST", PODS):
            return None
        posts += 1
        if posts == 1:
            asked = {"spec": {"requestedAt": "2027-01-15T08:00:00Z"}}
            operator.cluster.change(REPORTS, "node-1", asked)
        return Refused("denied")

    operator.client.refuse = refuse
    operator.reconcile()
    assert posts <= 2
    assert operator.probe["request"] == "2027-01-15T08:00:00Z"


@pytest.mark.parametrize(
    "error", [Forbidden("events is forbidden"), Refused("namespace is being terminated")]
)
def test_an_event_that_is_refused_holds_nothing_up(operator: SteppedOperator, error: KubeError) -> None:
    """Events are for people: without the right to post them, nodes are still measured and pods still go."""
    operator.client.refuse = lambda verb, path: error if path == EVENTS else None
    operator.run()
    assert operator.labels[names.LABEL_HEALTH] == "pass"
    assert list(operator.cluster.pods()) == []


def test_an_event_that_finds_no_answer_is_tried_again(operator: SteppedOperator) -> None:
    """An outage is no refusal: the change is still told."""
    operator.client.refuse = lambda verb, path: unavailable() if path == EVENTS else None
    operator.run()
    assert not operator.cluster.objects[EVENTS]
    assert not operator.cluster.objects[PODS], "an event that waits holds no pod up"
    operator.client.refuse = lambda verb, path: None
    operator.reconcile()
    assert [body["reason"] for body in operator.cluster.objects[EVENTS].values()] == ["Validated"]


def test_a_pod_of_this_run_that_is_there_already_is_adopted(operator: SteppedOperator) -> None:
    """Another process made it a moment ago: no error, no second pod, and its result is judged."""
    other = SteppedOperator(operator.cluster)
    other.list()
    other.reconcile()
    operator.reconcile()
    (pod,) = operator.cluster.pods()
    assert [p.uid for p in operator.cache.pods_of("node-1")] == [pod["metadata"]["uid"]]
    operator.end_run()
    assert [number for _, number, _ in operator.cluster.judged] == [1]


def test_only_the_very_pod_that_was_judged_is_deleted(operator: SteppedOperator) -> None:
    """Another one under its name since, as after a deleted report, is not ours to end."""
    operator.reconcile()
    operator.cluster.kubelets()
    operator.deliver()
    (pod,) = operator.cluster.pods()

    def replaced(verb: str, path: str) -> None:
        name = pod["metadata"]["name"]
        if verb == "PATCH" and path.startswith(REPORTS) and name in operator.cluster.objects[PODS]:
            operator.cluster.remove(PODS, name)
            operator.cluster.create(PODS, {"metadata": {"name": name}, "spec": {}})

    operator.client.answered = replaced
    operator.reconcile()
    assert [p["metadata"]["uid"] for p in operator.cluster.pods()] != [pod["metadata"]["uid"]]
    assert len(operator.cluster.objects[PODS]) == 1
    assert operator.cache.pods_of("node-1") == ()


def test_a_foreign_write_between_decision_and_patch_survives(operator: SteppedOperator) -> None:
    """409, read again, decide anew: the stranger's label is there, and so are ours."""
    strangers = iter([{"foreign": "1"}, {"foreign": "2", "team": None}])

    def race(verb: str, path: str) -> KubeError | None:
        labels = next(strangers, None) if (verb, path) == ("PATCH", f"{NODES}/node-1") else None
        if labels:
            operator.cluster.change(NODES, "node-1", {"metadata": {"labels": labels}})
        return None

    operator.client.refuse = race
    operator.run()
    assert operator.labels["foreign"] == "2"
    assert "team" not in operator.labels
    assert operator.labels[names.LABEL_INTERCONNECT] == "nvlink"


def test_a_short_key_that_a_stranger_takes_during_our_patch_stays_theirs(operator: SteppedOperator) -> None:
    """The conflict is seen, decided again, and reported."""
    theirs = iter([{"interconnect": "infiniband"}])

    def race(verb: str, path: str) -> KubeError | None:
        labels = next(theirs, None) if (verb, path) == ("PATCH", f"{NODES}/node-1") else None
        if labels:
            operator.cluster.change(NODES, "node-1", {"metadata": {"labels": labels}})
        return None

    operator.client.refuse = race
    operator.run()
    assert operator.labels["interconnect"] == "infiniband"
    status = operator.cluster.objects[REPORTS]["node-1"]["status"]
    assert status["desired"]["conflicts"] == ["interconnect"]
    operator.cluster.remove(REPORTS, "node-1")
    operator.deliver()
    operator.run()
    assert operator.labels["interconnect"] == "infiniband"


def test_a_report_that_is_deleted_during_a_run_costs_the_run_and_no_more(operator: SteppedOperator) -> None:
    """Measured anew from run 1; no pod is left."""
    operator.run()
    operator.cluster.pass_time(INTERVAL)
    operator.reconcile()
    operator.cluster.remove(REPORTS, "node-1")
    operator.deliver()
    operator.reconcile()
    for _ in range(4):
        operator.end_run()
    assert operator.probe["lastRun"]["number"] == 1
    assert list(operator.cluster.pods()) == []


def test_only_the_very_report_that_is_over_is_deleted(operator: SteppedOperator) -> None:
    """A new machine, a new report under its name, and an operator that has heard of the machine alone."""
    operator.run()
    old = operator.cache.reports["node-1"]
    operator.cluster.remove(NODES, "node-1")
    operator.cluster.add_node(boot="boot-2")
    other = SteppedOperator(operator.cluster)
    other.list()
    other.reconcile()
    operator.inbox[:] = [event for event in operator.inbox if event[0] == NODES]
    operator.deliver()
    assert operator.cache.reports["node-1"] == old
    kept = operator.cluster.get(REPORTS, "node-1")["metadata"]["uid"]
    operator.reconcile()
    assert operator.cluster.get(REPORTS, "node-1")["metadata"]["uid"] == kept != old.uid
    assert set(operator.cluster.created.values()) == {1}


def test_what_cannot_be_read_of_a_status_is_replaced(operator: SteppedOperator) -> None:
    """Wherever it stands: the next run heals it, and none is judged again and again."""
    operator.run()
    status = operator.cluster.objects[REPORTS]["node-1"]["status"]
    status["interconnect"]["evidence"] = 7
    operator.restart()
    operator.cluster.pass_time(INTERVAL + 1)
    operator.run("garbage")
    status = operator.cluster.objects[REPORTS]["node-1"]["status"]
    assert status["interconnect"]["evidence"] == "reported"
    assert operator.probe["lastRun"]["outcome"] == "unknown"
    assert operator.cluster.judged.count(operator.cluster.judged[-1]) == 1
    assert list(operator.cluster.pods()) == []


def test_the_condition_s_transition_time_moves_with_its_status_only(operator: SteppedOperator) -> None:
    """Kubernetes' rule: another message is no transition."""

    def condition() -> dict[str, str]:
        conditions = operator.cluster.objects[NODES]["node-1"]["status"]["conditions"]
        return next(c for c in conditions if c["type"] == names.CONDITION)

    operator.run()
    mark = condition()["lastTransitionTime"] = "2020-01-01T00:00:00Z"
    operator.list()
    operator.cluster.pass_time(INTERVAL)
    other = made.with_gpu(made.titan(), 0, name="NVIDIA TITAN RTX 2")
    operator.cluster.results["node-1"] = other
    message = condition()["message"]
    operator.run()
    assert condition()["message"] != message
    assert condition()["lastTransitionTime"] == mark
    operator.cluster.results["node-1"] = made.with_pair(other, 0, 1, read=1)
    for _ in range(2):
        operator.cluster.pass_time(INTERVAL)
        operator.run()
    assert condition()["status"] == "False"
    assert condition()["lastTransitionTime"] != mark


def test_a_stopping_worker_makes_no_pod_and_finishes_the_rest(operator: SteppedOperator) -> None:
    """After SIGTERM a finished run is still judged and written."""
    operator.reconcile()
    operator.reconciler.stopping = True
    operator.end_run()
    assert operator.labels[names.LABEL_HEALTH] == "pass"
    operator.cluster.pass_time(INTERVAL)
    operator.client.log.clear()
    result = operator.reconcile()
    assert operator.client.log == []
    assert result.waits.keys() == {names.PROBE_HEALTH}


def test_a_suspect_is_gone_only_when_the_api_says_so(operator: SteppedOperator) -> None:
    """A deletion seen on a watch may be a lost label or a new machine: 404 alone decides."""
    operator.run()
    operator.cache.suspects.add("node-1")
    operator.reconcile()
    assert "node-1" in operator.cache.nodes
    assert operator.labels[names.LABEL_HEALTH] == "pass"
    operator.cluster.remove(NODES, "node-1")
    operator.deliver()
    assert "node-1" in operator.cache.nodes
    operator.reconcile()
    assert "node-1" not in operator.cache.nodes
    assert operator.cache.known_names() == set()


def test_a_node_that_leaves_the_selection_is_let_go_and_taken_again() -> None:
    """Behind a server-side selector a lost label arrives as DELETED: what we hold comes off."""
    cluster = FakeCluster()
    cluster.add_node(gpu="true")
    cluster.add_policy()
    operator = SteppedOperator(cluster, selector="gpu=true")
    operator.list()
    operator.reconcile()
    cluster.kubelets()
    operator.deliver()
    operator.reconcile()
    cluster.change(NODES, "node-1", {"metadata": {"labels": {"gpu": "false"}}})
    operator.inbox[:] = [(NODES, "DELETED", cluster.get(NODES, "node-1"))]
    operator.deliver()
    operator.reconcile()
    cluster.pass_time(600)
    operator.reconcile()
    labels = cluster.objects[NODES]["node-1"]["metadata"]["labels"]
    assert labels == {"kubernetes.io/hostname": "node-1", "gpu": "false"}
    assert cluster.objects[REPORTS] == {}
    assert operator.cache.known_names() == set()
    cluster.change(NODES, "node-1", {"metadata": {"labels": {"gpu": "true"}}})
    operator.inbox[:] = [(NODES, "ADDED", cluster.get(NODES, "node-1"))]
    operator.deliver()
    operator.reconcile()
    assert [pod["metadata"]["labels"][names.POD_PROBE] for pod in cluster.pods()] == ["health"]


def test_a_node_deleted_while_the_operator_asks_for_it_stays_a_suspect(operator: SteppedOperator) -> None:
    """The answer is of before: asked once more, it is gone."""

    def vanish(verb: str, path: str) -> None:
        if (verb, path) == ("GET", f"{NODES}/node-1") and "node-1" in operator.cluster.objects[NODES]:
            operator.cluster.remove(NODES, "node-1")
            operator.deliver()

    operator.run()
    operator.cache.suspects.add("node-1")
    operator.client.answered = vanish
    operator.reconcile()
    assert operator.cache.known_names() == set()


def test_an_unanswered_question_about_a_suspect_decides_nothing(operator: SteppedOperator) -> None:
    """No data: the node stays, and stays a suspect."""
    operator.run()
    operator.cache.suspects.add("node-1")
    operator.client.refuse = lambda verb, path: unavailable()
    with pytest.raises(Unavailable):
        operator.reconcile()
    assert "node-1" in operator.cache.nodes
    assert operator.cache.suspects == {"node-1"}


def test_a_crd_that_is_missing_is_said_and_loses_nothing(operator: SteppedOperator) -> None:
    """A 404 on the resource itself is no deleted object."""
    missing = NotFound("the server could not find the requested resource", status=404)
    operator.client.refuse = lambda verb, path: missing if path.startswith(REPORTS) else None
    with pytest.raises(NotFound):
        operator.reconcile()
    assert list(operator.cluster.pods()) == []


def test_a_run_that_is_given_up_is_repeated_after_half_a_minute(operator: SteppedOperator) -> None:
    """A silent kubelet's pod is deleted; once it is gone the timer of the next try stands."""
    operator.reconcile()
    (pod,) = operator.cluster.pods()
    operator.cluster.schedule(pod)
    operator.deliver()
    operator.cluster.pass_time(2 * MINUTE)
    operator.reconcile()
    assert operator.probe["lastRun"]["reason"] == "KubeletSilent"
    operator.cluster.kubelets()
    operator.deliver()
    result = operator.reconcile(granted=False)
    assert result.wake_at == operator.cluster.now + 30


def test_an_event_s_name_is_valid_whatever_the_node_is_called() -> None:
    """Node names may have 253 characters, with dots anywhere inside."""
    for name in ("n", "a" * 199 + ".b" * 27, "a." * 126 + "a", "a-" * 126 + "a"):
        event = names.event_name(node=make_node(name).name, run="x", reason="Validated")
        assert len(event) <= 253
        assert all(part and part[0].isalnum() and part[-1].isalnum() for part in event.split("."))
