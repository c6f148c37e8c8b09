"""Rules about GPUs that were slowed down while they were loaded: by heat, the power brake, or their hardware.

A load run samples the clocks event reasons; the driver's counters say how long, where it has them.  The
software power cap at the power limit is what full load looks like, and no fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct

from nodegauge_contract.load import LoadReason
from nodegauge_judge.case import lower_watts, number
from nodegauge_judge.loadtest_rules.case import LoadCase, Loaded, LoadRule, answered
from nodegauge_judge.model import Answer, Cause, Gate, GateKind, Scalar, Severity
from nodegauge_judge.rule import AIR_FLOW, DRAIN, ONE_HOT, VENDOR, Observation, Probe
from nodegauge_judge.throttle import Bit

SW_POWER_CAP = 0x4
"""nvmlClocksEventReasonSwPowerCap."""
CAPPED_SHARE = 0.5
"""Share of the samples with the power cap from which a GPU counts as capped.  Chosen by this project."""
CAPPED_BELOW = 0.85
"""Share of its power limit below which a GPU that is capped is capped by something else.  Chosen by this
project: power swings by some per cent around the limit."""
FEWEST_SAMPLES = 5
"""Samples with readable reasons from which their share says something.  Chosen by this project."""


class Slowed(Struct, frozen=True, kw_only=True):
    """How much of the load a GPU was slowed down: a share, from samples or else from counters.

    `after`: seconds until it was first seen; `to_the_end`: it went on until the load ended; `uncertain`: the
    counters grew, and no sample shows it.
    """

    share: float
    after: float | None = None
    to_the_end: bool = False
    uncertain: bool = False


def heat(loaded: Loaded, *, longest: int) -> Slowed | None:
    """Slowdown by heat, by software or hardware; None if unread."""
    return _slowed(
        loaded, Bit.SW_THERMAL | Bit.HW_THERMAL, ("sw_thermal_ns", "hw_thermal_ns"), longest=longest
    )


def brake(loaded: Loaded, *, longest: int) -> Slowed | None:
    """The external power brake; None if unread."""
    return _slowed(loaded, Bit.POWER_BRAKE, ("power_brake_ns",), longest=longest)


def hardware(loaded: Loaded, *, longest: int) -> Slowed | None:
    """Hardware slowdown that is neither heat nor the brake; None if unread."""
    named = [_with_bit(loaded, bit) for bit in (Bit.HW_THERMAL, Bit.POWER_BRAKE)]
    if any(named):
        return Slowed(share=0.0)
    return _slowed(loaded, Bit.HW_SLOWDOWN, (), longest=longest)


Measure = Callable[..., Slowed | None]


def slowed_by_heat(case: LoadCase) -> Iterator[Observation]:
    """GPUs that heat slowed down under load."""
    return _observe(case, heat, what="Heat")


def power_brake(case: LoadCase) -> Iterator[Observation]:
    """GPUs that something outside told to draw less while they were loaded."""
    return _observe(case, brake, what="The external power brake")


def hardware_slowdown(case: LoadCase) -> Iterator[Observation]:
    """GPUs in hardware slowdown under load for a reason that the driver does not name."""
    return _observe(case, hardware, what="Hardware slowdown")


def capped_below_limit(case: LoadCase) -> Iterator[Observation]:
    """GPUs that a power cap holds well below their power limit."""
    for loaded in case.finished:
        share, read = loaded.power_share, number(loaded.load.reasons_read)
        capped = sum(reason.samples for reason in _with_bit(loaded, SW_POWER_CAP))
        if share is None or not read or read < FEWEST_SAMPLES or share >= CAPPED_BELOW:
            continue
        if capped / read >= CAPPED_SHARE and not is_slowed(case, loaded):
            yield loaded.observed(
                Severity.WARN,
                f"The power cap holds it at {share:.0%} of its power limit.",
                {"power_share": round(share, 3), "capped_share": round(capped / read, 3)},
                weight=1 - share,
            )


def is_slowed(case: LoadCase, loaded: Loaded) -> bool:
    """Whether heat, brake or hardware explain that the GPU is slow."""
    longest, least = case.thresholds.bit_warn_samples, case.thresholds.load_throttle_warn_share
    seen = [measure(loaded, longest=longest) for measure in (heat, brake, hardware)]
    return any(slowed is not None and slowed.share > least for slowed in seen)


def _slowed(loaded: Loaded, bits: int, counters: tuple[str, ...], *, longest: int) -> Slowed | None:
    """`longest`: samples in a row that a reason needs to count; a clock change raises some for a moment."""
    counted = _counted(loaded, counters)
    read = number(loaded.load.reasons_read)
    if read is None or read < FEWEST_SAMPLES:
        return None if counted is None else Slowed(share=counted)
    seen = [reason for reason in _with_bit(loaded, bits) if reason.longest >= longest]
    if not seen:
        uncertain = counted is not None and counted > 0
        return Slowed(share=counted or 0.0, uncertain=uncertain)
    return Slowed(
        share=min(1.0, max(reason.samples for reason in seen) / read),
        after=min(reason.first_ms for reason in seen) / 1000,
        to_the_end=any(_lasts(loaded, reason, read) for reason in seen),
    )


def _counted(loaded: Loaded, counters: tuple[str, ...]) -> float | None:
    """The largest counter's share of the load; None without one."""
    seconds = loaded.seconds
    if loaded.load.growth is None or seconds is None:
        return None
    grown = [number(getattr(loaded.load.growth, name)) for name in counters]
    known = [nanoseconds for nanoseconds in grown if nanoseconds is not None and nanoseconds >= 0]
    return min(1.0, max(known) / 1e9 / seconds) if known else None


