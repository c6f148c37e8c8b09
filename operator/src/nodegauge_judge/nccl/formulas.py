"""Bandwidth from time: the formulas by which everybody compares collectives.

Results hold times; bandwidths are computed here and nowhere else.  GB/s is 1e9 bytes a second.  Source of
all formulas: nccl-tests, doc/PERFORMANCE.md ("Bandwidth" and its summary of correction factors).
"""

from __future__ import annotations

from nodegauge_contract import Collective


def busbw_factor(collective: str, ranks: int) -> float:
    """What turns algbw into busbw: all_reduce 2(n-1)/n, all_gather and reduce_scatter (n-1)/n.

    With one rank nothing goes over a bus, and the factor is 0.  Raises ValueError for another collective and
    for fewer than one rank.
    """
    if ranks < 1:
        raise ValueError(f"{ranks} ranks: at least one takes part")
    shares = {Collective.ALL_REDUCE: 2, Collective.ALL_GATHER: 1, Collective.REDUCE_SCATTER: 1}
    return shares[Collective(collective)] * (ranks - 1) / ranks


def busbw_gbps(collective: str, *, bytes: int, us: float, ranks: int) -> float:
    """Bus bandwidth in GB/s of one call of `us` microseconds.

    `bytes` is the size as nccl-tests prints it: the buffer for all_reduce, the total over all ranks for
    all_gather and reduce_scatter.  Raises ValueError for a time that is not above 0.
    """
    if not us > 0:
        raise ValueError(f"{us} us: a call takes time")
    return bytes / us / 1e3 * busbw_factor(collective, ranks)
