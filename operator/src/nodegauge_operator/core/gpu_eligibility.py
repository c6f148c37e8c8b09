"""Whether a run that holds every GPU can be made on a node, why not, and whether the last one measured the
same machine.

Only the node's object and the last health reading are used; the probe itself asks NVML again before it holds
a GPU.  A node that is not Ready or whose driver is changing has no reason here: `NodeView.may_run` makes
all runs wait for it.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from nodegauge_operator import names
from nodegauge_operator.api.gpus_status import GpusStatus
from nodegauge_operator.api.report import Outcome, ReportStatus, whole
from nodegauge_operator.core.devices import MIG
from nodegauge_operator.core.driver_access import DriverAccess, gap
from nodegauge_operator.core.model import NodeView

SHARING = names.GPU_LABEL + ".sharing-strategy"
REPLICAS = names.GPU_LABEL + ".replicas"
PRODUCT = names.GPU_LABEL + ".product"
COUNT = names.GPU_LABEL + ".count"
NOT_WORKING = ("gpu-lost", "reset-required")


class Why(StrEnum):
    """Reasons why no run that holds GPUs is made on a node, as the report shows them."""

    SINGLE_GPU = "SingleGpu"
    SHARED = "Shared"
    MIG = "Mig"
    DRA = "Dra"
    VGPU = "Vgpu"
    CONFIDENTIAL = "ConfidentialComputing"
    CORDONED = "Cordoned"
    GPU_LOST = "GpuLost"


PASSING = (Why.CORDONED, Why.GPU_LOST)
"""These pass with time or repair; the others are properties of the node."""
SEEN_BY_THE_PROBE = (Why.MIG, Why.SHARED, Why.VGPU, Why.CONFIDENTIAL)
"""On some nodes only NVML can tell these: a run that was skipped for one is not tried again until the node
reboots."""


class Hindrance(Struct, frozen=True):
    """Why no such run can be made here: a reason, and a sentence with the details."""

    reason: Why
    detail: str


def hindrance(
    status: ReportStatus,
    node: NodeView,
    *,
    probe: str,
    fewest: int,
    asked: bool = False,
    access: DriverAccess = DriverAccess.RUNTIME,
) -> Hindrance | None:
    """Why no run of this probe can be made on this node; None if one can, or if nothing has been read yet.

    `fewest`: GPUs that a run needs.  `asked`: somebody asks for a run, so the reason for which the last one
    was skipped is checked again.
    The health probe sees every GPU of the node, whoever holds it; `nvidia.com/gpu` says what a pod can get,
    or the devices of the DRA driver do.
    """
    read = status.gpus.count
    if not status.probe[names.PROBE_HEALTH].read_at:
        return None
    division = divided_by_labels(node) if asked else divided(status, node, probe=probe)
    if access is DriverAccess.DRA and division is None:
        division = _divided_by_devices(node)
    if division is not None or read < fewest:
        few = f"a collective needs {fewest} GPUs; this node has {read}" if read else "this node has no GPU"
        return division or Hindrance(Why.SINGLE_GPU, few)
    offered = allocatable(node, access)
    if offered == 0:
        return _not_offered(status, node, read, access)
    by_claim = access is DriverAccess.DRA
    if offered < fewest:
        way = f"in ResourceSlices of {names.DRA_DRIVER}" if by_claim else f"as {names.GPU_RESOURCE}"
        return Hindrance(Why.SINGLE_GPU, f"the node offers {offered} of its {read} GPUs {way}")
    if _handed_out_broken(status, offered):
        who = "DRA driver" if by_claim else "device plugin"
        text = f"a GPU does not answer, but the {who} still offers all {offered}; repair it first"
        return Hindrance(Why.GPU_LOST, text)
    if node.unschedulable:
        return Hindrance(Why.CORDONED, "runs that hold GPUs skip cordoned nodes; uncordon it first")
    return None


def divided(status: ReportStatus, node: NodeView, *, probe: str) -> Hindrance | None:
    """Why pods get no whole GPUs here, or none to measure: by labels, or by the probe's last run."""
    return divided_by_labels(node) or _skipped(status, node, probe)


