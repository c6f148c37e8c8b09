"""The probe pod as a manifest: which container a probe has; `podparts` has what all of them are.

The health probe holds no GPU: by its environment the NVIDIA runtime shows it all of them, and `utility` alone
brings NVML in.  What a benchmark holds is in `ncclpod`.
"""

from __future__ import annotations

from typing import Any

from nodegauge_operator import names
from nodegauge_operator.api.policy import Policy, seconds
from nodegauge_operator.core.model import NodeView
from nodegauge_operator.core.probes import nccl_pod, pod_parts
from nodegauge_operator.core.probes.pod_parts import ProbeDefaults

__all__ = ["ProbeDefaults", "probe_pod"]

REQUESTS = {"cpu": "10m", "memory": "32Mi"}
LIMITS = {"cpu": "1", "memory": "256Mi"}
OWN_SHARE = 0.8
"""The probe ends by itself a little before the kubelet ends it, so that its own words arrive."""


def probe_pod(
    *,
    node: NodeView,
    policy: Policy,
    number: int,
    request: str,
    defaults: ProbeDefaults,
    probe: str = names.PROBE_HEALTH,
) -> dict[str, Any]:
    """The manifest of one run of a probe on one node, under the same name for every try of the same run.

    `request`: the report's `spec.requestedAt` that it answers.
    """
    run = names.run_id(node_uid=node.uid, probe=probe, number=number)
    spec = pod_parts.skeleton(node=node, policy=policy, defaults=defaults, deadline=policy.deadline_of(probe))
    metadata = pod_parts.metadata(node=node, policy=policy, number=number, defaults=defaults, probe=probe)
    match probe:
        case names.PROBE_NCCL:
            spec.pop("priorityClassName", None)  # a high one, meant for health probes, would end jobs
            spec |= nccl_pod.nccl(node=node, policy=policy, run=run, defaults=defaults)
        case names.PROBE_PULL:
            spec |= nccl_pod.pull(node=node, policy=policy, run=run, defaults=defaults)
            metadata["annotations"][names.POD_IMAGE] = policy.nccl_image(defaults.nccl_image)
        case _:
            spec["containers"] = [_health(node=node, policy=policy, run=run, defaults=defaults)]
    if request:
        metadata["annotations"][names.POD_REQUEST] = request
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _health(*, node: NodeView, policy: Policy, run: str, defaults: ProbeDefaults) -> dict[str, Any]:
    template, health = policy.spec.pod_template, policy.spec.probes.health
    body = pod_parts.container(node=node, policy=policy, run=run, defaults=defaults)
    own_deadline = max(1.0, seconds(health.deadline) * OWN_SHARE)
    return body | {
        "image": template.image or defaults.image,
        "command": ["python", "-m", "nodegauge_probes", "health"],
        "args": [f"--window={seconds(health.window):g}", f"--deadline={own_deadline:g}"],
        "env": [
            *body["env"],
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
            {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility"},
        ],
        "resources": {
            kind: own | defaults.resources.get(kind, {}) | template.resources.get(kind, {})
            for kind, own in (("requests", REQUESTS), ("limits", LIMITS))
        },
    }
