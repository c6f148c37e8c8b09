"""Communication cost of data parallelism: bytes from the scheme, time from measured bus bandwidth.

This is arithmetic for the ranks of one node.  A scheme is a list of collectives over S = parameters x bytes.
busbw already includes their factors 2(n-1)/n and (n-1)/n, so the time is the bytes through each GPU divided
by busbw.  all_gather and reduce_scatter use their own bandwidth, because only all_reduce gains from NVLS:
on 8x H200 they reach 361 GB/s and it reaches 480 (stas00/ml-engineering, network benchmarks).

Sources of the volumes: ZeRO, arXiv 1910.02054, section 7 (2, 2 and 3 times the parameters); DeepSpeed's
ZeRO-1 and PyTorch's DDP under no_sync communicate once per step, ZeRO-2 reduces gradients and ZeRO-3 gathers
and reduces in every micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise
from math import ceil

from msgspec import Struct

from nodegauge_contract import Collective
from nodegauge_contract.nccl import busbw_factor

BACKWARD_SHARE = 2 / 3
"""The backward pass's share of the compute time: it does twice the multiplications of the forward pass."""
SIGNIFICANT_SHARE = 0.1
"""Share of a step from which communication should decide the choice of node.  Chosen by this project: a rule
of thumb."""


class Scheme(StrEnum):
    """How the training state is split over data-parallel ranks."""

    DDP = "DDP"
    ZERO_1 = "ZeRO-1"
    ZERO_2 = "ZeRO-2"
    ZERO_3 = "ZeRO-3"


class Transfer(Struct, frozen=True, kw_only=True):
    """One collective over all parameters or gradients, and how often a step and a micro-batch runs it."""

    collective: Collective
    per_step: int = 0
    per_micro_batch: int = 0


TRANSFERS: dict[Scheme, tuple[Transfer, ...]] = {
    Scheme.DDP: (Transfer(collective=Collective.ALL_REDUCE, per_step=1),),
    Scheme.ZERO_1: (
        Transfer(collective=Collective.REDUCE_SCATTER, per_step=1),
        Transfer(collective=Collective.ALL_GATHER, per_step=1),
    ),
    Scheme.ZERO_2: (
        Transfer(collective=Collective.REDUCE_SCATTER, per_micro_batch=1),
        Transfer(collective=Collective.ALL_GATHER, per_step=1),
    ),
    Scheme.ZERO_3: (
        Transfer(collective=Collective.ALL_GATHER, per_micro_batch=2),
        Transfer(collective=Collective.REDUCE_SCATTER, per_micro_batch=1),
    ),
}
"""ZeRO-3 (FSDP, full sharding) gathers in the forward and again in the backward pass."""


class Job(Struct, frozen=True, kw_only=True):
    """A training job on one node.

    `width`: bytes per parameter that are sent; `bucket`: bytes per call (25 MiB is DDP's default, ZeRO-3
    gathers layer by layer), null for calls large enough to ignore latency; `compute`: seconds of forward and
    backward pass per step, null if unknown.
    """

    params: float
    width: float = 2.0
    ranks: int = 8
    micro_batches: int = 1
    bucket: int | None = None
    compute: float | None = None

    @property
    def bytes(self) -> float:
        """All parameters, or all gradients, once."""
        return self.params * self.width


class Curve(Struct, frozen=True, kw_only=True):
    """Bus bandwidth of one collective: (message bytes, GB/s) by rising size, measured with `ranks` GPUs."""

    collective: Collective
    points: tuple[tuple[int, float], ...]
    ranks: int

    @property
    def gbps(self) -> float:
        """GB/s at the largest size."""
        return self.points[-1][1]

    def at(self, bytes: int) -> float:
        """GB/s at a message size.

        Between two measured sizes time is linear in size.  Smaller calls take as long as the smallest
        measured one; larger calls have the bandwidth of the largest.
        """
        if bytes >= self.points[-1][0]:
            return self.gbps
        times = [(size, size / gbps) for size, gbps in self.points]
        if bytes <= times[0][0]:
            return bytes / times[0][1]
        for (low, fast), (high, slow) in pairwise(times):
            if bytes <= high:
                return bytes / (fast + (slow - fast) * (bytes - low) / (high - low))
        raise AssertionError("sizes rise")


