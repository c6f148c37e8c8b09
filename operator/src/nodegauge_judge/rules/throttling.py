"""Findings about slowdown: heat by software, heat by hardware, the power brake, and the umbrella bit.

How much is too much is decided in `throttle`; here stand the words, and which of them need load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from nodegauge_judge import load, throttle
from nodegauge_judge.case import Case, HealthRule, of_gpu
from nodegauge_judge.model import Answer, Cause, Gate, GateKind, Judged, Load, Scalar, Severity
from nodegauge_judge.rule import Observation
from nodegauge_judge.rules.steps import DRAIN, DRIVER_LOG, VENDOR
from nodegauge_judge.throttle import Slowdown, Source

Ask = Callable[[Case, int], Slowdown | None]


def sw_thermal_slowdown(case: Case) -> Iterable[Observation]:
    """GPUs that the driver has slowed down for heat while they worked."""
    return _hits(case, sw_thermal, what="Slowed down by the driver for heat")


def hw_thermal_slowdown(case: Case) -> Iterable[Observation]:
    """GPUs that halved their clocks for heat."""
    return _hits(case, throttle.hw_thermal, what="Clocks halved or worse for heat")


def power_brake(case: Case) -> Iterable[Observation]:
    """GPUs that were told from outside to draw less."""
    return _hits(case, throttle.power_brake, what="The external power brake was on")


def hw_slowdown(case: Case) -> Iterable[Observation]:
    """GPUs in hardware slowdown for no reason that has a row of its own."""
    return _hits(case, umbrella, what="In hardware slowdown")


def sw_thermal(case: Case, gpu_index: int) -> Slowdown | None:
    """Software thermal slowdown under load; None where nothing ran or nothing can be told."""
    found = throttle.sw_thermal(case, gpu_index)
    loaded = found is not None and throttle.under_load(case, gpu_index, source=found.source) is Load.LOADED
    return found if loaded else None


def umbrella(case: Case, gpu_index: int) -> Slowdown | None:
    """The umbrella bit under load; None where nothing ran or nothing can be told."""
    return throttle.hw_slowdown(case, gpu_index) if load.of_window(case, gpu_index) is Load.LOADED else None


def answer_sw_thermal(case: Case, gpu_index: int) -> Answer:
    """What the run says of one GPU's software thermal slowdown."""
    found = throttle.sw_thermal(case, gpu_index)
    source = found.source if found is not None else Source.COUNTER
    return _answer(case, found, throttle.under_load(case, gpu_index, source=source))


def answer_hw_slowdown(case: Case, gpu_index: int) -> Answer:
    """What the run says of one GPU's umbrella bit."""
    return _answer(case, throttle.hw_slowdown(case, gpu_index), load.of_window(case, gpu_index))


def hw_thermal_read(case: Case) -> bool:
    """Whether hardware thermal slowdown could be told of every GPU."""
    return _all_told(case, throttle.hw_thermal)


def power_brake_read(case: Case) -> bool:
    """Whether the power brake could be told of every GPU."""
    return _all_told(case, throttle.power_brake)


def _all_told(case: Case, ask: Ask) -> bool:
    found = [ask(case, gpu_index) for gpu_index in range(len(case.result.gpus))]
    return bool(found) and not any(one is None or _waits(case, one) for one in found)


def _waits(case: Case, found: Slowdown) -> bool:
    """A run soon after another one: its window of seconds cannot call good what the counters hold, which the
    next run judges.  Else a run that somebody asked for would begin a row of bad ones anew."""
    return found.source is Source.WINDOW and case.growth.interval.early


def _answer(case: Case, found: Slowdown | None, loaded: Load) -> Answer:
    if loaded is Load.IDLE:
        return Answer.NO_LOAD
    if loaded is Load.UNKNOWN or found is None or found.disputed:
        return Answer.UNSURE
    if found.severity is Severity.FAIL:
        return Answer.BAD
    return Answer.UNSURE if _waits(case, found) else Answer.GOOD


