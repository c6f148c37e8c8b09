"""Rules about slowdown: heat by software, heat by hardware, the power brake, and the umbrella bit.

`throttle` decides how much slowdown is too much; this module writes the messages and asks for load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from nodegauge_judge import activity, throttle
from nodegauge_judge.case import Case, HealthRule, lower_watts, of_gpu
from nodegauge_judge.model import Answer, Cause, Gate, GateKind, Judged, Load, Scalar, Severity
from nodegauge_judge.rule import AIR_FLOW, DRAIN, DRIVER_LOG, ONE_HOT, VENDOR, Observation
from nodegauge_judge.throttle import Slowdown, Source

_IDLE_BRAKE = "No other GPU has it, and it slows no work: it counts once it stays."

Measure = Callable[[Case, int], Slowdown | None]


def sw_thermal_slowdown(case: Case) -> Iterator[Observation]:
    """GPUs that the driver slowed down for heat while they worked."""
    return _observe(case, _sw_thermal_under_load, what="Slowed down by the driver for heat")


def hw_thermal_slowdown(case: Case) -> Iterator[Observation]:
    """GPUs that halved their clocks for heat."""
    return _observe(case, throttle.hw_thermal, what="Clocks halved or worse for heat")


def power_brake(case: Case) -> Iterator[Observation]:
    """GPUs that something outside told to draw less power."""
    for observation in _observe(case, _power_brake, what="The external power brake was on"):
        idle = observation.severity is Severity.INFO
        yield replace(observation, message=f"{observation.message} {_IDLE_BRAKE}") if idle else observation


def hw_slowdown(case: Case) -> Iterator[Observation]:
    """GPUs in hardware slowdown for a reason that no other rule covers."""
    return _observe(case, _umbrella_under_load, what="In hardware slowdown")


def answer_sw_thermal(case: Case, gpu_index: int) -> Answer:
    """What the run says about one GPU's software thermal slowdown."""
    slowdown = throttle.sw_thermal(case, gpu_index)
    source = slowdown.source if slowdown is not None else Source.COUNTER
    return _answer(case, slowdown, throttle.under_load(case, gpu_index, source=source))


def answer_hw_slowdown(case: Case, gpu_index: int) -> Answer:
    """What the run says about one GPU's umbrella bit."""
    return _answer(case, throttle.hw_slowdown(case, gpu_index), activity.of_window(case, gpu_index))


def hw_thermal_read(case: Case) -> bool:
    """Whether hardware thermal slowdown is known for every GPU."""
    return _known_for_all(case, throttle.hw_thermal)


def power_brake_read(case: Case) -> bool:
    """Whether the power brake is known for every GPU, and none has one whose meaning is open."""
    indexes = range(len(case.result.gpus))
    unclear = any(throttle.is_idle_brake(case, gpu_index) for gpu_index in indexes)
    return not unclear and _known_for_all(case, throttle.power_brake)


def _power_brake(case: Case, gpu_index: int) -> Slowdown | None:
    slowdown = throttle.power_brake(case, gpu_index)
    if slowdown is None or not throttle.is_idle_brake(case, gpu_index):
        return slowdown
    return replace(slowdown, severity=Severity.INFO)


def _sw_thermal_under_load(case: Case, gpu_index: int) -> Slowdown | None:
    slowdown = throttle.sw_thermal(case, gpu_index)
    if slowdown is None:
        return None
    loaded = throttle.under_load(case, gpu_index, source=slowdown.source) is Load.LOADED
    return slowdown if loaded else None


def _umbrella_under_load(case: Case, gpu_index: int) -> Slowdown | None:
    return (
        throttle.hw_slowdown(case, gpu_index) if activity.of_window(case, gpu_index) is Load.LOADED else None
    )


def _known_for_all(case: Case, measure: Measure) -> bool:
    slowdowns = [measure(case, gpu_index) for gpu_index in range(len(case.result.gpus))]
    return bool(slowdowns) and not any(
        slowdown is None or _is_early(case, slowdown) for slowdown in slowdowns
    )


def _is_early(case: Case, slowdown: Slowdown) -> bool:
    """A run too soon after another one: its window of seconds cannot clear what the counters hold, which the
    next run judges.  Otherwise a run on request would reset a streak of bad runs."""
    return slowdown.source is Source.WINDOW and case.growth.interval.early


