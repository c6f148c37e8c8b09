"""What each GPU did in a window, and the causes that lie in the GPUs themselves.

NVML's utilisation counts any kernel, so a GPU at 100 % may do nothing: whether it worked is told by
`sm_active`, or else by its power.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from statistics import median

from msgspec import Struct

from nodegauge_contract.feed import FeedGpu
from nodegauge_judge.feed.case import FeedCase, amount, share
from nodegauge_judge.feed.causes import FeedCause, FeedLimits, Stall, score
from nodegauge_judge.feed.storage import port_share
from nodegauge_judge.model import Scalar


class Did(StrEnum):
    """What a GPU did in the window."""

    UNREAD = "unread"
    """Neither its utilisation nor its SMs could be read, or the window is too short."""
    FREE = "free"
    """Nobody holds it."""
    IDLE = "idle"
    """Somebody holds it, and it did nothing."""
    STARVED = "starved"
    """It had work and waited for more."""
    HOLLOW = "hollow"
    """NVML calls it busy, and its SMs and power say that it did little."""
    PAUSED = "paused"
    """It worked, and paused once: an evaluation, a checkpoint, a start or an end."""
    FED = "fed"
    """It worked."""
    UNSURE = "unsure"
    """NVML calls it busy; how much it did is unread."""


class GpuFeeding(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One GPU in the window."""

    index: int
    """NVML index."""
    did: Did
    """What it did."""
    utilization: float | None = None
    """%; None if unread."""
    power_share: float | None = None
    """Of its limit; None if unread."""
    sm_active: float | None = None
    """Share of time and SMs; None if unread."""
    lost: float = 0.0
    """GPUs: 1 less its effective use; 0 for one that works or that nobody holds."""
    cause: str = ""
    """Why, a `FeedCause`; empty for none."""


def percent(value: object) -> float | None:
    """The value if it is 0 to 100."""
    read = amount(value)
    return read if read is not None and read <= 100 else None


def power_share(gpu: FeedGpu) -> float | None:
    """Power as a share of the limit; None if either is unread."""
    drawn, limit = amount(gpu.power_mw), amount(gpu.limit_mw)
    return drawn / limit if drawn is not None and limit else None


def utilization(gpu: FeedGpu) -> float | None:
    """NVML's, else by the SMs (with MIG NVML has none); None if unread."""
    active, read = share(gpu.sm_active), percent(gpu.utilization)
    return read if read is not None else None if active is None else 100 * active


def at_work(gpu: FeedGpu, limits: FeedLimits) -> bool:
    """Whether anything shows that somebody uses it.  A container without the host's PIDs sees no process."""
    used, read = amount(gpu.memory_used_mib) or 0.0, utilization(gpu) or 0.0
    return bool(amount(gpu.processes)) or used >= limits.loaded_mib or read > limits.idle_utilization


def allocated(case: FeedCase, limits: FeedLimits) -> set[int]:
    """Indexes of the GPUs that somebody holds: those at work, and, as the cluster counts more, the next."""
    working = [gpu.index for gpu in case.feed.gpus if at_work(gpu, limits)]
    if case.pods is None:
        return set(working)
    count = sum(max(0, pod.gpus) for pod in case.pods)
    others = [gpu.index for gpu in case.feed.gpus if gpu.index not in working]
    return set([*working, *others][:count])


def filled(gpu: FeedGpu, limits: FeedLimits) -> bool | None:
    """Whether its kernels fill it; None if that is unread.  Low power is right while memory is busy."""
    active, power = share(gpu.sm_active), power_share(gpu)
    if active is not None:
        return active >= limits.fed_sm_active
    if (percent(gpu.memory_utilization) or 0.0) >= limits.fed_memory_utilization:
        return True
    return None if power is None else power >= limits.fed_power_share


def effective(gpu: FeedGpu, limits: FeedLimits) -> float:
    """0 to 1, how much of the GPU was used: its utilisation, and no more than SMs, or else power, allow."""
    used = (utilization(gpu) or 0.0) / 100
    active, power = share(gpu.sm_active), power_share(gpu)
    if active is not None:
        return min(used, active / limits.full_sm_active)
    if power is None or filled(gpu, limits):
        return used
    span = limits.full_power_share - limits.idle_power_share
    return min(used, max(0.0, (power - limits.idle_power_share) / span))


def did(gpu: FeedGpu, limits: FeedLimits) -> Did:
    """What a GPU did that somebody holds."""
    used, idle, full = utilization(gpu), share(gpu.idle_share), share(gpu.full_share)
    if used is None or gpu.samples < limits.least_samples:
        return Did.UNREAD
    if used <= limits.idle_utilization and (idle is None or idle >= limits.idle_share):
        return Did.IDLE
    if _paused(gpu, limits):
        return Did.PAUSED
    works = filled(gpu, limits)
    few_gaps = idle is None or idle < limits.hollow_idle_share
    if used >= limits.hollow_utilization and few_gaps and works is False:
        return Did.HOLLOW
    if used < limits.starved_utilization:
        return Did.STARVED
    return Did.UNSURE if works is None else Did.FED if works or not full else Did.STARVED


def _paused(gpu: FeedGpu, limits: FeedLimits) -> bool:
    """Idle for a while and full for the rest, with one pause at most."""
    idle, full, swings = share(gpu.idle_share), share(gpu.full_share), amount(gpu.swings)
    if idle is None or full is None or swings is None:
        return False
    return (
        0 < swings <= limits.pause_swings
        and full >= limits.pause_full
        and idle + full >= limits.pause_ends
        and filled(gpu, limits) is not False
    )


