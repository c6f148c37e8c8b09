"""What a node has for models that do not fit into its GPUs: `status.offload`, made anew at each look, and its
labels: whole numbers, rounded down, so that `Gt` of a nodeAffinity promises no more than there is.

Cores and memory are the node's allocatable ones, divided by the GPUs that it has.  Measured rates are those
of the last load run while that counts; where one is missing, a sentence says why.
"""

from __future__ import annotations

from msgspec.structs import asdict

from nodegauge_judge.loadtest_rules.offload import OffloadReading
from nodegauge_operator import names
from nodegauge_operator.api.offload_status import OffloadStatus
from nodegauge_operator.api.quantity import quantity
from nodegauge_operator.api.report import ReportStatus
from nodegauge_operator.core.context import HEALTH, Context
from nodegauge_operator.core.label import Label, Value
from nodegauge_operator.core.report_size import cut

MOST_CORES, MOST_BYTES = 1e5, 2.0**50
"""More than any node has.  Chosen by this project."""
GIB = 2.0**30
MAX_WHY = 200


def standing(context: Context) -> OffloadStatus:
    """What stands now."""
    measured = context.status.load.offload if names.PROBE_LOAD in context.counting else OffloadReading()
    wanted = context.policy.spec.probes.load.nvme.path
    known = asdict(measured)
    if measured.nvme_path != wanted or not wanted:
        known |= {"nvme_read_gbps": None, "nvme_path": wanted, "nvme_problem": ""}
    if known["nvme_read_gbps"] is None:
        known["nvme_write_gbps"] = None
    unread = _unread(context)
    if measured.h2d_gbps is None and measured.h2d_all_gbps is None and not measured.h2d_problem:
        known["h2d_problem"] = unread
    if wanted and known["nvme_read_gbps"] is None and not known["nvme_problem"]:
        known["nvme_problem"] = unread
    gpus = _gpus(context)
    return OffloadStatus(
        **known,
        host_memory_gib=_each(context.node.memory_allocatable, gpus, most=MOST_BYTES, unit=GIB),
        cores=_each(context.node.cpu_allocatable, gpus, most=MOST_CORES, unit=1.0),
    )


def _gpus(context: Context) -> int:
    """GPUs that the node has, 0 if unknown.  Those that are lost or broken count: a node has no more for
    each GPU because one of them is out."""
    gpus = context.status.gpus
    read = bool(context.status.probe[HEALTH].read_at) and HEALTH not in context.stale
    return gpus.count + len(gpus.missing) if read else 0


def _each(amount: str, gpus: int, *, most: float, unit: float) -> float | None:
    """The share of one GPU, rounded down to a tenth."""
    total = quantity(amount, most=most)
    return None if total is None or not gpus else int(10 * total / unit / gpus) / 10


def _unread(context: Context) -> str:
    """Why no load run has measured it."""
    kind, probe = context.kinds[names.PROBE_LOAD], context.status.probe[names.PROBE_LOAD]
    if not kind.asked_for(context):
        return "load runs are switched off"
    if context.status.load.detail:
        return cut(f"no load run can be made: {context.status.load.detail}", MAX_WHY)
    if probe.unread and probe.last_run is not None:
        why = ": ".join(filter(None, (probe.last_run.reason, probe.last_run.message)))
        return cut(f"the last load run gave no result: {why}", MAX_WHY)
    if not probe.read_at:
        return "no load run was made yet"
    if names.PROBE_LOAD not in context.counting:
        return "the last load run is too old, or of other GPUs"
    return "the last load run did not measure it"


def _whole(field: str) -> Value:
    """The value of a label: the member of `OffloadStatus` rounded down."""
    assert field in OffloadStatus.__struct_fields__

    def value(_: object, status: ReportStatus) -> str:
        amount = getattr(status.offload, field)
        return "" if amount is None else str(int(amount))

    return value


LABELS = (
    Label(
        key=names.PREFIX + "h2d-gbps",
        values="integer, GB/s",
        meaning=(
            "Copies from pinned memory of the host to the slowest GPU while all GPUs copy, which is what "
            "offload to the CPU gets. Absent: a GPU of the node gave no rate, not measured, or stale."
        ),
        value=_whole("h2d_all_gbps"),
    ),
    Label(
        key=names.PREFIX + "host-memory-per-gpu",
        values="integer, GiB",
        meaning=(
            "Allocatable memory of the node, divided by the GPUs that it has, broken ones included. Absent: "
            "the number of GPUs is unknown or stale."
        ),
        value=_whole("host_memory_gib"),
    ),
    Label(
        key=names.PREFIX + "cores-per-gpu",
        values="integer, CPUs",
        meaning=(
            "Allocatable CPUs of the node, divided by the GPUs that it has, broken ones included. Absent: "
            "the number of GPUs is unknown or stale."
        ),
        value=_whole("cores"),
    ),
    Label(
        key=names.PREFIX + "nvme-read-gbps",
        values="integer, GB/s",
        meaning=(
            "Reads past the page cache from the local disk behind the policy's `probes.load.nvme.path`, of "
            "the whole node. Absent: no path is named, it is no local disk, not measured, or stale."
        ),
        value=_whole("nvme_read_gbps"),
    ),
)