def _answer(case: Case, slowdown: Slowdown | None, loaded: Load) -> Answer:
    if loaded is Load.IDLE:
        return Answer.NO_LOAD
    if loaded is Load.UNKNOWN or slowdown is None or slowdown.disputed:
        return Answer.UNSURE
    if slowdown.severity is Severity.FAIL:
        return Answer.BAD
    return Answer.UNSURE if _is_early(case, slowdown) else Answer.GOOD


def _observe(case: Case, measure: Measure, *, what: str) -> Iterator[Observation]:
    for gpu_index, gpu in enumerate(case.result.gpus):
        slowdown = measure(case, gpu_index)
        if slowdown is not None and slowdown.severity is not None:
            yield of_gpu(
                gpu,
                slowdown.severity,
                f"{what} {_amount(slowdown)}",
                evidence=_evidence(slowdown)
                | (lower_watts(gpu) if measure is _sw_thermal_under_load else {}),
                weight=slowdown.share,
            )


def _amount(slowdown: Slowdown) -> str:
    amount, span = slowdown.amount, slowdown.span
    if slowdown.source is Source.SAMPLES and slowdown.span == 1:
        return "at the moment of the reading."
    if slowdown.source is Source.SAMPLES:
        condition = f", {slowdown.why}" if slowdown.why else ""
        return f"in {amount:g} of {span:g} samples of the window{condition}."
    share = f"{slowdown.share:.0%}" if slowdown.share >= 0.1 else f"{slowdown.share:.1%}"
    if slowdown.source is Source.WINDOW:
        return f"for {amount:.2g} s of a window of {span:.2g} s ({share}); {slowdown.why}."
    busy = f", {_seconds(slowdown.busy)} of them busy" if slowdown.busy is not None else ""
    doubt = "; uncertain, because the counter of thermal violations did not grow" if slowdown.disputed else ""
    return f"for {_seconds(amount)} of {_seconds(span)} since the last run{busy} ({share}){doubt}."


def _seconds(value: float) -> str:
    """Whole seconds, and tenths below ten."""
    return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"


def _evidence(slowdown: Slowdown) -> dict[str, Scalar]:
    evidence: dict[str, Scalar] = {"evidence": slowdown.source.value, "share": round(slowdown.share, 4)}
    if slowdown.source is Source.SAMPLES:
        return evidence | {"samples": int(slowdown.amount), "of_samples": int(slowdown.span)}
    evidence |= {"seconds": round(slowdown.amount, 3), "elapsed_seconds": round(slowdown.span, 3)}
    return evidence if slowdown.busy is None else evidence | {"busy_seconds": round(slowdown.busy, 1)}


_WINDOW = (
    "without an interval to judge, more than `windowWarnShare` (0.01) of the sampling window; without a "
    "counter, `bitWarnSamples` (2) samples in a row"
)
_WINDOW_FAILS = (
    "without an interval, more than `windowFailShare` (0.5) of the window; without a counter, all of "
    "at least `bitFailSamples` (5) samples over at least `bitFailSeconds` (2)"
)
_REASONS = (
    "`nvidia-smi -q -d PERFORMANCE` on the node shows the active clocks event reasons and their counters."
)

