"""A run counts only from the pod that the operator made for it, whoever else can create or change pods."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nodegauge_operator import names
from nodegauge_operator.kube.errors import KubeError
from support.api_server import EVENTS, NODES, PODS, REPORTS, Body, copied
from support.cluster import FakeCluster
from support.judging import listening, saying
from support.objects import INTERVAL, MINUTE
from support.operator import NOTHING, SteppedOperator

Spoil = Callable[[Body], None]


@pytest.fixture(autouse=True)
def stated_answers() -> Iterator[None]:
    with listening():
        yield


def two_nodes() -> SteppedOperator:
    """Two nodes that were read once, and a policy whose budget would allow both a taint."""
    cluster = FakeCluster()
    for name in ("node-1", "node-2"):
        cluster.add_node(name)
    cluster.add_policy(budget={"gatedNodes": "100%"})
    operator = SteppedOperator(cluster)
    operator.list()
    look(operator)
    cluster.kubelets()
    look(operator)
    cluster.pass_time(INTERVAL)
    return operator


def look(operator: SteppedOperator, *, granted: bool = True) -> None:
    """Both nodes are reconciled, and everybody sees what came of it."""
    operator.deliver()
    for name in sorted(operator.cluster.objects[NODES]):
        operator.reconcile(name, granted=granted)
    operator.deliver()


def lost(operator: SteppedOperator, pod: Body) -> str:
    """A result of the pod's run by which a GPU of node-1 fell off the bus: one bad run taints."""
    operator.cluster.results["node-1"] = saying("gpu-lost=b")
    return operator.cluster.result(pod)


def template(operator: SteppedOperator, name: str) -> Body:
    """What the operator would create for the node's next run, taken back before anybody sees it."""
    operator.deliver()
    kept: list[Body] = []

    def stolen(verb: str, path: str) -> KubeError | None:
        return KubeError("stopped") if (verb, path) == ("POST", PODS) else None

    call = operator.client.call

    async def noting(method: str, path: str, **how: Any) -> Body:
        if (method, path) == ("POST", PODS):
            kept.append(copied(how["body"]))
        return await call(method, path, **how)

    operator.client.call, operator.client.refuse = noting, stolen  # type: ignore[method-assign,assignment]
    with pytest.raises(KubeError):
        operator.reconcile(name)
    operator.client.call = call  # type: ignore[method-assign]
    operator.heal()
    return kept[0]


def of_nobody(pod: Body) -> None:
    pod["metadata"].pop("ownerReferences")


def of_another_report(pod: Body) -> None:
    pod["metadata"]["ownerReferences"][0]["uid"] = "uid-of-another"


def not_controlled(pod: Body) -> None:
    pod["metadata"]["ownerReferences"][0]["controller"] = False


def of_the_node(pod: Body) -> None:
    pod["metadata"]["ownerReferences"] = [{"kind": "Node", "name": "node-1", "uid": "x", "controller": True}]


def a_mirror(pod: Body) -> None:
    pod["metadata"]["annotations"][names.MIRROR_POD] = "hash"


def under_another_name(pod: Body) -> None:
    pod["metadata"]["name"] += "0"


def bound_elsewhere(pod: Body) -> None:
    pod["spec"]["nodeName"] = "node-2"


SPOILS = [
    of_nobody,
    of_another_report,
    not_controlled,
    of_the_node,
    a_mirror,
    under_another_name,
    bound_elsewhere,
]


@pytest.mark.parametrize("spoil", SPOILS)
def test_a_pod_that_the_operator_did_not_make_says_nothing(spoil: Spoil) -> None:
    """Each mark of ours but one, and a result of the very run that is due: neither taint nor judgement."""
    operator = two_nodes()
    before = operator.cluster.state()["nodes"]["node-1"]
    forged = template(operator, "node-1")
    message = lost(operator, forged | {"metadata": forged["metadata"] | {"uid": "x"}})
    spoil(forged)
    node = forged["spec"].get("nodeName", "node-1")
    pod = operator.cluster.create(PODS, forged)
    operator.cluster.end(
        pod | {"metadata": pod["metadata"] | {"annotations": {names.POD_NODE: node}}}, message
    )
    look(operator, granted=False)
    assert operator.cluster.state()["nodes"]["node-1"] == before
    assert operator.probe["lastRun"]["number"] == 1
    operator.cluster.results.clear()
    for _ in range(3):
        operator.cluster.pass_time(MINUTE)
        look(operator)
        operator.cluster.kubelets()
    look(operator, granted=False)
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
    ended = {"exitCode": 0, "reason": "Completed", "message": operator.cluster.result(pod)}
    status = [{"name": names.PROBE_CONTAINER, "state": {"terminated": ended}}]
    operator.cluster.pod_status(pod["metadata"]["name"], {"phase": "Succeeded", "containerStatuses": status})
    look(operator, granted=False)
    assert operator.cluster.state()["nodes"][victim] == before[victim]


