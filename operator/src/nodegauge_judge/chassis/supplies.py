"""Rules about power supplies, redundancy, watts to spare and rails, as a BMC shows them.

Source: DMTF DSP0268 (states and healths).  `rails` has the bounds of voltages.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodegauge_contract.chassis import Rail, Supply
from nodegauge_judge.case import clip, number, text
from nodegauge_judge.chassis import rails
from nodegauge_judge.chassis.case import ChassisCase, ChassisRule, is_failed, lost_input
from nodegauge_judge.model import Cause, Gate, GateKind, Scalar, Severity
from nodegauge_judge.rule import DRAIN, Effect, Observation, Probe

SPARE_SHARE = 0.9
"""Share of the working supplies' capacity above which full load leaves too little to spare.  Chosen by this
project: supplies lose 5 to 10 % of their capacity in hot air."""
_INSUFFICIENT = "insufficient"
"""In the state of a group that cannot keep the machine running (IPMI 2.0, table 42-2, event type 0Bh)."""
LEAST_LIMIT = 0.3
"""Share of its limit below which a GPU's driver takes no other.  Chosen by this project: H100 SXM5 take 200
of 700 W, A100 SXM4 100 of 400 W (`nvidia-smi -q -d POWER`, Min Power Limit)."""


def supply_failed(case: ChassisCase) -> Iterator[Observation]:
    """Supplies that the BMC calls failed or off."""
    for supply in case.installed:
        if is_failed(supply):
            status = ", ".join(word for word in (text(supply.health), text(supply.state)) if word)
            yield _of(supply, Severity.WARN, f"The BMC calls it {status}.")


def supply_warns(case: ChassisCase) -> Iterator[Observation]:
    """Supplies that carry their load and need a look."""
    for supply in case.installed:
        if supply.health == "Warning" and not is_failed(supply):
            yield _of(supply, Severity.WARN, "The BMC calls its health Warning.")


def supply_input(case: ChassisCase) -> Iterator[Observation]:
    """Supplies without usable input."""
    for supply in case.installed:
        if lost_input(supply):
            what = text(supply.line_input) or "0 V at its input"
            yield _of(supply, Severity.WARN, f"It has no usable input ({what}).")


def supplies_short(case: ChassisCase) -> Iterator[Observation]:
    """Fewer working supplies than carry the machine."""
    needed = case.needed_now
    out = len(case.reading.supplies) - len(case.working)
    stated = next((group for group in case.reading.redundancy if _INSUFFICIENT in text(group.state)), None)
    if stated is not None and out and case.installed:
        message = f"{_count(case)} work; the BMC calls {clip(stated.name)} {clip(text(stated.state))}."
        yield _whole(Severity.FAIL, message, case)
        return
    if needed is None or not case.installed or case.unread or len(case.working) >= needed:
        return
    yield _whole(
        Severity.FAIL,
        f"{_count(case)} work, and {needed} are needed{_why(case)}.",
        case,
    )


def supplies_counted(case: ChassisCase) -> bool:
    """Whether too few working supplies would have been seen."""
    stated = any(group.health == "OK" for group in case.reading.redundancy)
    return (case.needed_now is not None or stated) and bool(case.installed) and not case.unread


def redundancy_lost(case: ChassisCase) -> Iterator[Observation]:
    """No supply to spare any more, where there was one."""
    needed = case.needed_now
    broken = len(case.installed) - len(case.working) - len(case.unread)
    if any(supplies_short(case)):
        return
    stated = next(
        (group for group in case.reading.redundancy if group.health in ("Warning", "Critical")), None
    )
    if broken and needed is not None and len(case.working) == needed:
        yield _whole(
            Severity.WARN,
            f"{_count(case)} work, and {needed} are needed{_why(case)}: "
            "the next failure switches the node off.",
            case,
        )
    elif stated is not None:
        state = "" if text(stated.state) in ("", "Enabled") else f" ({clip(text(stated.state))})"
        yield _whole(Severity.WARN, f"The BMC calls {clip(stated.name)} {text(stated.health)}{state}.", case)
    elif broken and needed is None:
        yield _whole(
            Severity.WARN,
            f"{_count(case)} work. How many the machine needs is not known: the BMC states no capacity.",
            case,
        )


def spare_watts(case: ChassisCase) -> Iterator[Observation]:
    """Too few watts to spare when all GPUs work."""
    each, peak = case.capacity_each, case.peak
    if each is None or peak is None or any(supplies_short(case)):
        return
    capacity = each * len(case.working)
    if peak > SPARE_SHARE * capacity:
        yield _whole(
            Severity.WARN,
            f"At full load of the GPUs the machine draws about {peak:.0f} W; its working supplies give "
            f"{capacity:.0f} W.",
            case,
            more=_lower_watts(case, peak=peak, capacity=capacity),
        )


def _lower_watts(case: ChassisCase, *, peak: float, capacity: float) -> dict[str, Scalar]:
    """Evidence: the limit of every GPU, in whole W, at which full load leaves enough to spare; empty if no
    driver would take it."""
    limits = [watts for gpu in case.reading.gpus if (watts := number(gpu.limit_watts)) is not None]
    rest = peak - sum(limits)
    each = int((SPARE_SHARE * capacity - rest) / len(limits)) if limits else 0
    return {"lower_watts": each} if limits and LEAST_LIMIT * max(limits) <= each < max(limits) else {}


def rail_out(case: ChassisCase) -> Iterator[Observation]:
    """Rails outside the bounds that the BMC states, or that it calls Critical; for information, those outside
    the bounds that their name suggests."""
    for rail in case.reading.rails:
        volts, stated = number(rail.volts), rails.stated(rail, case.thresholds)
        guessed = rails.guessed(rail, case.thresholds) if stated is None else None
        if stated is not None and stated.excludes(volts):
            severity = Severity.FAIL if stated.feeds_gpus else Severity.WARN
            yield _of_rail(rail, severity, f"should be {stated.text}", stated)
        elif rail.health == "Critical":
            yield _of_rail(rail, Severity.WARN, "the BMC calls it Critical", None)
        elif guessed is not None and guessed.excludes(volts):
            message = f"its name suggests {guessed.text}, and the BMC states no bounds"
            yield _of_rail(rail, Severity.INFO, message, guessed)


def rails_read(case: ChassisCase) -> bool:
    """Whether a rail that feeds GPUs was read, and every such rail."""
    feeding = [number(rail.volts) for rail in case.reading.rails if rails.feeds_gpus(rail, case.thresholds)]
    return bool(feeding) and None not in feeding and 0 not in feeding


def supplies_unread(case: ChassisCase) -> Iterator[Observation]:
    """Supplies, or their whole list, that the BMC names and does not give."""
    if case.unread:
        names = ", ".join(clip(supply.name) for supply in case.unread[:8])
        message = (
            f"The BMC lists {names} and gives no reading of {'it' if len(case.unread) == 1 else 'them'}."
        )
    elif not case.reading.lists_supplies and any("Power" in unread.path for unread in case.reading.unread):
        message = "The BMC does not give its list of power supplies."
    else:
        return
    first = next((unread for unread in case.reading.unread if "Power" in unread.path), None)
    evidence: dict[str, Scalar] = {"path": clip(first.path), "reason": clip(first.reason)} if first else {}
    yield Observation(severity=Severity.WARN, location="node", message=message, evidence=evidence)


def _of_rail(rail: Rail, severity: Severity, judged: str, bounds: rails.Bounds | None) -> Observation:
    """One rail, and the bounds that it is outside of."""
    volts = number(rail.volts)
    evidence: dict[str, Scalar] = {} if volts is None else {"volts": volts}
    if bounds is not None:
        limits = {"low_volts": bounds.low, "high_volts": bounds.high}
        evidence |= {key: limit for key, limit in limits.items() if limit is not None}
    shown = f"{judged[0].upper()}{judged[1:]}." if volts is None else f"{volts:.2f} V; {judged}."
    return Observation(
        severity=severity,
        location=clip(rail.name),
        message=shown,
        evidence=evidence,
        weight=bounds.distance(volts) if bounds is not None and volts else 0.0,
    )


def _count(case: ChassisCase) -> str:
    return f"{len(case.working)} of {len(case.installed)} supplies"


def _why(case: ChassisCase) -> str:
    """What the number of needed supplies is made of."""
    each, watts = case.capacity_each, case.peak if case.peak is not None else case.load
    if each is None or watts is None:
        return " (as its owner says)"
    load = "at full load of the GPUs" if case.peak is not None else "now"
    return f" (about {watts:.0f} W {load}, {each:g} W each)"


def _of(supply: Supply, severity: Severity, message: str, *, weight: float = 0.0) -> Observation:
    evidence: dict[str, Scalar] = {}
    for key in ("serial", "model", "state", "health", "line_input"):
        if value := text(getattr(supply, key)):
            evidence[key] = value
    return Observation(
        severity=severity,
        location=clip(supply.name),
        message=message,
        evidence=evidence,
        weight=weight,
    )


def _whole(
    severity: Severity, message: str, case: ChassisCase, *, more: dict[str, Scalar] | None = None
) -> Observation:
    evidence: dict[str, Scalar] = {"installed": len(case.installed), "working": len(case.working)}
    for key, value in (
        ("load_watts", case.load),
        ("peak_watts", case.peak),
        ("each_watts", case.capacity_each),
    ):
        if value is not None:
            evidence[key] = round(value)
    return Observation(severity=severity, location="node", message=message, evidence=evidence | (more or {}))


_SWAP = (
    "Check its power cord and the feed (PDU, breaker); swap supplies to tell a bad supply from a bad slot.",
    "Replace it. Supplies of a redundant group can be changed while the machine runs.",
)

RULES = (
    ChassisRule(
        code="supplies-short",
        probe=Probe.BMC,
        title="too few power supplies work",
        meaning=(
            "Fewer supplies work than the machine needs, counted from their stated capacity and from its "
            "load with all GPUs at their power limit. It switches off, or slows its GPUs down, as soon "
            "as jobs draw that load. The BMC's own number of needed supplies is not used: a DGX H100 "
            "says 1 of 6, and needs 4. Its word that they are insufficient is, once one is out."
        ),
        when={
            Severity.FAIL: (
                "working supplies give less than the machine draws at full load of its GPUs; or one is out, "
                "and the BMC calls the rest insufficient"
            )
        },
        next_step="drain the node and restore supplies or feeds.",
        way_out=(DRAIN, *_SWAP),
        gate=Gate(kind=GateKind.UNHEALTHY, cause=Cause.PSU),
        check=supplies_short,
        readable=supplies_counted,
    ),
    ChassisRule(
        code="redundancy-lost",
        probe=Probe.BMC,
        title="no power supply to spare",
        meaning=(
            "A supply failed or lost its input, and the remaining ones just carry the machine, or the BMC "
            "itself calls the group not redundant. The next failure may end its jobs."
        ),
        when={
            Severity.WARN: (
                "a supply is out and the working ones are exactly as many as needed, or how many are needed"
                " is not known, or the BMC says that redundancy is lost"
            )
        },
        next_step="replace the failed supply or restore its feed soon.",
        way_out=_SWAP,
        check=redundancy_lost,
    ),
    ChassisRule(
        code="supply-failed",
        probe=Probe.BMC,
        title="a power supply failed",
        meaning="The BMC calls a supply failed or off. An empty bay is no failure.",
        when={Severity.WARN: "a supply's health is Critical, or its state is not Enabled or standby"},
        next_step="read the BMC's event log, then replace the supply.",
        way_out=("`ipmitool sel list` or the BMC's web page shows what it logged.", *_SWAP),
        check=supply_failed,
    ),
    ChassisRule(
        code="supply-warning",
        probe=Probe.BMC,
        title="a power supply warns",
        meaning="The BMC calls a supply's health Warning: heat, its fan, or a failure that it predicts.",
        when={Severity.WARN: "a supply's health is Warning"},
        next_step="read the BMC's event log; plan to replace the supply.",
        way_out=("`ipmitool sel list` or the BMC's web page shows what it logged.", *_SWAP),
        check=supply_warns,
    ),
    ChassisRule(
        code="supply-no-input",
        probe=Probe.BMC,
        title="a power supply has no input",
        meaning="A supply is present but gets no usable input: its cord, its PDU or its feed is off.",
        when={Severity.WARN: "a supply's line input is lost or out of range, or reads 0 V"},
        next_step="check cord, PDU outlet and breaker; several nodes of one rack: the feed.",
        way_out=("Check cord, PDU outlet and breaker.", "Several nodes of one rack at once: the feed."),
        check=supply_input,
    ),
    ChassisRule(
        code="spare-watts",
        probe=Probe.BMC,
        title="too few watts to spare",
        meaning=(
            "With all GPUs at their power limit the machine would draw more than nine tenths of what its "
            "working supplies give. It is computed only if the BMC states every supply's capacity, the "
            "load, and each GPU's power and limit."
        ),
        when={
            Severity.WARN: "the load at full power of the GPUs is above 0.9 of the working supplies' capacity"
        },
        next_step="lower the GPUs' power limit, or fit larger supplies.",
        way_out=(
            "`nvidia-smi -pl LOWER_WATTS` lowers the limit of all GPUs.",
            "Fit supplies of the rating that the machine needs.",
        ),
        check=spare_watts,
    ),
    ChassisRule(
        code="chassis-rail",
        probe=Probe.BMC,
        title="a voltage is out of range",
        meaning=(
            "A rail reads outside the bounds that the BMC states for it, or outside the usual tolerance of "
            "the nominal voltage that the BMC states. A nominal voltage that is only guessed from a rail's "
            "name gates nothing. Flags that power is good, mains inputs and readings without a scale are "
            "not rails."
        ),
        when={
            Severity.INFO: "a rail without bounds of the BMC's is off the voltage that its name suggests",
            Severity.WARN: "any other rail is outside its bounds, or the BMC calls a rail Critical",
            Severity.FAIL: "a 12, 48 or 54 V rail, as the BMC's bounds or nominal voltage say, is outside",
        },
        next_step="compare idle and load: a sag that follows the load comes from a supply or its cables.",
        way_out=(DRAIN, "Reseat supplies and cables; replace the supply if the rail stays low."),
        gate=Gate(kind=GateKind.UNHEALTHY, cause=Cause.PSU),
        check=rail_out,
        readable=rails_read,
    ),
    ChassisRule(
        code="supplies-unread",
        probe=Probe.BMC,
        title="power supplies could not be read",
        meaning=(
            "The BMC lists supplies and gives no reading of them, or 0 W in every field, so it is unknown "
            "whether they work. A health alone is no reading: empty bays have one, too."
        ),
        when={
            Severity.WARN: (
                "the BMC answers with an error when asked for a supply that it lists, or for the list; or "
                "a supply that is there has neither watts nor an input voltage, while others do"
            )
        },
        next_step="follow the reason that the BMC gives; without one, look at the supply.",
        way_out=(
            "If the BMC gives a reason, follow it: a role that may not read supplies, or a BMC that is busy.",
            "A supply without readings: look at its lamp and its cord, then reseat it.",
            "Restart the BMC only if errors 5xx or answers that break off stay; the node runs on.",
        ),
        check=supplies_unread,
        effect=Effect.UNJUDGED,
    ),
)
