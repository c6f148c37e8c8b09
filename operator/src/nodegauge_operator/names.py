"""Every taint, condition, annotation and resource name that nodegauge writes or reads.

One module builds every string, so that a name can be found, changed and documented in one place
(`docs/reference/labels.md` is generated from the tables here and the kinds' labels).  It decides nothing.

Reasons of conditions and events are here too; each says what it means.
"""

from __future__ import annotations

import hashlib
import re
from enum import StrEnum
from functools import lru_cache

GROUP = "nodegauge.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
POLICY_KIND, POLICY_PLURAL = "GPUValidationPolicy", "gpuvalidationpolicies"
REPORT_KIND, REPORT_PLURAL = "NodeReport", "nodereports"
READING_KIND, READING_PLURAL = "NodeReading", "nodereadings"
CRD_NAMES = (f"{POLICY_PLURAL}.{GROUP}", f"{REPORT_PLURAL}.{GROUP}", f"{READING_PLURAL}.{GROUP}")
"""Without these the operator cannot work."""
CHASSIS_KIND, CHASSIS_PLURAL = "ChassisReading", "chassisreadings"
CHASSIS_CRD = f"{CHASSIS_PLURAL}.{GROUP}"
"""What the BMC reader writes; the operator works without it."""

HISTORY_KIND, HISTORY_PLURAL = "NodeHistory", "nodehistories"
HISTORY_CRD = f"{HISTORY_PLURAL}.{GROUP}"
"""What outlives a node; the operator works without it, and says that it is missing."""

FIELD_MANAGER = "nodegauge"
"""Field manager of all our writes: managedFields then show which labels are ours."""

BMC_FIELD_MANAGER = "nodegauge-bmc"
"""Field manager of the BMC reader."""

USER_AGENT = "nodegauge-operator"
"""Sent with every call; it appears in the API server's audit log."""

LEASE = "nodegauge"
"""The Lease in namespace `default` that the one installation holds which writes to the cluster."""

PREFIX = f"{GROUP}/"
LABEL_INTERCONNECT = PREFIX + "interconnect"
LABEL_CLASS = PREFIX + "class"
LABEL_HEALTH = PREFIX + "health"
LABEL_VALIDATED_AT = PREFIX + "validated-at"
LABEL_DRIVER_ACCESS = PREFIX + "driver-access"
"""Labels on nodes that decisions read back; each label is an object of its kind (`core.label`)."""

TAINT_THROTTLED = PREFIX + "throttled"
TAINT_UNHEALTHY = PREFIX + "unhealthy"
TAINT_UNVALIDATED = PREFIX + "unvalidated"

NODE_TAINTS: dict[str, tuple[str, str]] = {
    TAINT_THROTTLED: (
        "thermal | power-brake | hw-slowdown",
        "GPUs are slowed down in several runs in a row. Idle runs do not remove the taint.",
    ),
    TAINT_UNHEALTHY: (
        "corruption | gpu-lost | reset-required | power-cable | gpu-fault | unreadable | recovery-action | "
        "xid | memory | psu | p2p | nvlink | pcie | slow-gpu | nccl | busbw | "
        "never-validated",
        "The hardware is broken or does not respond; the NodeReport has the evidence.",
    ),
    TAINT_UNVALIDATED: (
        "(no value)",
        "Not yet validated. Kubelets may register with it, or a policy sets it (spec.taints.unvalidated). "
        "It is removed after the first run that passes or warns.",
    ),
}
"""Taints on nodes: key to (values, meaning).  The effect is the policy's, NoSchedule by default."""

TAINTS_OF_FAULTS = (TAINT_THROTTLED, TAINT_UNHEALTHY)
"""Taints that count against the budget of gated nodes."""

TAINT_FORM = r"^(nodegauge[.]dev/|[^/]+/nodegauge-)(throttled|unhealthy|unvalidated)$"
"""Every key that a taint of ours has, or had under an earlier policy (`spec.taints.keys`); for Python and
CEL.  A policy chooses what stands before the slash, so ours are known without their policy (ADR 0061)."""


