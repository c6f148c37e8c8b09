"""Settling one node against a cluster in memory: refusals, conflicts, strangers, vanished objects."""

from __future__ import annotations

import pytest

import support.results as made
from nodegauge_operator import names
from nodegauge_operator.core.model import pod_view
from nodegauge_operator.kube.errors import Forbidden, KubeError, NotFound, Refused, Unavailable
from nodegauge_operator.reconcile.concurrency import Kind
from support import INTERVAL, MINUTE, make_node, make_pod
from support.client import unavailable
from support.cluster import EVENTS, NODES, PODS, REPORTS
from support.messages import hostile
from support.onenode import OneNode
from support.operator import Operator, World

pytestmark = pytest.mark.timeout(5)


@pytest.fixture
def scene() -> OneNode:
    """Everything there, nothing run."""
    return OneNode(team="a")


@pytest.mark.parametrize("name", sorted(hostile(make_pod())))
def test_a_hostile_result_changes_nothing_on_the_node(scene: OneNode, name: str) -> None:
    """Promise 1 end to end: the run is unknown with its reason, the node stays as it was, the pod goes."""
    scene.run()
    before = scene.world.state()["nodes"]
    scene.world.pass_time(INTERVAL)
    scene.operator.settle()
    (pod,) = scene.cluster.pods()
    view = pod_view(pod)
    assert view is not None
    scene.world.end(pod, hostile(view)[name])
    scene.operator.deliver()
    scene.operator.settle()
    assert scene.world.state()["nodes"] == before
    assert scene.probe["lastRun"]["outcome"] == "unknown"
    assert scene.probe["lastRun"]["reason"]
    assert scene.probe["verdict"] == "pass"
    assert list(scene.cluster.pods()) == []
    reasons = {body["reason"] for body in scene.cluster.objects[EVENTS].values()}
    assert reasons == {"Validated", "ProbeFailed"}


@pytest.mark.parametrize("error", [Forbidden("exceeded quota: gpu"), Refused("admission webhook denied")])
def test_a_refused_pod_is_a_run_that_backs_off(scene: OneNode, error: KubeError) -> None:
    """The words of quota or webhook stand in the report; the next try comes later; it counts as a run."""
    scene.operator.client.refuse = lambda verb, path: error if (verb, path) == ("POST", PODS) else None
    settled = scene.operator.settle()
    assert settled.wake_at == scene.world.now + 30
    assert settled.due_since == {}
    last = scene.probe["lastRun"]
    assert (last["outcome"], last["reason"]) == ("unknown", "CreateRefused")
    assert str(error) in last["message"]
    assert scene.operator.runs_counted() == 1
    assert names.LABEL_HEALTH not in scene.labels


def test_a_refused_pod_while_the_report_changes_is_tried_again_once(scene: OneNode) -> None:
    """A person asks for a run at that very moment: read again, then write; not a storm of refused pods."""
    scene.run()
    scene.world.pass_time(INTERVAL)
    posts = 0

    def refuse(verb: str, path: str) -> KubeError | None:
        nonlocal posts
        if (verb, path) != ("POST", PODS):
            return None
        posts += 1
        if posts == 1:
            asked = {"spec": {"requestedAt": "2027-01-15T08:00:00Z"}}
            scene.cluster.change(REPORTS, "node-1", asked)
        return Refused("denied")

    scene.operator.client.refuse = refuse
    scene.operator.settle()
    assert posts <= 2
    assert scene.probe["request"] == "2027-01-15T08:00:00Z"


@pytest.mark.parametrize(
    "error", [Forbidden("events is forbidden"), Refused("namespace is being terminated")]
)
def test_an_event_that_is_refused_holds_nothing_up(scene: OneNode, error: KubeError) -> None:
    """Events are for people: without the right to post them, nodes are still measured and pods still go."""
    scene.operator.client.refuse = lambda verb, path: error if path == EVENTS else None
    scene.run()
    assert scene.labels[names.LABEL_HEALTH] == "pass"
    assert list(scene.cluster.pods()) == []


