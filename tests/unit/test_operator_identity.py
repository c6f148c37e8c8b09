"""A run counts only from the pod that the operator made for it, whoever else can create or change pods."""

from collections.abc import Callable
from typing import Any

import pytest

from nodegauge_operator import names
from nodegauge_operator.api.report import GateState
from nodegauge_operator.api.times import stamp
from support.api_server import NODES, PODS, REPORTS, Body
from support.judging import saying
from support.objects import INTERVAL, MINUTE, NOW
from support.operator import SteppedOperator, some_nodes

pytestmark = pytest.mark.usefixtures("stated_answers")


def nodes(count: int, **spec: Any) -> SteppedOperator:
    """An operator and so many nodes, each with a report of one good run."""
    operator = some_nodes(*(f"node-{n + 1}" for n in range(count)), **spec)
    operator.run_all()
    return operator


def two_nodes() -> SteppedOperator:
    """Two nodes whose next run is due, and a policy whose budget would allow both a taint."""
    operator = nodes(2, budget={"gatedNodes": "100%"})
    operator.cluster.pass_time(INTERVAL)
    return operator


def lost(operator: SteppedOperator, pod: Body) -> str:
    """A result of the pod's run by which a GPU of node-1 fell off the bus: one bad run taints."""
    operator.cluster.results["node-1"] = saying("gpu-lost=b")
    return operator.cluster.result(pod)


def template(operator: SteppedOperator, name: str) -> Body:
    """The node's next pod as another process creates it, taken back before anybody sees it."""
    other = SteppedOperator(operator.cluster)
    other.list()
    other.reconcile(name)
    [pod] = operator.cluster.pods()
    del operator.cluster.objects[PODS][pod["metadata"]["name"]]
    operator.inbox.clear()
    return pod


def owner(pod: Body) -> Body:
    reference: Body = pod["metadata"]["ownerReferences"][0]
    return reference


SPOILS: dict[str, Callable[[Body], Any]] = {
    "of nobody": lambda pod: pod["metadata"].pop("ownerReferences"),
    "of another report": lambda pod: owner(pod).update(uid="uid-of-another"),
    "not controlled": lambda pod: owner(pod).update(controller=False),
    "of the node": lambda pod: owner(pod).update(kind="Node", name="node-1", uid="x"),
    "a mirror": lambda pod: pod["metadata"]["annotations"].update({names.MIRROR_POD: "hash"}),
    "under another name": lambda pod: pod["metadata"].update(name=pod["metadata"]["name"] + "0"),
    "bound elsewhere": lambda pod: pod["spec"].update(nodeName="node-2"),
}


@pytest.mark.parametrize("spoil", SPOILS)
def test_a_pod_that_the_operator_did_not_make_says_nothing(spoil: str) -> None:
    operator = two_nodes()
    before = operator.cluster.state()["nodes"]["node-1"]
    forged = template(operator, "node-1")
    message = lost(operator, forged | {"metadata": forged["metadata"] | {"uid": "x"}})
    SPOILS[spoil](forged)
    node = forged["spec"].get("nodeName", "node-1")
    pod = operator.cluster.create(PODS, forged)
    placed = pod["metadata"] | {"annotations": {names.POD_NODE: node}}
    operator.cluster.end(pod | {"metadata": placed}, message)
    operator.look(granted=False)
    assert operator.cluster.state()["nodes"]["node-1"] == before
    assert operator.probe["lastRun"]["number"] == 1
    operator.cluster.results.clear()
    for _ in range(3):
        operator.run_all(after=MINUTE)
    assert operator.probe["lastRun"]["outcome"] == "read", "the forged pod stops no run"


