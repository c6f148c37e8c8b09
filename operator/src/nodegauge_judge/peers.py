"""Comparing a node with nodes of the same hardware: who counts, and what is usual among them.

The operator knows the other nodes; the judge says by a fingerprint which of them are comparable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from statistics import median

from msgspec import Struct


class Versions(Struct, frozen=True, order=True, kw_only=True):
    """What a node runs; what could not be read is empty."""

    driver: str = ""
    """Version of the driver."""
    vbios: str = ""
    """Versions of its GPUs' VBIOS, each once."""
    kernel: str = ""
    """Release of the kernel."""
    since: float = 0.0
    """Since when it is known to run all of that, epoch seconds; 0 for unknown."""


Fleet = Callable[[str], Sequence[Versions]]
"""By class of node: what each other node of it runs (of more than 64, those in the middle of the order)."""
Peers = Callable[[str], Sequence[float]]
"""By fingerprint: one value of each other node with that fingerprint (all_reduce busbw in GB/s at 1 GiB, or
SM clock in MHz)."""
PEERS_NEEDED = 3
"""Comparable nodes, including this one, below which a median says little.  Chosen by this project."""


def no_peers(_fingerprint: str) -> Sequence[float]:
    """No peers are known."""
    return ()


def no_fleet(_klass: str) -> Sequence[Versions]:
    """No other node is known."""
    return ()


def usual(peers: Peers, fingerprint: str, *, own: float) -> tuple[float, int] | None:
    """The median of all comparable nodes, this one included, and their number; None if they are too few."""
    values = [own, *(value for value in peers(fingerprint) if value > 0 and isfinite(value))]
    return (median(values), len(values)) if len(values) >= PEERS_NEEDED else None
