"""Readings count only while the chart's admission policy stands: the operator sees each hole in it, and
judges nothing meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nodegauge_operator import names
from nodegauge_operator.core.reading_admission import wrong
from nodegauge_operator.kube.admission import BINDING, POLICY
from support.cluster_under_test import AT_ONCE, GROUP, ClusterUnderTest, Machines, at_work
from support.guarded import ACCOUNT, NAMESPACE, Guarded, in_force
from support.results import h100
from testbed.audit import service_account
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster

Object = dict[str, Any]

RULE = "resourceRules"
ANYTHING = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["configmaps"]}
SOME = {"matchLabels": {"example.com/a": "b"}}
HOLES: dict[str, tuple[str, Callable[[Object], Any]]] = {
    "it lets pass what it cannot judge": (POLICY, lambda s: s.update(failurePolicy="Ignore")),
    "it has a condition": (
        POLICY,
        lambda s: s.update(matchConditions=[{"name": "x", "expression": "false"}]),
    ),
    "it sees no creation": (POLICY, lambda s: first_rule(s).update(operations=["UPDATE"])),
    "it sees one object": (POLICY, lambda s: first_rule(s).update(resourceNames=["x"])),
    "it sees namespaces only": (POLICY, lambda s: first_rule(s).update(scope="Namespaced")),
    "it sees another resource": (POLICY, lambda s: s["matchConstraints"].update({RULE: [ANYTHING]})),
    "it leaves an object out": (
        POLICY,
        lambda s: s["matchConstraints"].update(
            excludeResourceRules=[first_rule(s) | {"resourceNames": ["x"]}]
        ),
    ),
    "it sees labelled objects": (POLICY, lambda s: s["matchConstraints"].update(objectSelector=SOME)),
    "it takes any node": (POLICY, lambda s: s["variables"][1].update(expression="[object.metadata.name]")),
    "it takes UIDs for nodes": (POLICY, lambda s: swap_names(s["variables"][1], s["variables"][2])),
    "it sees fewer parts": (POLICY, lambda s: s["variables"][3].update(expression="['health']")),
    "it asks for less": (POLICY, lambda s: s["validations"].pop()),
    "the binding is another policy's": (BINDING, lambda s: s.update(policyName="reports.nodegauge.dev")),
    "the binding only notes it": (BINDING, lambda s: s.update(validationActions=["Audit"])),
    "the binding is of other resources": (BINDING, lambda s: s.update(matchResources={RULE: [ANYTHING]})),
    "the binding is of labelled objects": (
        BINDING,
        lambda s: s.update(matchResources={"objectSelector": SOME}),
    ),
    "the binding leaves readings out": (
        BINDING,
        lambda s: s.update(
            matchResources={"excludeResourceRules": [ANYTHING | {"apiGroups": ["*"], "resources": ["*"]}]}
        ),
    ),
}
"""Changes that the API server takes and that let others write, or that nobody has thought through."""


def first_rule(spec: Object) -> Object:
    rule: Object = spec["matchConstraints"][RULE][0]
    return rule


def swap_names(one: Object, other: Object) -> None:
    one["name"], other["name"] = other["name"], one["name"]


def test_the_operator_takes_what_the_chart_installs_for_protection(guarded: Guarded) -> None:
    """As the API server stores it, with its defaults; that of another account is none."""
    policy, binding = guarded.admin.get(POLICY), guarded.admin.get(BINDING)
    user = service_account(NAMESPACE, f"{ACCOUNT}-probe")
    assert wrong(policy, binding, probe_user=user) == ""
    assert "validations" in wrong(policy, binding, probe_user=service_account(NAMESPACE, ACCOUNT))


@pytest.mark.parametrize("what", HOLES)
def test_the_operator_sees_each_hole_in_the_protection(guarded: Guarded, what: str) -> None:
    """Whoever makes it with the API server's consent; nothing is stored here."""
    changed, change = HOLES[what]
    objects = {path: guarded.admin.get(path) for path in (POLICY, BINDING)}
    change(objects[changed]["spec"])
    stored = guarded.admin.call("PUT", f"{changed}?dryRun=All", body=objects[changed])
    assert stored["metadata"]["generation"] == objects[changed]["metadata"]["generation"] + 1, (
        "it is a change"
    )
    objects[changed] = stored
    user = service_account(NAMESPACE, f"{ACCOUNT}-probe")
    assert wrong(objects[POLICY], objects[BINDING], probe_user=user)