def test_an_event_that_finds_no_answer_is_tried_again(scene: OneNode) -> None:
    """An outage is no refusal: the change is still told."""
    scene.operator.client.refuse = lambda verb, path: unavailable() if path == EVENTS else None
    scene.run()
    assert not scene.cluster.objects[EVENTS]
    assert not scene.cluster.objects[PODS], "an event that waits holds no pod up"
    scene.operator.client.refuse = lambda verb, path: None
    scene.operator.settle()
    assert [body["reason"] for body in scene.cluster.objects[EVENTS].values()] == ["Validated"]


def test_a_pod_of_this_run_that_is_there_already_is_adopted(scene: OneNode) -> None:
    """Another process made it a moment ago: no error, no second pod, and its result is judged."""
    other = Operator(scene.cluster)
    other.list()
    other.settle()
    scene.operator.settle()
    (pod,) = scene.cluster.pods()
    assert [p.uid for p in scene.operator.cache.pods_of("node-1")] == [pod["metadata"]["uid"]]
    scene.world.kubelets()
    scene.operator.deliver()
    scene.operator.settle()
    assert [number for _, number, _ in scene.cluster.judged] == [1]


def test_a_pod_of_that_name_that_is_no_probe_is_said_and_left_alone(scene: OneNode) -> None:
    """Somebody took the name: it is not ours to judge or delete."""
    node = scene.cluster.get(NODES, "node-1")
    name = names.pod_name(node_uid=node["metadata"]["uid"], probe="health", number=1)
    scene.cluster.create(PODS, {"metadata": {"name": name}, "spec": {}})
    with pytest.raises(KubeError, match=f"{name} exists and is not a probe pod"):
        scene.operator.settle()
    assert name in scene.cluster.objects[PODS]


def test_only_the_very_pod_that_was_judged_is_deleted(scene: OneNode) -> None:
    """Another one under its name since, as after a deleted report, is not ours to end."""
    scene.operator.settle()
    scene.world.kubelets()
    scene.operator.deliver()
    (pod,) = scene.cluster.pods()

    def replaced(verb: str, path: str) -> None:
        name = pod["metadata"]["name"]
        if verb == "PATCH" and path.startswith(REPORTS) and name in scene.cluster.objects[PODS]:
            scene.cluster.remove(PODS, name)
            scene.cluster.create(PODS, {"metadata": {"name": name}, "spec": {}})

    scene.operator.client.answered = replaced
    scene.operator.settle()
    assert [p["metadata"]["uid"] for p in scene.cluster.pods()] != [pod["metadata"]["uid"]]
    assert len(scene.cluster.objects[PODS]) == 1
    assert scene.operator.cache.pods_of("node-1") == ()


def test_a_foreign_write_between_decision_and_patch_survives(scene: OneNode) -> None:
    """409, read again, decide anew: the stranger's label is there, and so are ours."""
    strangers = iter([{"foreign": "1"}, {"foreign": "2", "team": None}])

    def race(verb: str, path: str) -> KubeError | None:
        labels = next(strangers, None) if (verb, path) == ("PATCH", f"{NODES}/node-1") else None
        if labels:
            scene.cluster.change(NODES, "node-1", {"metadata": {"labels": labels}})
        return None

    scene.operator.client.refuse = race
    scene.run()
    assert scene.labels["foreign"] == "2"
    assert "team" not in scene.labels
    assert scene.labels[names.LABEL_INTERCONNECT] == "nvlink"


def test_a_short_key_that_a_stranger_takes_during_our_patch_stays_theirs(scene: OneNode) -> None:
    """The conflict is seen, decided again, and reported."""
    theirs = iter([{"interconnect": "infiniband"}])

    def race(verb: str, path: str) -> KubeError | None:
        labels = next(theirs, None) if (verb, path) == ("PATCH", f"{NODES}/node-1") else None
        if labels:
            scene.cluster.change(NODES, "node-1", {"metadata": {"labels": labels}})
        return None

    scene.operator.client.refuse = race
    scene.run()
    assert scene.labels["interconnect"] == "infiniband"
    status = scene.cluster.objects[REPORTS]["node-1"]["status"]
    assert status["desired"]["conflicts"] == ["interconnect"]
    scene.cluster.remove(REPORTS, "node-1")
    scene.operator.deliver()
    scene.run()
    assert scene.labels["interconnect"] == "infiniband"


