"""A cluster's own rule refuses part of what should stand on a node: the rest stands, safety first, and the
policy says what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import support.results as made
from nodegauge_operator import names
from support.api_server import ADMISSION, BINDINGS
from support.cluster_under_test import AT_ONCE, GROUP, ClusterUnderTest, Machines, at_work
from testbed.audit import AuditTrail
from testbed.controlplane import ControlPlane
from testbed.errors import ApiError
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster

RULE, PROBED = "strangers-rule", "example.com/probed"
NODES = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes"]}
HEALTH = f"object.metadata.labels.all(k, k != '{names.LABEL_HEALTH}')"
TAINTS = "object.spec.?taints.orValue([]) == oldObject.spec.?taints.orValue([])"


@contextmanager
def policy_that_asks(plane: ControlPlane, expression: str, *, node: str) -> Iterator[None]:
    """A ValidatingAdmissionPolicy about all nodes, in force meanwhile and not beyond: later tests have the
    same API server.  It also refuses the label of `node` by which it is seen."""
    unprobed = f"!('{PROBED}' in object.metadata.labels)"
    validation = {"expression": f"{expression} && {unprobed}", "message": "not here"}
    match = {"matchConstraints": {"resourceRules": [NODES]}, "failurePolicy": "Fail"}
    bound = {"policyName": RULE, "validationActions": ["Deny"]}
    api = plane.rest()

    def in_force() -> bool:
        try:
            api.patch(f"/api/v1/nodes/{node}?dryRun=All", {"metadata": {"labels": {PROBED: "x"}}})
        except ApiError as error:
            return "not here" in str(error)
        return False

    api.create(ADMISSION, {"metadata": {"name": RULE}, "spec": match | {"validations": [validation]}})
    api.create(BINDINGS, {"metadata": {"name": RULE}, "spec": bound})
    try:
        wait_for(in_force, what="the rule in force")
        yield
    finally:
        api.delete(f"{BINDINGS}/{RULE}")
        api.delete(f"{ADMISSION}/{RULE}")
        wait_for(lambda: not in_force(), what="the rule gone")


@pytest.mark.parametrize(
    ("about", "says", "missing"),
    [(HEALTH, "LabelRefused", {names.LABEL_HEALTH}), (TAINTS, "TaintRefused", set())],
    ids=["one label", "taints"],
)
def test_what_a_rule_refuses_holds_back_nothing_else(
    rig: ClusterUnderTest,
    control_plane: ControlPlane,
    audit: AuditTrail,
    about: str,
    says: str,
    missing: set[str],
) -> None:
    """`missing`: labels that the node lacks."""
    api, node = rig.api, rig.add_node()
    policy = rig.add_policy(hysteresis=AT_ONCE)
    broken = made.with_pair(at_work(60), 0, 1, nvlink=4, read=4, write=4)

    def ready() -> dict[str, Any]:
        conditions = api.get(f"{GROUP}/gpuvalidationpolicies/{policy}").get("status", {}).get("conditions")
        return next((c for c in conditions or () if c["type"] == "Ready"), {})

    rule = policy_that_asks(control_plane, about, node=node)
    with rule, rig.kubelet(Machines(broken)), rig.operator() as operator:
        rig.wait_run(node, 1)
        wait_for(lambda: ready().get("reason") == says, what=f"the reason {says}")
        desired = rig.report(node)["status"]["desired"]
        refused = operator.metric("nodegauge_obstacles")
    writes = audit.writes(user_agent=names.USER_AGENT)
    assert rig.taints(node) == ([] if says == "TaintRefused" else ["unhealthy=p2p:NoSchedule"])
    assert rig.condition(node)["status"] == "False"
    assert rig.labels(node).keys() & desired["labels"].keys() == desired["labels"].keys() - missing
    assert ready()["status"] == "False"
    assert "not here" in ready()["message"]
    assert all(label in ready()["message"] for label in missing)
    assert refused >= 1

    def first(resource: str, *, code: int) -> int:
        return next(i for i, w in enumerate(writes) if (w.resource, w.code) == (resource, code))

    on_node = [i for i, write in enumerate(writes) if write.resource == "nodes"]
    whole, taints, *labels = on_node
    assert "labels" in writes[whole].body["metadata"]
    assert writes[taints].body["spec"]["taints"], "the next write after the refusal"
    assert taints < first("nodes/status", code=200) < labels[0]