def _with_bit(loaded: Loaded, bits: int) -> list[LoadReason]:
    return [reason for reason in loaded.load.reasons if reason.bit & bits and reason.samples > 0]


def _lasts(loaded: Loaded, reason: LoadReason, read: float) -> bool:
    """Whether the longest stretch of samples reaches the end of the load, within two samples."""
    seconds = loaded.seconds
    if seconds is None:
        return False
    step = seconds / read
    return (
        reason.samples == reason.longest and reason.first_ms / 1000 + (reason.longest + 2) * step >= seconds
    )


def _severity(case: LoadCase, slowed: Slowed) -> Severity | None:
    limits = case.thresholds
    if slowed.share <= limits.load_throttle_warn_share:
        return None
    fails = slowed.share > limits.load_throttle_fail_share or slowed.to_the_end
    return Severity.FAIL if fails and not slowed.uncertain else Severity.WARN


def _observe(case: LoadCase, measure: Measure, *, what: str) -> Iterator[Observation]:
    for loaded in case.finished:
        slowed = measure(loaded, longest=case.thresholds.bit_warn_samples)
        severity = None if slowed is None else _severity(case, slowed)
        if slowed is None or severity is None:
            continue
        after = "" if slowed.after is None else f", first after {slowed.after:.0f} s"
        last = " and until the end" if slowed.to_the_end else ""
        doubt = "; only the driver's counter says so, no sample shows it" if slowed.uncertain else ""
        evidence: dict[str, Scalar] = {"share": round(slowed.share, 4)}
        evidence |= lower_watts(loaded.gpu) if measure is heat else {}
        evidence |= {} if slowed.after is None else {"first_after_seconds": round(slowed.after, 1)}
        yield loaded.observed(
            severity,
            f"{what} slowed it down for {slowed.share:.0%} of the load{after}{last}{doubt}.",
            evidence,
            weight=slowed.share,
        )


def _answer(
    check: Callable[[LoadCase], Iterator[Observation]], measure: Measure
) -> Callable[[LoadCase], Answer]:
    def answer(case: LoadCase) -> Answer:
        bad = any(seen.severity is Severity.FAIL for seen in check(case))
        longest = case.thresholds.bit_warn_samples
        read = all(measure(loaded, longest=longest) is not None for loaded in case.finished)
        return answered(case, bad=bad, read=read)

    return answer