@pytest.mark.parametrize("number", ["1", "2", "3", "999"])
@pytest.mark.parametrize("victim", ["node-1", "node-2"])
def test_a_kubelet_cannot_give_its_pod_to_another_node(victim: str, number: str) -> None:
    """Annotations of a pod can be written through its status; owner and node cannot."""
    operator = two_nodes()
    operator.deliver()
    thief = {"node-1": "node-2", "node-2": "node-1"}[victim]
    operator.reconcile(thief)
    [pod] = operator.cluster.pods()
    node = operator.cluster.get(NODES, victim)
    marks = {names.POD_NODE: victim, names.POD_NODE_UID: node["metadata"]["uid"], names.POD_RUN: number}
    operator.cluster.change(PODS, pod["metadata"]["name"], {"metadata": {"annotations": marks}})
    operator.cluster.pod_status(pod["metadata"]["name"], {}, node=thief)
    [pod] = operator.cluster.pods()
    before = operator.cluster.state()["nodes"]
    operator.cluster.results["node-1"] = operator.cluster.results["node-2"] = saying("gpu-lost=b")
    placed = pod["metadata"] | {"annotations": {names.POD_NODE: thief}}
    operator.cluster.end(pod | {"metadata": placed}, operator.cluster.result(pod))
    operator.look(granted=False)
    assert operator.cluster.state()["nodes"][victim] == before[victim]


@pytest.mark.parametrize("marked", ["", "labels", "labels annotations"])
def test_a_pod_that_took_the_next_name_is_passed_over(marked: str) -> None:
    """Without our marks, with our labels, and with all but the owner, which makes it one to clean up."""
    operator = two_nodes()
    ours = template(operator, "node-1")["metadata"]
    name = ours["name"]
    marks = {key: ours[key] for key in marked.split()}
    operator.cluster.create(PODS, {"metadata": {"name": name} | marks, "spec": {}})
    operator.reconcile("node-1")
    assert operator.probe["lastRun"]["reason"] == "CreateRefused"
    assert "nodegauge did not make it" in operator.probe["lastRun"]["message"]
    assert any(f"{name} exists" in message for _, message in operator.events)
    operator.cluster.pass_time(MINUTE)
    operator.catch_up("node-1")
    created = [pod for pod in operator.cluster.pods() if pod["metadata"]["name"] != name]
    operator.cluster.end(created[0], operator.cluster.result(created[0]))
    operator.catch_up("node-1", granted=False)
    assert operator.probe["lastRun"]["outcome"] == "read"
    assert (name in operator.cluster.objects[PODS]) is ("annotations" not in marked)


@pytest.mark.parametrize("restart", [True, False])
def test_a_pod_that_takes_the_place_of_ours_is_another(restart: bool) -> None:
    operator = two_nodes()
    operator.reconcile("node-1")
    operator.deliver()
    [pod] = operator.cluster.pods()
    operator.cluster.remove(PODS, pod["metadata"]["name"])
    if restart:
        operator.deliver()
        operator.reconcile("node-1", granted=False)
        operator.restart()
    forged = {"metadata": {k: v for k, v in pod["metadata"].items() if k != "uid"}, "spec": pod["spec"]}
    copy = operator.cluster.create(PODS, forged)
    operator.cluster.end(copy, lost(operator, copy))
    operator.look(granted=False)
    assert (operator.probe["lastRun"]["number"], operator.probe["lastRun"]["reason"]) == (2, "PodDeleted")
    assert operator.cluster.get(NODES, "node-1")["spec"]["taints"] == []


def test_the_next_run_s_identity_cannot_be_computed_from_what_can_be_seen() -> None:
    """Node, report, number and every earlier pod being the same, two clusters have other names."""
    first, second = (template(two_nodes(), "node-1") for _ in range(2))
    assert first["metadata"]["ownerReferences"] == second["metadata"]["ownerReferences"]
    for mark in (names.POD_NODE_UID, names.POD_RUN):
        assert first["metadata"]["annotations"][mark] == second["metadata"]["annotations"][mark]
    assert first["metadata"]["name"] != second["metadata"]["name"]


FOREIGN = {
    "node-role.kubernetes.io/control-plane": "",
    "node-restriction.kubernetes.io/trusted": "true",
    "topology.kubernetes.io/zone": "elsewhere",
    "kubernetes.io/hostname": "other",
}
THROTTLED = {"key": names.TAINT_THROTTLED, "value": "thermal", "effect": "NoSchedule"}
GATED = {"code": "hot", "state": "gated", "bad": 2, "since": stamp(NOW), "enteredAt": stamp(NOW)}


