"""Rules about fans, inlet air, leaks, pumps and the BMC's clock.

Sources: DMTF DSP0268; ASHRAE TC 9.9, classes A1 to A4, for inlet air.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodegauge_contract.chassis import AirTemperature, Fan
from nodegauge_judge.case import clip, number, text
from nodegauge_judge.chassis.case import ChassisCase, ChassisRule
from nodegauge_judge.chassis.coverage import Presence, of_fan, of_pump
from nodegauge_judge.model import Scalar, Severity
from nodegauge_judge.rule import DRAIN, Observation, Probe

HOTTEST_INLET = 45.0
"""°C at an inlet without bounds of its own: above what ASHRAE allows in its widest class (A4)."""
PLAUSIBLE_AIR = (1.0, 90.0)
"""°C that air in a running machine can have."""
CLOCK_OFF = 86_400.0
"""Seconds that a BMC's clock may be off before its times are not believed.  Chosen by this project."""


def fan_failed(case: ChassisCase) -> Iterator[Observation]:
    """Fans that the BMC calls failed, that stand still, or that are below their own bound."""
    for fan in case.reading.fans:
        if fan.present is False or fan.state == "Disabled":
            continue
        rpm, low = number(fan.rpm), number(fan.low_critical_rpm)
        still = of_fan(case, fan) is Presence.READ and not (rpm or number(fan.percent))
        slow = still or (rpm is not None and low is not None and rpm < low)
        if fan.health == "Critical" or fan.state == "UnavailableOffline" or slow:
            yield _fan(fan, rpm, low, weight=1.0)
        elif fan.health == "Warning":
            yield _fan(fan, rpm, low, weight=0.0)


def inlet_hot(case: ChassisCase) -> Iterator[Observation]:
    """Inlet air above the BMC's own bounds, or above what any class of machine allows."""
    for air in case.reading.air:
        celsius = number(air.celsius)
        if celsius is not None and not PLAUSIBLE_AIR[0] <= celsius <= PLAUSIBLE_AIR[1]:
            celsius = None
        limit, called = _limit(air), air.health in ("Warning", "Critical")
        if not air.inlet or not (called or (celsius is not None and celsius >= limit)):
            continue
        health = f"The BMC calls it {text(air.health)}" if called else ""
        evidence: dict[str, Scalar] = {"limit_celsius": limit, "health": text(air.health)}
        if celsius is not None:
            evidence["celsius"] = celsius
        shown = f"{celsius:g} °C; should be below {limit:g} °C" if celsius is not None else ""
        yield Observation(
            severity=Severity.WARN,
            location=clip(air.name),
            message=f"{'. '.join(part for part in (shown, health) if part)}.",
            evidence=evidence,
            weight=limit if celsius is None else celsius - limit,
        )


def leak(case: ChassisCase) -> Iterator[Observation]:
    """Leak detectors that see a leak."""
    for detector in case.reading.leaks:
        if detector.enabled is not False and detector.state in ("Warning", "Critical"):
            yield Observation(
                severity=Severity.FAIL if detector.state == "Critical" else Severity.WARN,
                location=clip(detector.name),
                message=f"The detector says {text(detector.state)}.",
                evidence={"state": text(detector.state)},
            )


def pump_failed(case: ChassisCase) -> Iterator[Observation]:
    """Pumps that the BMC calls failed, or that are switched on and stand still."""
    for pump in case.reading.pumps:
        speeds = [number(pump.rpm), number(pump.percent)]
        still = of_pump(pump) is Presence.READ and 0 in speeds and not any(speeds)
        called = text(pump.health) if pump.health in ("Warning", "Critical") else ""
        if pump.present is False or not (still or called):
            continue
        yield Observation(
            severity=Severity.WARN,
            location=clip(pump.name),
            message=f"The BMC calls it {called}." if called else "It is switched on and stands still.",
            evidence={"health": text(pump.health), "state": text(pump.state)},
            weight=0.0 if called == "Warning" else 1.0,
        )


def clock_off(case: ChassisCase) -> Iterator[Observation]:
    """Clocks of management controllers that are far off."""
    for clock in case.reading.clocks:
        skew = number(clock.skew_seconds)
        if skew is None or abs(skew) < CLOCK_OFF:
            continue
        off = f"{abs(skew) / 86_400:.0f} days {'behind' if skew < 0 else 'ahead'}"
        yield Observation(
            severity=Severity.INFO,
            location=f"manager {clip(clock.name)}",
            message=f"Its clock is {off}; times in its log are wrong.",
            evidence={"time": text(clock.time), "skew_seconds": skew},
            weight=abs(skew),
        )


