"""Comparing a node with nodes of the same hardware: who counts, and what is usual among them.

The operator knows the other nodes; the judge says by a fingerprint which of them are comparable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from statistics import median

Peers = Callable[[str], Sequence[float]]
"""By fingerprint: one value of each other node with that fingerprint (all_reduce busbw in GB/s at 1 GiB, or
SM clock in MHz)."""
PEERS_NEEDED = 3
"""Comparable nodes, including this one, below which a median says little.  Chosen by this project."""


def no_peers(_fingerprint: str) -> Sequence[float]:
    """No peers are known."""
    return ()


def usual(peers: Peers, fingerprint: str, *, own: float) -> tuple[float, int] | None:
    """The median of all comparable nodes, this one included, and their number; None if they are too few."""
    values = [own, *(value for value in peers(fingerprint) if value > 0 and isfinite(value))]
    return (median(values), len(values)) if len(values) >= PEERS_NEEDED else None
