"""Whether a benchmark can run on a node at all, and if not, why: in words for the report.

Only from what the node's object and the last health reading say; the probe itself asks NVML again before it
holds anything.  "Not now" (a node that is not Ready, whose driver changes) is no reason to show: `due` knows.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from nodegauge_operator import names
from nodegauge_operator.api.report import Outcome, ReportStatus, whole
from nodegauge_operator.core.model import NodeView, PodView
from nodegauge_operator.core.pod_outcome import RunEnd
from nodegauge_operator.core.selection import driver_changes

FEWEST = 2
"""GPUs that a collective needs."""
SHARING = names.GPU_LABEL + ".sharing-strategy"
REPLICAS = names.GPU_LABEL + ".replicas"
PRODUCT = names.GPU_LABEL + ".product"
NOT_WORKING = ("gpu-lost", "reset-required")


class Why(StrEnum):
    """Reasons why no benchmark runs on a node, as the report shows them."""

    SINGLE_GPU = "SingleGpu"
    SHARED = "Shared"
    MIG = "Mig"
    DRA = "Dra"
    VGPU = "Vgpu"
    CONFIDENTIAL = "ConfidentialComputing"
    CORDONED = "Cordoned"
    GPU_LOST = "GpuLost"


PASSING = (Why.CORDONED, Why.GPU_LOST)
"""What passes with time or repair; the others are how the node is."""
SEEN_BY_THE_PROBE = (Why.MIG, Why.SHARED, Why.VGPU, Why.CONFIDENTIAL)
"""What only NVML can tell on some nodes: a run that was skipped for it need not be tried again before the
node boots anew."""


class Hindrance(Struct, frozen=True):
    """Why no benchmark can run here, in a word and in words."""

    reason: Why
    detail: str


def hindrance(status: ReportStatus, node: NodeView, *, asked: bool = False) -> Hindrance | None:
    """What keeps benchmarks off this node; None where one can run, or where nothing has been read yet.

    `asked`: somebody asks for a run, so that what the last one was skipped for is looked at again.
    The health probe sees every GPU of the node, whoever holds it; `nvidia.com/gpu` says what a pod can get.
    """
    read = status.gpus.count
    if not status.probe(names.PROBE_HEALTH).read_at:
        return None
    found = _divided(node) if asked else divided(status, node)
    if found is not None or read < FEWEST:
        return found or Hindrance(Why.SINGLE_GPU, f"a collective needs {FEWEST} GPUs, read: {read}")
    offered = allocatable(node)
    if offered == 0:
        return _not_offered(status, node, read)
    if offered < FEWEST:
        return Hindrance(Why.SINGLE_GPU, f"{names.GPU_RESOURCE} is {offered} here, of {read} GPUs read")
    if _handed_out_broken(status, offered):
        text = f"a GPU does not answer, and the device plugin still offers all {offered}: repair it first"
        return Hindrance(Why.GPU_LOST, text)
    if node.unschedulable:
        return Hindrance(Why.CORDONED, "cordoned nodes are not benchmarked; uncordon it to have that done")
    return None


def giving_way(node: NodeView) -> RunEnd | None:
    """The end of a benchmark, or of a pull for one, whose node is wanted for something else by now.

    A drain refuses pods that nothing controls, and a driver's upgrade waits for who holds a GPU.
    """
    if node.unschedulable:
        text = "the node was cordoned meanwhile"
        return RunEnd(outcome=Outcome.SKIPPED, reason=Why.CORDONED.value, message=text)
    if node.leaving:
        return RunEnd(outcome=Outcome.SKIPPED, reason="NodeLeaving", message="the node is being removed")
    if driver_changes(node.labels):
        text = "the driver or the MIG layout is being exchanged"
        return RunEnd(outcome=Outcome.SKIPPED, reason="DriverChanges", message=text)
    return None


def replaced(pod: PodView, *, image: str) -> RunEnd | None:
    """The end of a pull whose image nobody wants any more: the right one waits no half an hour for it."""
    if pod.probe != names.PROBE_PULL or pod.image in ("", image):
        return None
    text = f"the image is {image} by now" if image else "no benchmark is wanted any more"
    return RunEnd(outcome=Outcome.SKIPPED, reason="ImageReplaced", message=text)


def divided(status: ReportStatus, node: NodeView) -> Hindrance | None:
    """Why pods get no whole GPUs here, or none that can be measured, by labels or by what a benchmark met."""
    return _divided(node) or _skipped(status, node)


def allocatable(node: NodeView) -> int:
    """GPUs that a pod can get on the node, held by others or not."""
    return whole(node.gpu_allocatable) or 0


def _divided(node: NodeView) -> Hindrance | None:
    """What GPU feature discovery says of the node: MIG devices or replicas instead of whole GPUs.

    Source: NVIDIA/k8s-device-plugin, internal/lm: `mig.strategy` stands on every node where a strategy is
    configured (GPU Operator: `single`), MIG or not; MIG devices show in the product's name (`-MIG-`, with
    strategy single) or as `nvidia.com/mig-PROFILE.count` (mixed).
    """
    labels = node.labels
    if "-MIG-" in labels.get(PRODUCT, "") or any(key.startswith(names.MIG_DEVICE_LABEL) for key in labels):
        return Hindrance(Why.MIG, "the GPUs are divided by MIG, whose devices NCCL cannot join")
    strategy, replicas = labels.get(SHARING, "none"), labels.get(REPLICAS, "1")
    if strategy not in ("", "none") or replicas not in ("", "0", "1"):
        return Hindrance(Why.SHARED, f"{names.GPU_RESOURCE} counts shares of GPUs here ({strategy})")
    return None


def _skipped(status: ReportStatus, node: NodeView) -> Hindrance | None:
    """What the benchmark itself found when it was tried in this boot, and what does not change in one."""
    last = status.probe(names.PROBE_NCCL).last_run
    if last is None or last.outcome is not Outcome.SKIPPED or last.boot_id != node.boot_id:
        return None
    reason = next((why for why in SEEN_BY_THE_PROBE if why == last.reason), None)
    return Hindrance(reason, last.message) if reason else None


def _not_offered(status: ReportStatus, node: NodeView, read: int) -> Hindrance | None:
    """No `nvidia.com/gpu` at all.  Right after a boot the device plugin may only be late; and for as long as
    the kubelet counts GPUs that it cannot hand out, the plugin is restarting (five minutes: kubernetes,
    pkg/kubelet/cm/devicemanager, endpointStopGracePeriod), or holds every one of them for broken."""
    if whole(node.gpu_capacity) or status.probe(names.PROBE_HEALTH).streak < 2:
        return None
    text = f"{read} GPUs were read, and no {names.GPU_RESOURCE} is offered: DRA gives them out, for which"
    return Hindrance(Why.DRA, f"{text} no benchmark is made yet, or the device plugin does not run")


def _handed_out_broken(status: ReportStatus, offered: int) -> bool:
    """A GPU that does not answer is among those that a pod would get."""
    codes = {finding.code for finding in status.probe(names.PROBE_HEALTH).findings}
    return any(code in codes for code in NOT_WORKING) and offered >= status.gpus.count
