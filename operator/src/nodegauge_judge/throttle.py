"""How long was a GPU slowed down, and is that too long?  One answer per GPU and kind of slowdown.

The best source is the growth of the driver's counters since the last run.  Without such an interval (first
run, reboot, restarted counters, missed runs), it is their growth within the sampling window of a few seconds;
without a counter, the samples of the clocks event reason.  The evidence names the source: `counter`, `window`
or `samples`.

Software power cap, idle, application clocks, sync boost and display clocks are normal and not judged (nvml.h,
nvmlClocksEventReasons): a healthy card at 8.8 W was recorded with 4,252 s of software power cap.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from nodegauge_contract import Gpu, ReasonSeen
from nodegauge_contract.model import PASTED
from nodegauge_judge import activity
from nodegauge_judge.case import Case, number, once
from nodegauge_judge.model import Load, Severity
from nodegauge_judge.thresholds import Thresholds


class Bit:
    """Clocks event reasons that slow a GPU down because something is wrong (nvml.h)."""

    HW_SLOWDOWN = 0x8
    SW_THERMAL = 0x20
    HW_THERMAL = 0x40
    POWER_BRAKE = 0x80


class Source(StrEnum):
    """What an amount of slowdown was read from."""

    COUNTER = "counter"
    WINDOW = "window"
    SAMPLES = "samples"


class Slowdown(Struct, frozen=True, kw_only=True):
    """`amount` out of `span`: seconds (counter, window) or samples.  `severity`: None for a small amount.

    `busy`: seconds of the interval under load, if the rule needs load.  `why`: why there was no interval to
    judge, or an extra condition on samples.  `disputed`: another counter of the same driver did not grow.
    """

    source: Source
    amount: float
    span: float
    severity: Severity | None
    busy: float | None = None
    why: str = ""
    disputed: bool = False

    @property
    def share(self) -> float:
        """Share of the busy time, or of the span where no busy time is given; at most 1."""
        whole = self.span if self.busy is None else max(self.busy, self.amount)
        return self.amount / whole if whole else 0.0


SLOWING = ("sw_thermal", "hw_thermal", "power_brake", "thermal_violation")
"""Members of `GpuGrowth` that count time held down by heat or the power brake."""


def slowed_seconds(case: Case) -> float | None:
    """Seconds since the last run in which heat or the power brake held clocks down, summed over GPUs; None
    without an interval or a counter.

    Of each GPU the counter that grew most: several count the same second (field 75 covers software and
    hardware).
    """
    grown = [
        max(known)
        for gpu in case.growth.gpus
        if (known := [value for name in SLOWING if (value := getattr(gpu, name)) is not None])
    ]
    return sum(grown) if grown else None


@once
def sw_thermal(case: Case, gpu_index: int) -> Slowdown | None:
    """Software thermal slowdown; None if unknown.  It is meaningful only under load.

    Drivers before 575 have field 75 instead (thermal violation, software and hardware together); it is used
    unless the window shows hardware slowdown.  With both, a counter that grew while field 75 did not is
    disputed: field ids have moved between drivers.
    """
    grown, limits, gpu = case.growth.gpus[gpu_index], case.thresholds, case.result.gpus[gpu_index]
    names: tuple[str, ...] = ("sw_thermal", "thermal_violation")
    if not isinstance(gpu.counters.sw_thermal_ns, int) and _is_hardware_slowdown(gpu):
        return None
    amount = next((value for name in names if (value := getattr(grown, name)) is not None), None)
    span = case.growth.interval.seconds
    if amount is None or span is None or grown.reason:
        return _window(case, gpu_index, names) or _samples(case, gpu_index, Bit.SW_THERMAL)
    slowdown = Slowdown(
        source=Source.COUNTER,
        amount=amount,
        span=span,
        severity=None,
        busy=min(span, busy) if (busy := activity.busy_seconds(case, gpu_index)) is not None else span,
        disputed=amount >= limits.sw_thermal_warn_seconds and _violations_did_not_grow(case, gpu_index),
    )
    if amount >= limits.sw_thermal_fail_seconds and slowdown.share > limits.sw_thermal_fail_share:
        return replace(slowdown, severity=Severity.WARN if slowdown.disputed else Severity.FAIL)
    warns = amount >= limits.sw_thermal_warn_seconds and slowdown.share > limits.sw_thermal_warn_share
    return replace(slowdown, severity=Severity.WARN) if warns else slowdown


@once
def hw_thermal(case: Case, gpu_index: int) -> Slowdown | None:
    """Hardware thermal slowdown (clocks halved or worse); None if unknown."""
    limits = case.thresholds
    slowdown = _counter(case, gpu_index, "hw_thermal")
    if slowdown is None:
        return _window(case, gpu_index, ("hw_thermal",)) or _samples(case, gpu_index, Bit.HW_THERMAL)
    return _graded(
        slowdown,
        fails=slowdown.amount >= limits.hw_thermal_fail_seconds
        and slowdown.share > limits.hw_thermal_fail_share,
        warns=slowdown.amount >= limits.hw_thermal_warn_seconds,
    )


@once
def power_brake(case: Case, gpu_index: int) -> Slowdown | None:
    """The external power brake, under load or idle; None if unknown.

    A bit that is set in every sample fails whatever the counter says: the brake is on right now.
    """
    limits = case.thresholds
    sampled = _samples(case, gpu_index, Bit.POWER_BRAKE)
    if sampled is not None and sampled.severity is Severity.FAIL:
        return sampled
    slowdown = _counter(case, gpu_index, "power_brake")
    if slowdown is None:
        return _window(case, gpu_index, ("power_brake",)) or sampled
    return _graded(
        slowdown,
        fails=slowdown.amount >= limits.power_brake_fail_seconds
        and slowdown.share > limits.power_brake_fail_share,
        warns=slowdown.amount >= limits.power_brake_warn_seconds,
    )


MOST_RUNS = 9
"""Runs in a row that `braked_runs` counts: more than any policy asks for."""


def braked_runs(case: Case, gpu_index: int) -> int:
    """Runs in a row, up to this one, in which a GPU's power brake was on.  A run without an answer, or too
    soon after the last one, adds nothing."""
    past, slowdown = case.past(gpu_index), power_brake(case, gpu_index)
    before = past.braked if past is not None else 0
    if slowdown is None or (before and case.growth.interval.early):
        return before
    return min(before + 1, MOST_RUNS) if slowdown.severity is not None else 0


def is_idle_brake(case: Case, gpu_index: int) -> bool:
    """Whether a GPU's power brake slows no work that is known of, is the only one on the node, and was not on
    for `powerBrakeIdleRuns` runs in a row: it says nothing about the power supply yet.

    An idle A10 has been recorded with a brake whose owner saw no fault.  A supply that fails holds several
    GPUs, slows work, or stays (NVIDIA/NVSentinel issue 1666: 36 hours).
    """
    slowdown = power_brake(case, gpu_index)
    if slowdown is None or slowdown.severity is None:
        return False
    others = [power_brake(case, other) for other in range(len(case.result.gpus)) if other != gpu_index]
    return (
        under_load(case, gpu_index, source=slowdown.source) is not Load.LOADED
        and not any(other is not None and other.severity is not None for other in others)
        and braked_runs(case, gpu_index) < case.thresholds.power_brake_idle_runs
    )


@once
def hw_slowdown(case: Case, gpu_index: int) -> Slowdown | None:
    """The umbrella bit, which has no counter.  None if unknown, or if the bits of its causes (heat, brake)
    are set in as many samples: those have rules of their own."""
    gpu = case.result.gpus[gpu_index]
    umbrella = seen(gpu, Bit.HW_SLOWDOWN)
    causes = max(seen(gpu, bit).samples for bit in (Bit.HW_THERMAL, Bit.POWER_BRAKE))
    if umbrella.samples and causes >= umbrella.samples:
        return None
    return _samples(case, gpu_index, Bit.HW_SLOWDOWN)


def heat_grew(case: Case, gpu_index: int) -> bool:
    """Whether a counter shows that heat slowed this GPU down, by software or hardware."""
    return _is_counted(sw_thermal(case, gpu_index)) or _is_counted(hw_thermal(case, gpu_index))


def software_heat_grew(case: Case, gpu_index: int) -> bool:
    """Whether a counter shows that the driver slowed this GPU down for heat, its memory's included."""
    return _is_counted(sw_thermal(case, gpu_index))