_WHEN = {
    Severity.WARN: (
        "more than `loadThrottleWarnShare` (0.01) of the load, at least `bitWarnSamples` (2) samples"
    ),
    Severity.FAIL: (
        "more than `loadThrottleFailShare` (0.1) of the load, or any such slowdown that lasts to its end"
    ),
}
_AGAIN = "`python -m nodegauge_probes load` on the idle node shows clocks, power and temperatures."

RULES = (
    LoadRule(
        code="load-heat-slowdown",
        title="heat slows a GPU down under load",
        meaning=(
            "While all GPUs worked at full power, the driver or the GPU itself lowered its clocks "
            "because core or memory was too hot. Every job that uses the whole node is slowed down in "
            "the same way."
        ),
        when=_WHEN,
        next_step="check fans, air flow and inlet temperature of the node.",
        alone=ONE_HOT,
        way_out=(
            AIR_FLOW,
            _AGAIN,
            "Until it is cool: `nvidia-smi -pl LOWER_WATTS -i INDEX` lowers the power limit.",
        ),
        probe=Probe.LOAD,
        gate=Gate(kind=GateKind.THROTTLED, cause=Cause.THERMAL),
        check=slowed_by_heat,
        answer=_answer(slowed_by_heat, heat),
    ),
    LoadRule(
        code="load-power-brake",
        title="the power brake is on under load",
        meaning=(
            "While all GPUs worked at full power, something outside the GPU, usually a supply or the BMC, "
            "told it to draw less. The supplies, feeds or cables cannot carry the node's full load."
        ),
        when=_WHEN,
        next_step="check power supplies and feed: `ipmitool sdr type 'Power Supply'` on the node.",
        way_out=(
            "`ipmitool sdr type 'Power Supply'` and `ipmitool sel list`: a supply that failed, or lost its "
            "input.",
            "Reseat the GPU's power cables, one cable per socket; check the power supplies' rating.",
            "On many nodes at once: check the feed, and power policies of the BMC or the rack.",
            _AGAIN,
        ),
        probe=Probe.LOAD,
        gate=Gate(kind=GateKind.THROTTLED, cause=Cause.POWER_BRAKE),
        check=power_brake,
        answer=_answer(power_brake, brake),
    ),
    LoadRule(
        code="load-hw-slowdown",
        title="a GPU is in hardware slowdown under load",
        meaning=(
            "While all GPUs worked at full power, the GPU cut its clocks by half or more, and the driver "
            "names neither heat nor the power brake: a fast over-power event, or a driver that cannot tell "
            "them apart."
        ),
        when=_WHEN,
        next_step="run `nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE -i INDEX` on the node under load.",
        way_out=(_AGAIN, AIR_FLOW, "Check power cables and supplies as for load-power-brake.", DRAIN, VENDOR),
        probe=Probe.LOAD,
        gate=Gate(kind=GateKind.THROTTLED, cause=Cause.HW_SLOWDOWN),
        check=hardware_slowdown,
        answer=_answer(hardware_slowdown, hardware),
    ),
    LoadRule(
        code="load-power-capped",
        title="a power cap holds a GPU below its limit",
        meaning=(
            "The driver reports its power cap as the reason for the clocks, and the GPU stays well below "
            "its power limit: another limit applies, of the module, the board or the rack."
        ),
        when={Severity.WARN: "capped in half of the samples or more, at less than 85 % of the power limit"},
        next_step="run `nvidia-smi -q -d POWER -i INDEX` on the node and look for further limits.",
        way_out=(
            "`nvidia-smi -q -d POWER -i INDEX`: requested, current and default limit, also of the module.",
            "Look for power caps in the BMC, in the rack's manager and in DCGM's power profiles.",
        ),
        probe=Probe.LOAD,
        check=capped_below_limit,
    ),
)