class Bandwidths(Struct, frozen=True, kw_only=True):
    """The measured curves of one node or of a class of nodes, with P2P and without.

    `nvls`: whether all_reduce ran NVLS (then it says nothing about the others); null if unknown.
    """

    curves: tuple[Curve, ...]
    p2p_off: tuple[Curve, ...] = ()
    nvls: bool | None = None

    def curve(self, collective: Collective) -> Curve | None:
        """The collective's own curve or a valid substitute; None if there is neither."""
        return _choose(self.curves, collective, rings=self.nvls is False)

    def without_p2p(self, collective: Collective) -> Curve | None:
        """The same with P2P disabled, where NVLS never runs."""
        return _choose(self.p2p_off, collective, rings=True)


def _choose(curves: Sequence[Curve], wanted: Collective, *, rings: bool) -> Curve | None:
    """The wanted curve or a substitute: every ring moves the same bytes over the same links."""
    halves = [Collective.ALL_GATHER, Collective.REDUCE_SCATTER]
    allowed = [wanted, *halves] if wanted in halves or rings else [wanted]
    allowed += [Collective.ALL_REDUCE] if rings else []
    by_collective = {curve.collective: curve for curve in curves}
    return next((by_collective[collective] for collective in allowed if collective in by_collective), None)


class Cost(Struct, frozen=True, kw_only=True):
    """Communication of one scheme on one node, per optimizer step.

    `gigabytes`: through each GPU; `seconds`: null if a bandwidth is missing; `exposed`: what remains after
    the backward pass hides all it can (0 if the compute time is unknown); `p2p_off`: `seconds` with P2P
    disabled; `substitutes`: "all_gather as all_reduce" for bandwidths taken from another collective.
    """

    scheme: Scheme
    gigabytes: float
    seconds: float | None
    exposed: float | None
    p2p_off: float | None
    substitutes: tuple[str, ...] = ()

    @property
    def lost_without_p2p(self) -> float | None:
        """Seconds per step that disabling P2P adds."""
        return self.p2p_off - self.seconds if self.p2p_off is not None and self.seconds is not None else None


def costs(job: Job, bandwidths: Bandwidths) -> list[Cost]:
    """The cost of every scheme with these bandwidths."""
    return [_cost(job, scheme, bandwidths) for scheme in Scheme]


def _cost(job: Job, scheme: Scheme, bandwidths: Bandwidths) -> Cost:
    transfers = TRANSFERS[scheme]
    collectives = [transfer.collective for transfer in transfers]
    used = [bandwidths.curve(collective) for collective in collectives]
    seconds = _seconds(job, transfers, used)
    backward = (job.compute or 0.0) * BACKWARD_SHARE
    exposed = None if seconds is None else max(0.0, seconds - backward) if job.compute else 0.0
    moved = (
        _times(job, transfer) * job.bytes * busbw_factor(transfer.collective, job.ranks)
        for transfer in transfers
    )
    return Cost(
        scheme=scheme,
        gigabytes=sum(moved) / 1e9,
        seconds=seconds,
        exposed=exposed,
        p2p_off=_seconds(job, transfers, [bandwidths.without_p2p(collective) for collective in collectives]),
        substitutes=tuple(
            f"{wanted} as {curve.collective}"
            for wanted, curve in zip(collectives, used, strict=True)
            if curve is not None and curve.collective != wanted
        ),
    )


def _seconds(job: Job, transfers: Sequence[Transfer], curves: Sequence[Curve | None]) -> float | None:
    """None if the curve of any transfer is missing."""
    total = 0.0
    for transfer, curve in zip(transfers, curves, strict=True):
        if curve is None:
            return None
        total += _times(job, transfer) * _once(job, transfer.collective, curve)
    return total


def _once(job: Job, collective: Collective, curve: Curve) -> float:
    """One transfer of all parameters, in whole buckets if the job has any."""
    factor = busbw_factor(collective, job.ranks)
    if job.bucket is None:
        return job.bytes * factor / (curve.gbps * 1e9)
    size = min(job.bucket, ceil(job.bytes))
    return ceil(job.bytes / size) * size * factor / (curve.at(size) * 1e9)


def _times(job: Job, transfer: Transfer) -> int:
    return transfer.per_step + transfer.per_micro_batch * job.micro_batches