def _hits(case: Case, ask: Ask, *, what: str) -> Iterator[Observation]:
    for gpu_index, gpu in enumerate(case.result.gpus):
        found = ask(case, gpu_index)
        if found is not None and found.severity is not None:
            yield of_gpu(
                gpu,
                found.severity,
                message=f"{what} {_words(found)}",
                evidence=_evidence(found),
                weight=found.share,
            )


def _words(found: Slowdown) -> str:
    if found.source is Source.SAMPLES:
        condition = f", {found.why}" if found.why else ""
        return f"in {found.amount:g} of {found.span:g} samples of the window{condition}."
    share = f"{found.share:.0%}" if found.share >= 0.1 else f"{found.share:.1%}"
    if found.source is Source.WINDOW:
        return f"for {found.amount:.2g} s of a window of {found.span:.2g} s ({share}); {found.why}."
    busy = f", {_seconds(found.busy)} of them busy" if found.busy is not None else ""
    disputed = "; the counter of thermal violations did not grow, so this is not certain"
    tail = disputed if found.disputed else ""
    since = f"of {_seconds(found.span)} since the last run{busy}"
    return f"for {_seconds(found.amount)} {since} ({share}){tail}."


def _seconds(value: float) -> str:
    """Whole seconds, and tenths below ten."""
    return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"


def _evidence(found: Slowdown) -> dict[str, Scalar]:
    evidence: dict[str, Scalar] = {"evidence": found.source.value, "share": round(found.share, 4)}
    if found.source is Source.SAMPLES:
        return evidence | {"samples": int(found.amount), "of_samples": int(found.span)}
    evidence |= {"seconds": round(found.amount, 3), "elapsed_seconds": round(found.span, 3)}
    return evidence if found.busy is None else evidence | {"busy_seconds": round(found.busy, 1)}


_WINDOW = (
    "without an interval to judge, more than `windowWarnShare` (0.01) of the sampling window; without a "
    "counter, `bitWarnSamples` (2) samples in a row"
)

_WINDOW = (
    "without an interval to judge, more than `windowWarnShare` (0.01) of the sampling window; without a "
    "counter, `bitWarnSamples` (2) samples in a row"
)
_WINDOW_FAILS = (
    "without an interval, more than `windowFailShare` (0.5) of the window; without a counter, every one of "
    "`bitFailSamples` (5) samples or more over `bitFailSeconds` (2) or more"
)
_REASONS = (
    "`nvidia-smi -q -d PERFORMANCE` on the node shows which clocks event reasons stand, and their counters."
)

_AIR = (
    "`nvidia-smi -q -d TEMPERATURE` on the node: one GPU hot means its heat sink, fan or slot; all of them "
    "mean air flow, inlet temperature or a failed fan tray (`ipmitool sdr type fan`)."
)

