"""What the operator keeps of a node and of a probe pod: the few fields that decisions need.

Built from raw API objects by `node_view` and `pod_view`; a node of 21 KB becomes about 1 KB.  Missing or odd
fields never raise here: the API server has validated what matters, and a decision treats absent as unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from nodegauge_operator import names
from nodegauge_operator.api.chassis import parse_chassis
from nodegauge_operator.api.report import whole
from nodegauge_operator.api.times import unstamp
from nodegauge_operator.core.devices import GPU, Device
from nodegauge_operator.core.override import Annotations, annotations_of


class Taint(Struct, frozen=True, kw_only=True):
    """A taint as the API has it, whoever set it."""

    key: str
    """Its key."""
    value: str = ""
    """Its value."""
    effect: str = ""
    """NoSchedule, PreferNoSchedule or NoExecute."""
    added: str = ""
    """`timeAdded`, as it stands: a patch has to repeat it."""

    @property
    def own(self) -> str:
        """Which of our taints it is, whatever its key (`names.own_taint`); empty for a taint of others."""
        return names.own_taint(self.key)


class ConditionView(Struct, frozen=True, kw_only=True):
    """Our condition as it stands on the node."""

    status: str
    """True, False or Unknown, as text."""
    reason: str
    """One word."""
    message: str
    """For people."""


class ChassisView(Struct, frozen=True, kw_only=True):
    """A ChassisReading object, trimmed."""

    name: str
    """Name of the node."""
    uid: str
    """UID of the object."""
    resource_version: str
    """Version of the object that was read."""
    number: int
    """Readings of this BMC that worked."""
    read_at: float
    """End of the reading, epoch seconds."""
    reading: bytes = b""
    """The contract's document as JSON, empty if there is none: encoded it takes a tenth of the memory, and it
    is judged once."""


def chassis_view(body: Mapping[str, Any]) -> ChassisView:
    """A ChassisReading as the API has it; without a reading if that cannot be read."""
    chassis = parse_chassis(body)
    return ChassisView(
        name=chassis.name,
        uid=chassis.uid,
        resource_version=chassis.resource_version,
        number=chassis.status.number,
        read_at=unstamp(chassis.status.read_at),
        reading=msgspec.json.encode(chassis.reading) if chassis.reading is not None else b"",
    )


class NodeView(Struct, frozen=True, kw_only=True):
    """A node, trimmed."""

    name: str
    """Its name, which its report has too."""
    uid: str
    """Tells it from an earlier node of its name."""
    resource_version: str
    """Version by which it is patched: another writer's change refuses the patch."""
    labels: dict[str, str]
    """All of its labels."""
    taints: tuple[Taint, ...] = ()
    """All of its taints, in their order: a patch writes the whole list."""
    managed_labels: frozenset[str] = frozenset()
    """Label keys that managedFields gives to us."""
    created_at: float = 0.0
    """Epoch seconds."""
    ready: bool = True
    """Its condition Ready is True."""
    ready_since: float = 0.0
    """When that condition last changed, epoch seconds."""
    deleting: bool = False
    """It has a deletionTimestamp."""
    boot_id: str = ""
    """Of `status.nodeInfo`; empty if unknown."""
    gpu_capacity: str = ""
    """`status.capacity` of nvidia.com/gpu, as text; empty if there is none."""
    gpu_allocatable: str = ""
    """`status.allocatable` of nvidia.com/gpu, as text; empty if there is none."""
    cpu_allocatable: str = ""
    """`status.allocatable` of cpu, as text; empty if there is none."""
    memory_allocatable: str = ""
    """`status.allocatable` of memory, as text; empty if there is none."""
    devices: tuple[Device, ...] = ()
    """GPUs that NVIDIA's DRA driver publishes in ResourceSlices; they are no part of the Node."""
    unschedulable: bool = False
    """It is cordoned."""
    condition: ConditionView | None = None
    """GPUValidated as it stands; None if there is none."""
    override: Annotations | None = None
    """What a person wrote into its annotations; None for nothing."""

    @property
    def whole_devices(self) -> int:
        """Whole GPUs among the devices, whoever holds them now."""
        return sum(device.type == GPU for device in self.devices)

    @property
    def gpus_counted(self) -> str:
        """GPUs that the cluster counts here, as text; empty if it counts none."""
        return self.gpu_capacity or (str(self.whole_devices) if self.whole_devices else "")

    @property
    def selected_by(self) -> dict[str, str]:
        """The labels by which policies select the node.  One whose GPUs a DRA driver publishes, or did
        before, counts as labelled by GPU feature discovery: with DRA alone nobody may label it."""
        by_claim = self.devices or self.labels.get(names.LABEL_DRIVER_ACCESS) == names.BY_CLAIM
        return {names.GPU_PRESENT: "true"} | self.labels if by_claim else self.labels

    @property
    def leaving(self) -> bool:
        """Being deleted or scaled down: no new runs are planned there (promise 7, docs/promises.md)."""
        return self.deleting or any(t.key in names.TAINTS_OF_NODES_BEING_REMOVED for t in self.taints)

    @property
    def driver_changing(self) -> bool:
        """The GPU Operator is changing the driver or the MIG layout: a probe would be in its way."""
        return bool(self.driver_change)

    @property
    def driver_change(self) -> str:
        """The label that says so, `KEY=VALUE`; empty for none."""
        still = ("", names.GPU_UPGRADE_DONE, names.GPU_UPGRADE_AHEAD)
        upgrade = self.labels.get(names.GPU_UPGRADE_STATE, "")
        changing = [names.GPU_UPGRADE_STATE] if upgrade not in still else []
        changing += [k for k in names.GPU_DEPLOY if self.labels.get(k) in names.GPU_PAUSED]
        if self.labels.get(names.MIG_CONFIG_STATE, "") in names.MIG_CONFIG_UNDER_WAY:
            changing.append(names.MIG_CONFIG_STATE)
        return next((f"{key}={self.labels[key]}" for key in changing), "")

    @property
    def runs_probes(self) -> bool:
        """A Linux kubelet runs its pods."""
        return all(self.labels.get(key) != value for key, value in names.OTHER_SYSTEMS)

    @property
    def upgrade_ahead(self) -> bool:
        """The node waits for its turn in an upgrade of the driver: a run that holds GPUs might delay it."""
        return self.labels.get(names.GPU_UPGRADE_STATE, "") == names.GPU_UPGRADE_AHEAD

    @property
    def cordon_stamp(self) -> float:
        """When the node controller noted the cordon, epoch seconds; 0.0 if it did not."""
        return max((unstamp(t.added) for t in self.taints if t.key == names.TAINT_OF_CORDON), default=0.0)

    @property
    def may_run(self) -> bool:
        """A new run may be planned: Ready, of Linux, not leaving, driver not changing.  A cordoned node is
        health-checked like any other (promise 7, docs/promises.md)."""
        return self.ready and self.runs_probes and not self.leaving and not self.driver_changing


