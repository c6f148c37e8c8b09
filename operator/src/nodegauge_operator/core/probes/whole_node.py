"""What kinds share whose pods hold every GPU of a node: one budget, when they give way, and the pod.

Such a pod asks for all GPUs that the device plugin offers, whoever holds them now.  So the scheduler only
places it on an idle node, and preempts it as soon as a pod of higher priority wants a GPU; where it cannot,
the run ends by itself (`core.waiting`).  The device plugin
chooses which GPUs it sees, so the environment must not.  It never tolerates a cordon: `yielding` is too late
for a node that is cordoned between the plan and the pod.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

from nodegauge_judge import Verdict
from nodegauge_judge.loadtest_rules.judge import LoadJudgement
from nodegauge_judge.nccl.measurement import NcclJudgement
from nodegauge_operator import names
from nodegauge_operator.api.report import GateState, GateStatus, Outcome, ReportStatus
from nodegauge_operator.core import gates
from nodegauge_operator.core.context import Context
from nodegauge_operator.core.driver_access import DriverAccess
from nodegauge_operator.core.gpu_eligibility import (
    Hindrance,
    Why,
    allocatable,
    divided,
    hindrance,
    same_hardware,
)
from nodegauge_operator.core.model import NodeView, PodView
from nodegauge_operator.core.pod_outcome import RunEnd
from nodegauge_operator.core.probes import kind
from nodegauge_operator.core.probes.kind import Pool, ProbeKind
from nodegauge_operator.core.probes.pod import configured_tolerations, container

DEADLINE_SHARE = 0.9
"""The probe ends itself before the kubelet would, with what it has measured so far."""
TMP = "1Gi"
MEMORY_GIB_PER_GPU = 1.5
"""Host memory of a CUDA context and its pinned buffers (and its share of NCCL's), generously."""
MEMORY_GIB = 4
KUBERNETES_TAINTS = "node.kubernetes.io/"
"""Taints by which Kubernetes closes a node for now: cordoned, not ready, short of memory."""


NOBODY_TAKES = (
    "DRA hands out the GPUs, and nobody could take them from a run of ours: the scheduler preempts for no "
    "device, and the chart's value giveWay.enabled is false"
)
POOL = Pool(name="nccl", setting=lambda budget: budget.concurrent_nccl_probes)
"""A pull, the NCCL run that follows it, and a load run share a slot: a node is held by one of them."""


class WholeNodeKind(ProbeKind):
    """A kind that holds every GPU of the node, so it gives way to everything else."""

    pool = POOL
    holds_gpus = True
    fewest_gpus: int
    """Below that it can measure nothing."""

    @abstractmethod
    def measured_on(self, status: ReportStatus) -> str:
        """GPUs and driver of the last reading, as `gpu_eligibility.hardware` names them."""

    def same_machine(self, context: Context) -> bool:
        """The same GPUs and driver, and whole GPUs."""
        status = context.status
        whole = divided(status, context.node, probe=self.name) is None
        return whole and same_hardware(self.measured_on(status), status.gpus)

    def hindrance(self, context: Context) -> Hindrance | None:
        return self._hindrance(context) if self.asked_for(context) else None

    def may_hold(self, context: Context) -> bool:
        """Whether a run may hold the node's GPUs: a health run has read them in this boot, and nothing
        hinders it."""
        if not context.may_run or context.node.upgrade_ahead or not allocatable(context.node, context.access):
            return False
        health = context.status.probe[names.PROBE_HEALTH]
        if not health.read_at or health.unread or context.rebooted_since(health):
            return False
        asked = kind.requested(context, context.status.probe[self.name])
        return self._hindrance(context, asked=asked) is None

    def _hindrance(self, context: Context, *, asked: bool = False) -> Hindrance | None:
        fewest = self.fewest_gpus
        if context.access is DriverAccess.DRA and not context.defaults.gives_way:
            return Hindrance(Why.DRA, NOBODY_TAKES)
        status, node, access = context.status, context.node, context.access
        return hindrance(status, node, probe=self.name, fewest=fewest, asked=asked, access=access)

    def ending(self, pod: PodView, context: Context) -> RunEnd | None:
        """A run gives way where the node or its GPUs are wanted for something else, or did so already:
        whoever drained the node may have ended it."""
        end = super().ending(pod, context)
        if end is not None and end.outcome is not Outcome.UNKNOWN:
            return end
        return yielding(context.node) or _left_to(context.ends_for.get(pod.uid, "")) or end


def yielding(node: NodeView) -> RunEnd | None:
    """The end of a run that holds GPUs, or of a pull, on a node that is wanted for something else by now.

    A drain refuses to evict pods without a controller, and a driver upgrade waits for whoever holds a GPU.
    """
    if node.unschedulable:
        reason, text = Why.CORDONED.value, "the node was cordoned meanwhile"
    elif node.leaving:
        reason, text = "NodeLeaving", "the node is being removed"
    elif node.driver_changing or node.upgrade_ahead:
        reason, text = "DriverChanges", "the driver or the MIG layout is being changed, or is about to be"
    else:
        return None
    return RunEnd(outcome=Outcome.SKIPPED, reason=reason, message=text)


def _left_to(waiting: str) -> RunEnd | None:
    """The end of a run whose GPUs this pod waits for; None for none."""
    if not waiting:
        return None
    text = f"pod {waiting} waits for GPUs that the run held, and the scheduler could not take them"
    return RunEnd(outcome=Outcome.SKIPPED, reason="Preempted", message=text)


def unreadable(judgement: LoadJudgement | NcclJudgement) -> RunEnd:
    """The end of a run whose result says nothing of the node."""
    outcome = Outcome.SKIPPED if judgement.verdict is Verdict.SKIPPED else Outcome.UNKNOWN
    return RunEnd(outcome=outcome, reason=judgement.reason or "NotReadable", message=judgement.summary)


def runs_in_vain(status_gates: Iterable[GateStatus], *, probe: str, leave: int) -> list[int]:
    """For each gate of the probe that another run could change, how many runs did not help it to close: bad
    ones, and those that could not tell.  One with enough good runs only waits for time."""
    return [
        gate.bad + max(0, gate.readable_since - gate.good)
        for gate in status_gates
        if gates.PROBES.get(gate.code) == probe and gate.code in gates.GATES and gate.good < leave
        if gate.bad or gate.state is not GateState.WATCHING
    ]


def pod_parts(
    context: Context,
    run: str,
    *,
    image: str,
    probe: str,
    args: list[str],
    shm_gib: int = 0,
) -> dict[str, Any]:
    """The parts of the pod spec of a kind that holds all GPUs; `shm_gib`: GiB at /dev/shm."""
    gpus = allocatable(context.node, context.access)
    offered = "" if context.access is DriverAccess.DRA else context.node.gpu_capacity
    body = container(context, run)
    volumes = [{"name": "tmp", "emptyDir": {"sizeLimit": TMP}}]
    mounts = [*body["volumeMounts"], {"name": "tmp", "mountPath": "/tmp"}]
    if shm_gib:
        volumes.insert(0, {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{shm_gib}Gi"}})
        mounts.insert(0, {"name": "shm", "mountPath": "/dev/shm"})
    body |= {
        "image": image,
        "command": ["python", "-m", "nodegauge_probes", probe],
        "args": args,
        "env": [
            *body["env"],
            {"name": "NODEGAUGE_GPUS", "value": offered or str(gpus)},
            {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"},
        ],
        "resources": _resources(context, gpus, shm_gib=shm_gib),
        "volumeMounts": mounts,
    }
    return {
        "containers": [body],
        "volumes": volumes,
        "tolerations": tolerations(context),
        # never the policy's priority class: it is meant for health probes, and a high one would preempt jobs
        "priorityClassName": context.defaults.nccl_priority_class_name or None,
    }


def _resources(context: Context, gpus: int, *, shm_gib: int) -> dict[str, dict[str, str]]:
    """All GPUs and a core for each.  Chosen by this project: a CPU limit that stalls kernel launches and
    NCCL's proxy threads would make the run measure the CPU.

    The installation cannot change the number of GPUs: fewer GPUs would measure something else.
    """
    memory = f"{round((shm_gib + MEMORY_GIB + MEMORY_GIB_PER_GPU * gpus) * 1024)}Mi"
    own = {
        "requests": {"cpu": str(gpus), "memory": f"{MEMORY_GIB}Gi"},
        "limits": {"cpu": str(2 * gpus), "memory": memory},
    }
    policy, installed = context.policy.spec.pod_template.nccl_resources, context.defaults.nccl_resources
    all_gpus = {names.GPU_RESOURCE: str(gpus)}
    return {
        part: amounts | installed.get(part, {}) | policy.get(part, {}) | all_gpus
        for part, amounts in own.items()
    }


def tolerations(context: Context) -> list[dict[str, Any]]:
    """The node's own taints, if policy and installation let probes go everywhere; never a cordon.

    Our own taints always: a node that we gate has to be measured, or it would never leave its gates.
    """
    configured = configured_tolerations(context.policy, context.defaults)
    foreign = [toleration for toleration in configured if toleration.get("key")]
    if not configured or foreign != configured:  # a toleration without a key tolerates everything
        foreign += [
            {"key": taint.key, "operator": "Exists"}
            for taint in context.node.taints
            if not taint.key.startswith(KUBERNETES_TAINTS)
            and not taint.own
            and taint.key not in names.TAINTS_OF_NODES_BEING_REMOVED
        ]
    # an earlier key too, which the node carries until its patch
    earlier = [taint.key for taint in context.node.taints if taint.own]
    ours = dict.fromkeys([*context.policy.spec.taints.keys.tolerated, *earlier])
    return foreign + [{"key": key, "operator": "Exists"} for key in ours]
