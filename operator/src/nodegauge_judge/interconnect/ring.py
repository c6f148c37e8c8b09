"""Is there a ring over all GPUs?  NCCL needs one whose every hop runs on NVLink.

Exact and deterministic: a table over subsets (Held and Karp), so that neither the order of GPUs nor luck in a
search decides about a label.  16 GPUs cost about a quarter of a million steps; more are refused.  Where every
GPU is joined to half of them or more, as behind switches, a ring always exists (Dirac's theorem, 1952).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

MAX_GPUS = 16
"""The largest machine with one NVLink domain that a node can be (DGX-2, HGX-2); beyond it: unknown."""


class Ring(StrEnum):
    """Whether a cycle over all GPUs exists (for two GPUs: whether the pair is joined)."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


def ring(joined: Sequence[Sequence[bool]]) -> Ring:
    """Whether the graph (square, symmetric adjacency) has a Hamiltonian cycle."""
    size = len(joined)
    if size > MAX_GPUS:
        return Ring.UNKNOWN
    if size < 2:
        return Ring.NO
    if size == 2:
        return Ring.YES if joined[0][1] else Ring.NO
    edges = [sum(1 << j for j in range(size) if j != i and joined[i][j]) for i in range(size)]
    if any(edge.bit_count() < 2 for edge in edges):
        return Ring.NO
    if all(edge.bit_count() * 2 >= size for edge in edges):
        return Ring.YES
    return Ring.YES if _cycle(edges) else Ring.NO


def _cycle(edges: list[int]) -> bool:
    """`ends[s]`: the vertices at which a path from vertex 0 through exactly the vertices of s can end."""
    full = (1 << len(edges)) - 1
    ends = [0] * (full + 1)
    ends[1] = 1
    for subset in range(1, full, 2):
        here = ends[subset]
        if not here:
            continue
        outside = full & ~subset
        while outside:
            bit = outside & -outside
            outside ^= bit
            if edges[bit.bit_length() - 1] & here:
                ends[subset | bit] |= bit
    return bool(ends[full] & edges[0])
