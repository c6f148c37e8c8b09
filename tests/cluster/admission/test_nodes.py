"""What the admission policies let the release's accounts change on nodes, by field."""

from typing import Any

import pytest

from nodegauge_operator import names
from nodegauge_operator.core.probes.registry import label_keys
from support.guarded import NODE, Guarded, node_patch, refusal, status_patch
from testbed.errors import ApiError
from testbed.rest import Object
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster


def own_taint(value: str) -> Object:
    return {"key": names.TAINT_UNHEALTHY, "value": value, "effect": "NoSchedule"}


def metadata(**fields: Any) -> Object:
    return {"metadata": fields}


def spec(**fields: Any) -> Object:
    return {"spec": fields}


def status(**fields: Any) -> Object:
    return {"status": fields}


def taint(guarded: Guarded, account: str, *own: Object) -> None:
    """Set these taints of ours beside those that the node has at that moment: controllers taint it too."""

    def patched() -> bool:
        node = guarded.admin.get(f"/api/v1/nodes/{NODE}")
        body = spec(taints=[*(node["spec"].get("taints") or ()), *own])
        body |= metadata(resourceVersion=node["metadata"]["resourceVersion"])
        try:
            node_patch(getattr(guarded, account), body)
        except ApiError as error:
            if error.status != 409:
                raise
            return False
        return True

    wait_for(patched, what="a patch of a node that nobody changes meanwhile")


OWN_LABELS, OWN_SPEC = "may set only its own labels", "may not change a node's spec but its taints"
OWN_CONDITION, OWN_STATUS = "may write only the condition GPUValidated", "may not change a node's status"
BY_STATUS = "may not change metadata by way of the status"
OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}
FOREIGN_TAINT = {"key": "example.com/t", "effect": "NoExecute"}
READ_BY_CA = "status-taint.cluster-autoscaler.kubernetes.io/nodegauge"
RENAMED = {"key": f"{READ_BY_CA}-unhealthy", "effect": "NoSchedule"}
ROLE, PODS = "node-role.kubernetes.io/x", "10.1.0.0/24"
FOREIGN_CHANGES: dict[str, tuple[Object, str]] = {
    "a foreign label": (metadata(labels={"team": "other"}), OWN_LABELS),
    "a node role": (metadata(labels={ROLE: ""}), OWN_LABELS),
    "a role by a class": (metadata(labels={ROLE: "nvlink"}), "admissionPolicies.interconnectKeys"),
    "a short key's value": (metadata(labels={"interconnect": "x"}), OWN_LABELS),
    "a removed label": (metadata(labels={"team": None}), "may remove only its own labels"),
    "an annotation": (metadata(annotations={"example.com/a": "2"}), "may not change annotations"),
    "a removed annotation": (metadata(annotations=None), "may not change annotations"),
    "a finalizer": (metadata(finalizers=["example.com/keep"]), "may not change finalizers"),
    "an owner": (metadata(ownerReferences=[OWNER]), "may not change owners"),
    "a foreign taint": (spec(taints=[FOREIGN_TAINT]), "may change only its own taints"),
    "an unknown cause": (spec(taints=[own_taint("because")]), "may taint only for its own causes"),
    "an unknown cause by a policy's key": (spec(taints=[RENAMED | {"value": "because"}]), "its own causes"),
    "a taint that looks like ours": (
        spec(taints=[RENAMED | {"key": f"{READ_BY_CA}-x"}]),
        "only its own taints",
    ),
    "a cordon": (spec(unschedulable=True), OWN_SPEC),
    "a provider": (spec(providerID="x://y"), OWN_SPEC),
    "pod addresses": (spec(podCIDR=PODS, podCIDRs=[PODS]), OWN_SPEC),
}


@pytest.mark.parametrize("what", FOREIGN_CHANGES)
@pytest.mark.parametrize("account", ["operator", "cleanup"])
def test_on_nodes_only_our_fields_change(guarded: Guarded, account: str, what: str) -> None:
    """Each foreign change is refused with what it is; the administrator may make it."""
    body, message = FOREIGN_CHANGES[what]
    assert message in refusal(node_patch, getattr(guarded, account), body)
    node_patch(guarded.admin, body)