@lru_cache(maxsize=1024)
def own_taint(key: str) -> str:
    """The key of `NODE_TAINTS` that a taint's key stands for; empty for a taint of others."""
    match = re.match(TAINT_FORM, key)
    return PREFIX + match[2] if match else ""


CONDITION = "GPUValidated"

REPORT_VALIDATED = "Validated"
REPORT_TAINTED = "Tainted"
"""Conditions of a NodeReport."""

GPU_RESOURCE = "nvidia.com/gpu"
GPU_LABEL = "nvidia.com/gpu"
GPU_PRESENT = GPU_LABEL + ".present"
"""Label of GPU feature discovery, by which the chart's policy selects nodes."""
DRA_DRIVER = DRA_CLASS = "gpu.nvidia.com"
"""NVIDIA's DRA driver, and its DeviceClass of whole GPUs."""
DRA_API = "resource.k8s.io/v1"
SLICE_PLURAL = "resourceslices"
ADMIN_ACCESS = "resource.kubernetes.io/admin-access"
"""Label that a namespace needs, with value `true`, for claims that share devices with whoever holds them."""
POD_CLAIM = "gpus"
"""What a probe pod calls its claim, and the claim its request."""
BY_CLAIM = "dra"
"""Value of `LABEL_DRIVER_ACCESS`."""
MIG_DEVICE_LABEL = "nvidia.com/mig-"
"""Labels of GPU feature discovery begin with these: of whole GPUs, and of each kind of MIG device."""

DEVICE_RULE = PREFIX + "device-rule"
"""Label on DeviceTaintRules of nodegauge: they gate one GPU, not its node (ADR 0060)."""
DEVICE_RULE_NAMES = "nodegauge-"
"""Their names begin with it, and the chart's admission policy leaves nodegauge no others."""
RULE_NODE, RULE_NODE_UID, RULE_FINDING = PREFIX + "node", PREFIX + "node-uid", PREFIX + "finding"
RULE_UUID, RULE_SERIAL, RULE_SINCE = PREFIX + "gpu-uuid", PREFIX + "gpu-serial", PREFIX + "since"
"""Annotations on these rules: what each is for, and why."""

POD_PROBE = PREFIX + "probe"
"""Label on probe pods: which probe; the operator watches the pods with this label."""
WATCH_SET = PREFIX + "watch-set"
"""Label on watch pods and their DaemonSet: the DaemonSet's name."""
WATCH_JUDGED_BY = PREFIX + "judged-by"
"""Annotation on watch pods: a digest of what judges their readings; a new one makes new pods."""
POD_NODE = PREFIX + "node"
"""Annotation on probe pods: the node's name (label values are too short for some).  A kubelet can change it;
the pod's owner and its node it cannot."""
POD_NODE_UID = PREFIX + "node-uid"
POD_RUN = PREFIX + "run"
"""Annotation on probe pods: the run number, which the NodeReport counts."""
POD_POLICY = PREFIX + "policy"
POD_BOOT = PREFIX + "boot-id"
"""Annotation on probe pods: the node's boot id when the run was planned; a result is of that boot."""
POD_REQUEST = PREFIX + "requested-at"
"""Annotation on probe pods: the request in the report that the run answers; a later one asks for another."""
POD_IMAGE = PREFIX + "image"
"""Annotation on probe pods: the requested image (a webhook may write another one into the pod)."""
POD_TRUST = PREFIX + "readings-policy"
"""Annotation on probe pods: a digest of the admission policy that protected NodeReadings when the pod was
made.  What the pod writes counts only under that very policy."""
POD_ANNOTATIONS = (POD_NODE, POD_NODE_UID, POD_RUN, POD_POLICY, POD_BOOT, POD_REQUEST, POD_IMAGE, POD_TRUST)
"""What a probe pod is for; the chart's admission policies keep it as it was made."""
MIRROR_POD = "kubernetes.io/config.mirror"
"""Annotation on the copies that kubelets make of their static pods (kubernetes, pkg/kubelet/types)."""
CLOSE_INCIDENT = PREFIX + "close-incident"
"""Annotation on a policy: the id of an incident that somebody ends; the operator never writes it."""
PAUSED_FROM, PAUSE_REASON = PREFIX + "paused-from", PREFIX + "pause-reason"
"""Annotations on a policy that `nodegauge pause` has paused: the mode before, and why; for people alone."""
OVERRIDE = PREFIX + "override"
OVERRIDE_UNTIL = PREFIX + "override-until"
OVERRIDE_BY = PREFIX + "override-by"
OVERRIDE_REASON = PREFIX + "override-reason"
"""Annotations of a person on a node (core.override); the operator never writes them."""
SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
NO_SIDECAR_LABELS = {
    "sidecar.istio.io/inject": "false",
    "kuma.io/sidecar-injection": "disabled",
    "admission.datadoghq.com/enabled": "false",
}
NO_SIDECAR_ANNOTATIONS = {
    "sidecar.istio.io/inject": "false",
    "linkerd.io/inject": "disabled",
    "consul.hashicorp.com/connect-inject": "false",
    "vault.hashicorp.com/agent-inject": "false",
    "dynatrace.com/inject": "false",
}
"""What keeps injectors from probe pods, as each one's documentation says: a container beside ours could use
the pod's token, so the admission policies refuse it, and a run would never end.  Older Istio reads the
annotation, newer the label."""

