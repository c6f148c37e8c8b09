"""The manifest of a probe pod: what every pod of ours has, whatever it measures.

Promise 6: a token that can only write the node's NodeReading, no root, no capabilities, read-only root,
seccomp RuntimeDefault, bounded CPU, memory and time.  Pods are pinned by affinity on metadata.name, not by
nodeName: so priority and preemption stay in force, and no autoscaler scales up for them.  Requests are
explicit, because limits without requests become requests, and the probe would then pend on a full node.
"""

from __future__ import annotations

from typing import Any

from msgspec import to_builtins

from nodegauge_operator import names
from nodegauge_operator.api.policy import Policy, seconds
from nodegauge_operator.core.context import Context, NextRun
from nodegauge_operator.core.driver_access import with_access
from nodegauge_operator.core.model import ProbeDefaults
from nodegauge_operator.core.probes.kind import ProbeKind

GRACE_SECONDS = 5
USER = 65532
TOKEN_FOLDER, TOKEN_SECONDS = "/var/run/secrets/nodegauge", 3600
"""Where the token is, and for how long it is valid: the kubelet renews it after four fifths of that."""
KERNEL_LOG, KERNEL_LOG_FOLDER = "kernel-log", "/run/kernel-log"
"""Name of the volume, which the admission policies know, and where the container sees it."""
NVME, NVME_FOLDER = "nvme", "/run/nvme"
"""The same of the folder that the load probe reads."""
TOKEN_MOUNT = {"name": "token", "mountPath": TOKEN_FOLDER, "readOnly": True}
TOKEN_VARIABLE = {"name": "NODEGAUGE_TOKEN_FOLDER", "value": TOKEN_FOLDER}


def probe_pod(context: Context, kind: ProbeKind, run: NextRun) -> dict[str, Any]:
    """The manifest of one run, with the same name for every try of the same run."""
    spec = skeleton(context.policy, context.defaults) | _once(context, kind) | kind.pod_spec(context, run.id)
    spec = with_access(spec, context.access, context.defaults, needs=kind.needs)
    spec["volumes"] = [*spec.get("volumes", ()), token_volume()]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(context, kind, run),
        "spec": {key: value for key, value in spec.items() if value is not None},
    }


def container(context: Context, run: str) -> dict[str, Any]:
    """The one container of a run's pod."""
    env = [{"name": "NODEGAUGE_RUN", "value": run}, {"name": "NODEGAUGE_NODE", "value": context.node.name}]
    own = {"env": [*env, TOKEN_VARIABLE], "volumeMounts": [TOKEN_MOUNT]}
    return probe_container(context.policy, context.defaults) | own


def token_volume() -> dict[str, Any]:
    """The pod's own token, bound to it, and the authority behind the API server's certificate."""
    token = {"serviceAccountToken": {"path": "token", "expirationSeconds": TOKEN_SECONDS}}
    authority = {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}}
    return {"name": "token", "projected": {"sources": [token, authority], "defaultMode": 0o444}}


def with_kernel_log(policy: Policy, spec: dict[str, Any]) -> dict[str, Any]:
    """The spec of a pod with its one container, which also reads the kernel's log if the policy asks for it:
    the folder, since a file that rotates would stay the old one, and the group that may read it.

    The kubelet does not check that the folder is there: without it the log is unread and the GPUs are not."""
    log = policy.spec.probes.health.kernel_log
    if not log.enabled:
        return spec
    [body] = spec["containers"]
    mount = {"name": KERNEL_LOG, "mountPath": KERNEL_LOG_FOLDER, "readOnly": True}
    body |= {
        "args": [*body["args"], f"--kernel-log={KERNEL_LOG_FOLDER}{log.path.removeprefix(log.folder)}"],
        "volumeMounts": [*body["volumeMounts"], mount],
    }
    volume = {"name": KERNEL_LOG, "hostPath": {"path": log.folder}}
    context = skeleton_context() | {"supplementalGroups": [log.group]}
    return spec | {"volumes": [*spec.get("volumes", ()), volume], "securityContext": context}


def with_nvme(policy: Policy, spec: dict[str, Any]) -> dict[str, Any]:
    """The spec of a load pod, which also reads the policy's folder if it names one: read-only, unless the
    policy allows writing.  The kubelet does not check that the folder is there: GPUs are loaded anyway."""
    nvme = policy.spec.probes.load.nvme
    if not nvme.path:
        return spec
    [body] = spec["containers"]
    body |= {
        "args": [
            *body["args"],
            f"--nvme={NVME_FOLDER}",
            f"--nvme-path={nvme.path}",
            f"--nvme-gib={nvme.size_gib}",
            f"--nvme-seconds={seconds(nvme.duration):g}",
            *(["--nvme-write"] if nvme.write else []),
        ],
        "volumeMounts": [
            *body["volumeMounts"],
            {"name": NVME, "mountPath": NVME_FOLDER, "readOnly": not nvme.write},
        ],
    }
    return spec | {"volumes": [*spec["volumes"], {"name": NVME, "hostPath": {"path": nvme.path}}]}


