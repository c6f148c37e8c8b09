"""What pods of the benchmark have beyond what all of ours have: one holds every GPU, the other none.

The benchmark asks for all GPUs that the device plugin offers, whoever holds them now: so the scheduler places
it on an idle node alone, and takes it off as soon as somebody of higher priority wants one.  The plugin says
which GPUs it sees, so its environment must not.  It never tolerates a cordon: `giving_way` comes too late for
a node that is cordoned between the plan and the pod.
"""

from __future__ import annotations

from typing import Any

import msgspec

from nodegauge_operator import names
from nodegauge_operator.api.policy import Policy
from nodegauge_operator.core.model import NodeView
from nodegauge_operator.core.nccl_eligibility import allocatable
from nodegauge_operator.core.probes import pod_parts
from nodegauge_operator.core.probes.pod_parts import ProbeDefaults

OWN_SHARE = 0.9
"""The benchmark ends by itself before the kubelet ends it, with what it has."""
SHM_GIB = 4
"""NCCL's host buffers lie in /dev/shm where it may not use cuMem (measurement, section 3.3); the 64 MiB that
a runtime gives by default are too few.  Charged to the pod's memory, which is why its limit lies above."""
TMP = "1Gi"
MEMORY_GIB_PER_GPU = 1.5
"""Host memory of a CUDA context, its pinned buffers and its share of NCCL's, generously."""
MEMORY_GIB = 4
PULL_REQUESTS = {"cpu": "10m", "memory": "64Mi"}
PULL_LIMITS = {"cpu": "1", "memory": "2Gi"}
KUBERNETES_TAINTS = "node.kubernetes.io/"
"""Taints by which Kubernetes says that a node is not to be used now: cordoned, not ready, short of memory."""


def nccl(*, node: NodeView, policy: Policy, run: str, defaults: ProbeDefaults) -> dict[str, Any]:
    """The parts of the pod spec that make it a benchmark."""
    probe, gpus = policy.spec.probes.nccl, allocatable(node)
    body = pod_parts.container(node=node, policy=policy, run=run, defaults=defaults)
    body |= {
        "image": policy.nccl_image(defaults.nccl_image),
        "command": ["python", "-m", "nodegauge_probes", names.PROBE_NCCL],
        "args": [
            f"--engine={probe.engine.value}",
            f"--deadline={policy.deadline_of(names.PROBE_NCCL) * OWN_SHARE:g}",
            f"--environment={msgspec.json.encode(probe.environment, order='sorted').decode()}",
        ],
        "env": [
            *body["env"],
            {"name": "NODEGAUGE_GPUS", "value": node.gpu_capacity or str(gpus)},
            {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"},
        ],
        "resources": _resources(policy, gpus, defaults),
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "tmp", "mountPath": "/tmp"}],
    }
    priority = defaults.nccl_priority_class_name
    return {
        "containers": [body],
        "volumes": [
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{SHM_GIB}Gi"}},
            {"name": "tmp", "emptyDir": {"sizeLimit": TMP}},
        ],
        "tolerations": _tolerations(node, pod_parts.wanted_tolerations(policy, defaults)),
    } | ({"priorityClassName": priority} if priority else {})


def pull(*, node: NodeView, policy: Policy, run: str, defaults: ProbeDefaults) -> dict[str, Any]:
    """The parts of the pod spec that bring the nccl image to the node; it sees no GPU, whatever its image's
    own environment asks for."""
    body = pod_parts.container(node=node, policy=policy, run=run, defaults=defaults)
    body |= {
        "image": policy.nccl_image(defaults.nccl_image),
        "command": ["python", "-m", "nodegauge_probes", names.PROBE_PULL],
        "args": [f"--engine={policy.spec.probes.nccl.engine.value}"],
        "env": [*body["env"], {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
        "resources": {"requests": PULL_REQUESTS, "limits": PULL_LIMITS},
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    return {
        "containers": [body],
        "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": TMP}}],
        "tolerations": _tolerations(node, pod_parts.wanted_tolerations(policy, defaults)),
    }


def _resources(policy: Policy, gpus: int, defaults: ProbeDefaults) -> dict[str, dict[str, str]]:
    """All GPUs and a core for each: throttled launches would measure the CPU (measurement, section 3.3).

    The GPUs are not the installation's to choose: on fewer the number would be another one.
    """
    memory = f"{round((SHM_GIB + MEMORY_GIB + MEMORY_GIB_PER_GPU * gpus) * 1024)}Mi"
    own = {
        "requests": {"cpu": str(gpus), "memory": f"{MEMORY_GIB}Gi"},
        "limits": {"cpu": str(2 * gpus), "memory": memory},
    }
    wanted, installed = policy.spec.pod_template.nccl_resources, defaults.nccl_resources
    held = {names.GPU_RESOURCE: str(gpus)}
    return {
        kind: parts | installed.get(kind, {}) | wanted.get(kind, {}) | held for kind, parts in own.items()
    }


def _tolerations(node: NodeView, wanted: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the node carries, where policy and installation let probes go everywhere; never a cordon.

    Our own taints in any case: a node that is gated has to be measured, or it would never leave its gates.
    """
    named = [toleration for toleration in wanted if toleration.get("key")]
    if wanted and named == wanted:
        foreign = named
    else:
        foreign = named + [
            {"key": taint.key, "operator": "Exists"}
            for taint in node.taints
            if not taint.key.startswith(KUBERNETES_TAINTS)
            and taint.key not in names.NODE_TAINTS
            and taint.key not in names.TAINTS_OF_NODES_BEING_REMOVED
        ]
    return foreign + [{"key": key, "operator": "Exists"} for key in names.NODE_TAINTS]