SW_THERMAL_SLOWDOWN = HealthRule(
    code="sw-thermal-slowdown",
    title="a GPU is slowed down by heat",
    meaning=(
        "The driver lowers a GPU's clocks because the core or the memory is at its highest operating "
        "temperature. Told by the growth of the driver's counter since the last run, against the time in "
        "which the GPU was busy; one job on the node runs slower than it should, and so does every job "
        "that spans it."
    ),
    when={
        Severity.WARN: (
            "since the last run, `swThermalWarnSeconds` (5) or more and more than `swThermalWarnShare` "
            f"(0.01) of the busy time; {_WINDOW}"
        ),
        Severity.FAIL: (
            "since the last run, `swThermalFailSeconds` (60) or more and more than `swThermalFailShare` "
            f"(0.1) of the busy time; {_WINDOW_FAILS}"
        ),
    },
    gate=Gate(kind=GateKind.THROTTLED, cause=Cause.THERMAL, judged=Judged.UNDER_LOAD),
    next_step="check fans, air flow and inlet temperature of the node.",
    way_out=(
        _AIR,
        _REASONS,
        "Until it is cool: `nvidia-smi -pl WATTS -i INDEX` lowers the power limit.",
    ),
    check=sw_thermal_slowdown,
    answer_per_gpu=answer_sw_thermal,
    history_bit=2,
)
HW_THERMAL_SLOWDOWN = HealthRule(
    code="hw-thermal-slowdown",
    title="a GPU halves its clocks for heat",
    meaning=(
        "The GPU itself, not the driver, cut its clocks by half or more because it is too hot. This is "
        "the last step before it switches off; it is judged at work and idle."
    ),
    when={
        Severity.WARN: f"`hwThermalWarnSeconds` (1) or more since the last run; {_WINDOW}",
        Severity.FAIL: (
            "`hwThermalFailSeconds` (5) or more and more than `hwThermalFailShare` (0.01) of the time "
            f"since the last run; {_WINDOW_FAILS}"
        ),
    },
    gate=Gate(kind=GateKind.THROTTLED, cause=Cause.THERMAL),
    next_step="check fans and air flow now; drain the node if it goes on.",
    way_out=(_AIR, DRAIN, DRIVER_LOG, VENDOR),
    check=hw_thermal_slowdown,
    readable=hw_thermal_read,
)
POWER_BRAKE = HealthRule(
    code="power-brake",
    title="the power brake is on",
    meaning=(
        "Something outside the GPU, usually the power supply or the BMC, tells it to draw less: clocks "
        "are cut by half or more. Short pulses happen at load steps; a brake that is held means a "
        "supply, a feed or a cable that cannot deliver. Judged at work and idle."
    ),
    when={
        Severity.WARN: f"`powerBrakeWarnSeconds` (1) or more since the last run; {_WINDOW}",
        Severity.FAIL: (
            "`powerBrakeFailSeconds` (30) or more and more than `powerBrakeFailShare` (0.05) of the time "
            f"since the last run; or, whatever the counter says, in every sample of the window; "
            f"{_WINDOW_FAILS}"
        ),
    },
    gate=Gate(kind=GateKind.THROTTLED, cause=Cause.POWER_BRAKE),
    next_step="check power supplies and feed: `ipmitool sdr type 'Power Supply'` on the node.",
    way_out=(
        _REASONS,
        "`ipmitool sdr type 'Power Supply'` and `ipmitool sel list`: a supply that failed, lost its "
        "input or its redundancy.",
        "Reseat the GPU's power cables, one cable per socket; check the power supplies' rating.",
        "On many nodes at once: the feed, or a power policy of the BMC or the rack.",
    ),
    check=power_brake,
    readable=power_brake_read,
)
HW_SLOWDOWN = HealthRule(
    code="hw-slowdown",
    title="a GPU is in hardware slowdown",
    meaning=(
        "The GPU cut its clocks by half or more, and neither heat nor the power brake is named as the "
        "reason: a fast over-power event, or a driver that does not tell them apart. There is no counter "
        "for it, so only samples of the window count; it stands for a moment whenever clocks change."
    ),
    when={
        Severity.WARN: "`bitWarnSamples` (2) samples in a row with the P-state unchanged",
        Severity.FAIL: (
            "every one of `bitFailSamples` (5) samples or more over `bitFailSeconds` (2) or more, with "
            "the P-state unchanged"
        ),
    },
    gate=Gate(kind=GateKind.THROTTLED, cause=Cause.HW_SLOWDOWN, judged=Judged.UNDER_LOAD),
    next_step="run `nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE` on the node.",
    way_out=(_REASONS, _AIR, "Check power cables and supplies as for power-brake.", VENDOR),
    check=hw_slowdown,
    answer_per_gpu=answer_hw_slowdown,
    history_bit=3,
)

RULES = (
    SW_THERMAL_SLOWDOWN,
    HW_THERMAL_SLOWDOWN,
    POWER_BRAKE,
    HW_SLOWDOWN,
)