class Terminated(Struct, frozen=True, kw_only=True):
    """How the probe container ended."""

    exit_code: int
    """Exit code of its process."""
    reason: str
    """The kubelet's word, such as OOMKilled."""
    message: str
    """What the probe left in its termination log."""
    finished_at: float
    """Epoch seconds, by the kubelet's clock."""


class PodView(Struct, frozen=True, kw_only=True):
    """A probe pod, trimmed.  Times are epoch seconds; 0.0: not told."""

    name: str
    """It holds a digest of the run's identity."""
    uid: str
    """Tells it from a later pod of its name."""
    resource_version: str
    """Version that was read."""
    probe: str
    """The probe that it runs, by label."""
    node: str
    """The node that it is for: by the report that owns it, else by annotation."""
    node_uid: str
    """UID of that node when it was made."""
    number: int
    """Number of the run."""
    phase: str
    """The kubelet's: Pending, Running, Succeeded, Failed or Unknown."""
    created_at: float
    """When it was made."""
    scheduled: bool
    """It is bound to a node."""
    owner_uid: str = ""
    """UID of the NodeReport that controls it; empty for a pod that nodegauge did not make."""
    on_node: str = ""
    """The node that it is bound to; empty before."""
    scheduled_at: float = 0.0
    """Since when it holds what it asked for."""
    boot_id: str = ""
    """Boot of the node for which it was made."""
    request: str = ""
    """The request in the report that it answers (`Report.request_of`)."""
    image: str = ""
    """The image of its probe: of a pull the one to be pulled."""
    trust: str = ""
    """The admission policy for which it was made."""
    pending_reason: str = ""
    """What it waits for, one word of the scheduler or the kubelet."""
    pending_message: str = ""
    """The same as a sentence."""
    started_at: float = 0.0
    """When its container started, while that runs."""
    terminated: Terminated | None = None
    """How its container ended; None while it has not."""
    reason: str = ""
    """Why the pod failed, the kubelet's word."""
    message: str = ""
    """The same as a sentence."""
    disrupted: str = ""
    """Reason of the condition DisruptionTarget, such as PreemptionByScheduler; empty if it is not True."""
    deleting_since: float = 0.0
    """`deletionTimestamp`, which already includes the grace period."""
    gone: bool = False
    """It was deleted; this is the last that was seen of it."""

    @property
    def finished(self) -> bool:
        """The kubelet has nothing left to do with it."""
        return self.phase in ("Succeeded", "Failed")

    def after(self, before: PodView) -> PodView:
        """The same pod with what it was last seen waiting for: its end no longer says so."""
        if before.uid != self.uid or self.pending_reason or self.started_at or before.started_at:
            return self
        return replace(self, pending_reason=before.pending_reason, pending_message=before.pending_message)