PROBE_HEALTH = "health"
PROBE_NCCL = "nccl"
"""Takes all GPUs of the node."""
PROBE_PULL = "pull"
"""Takes no GPU: it pulls the NCCL image and checks that it can be used, before the NCCL run takes any."""
PROBE_LOAD = "load"
"""Takes all GPUs of the node, and works them at full power."""
PROBE_BMC = "bmc"
"""Makes no pods: what the BMC reader writes is its run."""
PROBE_FEED = "feed"
"""Makes no pods: the watch container writes what the GPUs did over a window."""
PROBE_WATCH = "watch"
"""The resident container of mode Watch; its results are readings of the health probe."""
PROBES = (PROBE_HEALTH, PROBE_PULL, PROBE_NCCL, PROBE_LOAD)
PROBES_OF_JOBS = frozenset({PROBE_FEED})
"""Kinds whose findings are about jobs, and say nothing of the node."""
PROBE_CONTAINER = "probe"

BMC_READER = PREFIX + "bmc-reader"
"""Label on ChassisReadings: the release whose BMC reader wrote it, and may delete it."""

TAINTS_OF_NODES_BEING_REMOVED = (
    "ToBeDeletedByClusterAutoscaler",
    "DeletionCandidateOfClusterAutoscaler",
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",
)

TAINT_OF_CORDON = "node.kubernetes.io/unschedulable"
"""The node controller sets it on cordoned nodes, with the time (kubernetes, pkg/controller/nodelifecycle)."""

GPU_UPGRADE_STATE = "nvidia.com/gpu-driver-upgrade-state"
GPU_UPGRADE_DONE, GPU_UPGRADE_AHEAD = "upgrade-done", "upgrade-required"
"""Ahead: nothing is done yet, and whole fleets wait so (NVIDIA/k8s-operator-libs, pkg/upgrade/consts.go)."""
MIG_CONFIG_STATE = "nvidia.com/mig.config.state"
MIG_CONFIG_UNDER_WAY = ("pending", "rebooting")
GPU_DEPLOY = ("nvidia.com/gpu.deploy.client", "nvidia.com/gpu.deploy.device-plugin")
GPU_PAUSED = ("paused-for-driver-upgrade", "paused-for-mig-change")
"""Labels of NVIDIA's GPU Operator: an open NVML client blocks the driver's unload and a GPU's reset.  Paused:
by any driver pod that starts (NVIDIA/k8s-driver-manager) or by the MIG manager (NVIDIA/mig-parted)."""

OTHER_SYSTEMS = (("kubernetes.io/os", "windows"), ("type", "virtual-kubelet"))
"""Labels of nodes on which no probe can run.  Every kubelet sets the first one, to `linux` or `windows`
(kubernetes.io/docs/reference/labels-annotations-taints); virtual-kubelet's the second one
(virtual-kubelet/virtual-kubelet, node/nodeutil)."""

_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


