"""From what each GPU did and what stalled around it to one cause for those that starve."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from nodegauge_contract.feed import FeedGpu
from nodegauge_judge.feed import cpu, gpus, storage
from nodegauge_judge.feed.case import FeedCase, amount, share
from nodegauge_judge.feed.causes import FeedCause, FeedLimits, Stall, confidence
from nodegauge_judge.feed.gpus import Did, GpuFeeding

NOT_USED = "idle"
"""In place of a cause, for GPUs that somebody holds and does not use."""
WAITING = (Did.STARVED, Did.HOLLOW)


class Diagnosis(Struct, frozen=True, kw_only=True):
    """What the window says."""

    case: FeedCase
    limits: FeedLimits
    gpus: list[GpuFeeding]
    """Every GPU of the window."""
    best: Stall | None = None
    """Why GPUs starve; None for unknown, or if none does."""
    confidence: float = 0.0
    """0 to 1, of that cause."""
    rivals: list[Stall] = []
    """Other causes that hold, best first."""

    @property
    def allocated(self) -> list[GpuFeeding]:
        """GPUs that somebody holds."""
        return [gpu for gpu in self.gpus if gpu.did is not Did.FREE]

    @property
    def underfed(self) -> list[GpuFeeding]:
        """GPUs that wait for a cause, also an unknown one."""
        return [gpu for gpu in self.gpus if gpu.cause and gpu.cause != NOT_USED]

    @property
    def unused(self) -> list[GpuFeeding]:
        """GPUs that somebody holds and does not use."""
        return [gpu for gpu in self.gpus if gpu.cause == NOT_USED]


def diagnose(case: FeedCase, limits: FeedLimits) -> Diagnosis:
    """What the window says of each GPU, and the one cause for all that starve.

    Several jobs on one node may starve for several causes; which job has which GPU is not known, so the
    clearest cause speaks for all of them.
    """
    allocated = gpus.allocated(case, limits)
    acts = {
        gpu.index: gpus.did(gpu, limits) if gpu.index in allocated else Did.FREE for gpu in case.feed.gpus
    }
    acts |= {
        gpu.index: Did.UNREAD for gpu in case.feed.gpus if acts[gpu.index] is Did.FREE and _unread(case, gpu)
    }
    stalls = outside(case, limits)
    waiting = [
        gpu for gpu in case.feed.gpus if acts[gpu.index] in WAITING or _stuck(gpu, acts, stalls, limits)
    ]
    at_work = [gpu for gpu in case.feed.gpus if acts[gpu.index] in (*WAITING, Did.FED, Did.UNSURE)]
    slow = gpus.one_slow(case, at_work, limits)
    if slow is not None:
        waiting = [gpu for gpu in at_work if gpu.index != slow[1]]
    best, rivals = _best(case, waiting, stalls, slow[0] if slow else None, limits)
    causes = {gpu.index: _cause(gpu, best, limits) for gpu in waiting}
    causes |= {index: NOT_USED for index, act in acts.items() if act is Did.IDLE and index not in causes}
    if all(cause == NOT_USED for cause in causes.values()):
        best = None
    return Diagnosis(
        case=case,
        limits=limits,
        gpus=[_seen(gpu, acts[gpu.index], causes.get(gpu.index, ""), best, limits) for gpu in case.feed.gpus],
        best=best,
        confidence=0.0 if best is None else confidence(best, [best, *rivals]),
        rivals=rivals,
    )


LOOKS: tuple[Callable[[FeedCase, FeedLimits], Stall | None], ...] = (
    cpu.quota,
    cpu.cores,
    storage.storage,
    storage.network_storage,
    storage.memory,
    storage.pcie,
)
"""One for each cause outside of the GPUs."""


def outside(case: FeedCase, limits: FeedLimits) -> list[Stall]:
    """The causes that hold, best first, without those that another one explains."""
    stalls = [stall for look in LOOKS if (stall := look(case, limits)) is not None]
    if any(stall.explains_reads for stall in stalls):
        stalls = [stall for stall in stalls if stall.cause not in (FeedCause.STORAGE, FeedCause.NETWORK)]
    if len(stalls) > 1:
        stalls = [stall for stall in stalls if stall.score > limits.serial_score]
    order = list(FeedCause)
    return sorted(stalls, key=lambda stall: (-stall.score, order.index(stall.cause)))


def _unread(case: FeedCase, gpu: FeedGpu) -> bool:
    """Whether nothing tells if somebody holds this GPU."""
    read = (gpus.utilization(gpu), amount(gpu.processes), amount(gpu.memory_used_mib))
    return case.pods is None and read[0] is None and (read[1] is None or read[2] is None)


def _stuck(gpu: FeedGpu, acts: dict[int, Did], stalls: Sequence[Stall], limits: FeedLimits) -> bool:
    """Whether an idle GPU starves completely: its job has put data into its memory, and something outside is
    stalled beyond doubt."""
    loaded = (amount(gpu.memory_used_mib) or 0.0) >= limits.loaded_mib
    return (
        acts[gpu.index] is Did.IDLE and loaded and any(stall.score >= limits.stuck_score for stall in stalls)
    )


def _best(
    case: FeedCase, waiting: Sequence[FeedGpu], stalls: list[Stall], slow: Stall | None, limits: FeedLimits
) -> tuple[Stall | None, list[Stall]]:
    """The cause, and the others that hold.  A cause outside explains low power too, so only where nothing is
    stalled the batches count."""
    if not waiting:
        return None, []
    if slow is not None:
        return slow, stalls
    if not stalls or stalls[0].score <= limits.serial_score:
        small = gpus.small_batches(case, waiting, limits)
        stalls = [small, *stalls] if small is not None else stalls
    return (stalls[0], stalls[1:]) if stalls else (None, [])


def _cause(gpu: FeedGpu, best: Stall | None, limits: FeedLimits) -> str:
    """One that is hardly used, while nothing is stalled, waits for requests rather than for data."""
    if best is not None and best.score > limits.serial_score:
        return best.cause.value
    if (gpus.utilization(gpu) or 0.0) < limits.barely_used:
        return NOT_USED
    return best.cause.value if best is not None else FeedCause.UNKNOWN.value


def _seen(gpu: FeedGpu, act: Did, cause: str, best: Stall | None, limits: FeedLimits) -> GpuFeeding:
    power, active = gpus.power_share(gpu), share(gpu.sm_active)
    lost = 1 - gpus.effective(gpu, limits) if cause else 0.0
    if best is not None and best.cause is FeedCause.ONE_SLOW and cause == best.cause:
        ratio = best.evidence.get("clock_ratio", 1.0)
        lost = max(lost, 1 - float(ratio))
    return GpuFeeding(
        index=gpu.index,
        did=act,
        utilization=gpus.utilization(gpu),
        power_share=None if power is None else round(power, 3),
        sm_active=active,
        lost=round(min(1.0, max(0.0, lost)), 3),
        cause=cause,
    )