def one_slow(case: FeedCase, gpus: Sequence[FeedGpu], limits: FeedLimits) -> tuple[Stall, int] | None:
    """One GPU for which the others of its job wait, and its index: they spin at full utilisation."""
    spinning = [gpu for gpu in gpus if (utilization(gpu) or 0.0) >= limits.spinning]
    if len(spinning) < 2 or len(spinning) < len(gpus):
        return None
    for slow in spinning:
        others = [gpu for gpu in spinning if gpu is not slow]
        best = _slowed(slow, others, limits) or (_loaded(slow, others, limits) if case.one_job else None)
        if best is not None:
            reached, message, evidence, advice = best
            evidence |= {"slow_gpu": slow.index}
            return (
                Stall(
                    cause=FeedCause.ONE_SLOW, score=reached, message=message, evidence=evidence, advice=advice
                ),
                slow.index,
            )
    return None


_Slow = tuple[float, str, dict[str, Scalar], str]


def _slowed(slow: FeedGpu, others: list[FeedGpu], limits: FeedLimits) -> _Slow | None:
    """Heat, brake or hardware slowed this one down and not the others, or its clock is far below theirs."""
    clocks = [clock for gpu in others if (clock := amount(gpu.sm_mhz))]
    own, usual = amount(slow.sm_mhz), median(clocks) if clocks else None
    ratio = own / usual if own and usual else None
    slowed = share(slow.slowed_share)
    theirs = [read for gpu in others if (read := share(gpu.slowed_share)) is not None]
    alone = slowed is not None and (not theirs or median(theirs) < limits.slowed_share[0])
    by_clock, by_share = (
        score(ratio, limits.slow_clock),
        score(slowed if alone else None, limits.slowed_share),
    )
    if by_clock is None and by_share is None:
        return None
    parts = [f"runs at {own:.0f} MHz, the others at {usual:.0f}"] if by_clock is not None else []
    parts += (
        [f"was slowed down in {slowed:.0%} of the time, the others were not"] if by_share is not None else []
    )
    evidence: dict[str, Scalar] = {} if ratio is None else {"clock_ratio": round(ratio, 3)}
    evidence |= {} if slowed is None else {"slowed_share": round(slowed, 3)}
    return (
        max(by_clock or 0.0, by_share or 0.0),
        f"GPU {slow.index} {' and '.join(parts)}: all GPUs of a job wait for the slowest at each step",
        evidence,
        f"move the job to another node, and tell who runs the cluster that GPU {slow.index} is slow: the "
        "findings of the node's report say why (heat, power, clocks)",
    )


def _loaded(slow: FeedGpu, others: list[FeedGpu], limits: FeedLimits) -> _Slow | None:
    """This one works and the others spin: they draw little and leave their memory alone."""
    own, theirs = power_share(slow), [read for gpu in others if (read := power_share(gpu)) is not None]
    if own is None or len(theirs) < len(others) or any(filled(gpu, limits) for gpu in others):
        return None
    gap = own - median(theirs)
    reached = score(gap, (limits.power_gap, 2 * limits.power_gap))
    if reached is None or own < limits.fed_power_share:
        return None
    return (
        reached,
        f"GPU {slow.index} draws {own:.0%} of its power limit and the others {median(theirs):.0%}, all at "
        "full utilisation: they wait for it at each step",
        {"power_share_slow": round(own, 3), "power_share_others": round(median(theirs), 3)},
        "give each rank the same work (equal batches and lengths, balanced pipeline stages or experts), and "
        f"take what only GPU {slow.index} does (evaluation, logging, saving) off the step",
    )


def small_batches(case: FeedCase, gpus: Sequence[FeedGpu], limits: FeedLimits) -> Stall | None:
    """GPUs that are busy with kernels too small for them; None if they may wait for other nodes."""
    hollow = [gpu for gpu in gpus if did(gpu, limits) is Did.HOLLOW]
    if not hollow or _spans_nodes(case, limits):
        return None
    used = median([utilization(gpu) or 0.0 for gpu in hollow])
    active = [read for gpu in hollow if (read := share(gpu.sm_active)) is not None]
    powers = [read for gpu in hollow if (read := power_share(gpu)) is not None]
    if active:
        reached = score(median(active), (limits.fed_sm_active, 0.1))
        little = f"{median(active):.0%} of their SMs had work"
    else:
        reached = score(median(powers), (limits.fed_power_share, limits.idle_power_share)) if powers else None
        little = f"they draw {median(powers):.0%} of their power limit" if powers else ""
    if reached is None:
        return None
    evidence: dict[str, Scalar] = {"utilization": round(used, 1)}
    evidence |= {"sm_active": round(median(active), 3)} if active else {}
    evidence |= {"power_share": round(median(powers), 3)} if powers else {}
    return Stall(
        cause=FeedCause.SMALL,
        score=reached,
        message=f"kernels ran in {used:.0f} % of the time, but {little}, and nothing outside is stalled",
        advice=(
            "a larger micro batch if GPU memory allows (gradient accumulation alone keeps each launch as "
            "small), mixed precision (bf16), fused kernels, `torch.compile` or CUDA graphs: each launch "
            "should bring more work"
        ),
        evidence=evidence,
    )


def _spans_nodes(case: FeedCase, limits: FeedLimits) -> bool:
    """Whether a port sends and receives as collectives between nodes do."""
    for port in case.ports:
        sent, received = port_share(port.tx_mbps, port), port_share(port.rx_mbps, port)
        if sent is not None and received is not None and min(sent, received) >= limits.collective_share:
            return True
    return False
