"""How long was a GPU slowed down, and is that too long?  The throttle rule, per GPU and per kind of slowdown.

Best are the driver's cumulative counters over the interval since the last run.  Where there is no interval
(first run, reboot, counters restarted, runs missed) the sampling window of a few seconds speaks alone, by the
counters' growth within it; where there is no counter at all, the samples of the reason's bit do.  Evidence
says which: `counter`, `window`, `samples`.

Not judged: the software power cap, idle, application clocks, sync boost and display clocks.  They are normal
(nvml.h, nvmlClocksEventReasons); a healthy card at 8.8 W was recorded with 4,252 s of software power cap.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from nodegauge_contract import Gpu, ReasonSeen
from nodegauge_judge import load
from nodegauge_judge.case import Case, number
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
    """`amount` out of `span`: seconds (counter, window) or samples.  `severity`: None where it is little.

    `busy`: seconds of the interval under load, where the rule asks for them.  `why`: why no interval was
    judged, or what else had to hold of samples.  `disputed`: another counter of the same driver saw nothing.
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
        """Share of the time that counts: the busy time where there is one, never more than all of it."""
        whole = self.span if self.busy is None else max(self.busy, self.amount)
        return self.amount / whole if whole else 0.0


def sw_thermal(case: Case, gpu_index: int) -> Slowdown | None:
    """Software thermal slowdown; None where nothing can be told.  Only means something under load.

    Field 75 (thermal violation, software and hardware together) stands in before driver 575, unless the
    window shows that the heat is the hardware's.  It disputes a counter that it has seen nothing of: field
    ids have moved between drivers.
    """
    grown, limits, gpu = case.growth.gpus[gpu_index], case.thresholds, case.result.gpus[gpu_index]
    names: tuple[str, ...] = ("sw_thermal", "thermal_violation")
    if not isinstance(gpu.counters.sw_thermal_ns, int) and _is_of_hardware(gpu):
        return None
    amount = next((value for name in names if (value := getattr(grown, name)) is not None), None)
    span = case.growth.interval.seconds
    if amount is None or span is None or grown.reason:
        return _window(case, gpu_index, names) or _samples(case, gpu_index, Bit.SW_THERMAL)
    found = Slowdown(
        source=Source.COUNTER,
        amount=amount,
        span=span,
        severity=None,
        busy=min(span, busy) if (busy := load.busy_seconds(case, gpu_index)) is not None else span,
        disputed=amount >= limits.sw_thermal_warn_seconds and _saw_nothing(case, gpu_index),
    )
    if amount >= limits.sw_thermal_fail_seconds and found.share > limits.sw_thermal_fail_share:
        return replace(found, severity=Severity.WARN if found.disputed else Severity.FAIL)
    warns = amount >= limits.sw_thermal_warn_seconds and found.share > limits.sw_thermal_warn_share
    return replace(found, severity=Severity.WARN) if warns else found


def hw_thermal(case: Case, gpu_index: int) -> Slowdown | None:
    """Hardware thermal slowdown (clocks halved or worse); None where nothing can be told."""
    limits = case.thresholds
    found = _counter(case, gpu_index, "hw_thermal")
    if found is None:
        return _window(case, gpu_index, ("hw_thermal",)) or _samples(case, gpu_index, Bit.HW_THERMAL)
    if found.amount >= limits.hw_thermal_fail_seconds and found.share > limits.hw_thermal_fail_share:
        return replace(found, severity=Severity.FAIL)
    return replace(found, severity=Severity.WARN) if found.amount >= limits.hw_thermal_warn_seconds else found


def power_brake(case: Case, gpu_index: int) -> Slowdown | None:
    """The external power brake, at work or idle; None where nothing can be told.

    A bit that stands in every sample fails whatever the counter says: the brake is held right now.
    """
    limits = case.thresholds
    sampled = _samples(case, gpu_index, Bit.POWER_BRAKE)
    if sampled is not None and sampled.severity is Severity.FAIL:
        return sampled
    found = _counter(case, gpu_index, "power_brake")
    if found is None:
        return _window(case, gpu_index, ("power_brake",)) or sampled
    if found.amount >= limits.power_brake_fail_seconds and found.share > limits.power_brake_fail_share:
        return replace(found, severity=Severity.FAIL)
    return (
        replace(found, severity=Severity.WARN) if found.amount >= limits.power_brake_warn_seconds else found
    )