def _limit(air: AirTemperature) -> float:
    bounds = [number(air.high_caution_celsius), number(air.high_critical_celsius)]
    return min((bound for bound in bounds if bound is not None and bound > 0), default=HOTTEST_INLET)


def _fan(fan: Fan, rpm: float | None, low: float | None, *, weight: float) -> Observation:
    speed = "" if rpm is None else f" at {rpm:g} rpm"
    bound = "" if low is None else f", its lower bound is {low:g} rpm"
    called = fan.health in ("Warning", "Critical")
    still = not (rpm or number(fan.percent))
    word = text(fan.health) if called else text(fan.state)
    judged = "It stands still" if still else "It is too slow"
    if called or fan.state == "UnavailableOffline":
        judged = f"The BMC calls it {word}"
    return Observation(
        severity=Severity.WARN,
        location=clip(fan.name),
        message=f"{judged}{speed}{bound}.",
        evidence={"health": text(fan.health), "state": text(fan.state)},
        weight=weight,
    )


RULES = (
    ChassisRule(
        code="leak",
        probe=Probe.BMC,
        title="a leak was detected",
        meaning="A leak detector of the liquid cooling sees moisture. Coolant on live boards destroys them.",
        when={Severity.WARN: "a detector says Warning", Severity.FAIL: "a detector says Critical"},
        next_step="power the node off and look at the detector's place.",
        way_out=(DRAIN, "Power the node off, close its coolant valves, look at the detector's place."),
        check=leak,
    ),
    ChassisRule(
        code="pump-failed",
        probe=Probe.BMC,
        title="a pump of the liquid cooling failed or warns",
        meaning=(
            "The BMC calls a pump of the coolant failed, or it is switched on and stands still. Without flow "
            "GPUs and switches slow down within a minute."
        ),
        when={
            Severity.WARN: "a pump's health is Warning or Critical, or its state is Enabled and its speed 0"
        },
        next_step="look at the other pumps and the temperatures; plan its replacement.",
        way_out=(
            "`nodegauge bmc URL --format json` shows all of them, and the temperatures of the GPUs.",
            "A second pump carries the flow: replace this one soon. Without one, drain the node now.",
        ),
        check=pump_failed,
    ),
    ChassisRule(
        code="fan-failed",
        probe=Probe.BMC,
        title="a fan of the machine failed or warns",
        meaning=(
            "The BMC calls a fan failed, it stands still, or it turns more slowly than its own lower bound. "
            "A fan at rest as a spare, and one of a machine that is off, is no failure."
        ),
        when={
            Severity.WARN: (
                "a fan's health is Warning or Critical, its state is UnavailableOffline, or its speed is 0 "
                "or below its lower bound"
            )
        },
        next_step="replace the fan; the others turn faster meanwhile.",
        way_out=(
            "`ipmitool sdr type fan` shows all of them.",
            "Replace it: most can be changed while the machine runs.",
        ),
        check=fan_failed,
    ),
    ChassisRule(
        code="inlet-hot",
        probe=Probe.BMC,
        title="the inlet air is too warm",
        meaning=(
            "Air enters the machine warmer than the BMC's bound. GPUs slow down next, on every node of the "
            "rack."
        ),
        when={
            Severity.WARN: (
                "inlet air at or above the BMC's bound (45 °C where it has none), or the BMC calls its "
                "health Warning or Critical"
            )
        },
        next_step="compare with its neighbours: many warm inlets are the room's, one is a blocked grille's.",
        way_out=(
            "Compare with the neighbours in the rack.",
            "Look for a blocked grille, missing blanking panels, or leaks from the hot aisle.",
        ),
        check=inlet_hot,
    ),
    ChassisRule(
        code="bmc-clock",
        probe=Probe.BMC,
        title="the BMC's clock is off",
        meaning="A management controller's clock is off by a day or more: times in its event log mislead.",
        when={Severity.INFO: "a clock is off by 24 h or more"},
        next_step="set NTP in the BMC.",
        way_out=("Set NTP in the BMC.",),
        check=clock_off,
    ),
)