RULES = (
    HealthRule(
        code="sw-thermal-slowdown",
        title="a GPU is slowed down by heat",
        meaning=(
            "The driver lowers the GPU's clocks because its core or memory is at its highest operating "
            "temperature. nodegauge compares the growth of the driver's counter since the last run with the "
            "time in which the GPU was busy. A job on this node runs slower, and so do "
            "multi-node jobs that include it."
        ),
        when={
            Severity.WARN: (
                "since the last run, at least `swThermalWarnSeconds` (5) and more than `swThermalWarnShare` "
                f"(0.01) of the busy time; {_WINDOW}"
            ),
            Severity.FAIL: (
                "since the last run, at least `swThermalFailSeconds` (60) and more than "
                f"`swThermalFailShare` (0.1) of the busy time; {_WINDOW_FAILS}"
            ),
        },
        next_step="check fans, air flow and inlet temperature of the node.",
        alone=ONE_HOT,
        way_out=(
            AIR_FLOW,
            _REASONS,
            "Until it is cool: `nvidia-smi -pl LOWER_WATTS -i INDEX` lowers the power limit.",
        ),
        gate=Gate(kind=GateKind.THROTTLED, cause=Cause.THERMAL, judged=Judged.UNDER_LOAD),
        check=sw_thermal_slowdown,
        answer_per_gpu=answer_sw_thermal,
        history_bit=2,
    ),
    HealthRule(
        code="hw-thermal-slowdown",
        title="a GPU halves its clocks for heat",
        meaning=(
            "The GPU itself, not the driver, cut its clocks by half or more because it is too hot. This is "
            "its last step before it switches off. It counts whether or not the GPU is busy."
        ),
        when={
            Severity.WARN: f"`hwThermalWarnSeconds` (1) or more since the last run; {_WINDOW}",
            Severity.FAIL: (
                "at least `hwThermalFailSeconds` (5) and more than `hwThermalFailShare` (0.01) of the time "
                f"since the last run; {_WINDOW_FAILS}"
            ),
        },
        next_step="check fans and air flow now; drain the node if it continues.",
        alone="one GPU alone: look at its heat sink, fan and slot now; drain the node if it continues.",
        way_out=(AIR_FLOW, DRAIN, DRIVER_LOG, VENDOR),
        gate=Gate(kind=GateKind.THROTTLED, cause=Cause.THERMAL),
        check=hw_thermal_slowdown,
        readable=hw_thermal_read,
    ),
    HealthRule(
        code="power-brake",
        title="the power brake is on",
        meaning=(
            "Something outside the GPU, usually the power supply or the BMC, tells it to draw less, and it "
            "cuts its clocks by half or more. Short pulses are normal at load steps. A brake that stays on "
            "means a supply, feed or cable that cannot deliver. It also counts on idle GPUs. On one idle GPU "
            "alone it must stay, because such a brake has been seen on sound machines; until then the label "
            "`psu` is unknown."
        ),
        when={
            Severity.INFO: (
                "as for warn or fail, but on one idle GPU alone, and for fewer than `powerBrakeIdleRuns` (3) "
                "runs in a row"
            ),
            Severity.WARN: f"`powerBrakeWarnSeconds` (1) or more since the last run; {_WINDOW}",
            Severity.FAIL: (
                "at least `powerBrakeFailSeconds` (30) and more than `powerBrakeFailShare` (0.05) of the "
                "time since the last run; or, whatever the counter says, in every sample of the window; "
                f"{_WINDOW_FAILS}"
            ),
        },
        next_step="check power supplies and feed: `ipmitool sdr type 'Power Supply'` on the node.",
        way_out=(
            _REASONS,
            "`ipmitool sdr type 'Power Supply'` and `ipmitool sel list`: look for a supply that failed, or "
            "that lost its input or its redundancy.",
            "Reseat the GPU's power cables, one cable per socket; check the power supplies' rating.",
            "On many nodes at once: check the feed, and power policies of the BMC or the rack.",
        ),
        gate=Gate(kind=GateKind.THROTTLED, cause=Cause.POWER_BRAKE),
        check=power_brake,
        readable=power_brake_read,
    ),
    HealthRule(
        code="hw-slowdown",
        title="a GPU is in hardware slowdown",
        meaning=(
            "The GPU cut its clocks by half or more, and the driver names neither heat nor the power brake "
            "as the reason: a fast over-power event, or a driver that cannot tell them apart. No counter "
            "exists for it, so only samples of the window count. Every clock change also raises it briefly."
        ),
        when={
            Severity.WARN: "`bitWarnSamples` (2) samples in a row with the P-state unchanged",
            Severity.FAIL: (
                "all of at least `bitFailSamples` (5) samples over at least `bitFailSeconds` (2), with the "
                "P-state unchanged"
            ),
        },
        next_step="run `nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE -i INDEX` on the node.",
        way_out=(_REASONS, AIR_FLOW, "Check power cables and supplies as for power-brake.", VENDOR),
        gate=Gate(kind=GateKind.THROTTLED, cause=Cause.HW_SLOWDOWN, judged=Judged.UNDER_LOAD),
        check=hw_slowdown,
        answer_per_gpu=answer_hw_slowdown,
        history_bit=3,
    ),
)