def hw_slowdown(case: Case, gpu_index: int) -> Slowdown | None:
    """The umbrella bit, which has no counter; None where nothing can be told or where the bits of its causes
    (heat, brake) stand in as many samples and have their own rows."""
    gpu = case.result.gpus[gpu_index]
    umbrella = seen(gpu, Bit.HW_SLOWDOWN)
    causes = max(seen(gpu, bit).samples for bit in (Bit.HW_THERMAL, Bit.POWER_BRAKE))
    if umbrella.samples and causes >= umbrella.samples:
        return None
    return _samples(case, gpu_index, Bit.HW_SLOWDOWN)


def heat_grew(case: Case, gpu_index: int) -> bool:
    """Whether a counter says that heat has slowed this GPU down, software or hardware."""
    return any(_is_counted(found) for found in (sw_thermal(case, gpu_index), hw_thermal(case, gpu_index)))


def software_heat_grew(case: Case, gpu_index: int) -> bool:
    """Whether a counter says that the driver has slowed this GPU down for heat, its memory's included."""
    return _is_counted(sw_thermal(case, gpu_index))


def seen(gpu: Gpu, bit: int) -> ReasonSeen:
    """In how many samples of the window a bit stood."""
    return next((s for s in gpu.events.seen if s.bit == bit), ReasonSeen(bit=bit, samples=0, longest=0))


def _is_counted(found: Slowdown | None) -> bool:
    return found is not None and found.severity is not None and found.source is not Source.SAMPLES


def _is_of_hardware(gpu: Gpu) -> bool:
    """The bit of hardware slowdown for heat stands, and not less often than that of software."""
    hardware = seen(gpu, Bit.HW_THERMAL).samples
    return hardware > 0 and hardware >= seen(gpu, Bit.SW_THERMAL).samples


def _saw_nothing(case: Case, gpu_index: int) -> bool:
    """Field 75 counts on this GPU, and has not grown by what warns."""
    violation = case.growth.gpus[gpu_index].thermal_violation
    stands = case.growth.counts[gpu_index].thermal_violation_ms
    return violation is not None and bool(stands) and violation < case.thresholds.sw_thermal_warn_seconds


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
            found = Slowdown(
                source=Source.WINDOW,
                amount=nanoseconds / 1e9,
                span=elapsed / 1e3,
                severity=None,
                why=case.growth.gpus[gpu_index].why(name),
            )
            return replace(found, severity=_by_share(min(1.0, found.share), limits))
    return None


def _by_share(share: float, limits: Thresholds) -> Severity | None:
    if share > limits.window_fail_share:
        return Severity.FAIL
    return Severity.WARN if share > limits.window_warn_share else None


def _samples(case: Case, gpu_index: int, bit: int) -> Slowdown | None:
    """By the samples of a bit that the driver reports at all.

    Clocks that change raise the umbrella bit for a moment (nvml.h, nvmlClocksEventReasonHwSlowdown), so for
    that one the P-state must have stood still; those of heat and of the brake mean what they say.
    """
    gpu, limits = case.result.gpus[gpu_index], case.thresholds
    read, supported, window = number(gpu.events.read), gpu.events.supported, gpu.window
    pstate = window.pstate if window is not None else None
    umbrella = bit == Bit.HW_SLOWDOWN
    unsteady = umbrella and (pstate is None or pstate.min != pstate.max)
    if window is None or not read or (isinstance(supported, int) and not supported & bit):
        return None
    stood = seen(gpu, bit)
    if stood.samples and unsteady:
        return None
    all_of_them = stood.samples >= read >= limits.bit_fail_samples
    severity = None
    if all_of_them and window.seconds >= limits.bit_fail_seconds:
        severity = Severity.FAIL
    elif stood.longest >= limits.bit_warn_samples:
        severity = Severity.WARN
    why = "the P-state unchanged" if umbrella else ""
    return Slowdown(source=Source.SAMPLES, amount=stood.samples, span=read, severity=severity, why=why)


def under_load(case: Case, gpu_index: int, *, source: Source) -> Load:
    """The load that goes with an amount: of the interval for a counter, of the window for the rest."""
    return load.of_interval(case, gpu_index) if source is Source.COUNTER else load.of_window(case, gpu_index)
