"""The rule about clocks: a GPU that runs slower than its identical siblings at the same work.

Identical means the same model, maximum clock and power limit, at work in the same window, and both or neither
held by the power cap.  GPUs with clocks that a user set and slowdowns with a rule of their own are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from msgspec import Struct

from nodegauge_contract import Gpu
from nodegauge_judge import load, throttle
from nodegauge_judge.case import Case, HealthRule, number, of_gpu
from nodegauge_judge.model import Answer, Cause, Gate, GateKind, Judged, Load, Severity
from nodegauge_judge.rule import REPORT, VENDOR, Observation
from nodegauge_judge.rules.power import is_capped
from nodegauge_judge.throttle import Bit

SET_BY_USER = (0x2, 0x10, 0x100)
"""nvmlClocksEventReason: ApplicationsClocksSetting, SyncBoost, DisplayClockSetting."""
EXPLAINED = (Bit.HW_SLOWDOWN, Bit.SW_THERMAL, Bit.HW_THERMAL, Bit.POWER_BRAKE)


class Pace(Struct, frozen=True, kw_only=True):
    """One GPU's SM clock and the median of its siblings', in MHz, over the window."""

    own: float
    siblings: float
    count: int

    @property
    def share(self) -> float:
        """Own clock as a share of the siblings'."""
        return self.own / self.siblings


def slow_clock(case: Case) -> Iterator[Observation]:
    """Busy GPUs whose clock is well below that of their identical siblings."""
    limits = case.thresholds
    for gpu_index, gpu in enumerate(case.result.gpus):
        pace = _pace(case, gpu_index)
        if pace is None or pace.share >= limits.slow_clock_warn:
            continue
        failed = pace.share < limits.slow_clock_fail
        limit = limits.slow_clock_fail if failed else limits.slow_clock_warn
        against = f"{pace.siblings:g} MHz of {pace.count} identical GPU{'' if pace.count == 1 else 's'}"
        yield of_gpu(
            gpu,
            Severity.FAIL if failed else Severity.WARN,
            message=f"{pace.own:g} MHz against {against} at work ({pace.share:.0%}, below {limit:.0%}).",
            evidence={"sm_mhz": pace.own, "siblings_mhz": pace.siblings, "limit": limit},
            weight=1 - pace.share,
        )


def answer_slow_clock(case: Case, gpu_index: int) -> Answer:
    """What the run says about one GPU's clock."""
    loaded, pace = load.of_window(case, gpu_index), _pace(case, gpu_index)
    if loaded is Load.IDLE:
        return Answer.NO_LOAD
    if loaded is Load.UNKNOWN or pace is None:
        return Answer.UNSURE
    return Answer.BAD if pace.share < case.thresholds.slow_clock_fail else Answer.GOOD


def _pace(case: Case, gpu_index: int) -> Pace | None:
    """None without a clock to compare, or without a sibling."""
    gpus = case.result.gpus
    own = _clock(case, gpu_index)
    if own is None or _is_set(gpus[gpu_index], (*SET_BY_USER, *EXPLAINED)):
        return None
    others = [
        clock
        for other in range(len(gpus))
        if other != gpu_index
        and _alike(gpus[gpu_index], gpus[other])
        and not _is_set(gpus[other], SET_BY_USER)
        and (clock := _clock(case, other)) is not None
    ]
    return Pace(own=own, siblings=median(others), count=len(others)) if others else None


def _clock(case: Case, gpu_index: int) -> float | None:
    """The median SM clock of a window in which the GPU worked; else None."""
    window = case.result.gpus[gpu_index].window
    clock = number(window.sm_mhz.median) if window is not None and window.sm_mhz is not None else None
    worked = load.of_window(case, gpu_index) is Load.LOADED
    return clock if worked and clock is not None and clock > 0 else None


def _alike(one: Gpu, other: Gpu) -> bool:
    same = (
        isinstance(one.name, str)
        and one.name == other.name
        and one.clocks.max_sm_mhz == other.clocks.max_sm_mhz
        and one.power.enforced_limit_mw == other.power.enforced_limit_mw
    )
    return same and is_capped(one) == is_capped(other)


def _is_set(gpu: Gpu, bits: tuple[int, ...]) -> bool:
    return any(throttle.seen(gpu, bit).samples for bit in bits)


RULES = (
    HealthRule(
        code="slow-clock",
        title="a GPU runs slower than its siblings",
        meaning=(
            "At work in the same window, the GPU's SM clock is well below the median of the node's identical "
            "GPUs (same model, maximum clock and power limit, both or neither held by the power cap), and no "
            "slowdown with a rule of its own explains it. The slowest GPU sets the pace of a job over all of "
            "them."
        ),
        when={
            Severity.WARN: "under load, below `slowClockWarn` (0.93) of its siblings' median SM clock",
            Severity.FAIL: "under load, below `slowClockFail` (0.8) of its siblings' median SM clock",
        },
        next_step="compare `nvidia-smi -q -d CLOCK,PERFORMANCE -i INDEX` with a sibling's.",
        way_out=(
            "`nvidia-smi -q -d CLOCK,PERFORMANCE` on the node: compare clocks, limits and reasons.",
            "Locked clocks: `nvidia-smi -rgc -i INDEX` and `nvidia-smi -rac -i INDEX` unlock them.",
            REPORT,
            VENDOR,
        ),
        gate=Gate(kind=GateKind.UNHEALTHY, cause=Cause.SLOW_GPU, judged=Judged.UNDER_LOAD),
        check=slow_clock,
        answer_per_gpu=answer_slow_clock,
        history_bit=4,
    ),
)