def is_label_value(text: str) -> bool:
    """Whether the API server takes this as the value of a label (Kubernetes: "Labels and Selectors")."""
    return _LABEL_VALUE.fullmatch(text) is not None


def device_rule_name(*, node: str, device: str) -> str:
    """The name of the DeviceTaintRule of a node's device, the same on every try."""
    return f"{DEVICE_RULE_NAMES}{node[:200].rstrip('.-')}-{digest(f'{node}/{device}')[:10]}"


def digest(text: str) -> str:
    """A text of any length as 16 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def pod_name(*, probe: str, run: str) -> str:
    """The name of the run's pod; a second create of the same run gets AlreadyExists and adopts the pod."""
    return f"nodegauge-{probe}-{run}"


def watch_set_name(*, instance: str, policy: str, by_claim: bool = False) -> str:
    """The name of a policy's DaemonSet, short enough to be a label's value; `by_claim`: of the one for nodes
    with DRA alone."""
    name = f"{instance}-{BY_CLAIM}-watch-{policy}" if by_claim else f"{instance}-watch-{policy}"
    short = len(name) <= 63 and "." not in name
    return name if short else f"{instance[:30].rstrip('.-')}-watch-{digest(name)}"


def claim_template(*, instance: str, holds: bool) -> str:
    """The name of the template of claims that hold all GPUs, or that share them."""
    return f"{instance}-gpus-{'all' if holds else 'admin'}"


def run_of_pod(name: str) -> str:
    """The identity of the run whose pod has this name."""
    return name.rpartition("-")[2]


def event_name(*, node: str, run: str, reason: str) -> str:
    """The name of an event: the same change of the same run is posted once, however often it is tried."""
    return f"{node[:200].rstrip('.-')}.{digest(f'{node}/{run}/{reason}')}"


class Reason(StrEnum):
    """Reasons of the node condition `GPUValidated` and of events regarding a node."""

    VALIDATED = "Validated"
    """The last readable run found no problem."""
    WARNINGS = "Warnings"
    """The last readable run found something worth a look, but no fault that may set a taint."""
    FAULTS_FOUND = "FaultsFound"
    """Condition: the taint of a fault stands. Event: a run found a fault. The message names it."""
    UNCONFIRMED = "Unconfirmed"
    """The last readable run found a fault, in too few runs for its taint."""
    TAINT_DISABLED = "TaintDisabled"
    """A fault is confirmed for which the policy sets no taint (effect None)."""
    DEVICES_GATED = "DevicesGated"
    """A fault of single GPUs is confirmed, and DeviceTaintRules gate them alone; the node keeps the others.
    Event: such a rule was set (with effect None: a dry run)."""
    DEVICES_RELEASED = "DevicesReleased"
    """Event: such a rule was removed."""
    TAKEN_AS_HEALTHY = "TakenAsHealthy"
    """A fault is confirmed, but an override of the node says healthy: no taint is set."""
    NOT_YET_VALIDATED = "NotYetValidated"
    """No run has been readable yet; the message says why."""
    STALE = "Stale"
    """No run has been readable for longer than the policy's staleness limit."""
    UNREADABLE = "Unreadable"
    """Runs have failed for a reason of the node itself, such as a driver that does not answer, for longer
    than the policy's `unreadAfter`; the message names the call."""
    INTERCONNECT_CHANGED = "InterconnectChanged"
    """The interconnect class or its bandwidth has changed."""
    LABEL_CONFLICT = "LabelConflict"
    """Another owner has set the label with the short key; nodegauge leaves it alone."""
    PROBE_FAILED = "ProbeFailed"
    """A run ended without a readable result."""
    TAINTED = "Tainted"
    """A taint for a fault was set; the message has the evidence."""
    HELD_BACK = "HeldBack"
    """A taint is due, but a budget or rate is used up (label `fail`, condition `Unknown`), or an incident
    holds it back (`warn`, `True`)."""
    ON_PROBATION = "OnProbation"
    """A taint that only runs under load can clear was removed on probation; one bad run sets it again."""
    RELEASED = "Released"
    """Labels, taints and condition of nodegauge were removed: no policy selects the node any more, or its
    policy is in mode Observe."""
    TAINT_LIFTED = "TaintLifted"
    """A taint for a fault was removed: enough good runs, or the policy or an override no longer wants it."""
    OVERRIDE_SET = "OverrideSet"
    """An override of the node is in force: leave-alone or healthy."""
    OVERRIDE_ENDED = "OverrideEnded"
    """An override of the node was removed, or its time is over."""
    OVERRIDE_INVALID = "OverrideInvalid"
    """An override of the node is not in force; the message names the annotation that is wrong."""
    GPUS_UNDERFED = "GpusUnderfed"
    """GPUs that somebody holds wait for something; the message has the cause. At most daily; it says
    nothing of the node's health."""