def probe_container(policy: Policy, defaults: ProbeDefaults) -> dict[str, Any]:
    """What every container of a probe has: its name, and what it may never do."""
    pull = policy.spec.pod_template.image_pull_policy or defaults.image_pull_policy
    body: dict[str, Any] = {
        "name": names.PROBE_CONTAINER,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    return body | ({"imagePullPolicy": pull} if pull else {})


def configured_tolerations(policy: Policy, defaults: ProbeDefaults) -> list[dict[str, Any]]:
    """The tolerations of probe pods that the policy, or else the installation, configures."""
    tolerations = policy.spec.pod_template.tolerations or defaults.tolerations
    configured: list[dict[str, Any]] = to_builtins(tolerations)
    return configured


def _once(context: Context, kind: ProbeKind) -> dict[str, Any]:
    """The pod runs once, for so long at most, and on this node."""
    field = {"key": "metadata.name", "operator": "In", "values": [context.node.name]}
    required = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": max(1, round(kind.deadline(context.policy))),
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
    }


def skeleton(policy: Policy, defaults: ProbeDefaults) -> dict[str, Any]:
    """What the spec of every pod of a probe has."""
    template = policy.spec.pod_template
    spec: dict[str, Any] = {
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "tolerations": _tolerations(policy, defaults),
        "securityContext": skeleton_context(),
    }
    optional = {
        "runtimeClassName": template.runtime_class_name or defaults.runtime_class_name,
        "priorityClassName": template.priority_class_name or defaults.priority_class_name,
        "serviceAccountName": defaults.service_account_name,
        "imagePullSecrets": template.image_pull_secrets or [{"name": s} for s in defaults.image_pull_secrets],
    }
    return spec | {key: value for key, value in optional.items() if value}


def skeleton_context() -> dict[str, Any]:
    """The security context of every pod."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _tolerations(policy: Policy, defaults: ProbeDefaults) -> list[dict[str, Any]]:
    """Everything, unless policy or installation say what; our own taints always, whatever their effect.

    A node that we gate has to be measured, or it would never leave its gates.
    """
    configured = configured_tolerations(policy, defaults)
    if not configured:
        return [{"operator": "Exists"}]
    return configured + [{"key": key, "operator": "Exists"} for key in policy.spec.taints.keys.tolerated]


def _metadata(context: Context, kind: ProbeKind, run: NextRun) -> dict[str, Any]:
    node, defaults = context.node, context.defaults
    labels, annotations = pod_labels(context.policy, defaults, probe=kind.name)
    asked = context.report.request_of(kind.name)
    request = {names.POD_REQUEST: asked} if asked else {}
    return {
        "name": names.pod_name(probe=kind.name, run=run.id),
        "namespace": defaults.namespace,
        "ownerReferences": [_owner(context)],
        "labels": labels,
        "annotations": {
            **annotations,
            names.POD_NODE: node.name,
            names.POD_NODE_UID: node.uid,
            names.POD_RUN: str(run.number),
            names.POD_BOOT: node.boot_id,
            names.POD_POLICY: context.policy.name,
            names.POD_IMAGE: kind.image(context),
            names.POD_TRUST: context.trusted,
            **request,
        },
    }


def pod_labels(
    policy: Policy, defaults: ProbeDefaults, *, probe: str
) -> tuple[dict[str, str], dict[str, str]]:
    """Labels and annotations of every pod of a probe: the installation's, the policy's, and ours."""
    template = policy.spec.pod_template
    labels = {
        **names.NO_SIDECAR_LABELS,
        **defaults.labels,
        **template.labels,
        "app.kubernetes.io/name": "nodegauge-probe",
        "app.kubernetes.io/instance": defaults.instance,
        "app.kubernetes.io/managed-by": "nodegauge",
        names.POD_PROBE: probe,
    }
    annotations = {
        **names.NO_SIDECAR_ANNOTATIONS,
        names.SAFE_TO_EVICT: "true",
        **defaults.annotations,
        **template.annotations,
    }
    return labels, annotations


def _owner(context: Context) -> dict[str, Any]:
    """The report controls its pods: `kubectl drain` and autoscalers leave pods without a controller alone or
    refuse them, and pods without their report are garbage."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.REPORT_KIND,
        "name": context.node.name,
        "uid": context.report.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }
