"""The labels that say what a node has for models that do not fit into its GPUs.

They follow from `status.offload`, which holds only what stands.  Integers, rounded down, so that `Gt` of a
nodeAffinity promises no more than there is.
"""

from __future__ import annotations

from nodegauge_operator import names
from nodegauge_operator.api.offload_status import OffloadStatus
from nodegauge_operator.api.report import ReportStatus
from nodegauge_operator.core.label import Label, Value


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