FOREIGN_STATUS: dict[str, tuple[Object, str]] = {
    "Ready": (status(conditions=[{"type": "Ready", "status": "False"}]), OWN_CONDITION),
    "a new condition": (status(conditions=[{"type": "Other", "status": "True"}]), OWN_CONDITION),
    "allocatable": (status(allocatable={"cpu": "1"}), OWN_STATUS),
    "capacity": (status(capacity={"nvidia.com/gpu": "0"}), OWN_STATUS),
    "an address": (status(addresses=[{"type": "InternalIP", "address": "10.9.9.9"}]), OWN_STATUS),
    "the boot": (status(nodeInfo={"bootID": "other"}), OWN_STATUS),
    "a label": (metadata(labels={"team": "other"}), BY_STATUS),
    "our label": (metadata(labels={names.LABEL_HEALTH: "pass"}), BY_STATUS),
}


@pytest.mark.parametrize("what", FOREIGN_STATUS)
@pytest.mark.parametrize("account", ["operator", "cleanup"])
def test_in_a_nodes_status_only_our_condition_changes(guarded: Guarded, account: str, what: str) -> None:
    """Each foreign change is refused with what it is."""
    body, message = FOREIGN_STATUS[what]
    assert message in refusal(status_patch, getattr(guarded, account), body)


CONDITION = status(
    conditions=[{"type": names.CONDITION, "status": "True", "reason": "Validated", "message": "m"}]
)


@pytest.mark.parametrize("account", ["operator", "cleanup"])
def test_every_label_taint_and_cause_of_ours_can_be_written(guarded: Guarded, account: str) -> None:
    """And the short keys: the chart's default, and that of its policy's values."""
    rest = getattr(guarded, account)
    short = {"interconnect": "pcie", "example.com/fabric": "nvlink"}
    node_patch(rest, metadata(labels=dict.fromkeys(label_keys(), "1") | short))
    causes = {value for values, _ in names.NODE_TAINTS.values() for value in values.split(" | ")}
    for cause in causes - {"(no value)"}:
        taint(guarded, account, own_taint(cause), {"key": names.TAINT_UNVALIDATED, "effect": "NoSchedule"})
    taint(guarded, account, RENAMED | {"value": "thermal"}, RENAMED | {"key": f"{READ_BY_CA}-unvalidated"})
    status_patch(rest, CONDITION)


def test_nobody_of_ours_lifts_a_cordon(guarded: Guarded) -> None:
    """What people took out of service stays there."""
    path = f"/api/v1/nodes/{NODE}"
    guarded.admin.patch(path, spec(unschedulable=True))
    refused = refusal(node_patch, guarded.operator, spec(unschedulable=None))
    guarded.admin.patch(path, spec(unschedulable=None))
    assert OWN_SPEC in refused


def test_a_short_key_that_no_value_names_any_more_can_be_removed(guarded: Guarded) -> None:
    """Else no label and no taint of such a node would ever be lifted."""
    path = f"/api/v1/nodes/{NODE}"
    guarded.admin.patch(path, metadata(labels={"old-key": "nvlink-pairs"}))
    guarded.cleanup.patch(path, metadata(labels={"old-key": None}))
    assert "old-key" not in guarded.admin.get(path)["metadata"]["labels"]


def test_a_node_with_much_on_it_is_not_too_much_for_the_policies(guarded: Guarded) -> None:
    """The API server bounds what one evaluation may cost; a refusal for that would hold every taint."""
    path = f"/api/v1/nodes/{NODE}"
    labels = {f"example.com/label-{n}": "x" * 60 for n in range(300)}
    annotations = {f"example.com/note-{n}": "x" * 3000 for n in range(60)}
    taints = [{"key": f"example.com/taint-{n}", "value": "x", "effect": "NoExecute"} for n in range(40)]
    images = [{"names": [f"example.com/{n}/{m}@sha256:{'0' * 64}" for m in range(3)]} for n in range(100)]
    calm = guarded.admin.get(path)
    guarded.admin.patch(path, metadata(labels=labels, annotations=annotations) | spec(taints=taints))
    guarded.admin.patch(f"{path}/status", status(images=images))
    node_patch(guarded.operator, metadata(labels={names.LABEL_HEALTH: "pass"}))
    taint(guarded, "operator", own_taint("thermal"))
    status_patch(guarded.operator, CONDITION)
    gone = metadata(labels=dict.fromkeys(labels), annotations=dict.fromkeys(annotations))
    guarded.admin.patch(path, gone | spec(taints=calm["spec"].get("taints")))
    guarded.admin.patch(f"{path}/status", status(images=None))