@contextlib.contextmanager
def unprotected(guarded: Guarded) -> Iterator[None]:
    """Meanwhile the binding of what the chart installed only warns; afterwards it denies again."""
    rest = guarded.admin
    kept = rest.get(BINDING)["spec"]["validationActions"]
    rest.patch(BINDING, {"spec": {"validationActions": ["Warn"]}})
    try:
        yield
    finally:
        rest.patch(BINDING, {"spec": {"validationActions": kept}})
        wait_for(lambda: in_force(guarded), what="the policy in force again")


def test_without_its_protection_no_reading_counts(guarded: Guarded, tmp_path: Path) -> None:
    """The node keeps what it carries, whatever is written; once the policy is back, the run of a pod that was
    made before does not count either, and that of the next one does."""
    kubeconfig = guarded.plane.user_kubeconfig(
        "operator", token=guarded.plane.service_account_token(NAMESPACE, ACCOUNT)
    )
    where: dict[str, Any] = {"namespace": NAMESPACE, "directory": tmp_path, "kubeconfig": kubeconfig}
    rig = ClusterUnderTest(guarded.admin, protected=True, **where)
    node, machines = rig.add_node(), Machines(h100())

    def answer(pod: Object) -> str | None:
        return machines(pod) if names.POD_PROBE in pod["metadata"]["labels"] else None

    def probe_pods() -> list[str]:
        return [p["metadata"]["uid"] for p in rig.pods() if names.POD_PROBE in p["metadata"]["labels"]]

    rig.add_policy(
        probes={
            "health": {"interval": "3m", "deadline": "2m", "window": "500ms"},
            "load": {"enabled": False},
        },
        hysteresis=AT_ONCE,
        budget={"gatedNodes": "100%"},
    )
    once = {"NODEGAUGE_HTTP_PORT": "0", "NODEGAUGE_RELEASE_GRACE": "1s", "NODEGAUGE_NCCL_IMAGE": ""}
    gates = dict.fromkeys(("NODEGAUGE_MAX_GATED_NODES", "NODEGAUGE_MAX_GATED_NODES_PER_HOUR"), "100%")
    environment: dict[str, Any] = guarded.environment() | once | gates
    with rig.kubelet(answer), rig.operator(**environment) as operator:
        wait_for(lambda: rig.condition(node).get("status") == "True", what="a validated node")
        with unprotected(guarded):
            wait_for(lambda: "no reading counts: " in operator.output(), what="the operator's complaint")
            marks = rig.ours(node), rig.taints(node), rig.condition(node)
            machines.now = at_work(95)
            number = rig.last_run(node)["number"]
            rig.ask_for_run(node)
            run = wait_for(
                lambda: rig.last_run(node)["number"] > number and rig.last_run(node), what="another run"
            )
            assert (run["outcome"], run["reason"]) == ("unknown", "ReadingsUnprotected")
            machines.of[node] = None
            rig.ask_for_run(node)
            [pod_uid] = wait_for(
                lambda: [uid for uid in probe_pods() if uid != run["podUID"]],
                what="a pod that is made meanwhile",
            )
            assert (rig.ours(node), rig.taints(node), rig.condition(node)) == marks
        stands = "the admission policy of NodeReadings stands"
        wait_for(lambda: operator.output().count(stands) == 2, what="protected readings")
        del machines.of[node]
        run = wait_for(
            lambda: rig.last_run(node)["podUID"] == pod_uid and rig.last_run(node), what="the end of that pod"
        )
        assert (run["outcome"], run["reason"]) == ("unknown", "ReadingsUnprotected")
        assert rig.taints(node) == []
        rig.ask_for_run(node)
        wait_for(lambda: rig.last_run(node)["outcome"] == "read", what="the reading of the next pod")
        assert rig.taints(node), "the node is written before its report"
        guarded.admin.delete(f"{GROUP}/gpuvalidationpolicies/{rig.policies[0]}")
        wait_for(lambda: not rig.ours(node) and not rig.condition(node), what="the release of the node")
    rig.clean()