def test_a_report_that_is_deleted_during_a_run_costs_the_run_and_no_more(scene: OneNode) -> None:
    """Measured anew from run 1; no pod is left."""
    scene.run()
    scene.world.pass_time(INTERVAL)
    scene.operator.settle()
    scene.cluster.remove(REPORTS, "node-1")
    scene.operator.deliver()
    scene.operator.settle()
    for _ in range(4):
        scene.world.kubelets()
        scene.operator.deliver()
        scene.operator.settle()
    assert scene.probe["lastRun"]["number"] == 1
    assert list(scene.cluster.pods()) == []


def test_only_the_very_report_that_is_over_is_deleted(scene: OneNode) -> None:
    """A new machine, a new report under its name, and an operator that has heard of the machine alone."""
    scene.run()
    old = scene.operator.cache.reports["node-1"]
    scene.cluster.remove(NODES, "node-1")
    scene.cluster.add_node(boot="boot-2")
    other = Operator(scene.cluster)
    other.list()
    other.settle()
    scene.operator.inbox[:] = [event for event in scene.operator.inbox if event[0] == NODES]
    scene.operator.deliver()
    assert scene.operator.cache.reports["node-1"] == old
    kept = scene.cluster.get(REPORTS, "node-1")["metadata"]["uid"]
    scene.operator.settle()
    assert scene.cluster.get(REPORTS, "node-1")["metadata"]["uid"] == kept != old.uid
    assert set(scene.cluster.created.values()) == {1}


def test_a_status_that_cannot_be_read_is_replaced_whole(scene: OneNode) -> None:
    """Another version's words, wherever they stand: one run heals it, and none is judged again and again."""
    scene.run()
    status = scene.cluster.objects[REPORTS]["node-1"]["status"]
    status["interconnect"]["evidence"] = 7
    scene.restart()
    scene.run("garbage")
    status = scene.cluster.objects[REPORTS]["node-1"]["status"]
    assert status["interconnect"]["evidence"] == ""
    assert scene.probe["lastRun"]["outcome"] == "unknown"
    assert scene.cluster.judged.count(scene.cluster.judged[-1]) == 1
    assert list(scene.cluster.pods()) == []


def test_the_condition_s_transition_time_moves_with_its_status_only(scene: OneNode) -> None:
    """Kubernetes' rule: another message is no transition."""

    def condition() -> dict[str, str]:
        conditions = scene.cluster.objects[NODES]["node-1"]["status"]["conditions"]
        return next(c for c in conditions if c["type"] == names.CONDITION)

    scene.run()
    mark = condition()["lastTransitionTime"] = "2020-01-01T00:00:00Z"
    scene.operator.list()
    scene.world.pass_time(INTERVAL)
    other = made.with_gpu(made.titan(), 0, name="NVIDIA TITAN RTX 2")
    scene.world.machines["node-1"] = other
    message = condition()["message"]
    scene.run()
    assert condition()["message"] != message
    assert condition()["lastTransitionTime"] == mark
    scene.world.pass_time(INTERVAL)
    scene.world.machines["node-1"] = made.with_pair(other, 0, 1, read=1)
    scene.run()
    assert condition()["status"] == "False"
    assert condition()["lastTransitionTime"] != mark


def test_a_stopping_worker_makes_no_pod_and_finishes_the_rest(scene: OneNode) -> None:
    """After SIGTERM a finished run is still judged and written."""
    scene.operator.settle()
    scene.operator.worker.stopping = True
    scene.world.kubelets()
    scene.operator.deliver()
    scene.operator.settle()
    assert scene.labels[names.LABEL_HEALTH] == "pass"
    scene.world.pass_time(INTERVAL)
    scene.operator.client.log.clear()
    settled = scene.operator.settle()
    assert scene.operator.client.log == []
    assert settled.due_since.keys() == {Kind.HEALTH}


def test_a_suspect_is_gone_only_when_the_api_says_so(scene: OneNode) -> None:
    """A deletion seen on a watch may be a lost label or a new machine: 404 alone decides."""
    scene.run()
    scene.operator.cache.suspects.add("node-1")
    scene.operator.settle()
    assert "node-1" in scene.operator.cache.nodes
    assert scene.labels[names.LABEL_HEALTH] == "pass"
    scene.cluster.remove(NODES, "node-1")
    scene.operator.deliver()
    assert "node-1" in scene.operator.cache.nodes
    scene.operator.settle()
    assert "node-1" not in scene.operator.cache.nodes
    assert scene.operator.cache.known_names() == set()