class ProbeDefaults(Struct, frozen=True, kw_only=True):
    """The installation's settings of probe pods; a policy's podTemplate overrides them field by field.
    Labels, annotations and resources are merged key by key, the policy's winning."""

    namespace: str
    """Namespace of probe pods."""
    image: str
    """Image of the health probe."""
    image_pull_policy: str = ""
    """Pull policy of the images; empty for Kubernetes' default."""
    image_pull_secrets: tuple[str, ...] = ()
    """Names of image pull secrets."""
    priority_class_name: str = ""
    """PriorityClass of health probe pods."""
    runtime_class_name: str = ""
    """RuntimeClass that gives access to the GPU driver."""
    service_account_name: str = ""
    """Service account of probe pods, whose token writes readings."""
    labels: dict[str, str] = {}
    """Labels of probe pods."""
    annotations: dict[str, str] = {}
    """Annotations of probe pods."""
    tolerations: list[dict[str, Any]] = []
    """Tolerations of probe pods; empty for every taint."""
    resources: dict[str, dict[str, str]] = {}
    """Requests and limits of the health probe's container."""
    nodes: list[dict[str, Any]] = []
    """Match expressions of the nodes that the operator watches; none for all."""
    instance: str = "nodegauge"
    """Name of the release."""
    nccl_image: str = ""
    """Image of NCCL and load runs; empty for none."""
    nccl_priority_class_name: str = ""
    """PriorityClass of NCCL and load pods."""
    nccl_resources: dict[str, dict[str, str]] = {}
    """Requests and limits of their container."""
    gives_way: bool = True
    """Runs that hold GPUs end for pods that wait for these."""
    driver_access: str = "Auto"
    """How probes reach the GPU driver (`driver_access.DriverAccess`)."""
    host_driver_folder: str = ""
    """Folder of the node with the driver's libraries, for `HostDriver`."""
    bmc_interval: float = 0.0
    """Seconds between two readings of a BMC by the installation's reader; 0.0 without one."""

    @property
    def installation(self) -> str:
        """Namespace and release: the same after a restart, an upgrade and a new installation in its place."""
        return f"{self.namespace}/{self.instance}"


def node_view(body: Mapping[str, Any]) -> NodeView:
    """The view of a v1.Node."""
    metadata, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    conditions = {c.get("type"): c for c in status.get("conditions") or ()}
    ours, ready = conditions.get(names.CONDITION), conditions.get("Ready") or {}
    return NodeView(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        resource_version=metadata.get("resourceVersion", ""),
        labels={_shared(k): _shared(v) for k, v in (metadata.get("labels") or {}).items()},
        taints=tuple(_taint(t) for t in spec.get("taints") or ()),
        managed_labels=_managed_labels(metadata.get("managedFields") or ()),
        created_at=unstamp(metadata.get("creationTimestamp") or ""),
        ready=ready.get("status") == "True",
        ready_since=unstamp(ready.get("lastTransitionTime") or ""),
        deleting=bool(metadata.get("deletionTimestamp")),
        boot_id=(status.get("nodeInfo") or {}).get("bootID", ""),
        gpu_capacity=(status.get("capacity") or {}).get(names.GPU_RESOURCE, ""),
        gpu_allocatable=(status.get("allocatable") or {}).get(names.GPU_RESOURCE, ""),
        cpu_allocatable=str((status.get("allocatable") or {}).get("cpu", "")),
        memory_allocatable=str((status.get("allocatable") or {}).get("memory", "")),
        unschedulable=bool(spec.get("unschedulable")),
        condition=ours
        and ConditionView(
            status=ours.get("status", ""), reason=ours.get("reason", ""), message=ours.get("message", "")
        ),
        override=annotations_of(metadata.get("annotations") or {}),
    )


