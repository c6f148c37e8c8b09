"""P2P between GPUs that NVLinks join: what the driver refuses, and what it does not say.

NCCL checks P2P READ and WRITE for every hop and fails to initialise if a pair with NVLinks is not OK
(src/graph/paths.cc), so links without P2P are worthless.  An unreadable status is unknown.
"""

from __future__ import annotations

from msgspec import Struct

from nodegauge_contract import Result, Unavailable
from nodegauge_contract.model import PASTED, Grid
from nodegauge_contract.nvlink import Lanes

OK, UNKNOWN = 0, 6
_REFUSALS = {
    1: "CNS: chipset not supported",
    2: "GNS: GPU not supported",
    3: "TNS: topology not supported",
    4: "DR: disabled by a registry key",
    5: "NS: not supported",
}
"""NVML_P2P_STATUS_*, with the letters of `nvidia-smi topo -p2p`."""


class PairP2p(Struct, frozen=True, kw_only=True):
    """A pair (positions i < j) with `links` NVLinks: what is refused and what is unknown, as text."""

    i: int
    j: int
    links: int
    refused: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def examine(result: Result, lanes: Lanes) -> list[PairP2p]:
    """Every pair that has NVLinks, with its P2P status in both directions."""
    size = len(lanes.sums)
    return [
        _pair(result, i, j, links=max(lanes.pair[i][j], lanes.pair[j][i]))
        for i in range(size)
        for j in range(i + 1, size)
        if lanes.pair[i][j] or lanes.pair[j][i]
    ]


def silently_joined(result: Result, lanes: Lanes) -> list[tuple[int, int]]:
    """Pairs that claim P2P over NVLink while no link between them is reported: one of the two is wrong."""
    size = len(lanes.sums)
    return [
        (i, j)
        for i in range(size)
        for j in range(i + 1, size)
        if not lanes.pair[i][j] and _at(result.pairs.nvlink, i, j) == _at(result.pairs.nvlink, j, i) == OK
    ]


def _pair(result: Result, i: int, j: int, *, links: int) -> PairP2p:
    refused: dict[str, None] = {}
    unknown: dict[str, None] = {}
    grids = (("READ", result.pairs.read), ("WRITE", result.pairs.write), ("NVLINK", result.pairs.nvlink))
    for name, grid in grids:
        for status in (_at(grid, i, j), _at(grid, j, i)):
            if isinstance(status, int) and status in _REFUSALS:
                refused[f"{name} ({_REFUSALS[status]})"] = None
            elif status is None and result.probe == PASTED:
                continue  # nobody pasted that table; `pasted_evidence` says so with the class
            elif status != OK:
                unknown[f"{name} ({_unknown_status(status)})"] = None
    return PairP2p(i=i, j=j, links=links, refused=tuple(refused), unknown=tuple(unknown))


def _unknown_status(status: int | Unavailable | None) -> str:
    if isinstance(status, Unavailable):
        return f"not readable: {status.unavailable[:80]}"
    if status is None:
        return "not in the document"
    return "U: unknown to the driver" if status == UNKNOWN else f"status {status}, not known here"


def _at(grid: Grid, i: int, j: int) -> int | Unavailable | None:
    return grid[i][j] if i < len(grid) and j < len(grid[i]) else None