def forge(operator: SteppedOperator, status: dict[str, Any]) -> None:
    """Somebody merges this into the status of every report."""
    for name in operator.cluster.objects[REPORTS]:
        operator.cluster.change(REPORTS, name, {"status": status}, sub="status")


@pytest.mark.parametrize("nulled", [True, False], ids=["no run is known", "runs are known"])
@pytest.mark.parametrize(
    "desired",
    [
        {"labels": FOREIGN},
        {"labels": {names.LABEL_INTERCONNECT: "nvlink", **FOREIGN}},
        {"taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoExecute"}]},
        {"taints": [{"key": "example.com/drain", "effect": "NoExecute"}], "labels": FOREIGN},
        {"condition": "False", "reason": "Forged", "message": "remove this node"},
    ],
    ids=["labels", "with one of ours", "a taint", "both", "the condition"],
)
def test_what_a_report_asks_for_is_computed_again_before_it_is_written(desired: Body, nulled: bool) -> None:
    operator = nodes(1)
    before = operator.cluster.state()["nodes"]["node-1"]
    past = {"probes": None, "interconnect": None, "gates": None} if nulled else {}
    forge(operator, past | {"desired": desired})
    operator.look(granted=False)
    after = operator.cluster.state()["nodes"]["node-1"]
    assert not after["labels"].keys() & (FOREIGN.keys() - before["labels"].keys())
    assert after["taints"] == []
    assert "Forged" not in str(after["conditions"])


@pytest.mark.parametrize("nulled", [True, False], ids=["no run is known", "runs are known"])
@pytest.mark.parametrize("state", list(GateState))
def test_gates_that_somebody_wrote_take_no_more_slots_than_there_are(state: GateState, nulled: bool) -> None:
    operator = nodes(9, budget={"gatedNodes": 1})
    most: list[int] = []
    operator.cluster.subscribers.append(lambda *_: most.append(len(operator.cluster.tainted_nodes())))
    forged = {"gates": [GATED | {"state": state.value}], "desired": {"taints": [THROTTLED]}}
    forge(operator, forged | ({"probes": None} if nulled else {}))
    operator.look(granted=False)
    operator.look(granted=False)
    assert max(most) <= 1
    if nulled:
        assert max(most) == 0, "a gate of which no run is known waits for one"


def test_forged_gates_leave_by_good_runs() -> None:
    operator = nodes(2, budget={"gatedNodes": 1}, hysteresis={"leaveRuns": 1, "dwell": "1m"})
    forge(operator, {"gates": [GATED | {"code": "gpu-lost"}], "desired": {"taints": []}})
    for _ in range(3):
        operator.run_all(after=INTERVAL)
    assert operator.cluster.tainted_nodes() == set()


@pytest.mark.parametrize("restart", [True, False])
def test_a_node_that_carries_its_taint_keeps_it_beside_forged_reports(restart: bool) -> None:
    operator = nodes(5, budget={"gatedNodes": 1})
    forged = {"gates": [GATED], "desired": {"taints": [THROTTLED]}}
    operator.cluster.change(REPORTS, "node-3", {"status": forged}, sub="status")
    operator.look(granted=False)
    assert operator.cluster.tainted_nodes() == {"node-3"}, "one report may ask for the one slot"
    forge(operator, forged)
    if restart:
        operator.restart()
    operator.look(granted=False)
    assert operator.cluster.tainted_nodes() == {"node-3"}


@pytest.mark.parametrize("number", [2**63 - 1, 10**9, 10**9 + 7, 0])
def test_any_run_number_in_a_report_is_followed_by_a_run(number: int) -> None:
    operator = nodes(1)
    [probe] = operator.cluster.objects[REPORTS]["node-1"]["status"]["probes"]
    edited = probe | {"lastRun": probe["lastRun"] | {"number": number}, "streak": 2**63 - 1}
    forge(operator, {"probes": [edited]})
    operator.cluster.pass_time(INTERVAL)
    operator.look()
    assert len(list(operator.cluster.pods())) == 1
    operator.run_all()
    after = operator.cluster.objects[REPORTS]["node-1"]["status"]["probes"][0]
    assert after["lastRun"]["outcome"] == "read"
    assert 0 < after["streak"] < 2**53
