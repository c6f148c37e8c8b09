"""What every pod of ours is, whatever it measures, and what the installation says of them.

Promise 6: no token, no root, no capabilities, read-only root, seccomp RuntimeDefault, bounded in CPU, memory
and time.  Pinned by affinity on metadata.name, never by nodeName: priority and preemption stay in force, and
no autoscaler scales up for it.  Requests are explicit: limits without requests become requests, and the probe
would pend on a full node.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, to_builtins

from nodegauge_operator import names
from nodegauge_operator.api.policy import Policy
from nodegauge_operator.core.model import NodeView

GRACE_SECONDS = 5
USER = 65532


class ProbeDefaults(Struct, frozen=True, kw_only=True):
    """What the installation says of probe pods; a policy's podTemplate overrides it field by field.

    Labels, annotations and resources are merged key by key, the policy's winning.
    """

    namespace: str
    image: str
    image_pull_policy: str = ""
    image_pull_secrets: tuple[str, ...] = ()
    priority_class_name: str = ""
    runtime_class_name: str = ""
    service_account_name: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    tolerations: list[dict[str, Any]] = []
    resources: dict[str, dict[str, str]] = {}
    instance: str = "nodegauge"
    nccl_image: str = ""
    nccl_priority_class_name: str = ""
    nccl_resources: dict[str, dict[str, str]] = {}


def skeleton(*, node: NodeView, policy: Policy, defaults: ProbeDefaults, deadline: float) -> dict[str, Any]:
    """What every pod of ours is."""
    template = policy.spec.pod_template
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": max(1, round(deadline)),
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "affinity": _pinned_to(node.name),
        "tolerations": tolerations(wanted_tolerations(policy, defaults)),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    optional = {
        "runtimeClassName": template.runtime_class_name or defaults.runtime_class_name,
        "priorityClassName": template.priority_class_name or defaults.priority_class_name,
        "serviceAccountName": defaults.service_account_name,
        "imagePullSecrets": template.image_pull_secrets or [{"name": s} for s in defaults.image_pull_secrets],
    }
    return spec | {key: value for key, value in optional.items() if value}


def tolerations(wanted: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Everything, unless policy or installation say what; our own taints in any case, whatever their effect.

    A node that we gate has to be measured, or it would never leave its gates.
    """
    if not wanted:
        return [{"operator": "Exists"}]
    return wanted + [{"key": key, "operator": "Exists"} for key in names.NODE_TAINTS]


def metadata(
    *, node: NodeView, policy: Policy, number: int, defaults: ProbeDefaults, probe: str
) -> dict[str, Any]:
    template = policy.spec.pod_template
    return {
        "name": names.pod_name(node_uid=node.uid, probe=probe, number=number),
        "namespace": defaults.namespace,
        "labels": {
            names.NO_SIDECAR_ISTIO: "false",
            **defaults.labels,
            **template.labels,
            "app.kubernetes.io/name": "nodegauge-probe",
            "app.kubernetes.io/instance": defaults.instance,
            "app.kubernetes.io/managed-by": "nodegauge",
            names.POD_PROBE: probe,
        },
        "annotations": {
            names.NO_SIDECAR_LINKERD: "disabled",
            names.SAFE_TO_EVICT: "true",
            **defaults.annotations,
            **template.annotations,
            names.POD_NODE: node.name,
            names.POD_NODE_UID: node.uid,
            names.POD_RUN: str(number),
            names.POD_BOOT: node.boot_id,
            names.POD_POLICY: policy.name,
        },
    }


def container(*, node: NodeView, policy: Policy, run: str, defaults: ProbeDefaults) -> dict[str, Any]:
    """The one container of a pod: who it is, and what it may never do."""
    template = policy.spec.pod_template
    body: dict[str, Any] = {
        "name": names.PROBE_CONTAINER,
        "env": [
            {"name": "NODEGAUGE_RUN", "value": run},
            {"name": "NODEGAUGE_NODE", "value": node.name},
        ],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    pull = template.image_pull_policy or defaults.image_pull_policy
    return body | ({"imagePullPolicy": pull} if pull else {})


def wanted_tolerations(policy: Policy, defaults: ProbeDefaults) -> list[dict[str, Any]]:
    """What the policy, or else the installation, says that probe pods tolerate."""
    found: list[dict[str, Any]] = to_builtins(policy.spec.pod_template.tolerations or defaults.tolerations)
    return found


def _pinned_to(node: str) -> dict[str, Any]:
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    required = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