def test_a_node_that_leaves_the_selection_is_let_go_and_taken_again() -> None:
    """Behind a server-side selector a lost label arrives as DELETED: what we hold comes off."""
    world = World()
    world.cluster.add_node(gpu="true")
    world.cluster.add_policy()
    operator = Operator(world.cluster, selector="gpu=true")
    operator.list()
    operator.settle()
    world.kubelets()
    operator.deliver()
    operator.settle()
    world.cluster.change(NODES, "node-1", {"metadata": {"labels": {"gpu": "false"}}})
    operator.inbox[:] = [(NODES, "DELETED", world.cluster.get(NODES, "node-1"))]
    operator.deliver()
    operator.settle()
    labels = world.cluster.objects[NODES]["node-1"]["metadata"]["labels"]
    assert labels == {"kubernetes.io/hostname": "node-1", "gpu": "false"}
    assert world.cluster.objects[REPORTS] == {}
    assert operator.cache.known_names() == set()
    world.cluster.change(NODES, "node-1", {"metadata": {"labels": {"gpu": "true"}}})
    operator.inbox[:] = [(NODES, "ADDED", world.cluster.get(NODES, "node-1"))]
    operator.deliver()
    operator.settle()
    assert [pod["metadata"]["labels"][names.POD_PROBE] for pod in world.cluster.pods()] == ["health"]


def test_a_node_that_is_reported_deleted_again_during_the_question_stays_a_suspect(scene: OneNode) -> None:
    """The answer is of before: asked once more, it is gone."""

    def vanish(verb: str, path: str) -> None:
        if (verb, path) == ("GET", f"{NODES}/node-1") and "node-1" in scene.cluster.objects[NODES]:
            scene.cluster.remove(NODES, "node-1")
            scene.operator.deliver()

    scene.run()
    scene.operator.cache.suspects.add("node-1")
    scene.operator.client.answered = vanish
    scene.operator.settle()
    assert scene.operator.cache.known_names() == set()


def test_an_unanswered_question_about_a_suspect_decides_nothing(scene: OneNode) -> None:
    """No data: the node stays, and stays a suspect."""
    scene.run()
    scene.operator.cache.suspects.add("node-1")
    scene.operator.client.refuse = lambda verb, path: unavailable()
    with pytest.raises(Unavailable):
        scene.operator.settle()
    assert "node-1" in scene.operator.cache.nodes
    assert scene.operator.cache.suspects == {"node-1"}


def test_a_crd_that_is_missing_is_said_and_loses_nothing(scene: OneNode) -> None:
    """A 404 on the resource itself is no deleted object."""
    missing = NotFound("the server could not find the requested resource", status=404)
    scene.operator.client.refuse = lambda verb, path: missing if path.startswith(REPORTS) else None
    with pytest.raises(NotFound):
        scene.operator.settle()
    assert list(scene.cluster.pods()) == []


def test_a_run_that_is_given_up_is_repeated_after_half_a_minute(scene: OneNode) -> None:
    """A silent kubelet's pod is deleted; once it is gone the timer of the next try stands."""
    scene.operator.settle()
    (pod,) = scene.cluster.pods()
    scene.world.schedule(pod)
    scene.operator.deliver()
    scene.world.pass_time(2 * MINUTE)
    scene.operator.settle()
    assert scene.probe["lastRun"]["reason"] == "KubeletSilent"
    scene.world.kubelets()
    scene.operator.deliver()
    settled = scene.operator.settle(granted=False)
    assert settled.wake_at == scene.world.now + 30


def test_an_event_s_name_is_valid_whatever_the_node_is_called() -> None:
    """Node names may have 253 characters, with dots anywhere inside."""
    for name in ("n", "a" * 199 + ".b" * 27, "a." * 126 + "a", "a-" * 126 + "a"):
        found = names.event_name(node=make_node(name).name, run="x", reason="Validated")
        assert len(found) <= 253
        assert all(part and part[0].isalnum() and part[-1].isalnum() for part in found.split("."))
