"""The pods of an NCCL run: the NCCL probe holds every GPU of the node, its pull holds none.

The NCCL probe asks for all GPUs that the device plugin offers, whoever holds them now.  So the scheduler only
places it on an idle node, and preempts it as soon as a pod of higher priority wants a GPU.  The device plugin
chooses which GPUs it sees, so the environment must not.  It never tolerates a cordon: `nccl.yielding` is too
late for a node that is cordoned between the plan and the pod.
"""

from __future__ import annotations

from typing import Any

import msgspec

from nodegauge_operator import names
from nodegauge_operator.core.context import Context
from nodegauge_operator.core.nccl_eligibility import allocatable
from nodegauge_operator.core.probes.pod import configured_tolerations, container

DEADLINE_SHARE = 0.9
"""The probe ends itself before the kubelet would, with what it has measured so far."""
SHM_GIB = 4
"""NCCL's host buffers are in /dev/shm if seccomp forbids it cuMem (NCCL's misc/cudawrap.cc); a runtime's
default of 64 MiB is too small.  It counts as the pod's memory, so the memory limit includes it."""
TMP = "1Gi"
MEMORY_GIB_PER_GPU = 1.5
"""Host memory of a CUDA context, its pinned buffers and its share of NCCL's, generously."""
MEMORY_GIB = 4
PULL_REQUESTS = {"cpu": "10m", "memory": "64Mi"}
PULL_LIMITS = {"cpu": "1", "memory": "2Gi"}
KUBERNETES_TAINTS = "node.kubernetes.io/"
"""Taints by which Kubernetes closes a node for now: cordoned, not ready, short of memory."""


def nccl_spec(context: Context, run: str, *, deadline: float) -> dict[str, Any]:
    """The parts of the pod spec of the NCCL probe."""
    probe, node, gpus = context.policy.spec.probes.nccl, context.node, allocatable(context.node)
    body = container(context, run)
    body |= {
        "image": context.nccl_image,
        "command": ["python", "-m", "nodegauge_probes", names.PROBE_NCCL],
        "args": [
            f"--engine={probe.engine.value}",
            f"--processes={probe.processes.value}",
            f"--deadline={deadline * DEADLINE_SHARE:g}",
            f"--environment={msgspec.json.encode(probe.environment, order='sorted').decode()}",
        ],
        "env": [
            *body["env"],
            {"name": "NODEGAUGE_GPUS", "value": node.gpu_capacity or str(gpus)},
            {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"},
        ],
        "resources": _resources(context, gpus),
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "tmp", "mountPath": "/tmp"}],
    }
    return {
        "containers": [body],
        "volumes": [
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{SHM_GIB}Gi"}},
            {"name": "tmp", "emptyDir": {"sizeLimit": TMP}},
        ],
        "tolerations": _tolerations(context),
        # never the policy's priority class: it is meant for health probes, and a high one would preempt jobs
        "priorityClassName": context.defaults.nccl_priority_class_name or None,
    }


def pull_spec(context: Context, run: str) -> dict[str, Any]:
    """The parts of the pod spec of a pull; it sees no GPU, whatever its image's environment asks for."""
    body = container(context, run)
    body |= {
        "image": context.nccl_image,
        "command": ["python", "-m", "nodegauge_probes", names.PROBE_PULL],
        "args": [f"--engine={context.policy.spec.probes.nccl.engine.value}"],
        "env": [*body["env"], {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
        "resources": {"requests": PULL_REQUESTS, "limits": PULL_LIMITS},
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    return {
        "containers": [body],
        "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": TMP}}],
        "tolerations": _tolerations(context),
    }


def _resources(context: Context, gpus: int) -> dict[str, dict[str, str]]:
    """All GPUs and a core for each.  Chosen by this project: a CPU limit that stalls kernel launches and
    NCCL's proxy threads would make the run measure the CPU.

    The installation cannot change the number of GPUs: fewer GPUs would give another bandwidth.
    """
    memory = f"{round((SHM_GIB + MEMORY_GIB + MEMORY_GIB_PER_GPU * gpus) * 1024)}Mi"
    own = {
        "requests": {"cpu": str(gpus), "memory": f"{MEMORY_GIB}Gi"},
        "limits": {"cpu": str(2 * gpus), "memory": memory},
    }
    policy, installed = context.policy.spec.pod_template.nccl_resources, context.defaults.nccl_resources
    all_gpus = {names.GPU_RESOURCE: str(gpus)}
    return {
        kind: parts | installed.get(kind, {}) | policy.get(kind, {}) | all_gpus for kind, parts in own.items()
    }


def _tolerations(context: Context) -> list[dict[str, Any]]:
    """The node's own taints, if policy and installation let probes go everywhere; never a cordon.

    Our own taints always: a node that we gate has to be measured, or it would never leave its gates.
    """
    configured = configured_tolerations(context)
    foreign = [toleration for toleration in configured if toleration.get("key")]
    if not configured or foreign != configured:  # a toleration without a key tolerates everything
        foreign += [
            {"key": taint.key, "operator": "Exists"}
            for taint in context.node.taints
            if not taint.key.startswith(KUBERNETES_TAINTS)
            and taint.key not in names.NODE_TAINTS
            and taint.key not in names.TAINTS_OF_NODES_BEING_REMOVED
        ]
    return foreign + [{"key": key, "operator": "Exists"} for key in names.NODE_TAINTS]
