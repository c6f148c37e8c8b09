"""What a GPU's product name tells about its NVLinks, for logs of nccl-tests, which name no links.

SXM modules are sold only on boards that join all their GPUs by NVLink.  More than four of them are on a board
with NVSwitches; up to four may be on one without, where each pair has a third of a GPU's links, so that fewer
GPUs see fewer links.  Cards for PCIe slots have bridges or none, so their name tells nothing.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from msgspec import Struct

SWITCHED_RANKS = 5
"""GPUs from which a board with a smaller sibling must be the one with NVSwitches."""
MESH_LINKS = 3
"""Neighbours that share a GPU's links on a board of four."""


class Board(Struct, frozen=True, kw_only=True):
    """A kind of board: `gpu`, a case-insensitive glob over the product name; `gbps`, all NVLinks of one GPU,
    GB/s one way; `sm`, compute capability times ten; `mesh`: boards of four without NVSwitches exist."""

    gpu: str
    gbps: float
    sm: int
    ranks: range = range(2, 9)
    switched: bool = True
    mesh: bool = True

    def nvswitch(self, ranks: int) -> bool:
        """Whether so many GPUs are certainly joined by NVSwitches."""
        return self.switched and (ranks >= SWITCHED_RANKS or not self.mesh)

    def nvlink_gbps(self, ranks: int) -> float:
        """The least that the NVLinks of one of so many GPUs carry to the others, GB/s one way."""
        meshed = self.mesh and ranks < SWITCHED_RANKS
        return self.gbps * (ranks - 1) / MESH_LINKS if meshed else self.gbps


BOARDS = (
    Board(gpu="*V100-SXM2*", gbps=150, sm=70, ranks=range(8, 9), switched=False),
    Board(gpu="*A100-SXM*", gbps=300, sm=80),
    Board(gpu="*H100*HBM3*", gbps=450, sm=90),
    Board(gpu="NVIDIA H200", gbps=450, sm=90),
    Board(gpu="NVIDIA B200", gbps=900, sm=100, mesh=False),
)
"""Source: stas00/ml-engineering 744d01e1, network (links and rates); boards of four A100, H100 and H200 join
every pair by a third of the links (NVIDIA's HGX data sheets).  A part of the mesh of eight V100 has too few
links to tell."""


def board_of(gpu: str, ranks: int) -> Board | None:
    """The board that so many of these GPUs must be on; None for other GPUs and counts."""
    matches = (board for board in BOARDS if fnmatchcase(gpu.lower(), board.gpu.lower()))
    return next((board for board in matches if ranks in board.ranks), None)
