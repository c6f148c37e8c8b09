"""P2P status of the pairs that have NVLinks: allowed, refused, or not to be told.

NCCL looks at READ and WRITE for every hop and fails its initialisation when a pair with NVLinks is not OK
(src/graph/paths.cc), so links without P2P are worth nothing.  What could not be read is neither.
"""

from __future__ import annotations

from msgspec import Struct

from nodegauge_contract import Result, Unavailable
from nodegauge_contract.model import Grid
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
    """A pair (positions i < j) with `links` NVLinks: what refuses, and what could not be told, in words."""

    i: int
    j: int
    links: int
    refused: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def examine(result: Result, lanes: Lanes) -> list[PairP2p]:
    """Every pair that has NVLinks, with what its P2P status says in both directions."""
    size = len(lanes.sums)
    return [
        _pair(result, i, j, links=max(lanes.pair[i][j], lanes.pair[j][i]))
        for i in range(size)
        for j in range(i + 1, size)
        if lanes.pair[i][j] or lanes.pair[j][i]
    ]


def silently_joined(result: Result, lanes: Lanes) -> list[tuple[int, int]]:
    """Pairs that claim P2P over NVLink without a link that anybody reports: the two cannot both be right."""
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
            elif status != OK:
                unknown[f"{name} ({_unknown_words(status)})"] = None
    return PairP2p(i=i, j=j, links=links, refused=tuple(refused), unknown=tuple(unknown))


def _unknown_words(status: int | Unavailable | None) -> str:
    if isinstance(status, Unavailable):
        return f"not readable: {status.unavailable[:80]}"
    if status is None:
        return "not in the document"
    return "U: unknown to the driver" if status == UNKNOWN else f"status {status}, not known here"


def _at(grid: Grid, i: int, j: int) -> int | Unavailable | None:
    return grid[i][j] if i < len(grid) and j < len(grid[i]) else None
