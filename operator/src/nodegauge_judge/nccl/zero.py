"""What data parallelism costs in communication: bytes from the scheme, time from measured bus bandwidth.

Arithmetic only, for ranks on one node.  A scheme is a list of collectives over S = parameters x bytes; busbw
already holds their factors 2(n-1)/n and (n-1)/n, so time is bytes through each GPU over busbw.  all_gather
and reduce_scatter are taken at their own bandwidth, never at an all_reduce that NVLS speeds up: on 8x H200
that is 361 against 480 GB/s (stas00/ml-engineering, network benchmarks).

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
from nodegauge_judge.nccl.formulas import busbw_factor

BACKWARD_SHARE = 2 / 3
"""Of the time of forward and backward, what the backward pass takes: it multiplies twice as much."""
MATTERS = 0.1
"""From this share of a step on, communication decides which node to take.  Own rule of thumb."""


class Scheme(StrEnum):
    """Ways to split the training state over data-parallel ranks."""

    DDP = "DDP"
    ZERO_1 = "ZeRO-1"
    ZERO_2 = "ZeRO-2"
    ZERO_3 = "ZeRO-3"


class Pass(Struct, frozen=True, kw_only=True):
    """One collective over all parameters (or their gradients): so often per step and per micro-batch."""

    collective: Collective
    per_step: int = 0
    per_micro_batch: int = 0


PASSES: dict[Scheme, tuple[Pass, ...]] = {
    Scheme.DDP: (Pass(collective=Collective.ALL_REDUCE, per_step=1),),
    Scheme.ZERO_1: (
        Pass(collective=Collective.REDUCE_SCATTER, per_step=1),
        Pass(collective=Collective.ALL_GATHER, per_step=1),
    ),
    Scheme.ZERO_2: (
        Pass(collective=Collective.REDUCE_SCATTER, per_micro_batch=1),
        Pass(collective=Collective.ALL_GATHER, per_step=1),
    ),
    Scheme.ZERO_3: (
        Pass(collective=Collective.ALL_GATHER, per_micro_batch=2),
        Pass(collective=Collective.REDUCE_SCATTER, per_micro_batch=1),
    ),
}
"""ZeRO-3 (FSDP, full sharding) gathers in the forward and again in the backward pass."""


class Job(Struct, frozen=True, kw_only=True):
    """A training job on one node: parameters, bytes of one on the wire, ranks, micro-batches per step.

    `bucket`: bytes of one call (DDP's default is 25 MiB, ZeRO-3 gathers layer by layer), null for calls so
    large that latency does not count.  `compute`: seconds that forward and backward of a whole step take,
    null where nobody said.
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
    """One collective's bus bandwidth: (message bytes, GB/s) by rising size, measured with `ranks` GPUs.

    `of`: the collective that was measured; another than asked for where it stands in.
    """

    of: Collective
    points: tuple[tuple[int, float], ...]
    ranks: int

    @property
    def gbps(self) -> float:
        """At the largest size."""
        return self.points[-1][1]

    def at(self, bytes: int) -> float:
        """GB/s at a message size: time is taken as linear in size between two measured sizes.

        Below the smallest a call takes as long as the smallest does; above the largest bandwidth stays.
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


class Speeds(Struct, frozen=True, kw_only=True):
    """What one node, or a class of nodes, reaches: curves by collective, with P2P and without.

    `nvls`: whether its all_reduce ran NVLS (then it says nothing of the others); null for not known.
    """

    curves: tuple[Curve, ...]
    p2p_off: tuple[Curve, ...] = ()
    nvls: bool | None = None

    def curve(self, collective: Collective) -> Curve | None:
        """The collective's own curve, or one that may stand in for it; null for none."""
        return _choose(self.curves, collective, rings=self.nvls is False)

    def without_p2p(self, collective: Collective) -> Curve | None:
        """The same over the host's memory, where NVLS never runs."""
        return _choose(self.p2p_off, collective, rings=True)


def _choose(curves: Sequence[Curve], wanted: Collective, *, rings: bool) -> Curve | None:
    """Rings move the same bytes over the same links whatever they compute."""
    halves = [Collective.ALL_GATHER, Collective.REDUCE_SCATTER]
    allowed = [wanted, *halves] if wanted in halves or rings else [wanted]
    allowed += [Collective.ALL_REDUCE] if rings else []
    by_name = {curve.of: curve for curve in curves}
    return next((by_name[name] for name in allowed if name in by_name), None)


class Cost(Struct, frozen=True, kw_only=True):
    """One scheme on one node: seconds per optimizer step.

    `gigabytes`: through each GPU; `seconds`: of communication, null where a figure is missing; `exposed`: of
    it what is left when all is hidden behind the backward pass that can be (0 where nobody said how long it
    takes); `p2p_off`: `seconds` with P2P off.  `stand_ins`: "all_gather as all_reduce", for figures taken
    from another collective.
    """

    scheme: Scheme
    gigabytes: float
    seconds: float | None
    exposed: float | None
    p2p_off: float | None
    stand_ins: tuple[str, ...] = ()

    @property
    def lost_without_p2p(self) -> float | None:
        """Seconds per step that switching P2P off adds."""
        return self.p2p_off - self.seconds if self.p2p_off is not None and self.seconds is not None else None


def costs(job: Job, speeds: Speeds) -> list[Cost]:
    """Every scheme on a node that is that fast."""
    return [_cost(job, scheme, speeds) for scheme in Scheme]


def _cost(job: Job, scheme: Scheme, speeds: Speeds) -> Cost:
    passes = PASSES[scheme]
    used = [speeds.curve(step.collective) for step in passes]
    seconds = _seconds(job, passes, used)
    backward = (job.compute or 0.0) * BACKWARD_SHARE
    exposed = None if seconds is None else max(0.0, seconds - backward) if job.compute else 0.0
    return Cost(
        scheme=scheme,
        gigabytes=sum(
            _times(job, step) * job.bytes * busbw_factor(step.collective, job.ranks) for step in passes
        )
        / 1e9,
        seconds=seconds,
        exposed=exposed,
        p2p_off=_seconds(job, passes, [speeds.without_p2p(step.collective) for step in passes]),
        stand_ins=tuple(
            f"{step.collective} as {curve.of}"
            for step, curve in zip(passes, used, strict=True)
            if curve is not None and curve.of != step.collective
        ),
    )


def _seconds(job: Job, passes: Sequence[Pass], curves: Sequence[Curve | None]) -> float | None:
    """Null where the curve of any of the passes is missing."""
    total = 0.0
    for step, curve in zip(passes, curves, strict=True):
        if curve is None:
            return None
        total += _times(job, step) * _once(job, step.collective, curve)
    return total


def _once(job: Job, collective: Collective, curve: Curve) -> float:
    """One pass over all parameters, in whole buckets where there are any."""
    factor = busbw_factor(collective, job.ranks)
    if job.bucket is None:
        return job.bytes * factor / (curve.gbps * 1e9)
    size = min(job.bucket, ceil(job.bytes))
    return ceil(job.bytes / size) * size * factor / (curve.at(size) * 1e9)


def _times(job: Job, step: Pass) -> int:
    return step.per_step + step.per_micro_batch * job.micro_batches
