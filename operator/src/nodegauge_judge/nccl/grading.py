"""What one grading looks at, and the words that its findings share."""

from __future__ import annotations

from msgspec import Struct

from nodegauge_contract import Collective
from nodegauge_judge.case import Hit, clip
from nodegauge_judge.model import NodeFacts, Scalar, Severity, Sharing
from nodegauge_judge.nccl.floors import Asked
from nodegauge_judge.nccl.headline import Figure, figures
from nodegauge_judge.nccl.measurement import CellSeen, Measured
from nodegauge_judge.nccl.model import Peers
from nodegauge_judge.thresholds import Thresholds

NODE = "node"
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


class Grading(Struct, frozen=True, kw_only=True):
    """One grading's inputs, and the figures that follow from them."""

    measured: Measured
    asked: Asked
    node: NodeFacts
    peers: Peers
    figures: dict[Collective, Figure]

    @classmethod
    def of(cls, measured: Measured, *, asked: Asked, node: NodeFacts, peers: Peers) -> Grading:
        """The grading of one `Measured`."""
        return cls(measured=measured, asked=asked, node=node, peers=peers, figures=figures(measured))

    @property
    def thresholds(self) -> Thresholds:
        """The policy's numbers."""
        return self.asked.thresholds

    @property
    def expected(self) -> int:
        """GPUs that the node should have; 0 where nobody knows."""
        told = self.node.gpu_capacity if self.node.sharing is Sharing.EXCLUSIVE else None
        return max(self.measured.expected, told or 0)


def size_in_words(size: int) -> str:
    """`1 GiB`, `64 KiB`, `12 bytes`."""
    for unit, name in _UNITS:
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} bytes"


def gbps(value: float) -> str:
    """`462 GB/s`, `4.03 GB/s`."""
    return f"{value:.0f} GB/s" if value >= 100 else f"{value:.3g} GB/s"


def cell_in_words(cell: CellSeen) -> str:
    """`all_reduce at 1 GiB (NVLS)`."""
    how = f" ({clip(cell.algorithm)})" if cell.algorithm else ""
    return f"{cell.collective.value} at {size_in_words(cell.bytes)}{how}"


def of_node(
    severity: Severity, message: str, *, evidence: dict[str, Scalar], place: str = NODE, weight: float = 0.0
) -> Hit:
    """A hit about the whole node, or about `place` of it."""
    return Hit(
        severity=severity, location=place, short=place, message=message, evidence=evidence, weight=weight
    )