class PolicyReason(StrEnum):
    """Reasons of the condition `Ready` of a GPUValidationPolicy."""

    ACTIVE = "Active"
    """The policy is in force."""
    INVALID = "Invalid"
    """The policy cannot be read; its last good version stays in force."""
    NO_NODES = "NoNodes"
    """The policy selects no node."""
    OVERRIDDEN = "Overridden"
    """Some of its nodes follow a policy of higher priority."""
    OTHER_INSTALLATION = "OtherInstallation"
    """Nodes of the policy belong to another installation and are left alone."""
    READINGS_UNPROTECTED = "ReadingsUnprotected"
    """The admission policy `readings.nodegauge.dev` is missing or changed, so that anybody may have written a
    reading: none is judged, and nodes stay as they are."""
    LABEL_REFUSED = "LabelRefused"
    """The API server refuses a label on nodes of the policy; the message names it, and the way out."""
    TAINT_REFUSED = "TaintRefused"
    """The API server refuses to set or remove taints on nodes of the policy."""
    CONDITION_REFUSED = "ConditionRefused"
    """The API server refuses the condition `GPUValidated` on nodes of the policy."""
    REPORT_REFUSED = "ReportRefused"
    """The API server refuses reports of nodes of the policy: what is found there counts for nothing."""
    CLAIM_REFUSED = "ClaimRefused"
    """The API server refuses the template of the probes' claims, so that nodes with DRA alone are not read;
    the message has the command that allows it."""
    WRITE_REFUSED = "WriteRefused"
    """Another write for nodes of the policy is refused, fails again and again while the API server answers
    others, or writes come to no end; the message says which."""
    LISTS_FAIL = "ListsFail"
    """Full lists fail while the API server answers other calls: what the watches miss is not seen."""
    PODS_REFUSED = "PodsRefused"
    """The API server does not let the operator see which pods wait for GPUs, or what their claims ask for: no
    run ends for them."""
    STANDING_BY = "StandingBy"
    """The Lease is another installation's, or cannot be renewed: nothing is written to nodes."""
    PAUSED = "Paused"
    """The policy's mode is Paused: nothing is read, and nothing is written to its nodes.  Or
    `spec.budget.concurrentProbes` is 0: nothing is read, and nothing on its nodes changes with time."""


class Obstacle(StrEnum):
    """What keeps a policy from doing what it says: the `kind` of the metric `nodegauge_obstacles`.  Beside
    these: the type of a condition that `Ready` follows."""

    LABEL = "label"
    """The API server refuses a label of a node."""
    TAINT = "taint"
    """The API server refuses the taints of a node."""
    CONDITION = "condition"
    """The API server refuses the condition `GPUValidated` of a node."""
    REPORT = "report"
    """The API server refuses the report of a node."""
    CLAIM = "claim"
    """The API server refuses the template of the claims by which probes reach a node's GPUs."""
    WRITE = "write"
    """Another write for a node is refused, fails again and again, or writes come to no end."""
    LIST = "list"
    """Full lists fail while the API server answers other calls."""
    PODS = "pods"
    """The API server refuses to show pods that wait for GPUs, or their claims."""
    STATUS = "status"
    """The status of the policy cannot be written."""
    LEASE = "lease"
    """The Lease is another installation's, or cannot be renewed."""