def _taint(body: Mapping[str, Any]) -> Taint:
    return Taint(
        key=_shared(body.get("key", "")),
        value=_shared(body.get("value") or ""),
        effect=_shared(body.get("effect", "")),
        added=body.get("timeAdded") or "",
    )


@lru_cache(maxsize=1 << 14)
def _shared(text: str) -> str:
    """The same text as one object: thousands of nodes have some 60 labels each, mostly the same ones."""
    return text


def _managed_labels(managed_fields: Any) -> frozenset[str]:
    keys: set[str] = set()
    for entry in managed_fields:
        if entry.get("manager") == names.FIELD_MANAGER:
            labels = ((entry.get("fieldsV1") or {}).get("f:metadata") or {}).get("f:labels") or {}
            keys.update(_shared(key[2:]) for key in labels if key.startswith("f:"))
    return frozenset(keys)


def pod_view(body: Mapping[str, Any], *, gone: bool = False) -> PodView | None:
    """The view of a v1.Pod of ours; None for a pod that lacks our marks (somebody else's).

    A mirror pod is a kubelet's, whatever its marks.  Its node is the one whose report owns the pod: a kubelet
    can change annotations of its pods through their status, and neither owners nor the spec.
    """
    metadata, status = body["metadata"], body.get("status") or {}
    annotations = metadata.get("annotations") or {}
    probe = (metadata.get("labels") or {}).get(names.POD_PROBE)
    number = whole(annotations.get(names.POD_RUN, ""))
    owners = metadata.get("ownerReferences") or ()
    mirrored = names.MIRROR_POD in annotations or any(o.get("kind") == "Node" for o in owners)
    if not probe or number is None or not annotations.get(names.POD_NODE) or mirrored:
        return None
    of_report: Mapping[str, Any] = next(
        (o for o in owners if o.get("controller") and o.get("kind") == names.REPORT_KIND), {}
    )
    conditions = {c.get("type"): c for c in status.get("conditions") or ()}
    placed = conditions.get("PodScheduled") or {}
    container: Mapping[str, Any] = next(
        (c for c in status.get("containerStatuses") or () if c.get("name") == names.PROBE_CONTAINER), {}
    )
    state = container.get("state") or {}
    waiting = state.get("waiting") or {}
    disrupted = conditions.get("DisruptionTarget") or {}
    on_node = (body.get("spec") or {}).get("nodeName") or ""
    scheduled = bool(on_node)
    return PodView(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        resource_version=metadata.get("resourceVersion", ""),
        probe=probe,
        node=of_report.get("name") or annotations[names.POD_NODE],
        node_uid=annotations.get(names.POD_NODE_UID, ""),
        number=number,
        phase=status.get("phase", "Pending"),
        boot_id=annotations.get(names.POD_BOOT, ""),
        request=annotations.get(names.POD_REQUEST, ""),
        image=annotations.get(names.POD_IMAGE, ""),
        trust=annotations.get(names.POD_TRUST, ""),
        created_at=unstamp(metadata.get("creationTimestamp", "")),
        scheduled=scheduled,
        owner_uid=of_report.get("uid") or "",
        on_node=on_node,
        scheduled_at=unstamp(placed.get("lastTransitionTime") or "") if scheduled else 0.0,
        pending_reason=waiting.get("reason", "") if scheduled else placed.get("reason", ""),
        pending_message=waiting.get("message", "") if scheduled else placed.get("message", ""),
        started_at=unstamp((state.get("running") or {}).get("startedAt", "")),
        terminated=terminated_view(state.get("terminated")),
        reason=status.get("reason", ""),
        message=status.get("message", ""),
        disrupted=disrupted.get("reason", "") if disrupted.get("status") == "True" else "",
        deleting_since=unstamp(metadata.get("deletionTimestamp", "")),
        gone=gone,
    )


def terminated_view(state: Mapping[str, Any] | None) -> Terminated | None:
    """A container's `terminated` state; None if it has none."""
    if not state:
        return None
    return Terminated(
        exit_code=int(state.get("exitCode", 0)),
        reason=state.get("reason", ""),
        message=state.get("message", "") or "",
        finished_at=unstamp(state.get("finishedAt", "")),
    )