@pytest.mark.parametrize("mark", [{}, {names.POD_PROBE: "health"}], ids=["without marks", "with our label"])
def test_a_pod_that_took_the_next_name_is_passed_over(mark: dict[str, str]) -> None:
    """It is left alone, an event says why, and the next try has another name."""
    operator = two_nodes()
    name = template(operator, "node-1")["metadata"]["name"]
    operator.cluster.create(PODS, {"metadata": {"name": name, "labels": mark}, "spec": {}})
    operator.reconcile("node-1")
    assert operator.probe["lastRun"]["reason"] == "CreateRefused"
    assert "nodegauge did not make it" in operator.probe["lastRun"]["message"]
    assert any(f"{name} exists" in body["message"] for body in operator.cluster.objects[EVENTS].values())
    operator.cluster.pass_time(MINUTE)
    operator.catch_up("node-1")
    created = [pod for pod in operator.cluster.pods() if pod["metadata"]["name"] != name]
    operator.cluster.end(created[0], operator.cluster.result(created[0]))
    operator.catch_up("node-1", granted=False)
    assert operator.probe["lastRun"]["outcome"] == "read"
    assert name in operator.cluster.objects[PODS]


def test_a_pod_that_never_goes_and_bears_our_marks_stops_nobody() -> None:
    """With a finalizer it would block the node and a slot of the budget, if it counted as ours."""
    operator = two_nodes()
    forged = template(operator, "node-1")
    of_nobody(forged)
    forged["metadata"] |= {"name": "squatter", "deletionTimestamp": "2027-01-15T07:00:00Z"}
    operator.cluster.create(PODS, forged)
    operator.deliver()
    assert operator.cache.nodes_with_pods(names.PROBE_HEALTH) == set()
    operator.reconcile("node-1")
    assert [p["metadata"]["name"] for p in operator.cluster.pods() if p["metadata"]["name"] != "squatter"]


@pytest.mark.parametrize("restart", [True, False])
def test_a_pod_that_takes_the_place_of_ours_is_another(restart: bool) -> None:
    """Ours is deleted while it runs, and one of its name, owner and marks follows: no result."""
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
    look(operator, granted=False)
    assert (operator.probe["lastRun"]["number"], operator.probe["lastRun"]["reason"]) == (2, "PodDeleted")
    assert operator.cluster.get(NODES, "node-1")["spec"]["taints"] == []


def test_the_next_run_s_identity_cannot_be_computed_from_what_can_be_seen() -> None:
    """Node, report, number and every earlier pod being the same, two clusters have other names."""
    first, second = (template(two_nodes(), "node-1") for _ in range(2))
    assert first["metadata"]["ownerReferences"] == second["metadata"]["ownerReferences"]
    marks = (names.POD_NODE_UID, names.POD_RUN)
    assert [first["metadata"]["annotations"][m] for m in marks] == [
        second["metadata"]["annotations"][m] for m in marks
    ]
    assert first["metadata"]["name"] != second["metadata"]["name"]


def test_each_run_draws_the_next_name_and_a_restart_keeps_it() -> None:
    """The report holds what the name is made of: who comes after a restart adopts the pod."""
    operator = two_nodes()
    operator.reconcile("node-1")
    operator.restart()
    operator.reconcile("node-1", granted=False)
    assert len(list(operator.cluster.pods())) == 1
    operator.cluster.kubelets()
    look(operator, granted=False)
    assert operator.probe["lastRun"]["outcome"] == "read"
    reports = operator.cluster.objects[REPORTS].values()
    nonces = [report["status"]["probes"][0]["lastRun"]["nonce"] for report in reports]
    assert len(set(nonces)) == 2
    assert all(len(nonce) == 16 for nonce in nonces)


def test_a_mirror_pod_is_nobody_s_to_delete() -> None:
    """Its kubelet would make it again and again."""
    operator = two_nodes()
    forged = template(operator, "node-1")
    a_mirror(forged)
    operator.cluster.create(PODS, forged)
    operator.deliver()
    operator.client.log.clear()
    operator.reconciler.reconcile("node-1", granted=NOTHING, since=None).close()
    look(operator, granted=False)
    assert "DELETE pods" not in operator.client.log