class BudgetReason(StrEnum):
    """Reasons of the condition `GatesWithinBudget` of a GPUValidationPolicy."""

    WITHIN_BUDGET = "WithinBudget"
    """The budget allows every taint that is due."""
    BUDGET_EXHAUSTED = "BudgetExhausted"
    """The budget is used up and faulty nodes are held back; the message counts them by cause."""
    CLUSTER_BUDGET_EXHAUSTED = "ClusterBudgetExhausted"
    """The policy has free slots, but the cluster has none (chart value `operator.maxGatedNodes`)."""
    RATE_EXHAUSTED = "RateExhausted"
    """Slots are free, but no more nodes may newly be tainted within this hour
    (`spec.budget.gatedNodesPerHour`, or `operator.maxGatedNodesPerHour` of the chart)."""
    DEVICE_BUDGET_EXHAUSTED = "DeviceBudgetExhausted"
    """Every node is tainted that should be, but devices wait for a DeviceTaintRule: as many are gated as
    `spec.budget.gatedDevices`, or `operator.maxGatedNodes` of the chart, allows."""
    BUDGET_EXCEEDED = "BudgetExceeded"
    """More nodes are tainted than the budget allows: it was lowered, nodes left the policy, or two operators
    ran at once. Existing taints stay, and none is added."""


class BreakerReason(StrEnum):
    """Reasons of the condition `BreakerOpen` of a GPUValidationPolicy, and of events regarding one."""

    INCIDENT_OPEN = "IncidentOpen"
    """One cause came up on many nodes within minutes: no further node of the group takes a taint for it. The
    message names the cause, the nodes, and the command that ends the incident."""
    NO_INCIDENT = "NoIncident"
    """No cause has come up on many nodes at once."""


class WatchersReason(StrEnum):
    """Reasons of the condition `WatchersReady` of a GPUValidationPolicy, and of events regarding one; the
    condition exists only in mode Watch."""

    CONTAINERS_RUNNING = "ContainersRunning"
    """A container runs and reports on every node that can run one, or is about to."""
    CONTAINERS_STARTING = "ContainersStarting"
    """No container reports yet, and none has been missing for longer than `limits.notStarted`."""
    CONTAINERS_MISSING = "ContainersMissing"
    """Nodes have had no container for longer than `limits.notStarted`: health pods read them instead."""
    CONTAINERS_RESTARTING = "ContainersRestarting"
    """Containers end again and again within minutes: health pods read their nodes as well."""
    REPORTS_LATE = "ReportsLate"
    """Containers run and write no reading, or their writes are refused: health pods read their nodes too."""
    REPORTS_NOT_JUDGED = "ReportsNotJudged"
    """Containers write, and the operator has not judged what they wrote for longer than `limits.notStarted`:
    health pods read their nodes too."""
    NODES_HELD_OFF = "NodesHeldOff"
    """A label has said for more than an hour that the driver or the MIG layout of a node is being changed.
    The node takes jobs, and no probe may run there."""
    DAEMON_SET_REFUSED = "DaemonSetRefused"
    """The API server refuses the DaemonSet (rights, an admission policy or webhook)."""
    CLAIM_REFUSED = "ClaimRefused"
    """The API server refuses the template of the claims of the pods of the DaemonSet for DRA."""
    DAEMON_SET_FOREIGN = "DaemonSetForeign"
    """A DaemonSet that is not nodegauge's has the name of the policy's, and is left alone."""
    DAEMON_SET_CHANGED = "DaemonSetChanged"
    """Somebody else changed or deleted the DaemonSet.  Event: the change was taken back.  Condition: they do
    it again and again."""


class PaceReason(StrEnum):
    """Reasons of the condition `RunsKeepUp` of a GPUValidationPolicy, which exists only in mode Periodic."""

    KEEPING_UP = "KeepingUp"
    """A round of health runs over all nodes fits into the interval."""
    RUNS_REFUSED = "RunsRefused"
    """The last health runs of more than a tenth of the nodes could not be made, for a reason that is not the
    node's: the API server refused their pods, or their image did not come. The message has its words."""
    FEW_RUNS_REFUSED = "FewRunsRefused"
    """The same of fewer nodes, which the message names; the policy stays `Ready`."""
    TOO_FEW_SLOTS = "TooFewSlots"
    """A round takes longer than the interval, so readings get older; the message says what to raise."""