def allocatable(node: NodeView, access: DriverAccess) -> int:
    """GPUs that a pod can get on the node, whether or not other pods hold them now."""
    return node.whole_devices if access is DriverAccess.DRA else whole(node.gpu_allocatable) or 0


def divided_by_labels(node: NodeView) -> Hindrance | None:
    """MIG devices or replicas instead of whole GPUs, by the labels of GPU feature discovery.

    Source: NVIDIA/k8s-device-plugin, internal/lm: `mig.strategy` stands on every node where a strategy is
    configured (GPU Operator: `single`), MIG or not; MIG devices show in the product's name (`-MIG-`, with
    strategy single) or as `nvidia.com/mig-PROFILE.count` (mixed).
    """
    labels = node.labels
    if "-MIG-" in labels.get(PRODUCT, "") or any(key.startswith(names.MIG_DEVICE_LABEL) for key in labels):
        return Hindrance(Why.MIG, "MIG divides the GPUs, and these runs need whole ones")
    strategy, replicas = labels.get(SHARING, "none"), labels.get(REPLICAS, "1")
    if strategy not in ("", "none") or replicas not in ("", "0", "1"):
        return Hindrance(Why.SHARED, f"{names.GPU_RESOURCE} counts shares of GPUs here ({strategy})")
    return None


def _divided_by_devices(node: NodeView) -> Hindrance | None:
    """MIG devices alone, by the DRA driver: with dynamic MIG it lists whole GPUs beside them."""
    if node.whole_devices or all(device.type != MIG for device in node.devices):
        return None
    return Hindrance(Why.MIG, "MIG divides the GPUs, and these runs need whole ones")


def _skipped(status: ReportStatus, node: NodeView, probe: str) -> Hindrance | None:
    """The reason for which the probe skipped its last run, if it cannot change without a reboot."""
    last = status.probe[probe].last_run
    if last is None or last.outcome is not Outcome.SKIPPED or last.boot_id != node.boot_id:
        return None
    reason = next((why for why in SEEN_BY_THE_PROBE if why == last.reason), None)
    return Hindrance(reason, last.message) if reason else None


def _not_offered(status: ReportStatus, node: NodeView, read: int, access: DriverAccess) -> Hindrance | None:
    """No GPU at all that a pod could get.

    Right after a boot the device plugin may only be late.  While the kubelet counts GPUs that it cannot hand
    out, the plugin is restarting (five minutes: kubernetes, pkg/kubelet/cm/devicemanager,
    endpointStopGracePeriod), or takes all of them for broken.
    """
    if whole(node.gpu_capacity) or status.probe[names.PROBE_HEALTH].streak < 2:
        return None
    return Hindrance(Why.DRA, f"{read} GPUs were read, but {gap(node, access)}")


def _handed_out_broken(status: ReportStatus, offered: int) -> bool:
    """A GPU that does not answer is among those that a pod would get."""
    codes = {finding.code for finding in status.probe[names.PROBE_HEALTH].findings}
    return any(code in codes for code in NOT_WORKING) and offered >= status.gpus.count


def hardware(gpus: GpusStatus) -> str:
    """The GPUs and the driver that a measurement is bound to; empty before they were read."""
    return f"{gpus.count} x {gpus.product}, driver {gpus.driver}" if gpus.count else ""


def same_hardware(measured: str, gpus: GpusStatus) -> bool:
    """Whether GPUs and driver are those of a measurement, `measured` as `hardware` wrote it then.

    A product name or driver version that one health run could not read does not make it another machine.
    """
    same_product = not gpus.product or f" x {gpus.product}, driver " in measured
    same_driver = not gpus.driver or measured.endswith(f", driver {gpus.driver}")
    return gpus.count > 0 and measured.startswith(f"{gpus.count} x ") and same_product and same_driver