def seen(gpu: Gpu, bit: int) -> ReasonSeen:
    """In how many samples of the window a bit was set."""
    for reason in gpu.events.seen:
        if reason.bit == bit:
            return reason
    return ReasonSeen(bit=bit, samples=0, longest=0)


def _graded(slowdown: Slowdown, *, fails: bool, warns: bool) -> Slowdown:
    return replace(slowdown, severity=Severity.FAIL if fails else Severity.WARN if warns else None)


def _is_counted(slowdown: Slowdown | None) -> bool:
    return slowdown is not None and slowdown.severity is not None and slowdown.source is not Source.SAMPLES


def _is_hardware_slowdown(gpu: Gpu) -> bool:
    """Whether hardware slowdown for heat is set in at least as many samples as software slowdown."""
    hardware = seen(gpu, Bit.HW_THERMAL).samples
    return hardware > 0 and hardware >= seen(gpu, Bit.SW_THERMAL).samples


def _violations_did_not_grow(case: Case, gpu_index: int) -> bool:
    """Whether field 75 counts on this GPU and grew by less than what warns."""
    violation = case.growth.gpus[gpu_index].thermal_violation
    total = case.growth.counts[gpu_index].thermal_violation_ms
    return violation is not None and bool(total) and violation < case.thresholds.sw_thermal_warn_seconds


def _counter(case: Case, gpu_index: int, name: str) -> Slowdown | None:
    amount, span = getattr(case.growth.gpus[gpu_index], name), case.growth.interval.seconds
    if amount is None or span is None:
        return None
    return Slowdown(source=Source.COUNTER, amount=amount, span=span, severity=None)


def _window(case: Case, gpu_index: int, names: tuple[str, ...]) -> Slowdown | None:
    window, limits = case.result.gpus[gpu_index].window, case.thresholds
    growth = window.growth if window is not None else None
    elapsed = number(growth.elapsed_ms) if growth is not None else None
    if growth is None or elapsed is None or elapsed <= 0:
        return None
    for name in names:
        nanoseconds = number(getattr(growth, f"{name}_ns"))
        if nanoseconds is not None and 0 <= nanoseconds <= limits.plausible_growth * elapsed * 1e6:
            slowdown = Slowdown(
                source=Source.WINDOW,
                amount=nanoseconds / 1e9,
                span=elapsed / 1e3,
                severity=None,
                why=case.growth.gpus[gpu_index].why(name),
            )
            return replace(slowdown, severity=_by_share(min(1.0, slowdown.share), limits))
    return None


def _by_share(share: float, limits: Thresholds) -> Severity | None:
    if share > limits.window_fail_share:
        return Severity.FAIL
    return Severity.WARN if share > limits.window_warn_share else None


def _samples(case: Case, gpu_index: int, bit: int) -> Slowdown | None:
    """By the samples of a bit, if the driver supports it.

    A clock change raises the umbrella bit for a moment (nvml.h, nvmlClocksEventReasonHwSlowdown), so for that
    one bit the P-state must not have changed.  A paste has one sample, which warns.
    """
    gpu, limits = case.result.gpus[gpu_index], case.thresholds
    read, supported, window = number(gpu.events.read), gpu.events.supported, gpu.window
    pstate = window.pstate if window is not None else None
    umbrella = bit == Bit.HW_SLOWDOWN
    unsteady = umbrella and (pstate is None or pstate.min != pstate.max)
    if window is None or not read or (isinstance(supported, int) and not supported & bit):
        return None
    bit_seen = seen(gpu, bit)
    if bit_seen.samples and unsteady:
        return None
    all_of_them = bit_seen.samples >= read >= limits.bit_fail_samples
    severity = None
    if all_of_them and window.seconds >= limits.bit_fail_seconds:
        severity = Severity.FAIL
    elif bit_seen.longest >= (1 if case.result.probe == PASTED else limits.bit_warn_samples):
        severity = Severity.WARN
    why = "the P-state unchanged" if umbrella else ""
    return Slowdown(source=Source.SAMPLES, amount=bit_seen.samples, span=read, severity=severity, why=why)


def under_load(case: Case, gpu_index: int, *, source: Source) -> Load:
    """The load that belongs to a source: of the interval for a counter, else of the window."""
    return (
        activity.of_interval(case, gpu_index)
        if source is Source.COUNTER
        else activity.of_window(case, gpu_index)
    )
