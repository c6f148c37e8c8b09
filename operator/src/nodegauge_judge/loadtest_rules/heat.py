"""Rules about temperature under load: close to the limit now or soon, and one GPU much hotter than its like.

Heat that slows a GPU down is `slowdown`'s.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodegauge_judge.case import lower_watts, number
from nodegauge_judge.loadtest_rules.case import LoadCase, Loaded, LoadRule, answered
from nodegauge_judge.model import Answer, Cause, Gate, GateKind, Scalar, Severity
from nodegauge_judge.rule import AIR_FLOW, ONE_HOT, Observation, Probe
from nodegauge_judge.rules.thermal import PLAUSIBLE_LIMIT, PLAUSIBLE_READING

AHEAD_MINUTES = 2.0
"""Minutes by which a rising temperature is projected.  Chosen by this project: heat sinks settle within some
minutes and rise ever slower, so a straight line over two of them is about where they settle."""
STEEPEST = 30.0
"""°C a minute that are believed at the end of a load: more is the load's first moment."""


def hot_under_load(case: LoadCase) -> Iterator[Observation]:
    """GPUs that came close to their slowdown, will come there, or made the probe stop."""
    near = [loaded for loaded in case.gpus if _is_near(case, loaded)]
    rising = [loaded for loaded in case.finished if loaded not in near and _will_be_near(loaded)]
    alike = 1 < len(case.gpus) == len(near)
    where = " All GPUs are as hot: look at inlet air and the room." if alike else ""
    for loaded in near:
        left = distance(loaded)
        stopped = " The probe ended the load for it." if case.stopped_by_heat else ""
        severity = Severity.FAIL if case.stopped_by_heat and _reached(case, left) else Severity.WARN
        yield loaded.observed(
            severity,
            f"{_sentence(loaded, left)}{stopped}{where}",
            _evidence(loaded, left),
            weight=_weight(left),
        )
    for loaded in rising:
        slope = number(loaded.load.slope_c_per_min) or 0.0
        text = f"{_sentence(loaded, distance(loaded))} It still rises by {slope:.0f} °C a minute."
        evidence = _evidence(loaded, distance(loaded)) | {"celsius_per_minute": round(slope, 1)}
        yield loaded.observed(Severity.WARN, text, evidence)
    if case.stopped_by_heat and not near:
        yield Observation(
            severity=Severity.WARN,
            location="node",
            message="The probe ended the load at its own temperature stop.",
            evidence={},
        )


def hotter_than_siblings(case: LoadCase) -> Iterator[Observation]:
    """GPUs that are much hotter than their identical siblings at the same work."""
    limit = case.thresholds.load_hotter_than_siblings
    for loaded, own, others, count in case.against_siblings(celsius):
        if own - others >= limit:
            siblings = f"{count} like GPU{'s' if count > 1 else ''}"
            yield loaded.observed(
                Severity.WARN,
                f"{own:g} °C; the median of {siblings} is {others:g} °C.",
                {"celsius": own, "siblings_celsius": others, "siblings": count},
                weight=own - others,
            )


def celsius(loaded: Loaded) -> float | None:
    """Temperature at the end of the load, °C."""
    return plausible(loaded.load.steady_c) or plausible(loaded.load.max_c)


def distance(loaded: Loaded) -> float | None:
    """Least °C between core or memory and the nearest limit of its vendor; None if unknown."""
    limits = loaded.gpu.temperature
    pairs = ((loaded.load.max_c, limits.gpu_max), (loaded.load.memory_max_c, limits.memory_max))
    known: list[float] = []
    for value, bound in pairs:
        reading, limit = plausible(value), number(bound)
        if reading is not None and limit is not None and limit in PLAUSIBLE_LIMIT:
            known.append(limit - reading)
    margin = number(loaded.load.margin_c)
    if margin is not None and margin > 0:  # 0 or less is unreliable on some GPUs (rules.thermal)
        known.append(margin)
    return min(known, default=None)


def plausible(value: object) -> float | None:
    """The temperature in °C, if a GPU can have it."""
    read = number(value)
    return read if read is not None and PLAUSIBLE_READING.start <= read < PLAUSIBLE_READING.stop else None


def _is_near(case: LoadCase, loaded: Loaded) -> bool:
    """The GPU came close to a limit, or to where the probe stops."""
    left, hottest = distance(loaded), plausible(loaded.load.max_c)
    if left is None and hottest is not None and hottest >= case.thresholds.hot_warn:
        return True
    stop, stop_margin = number(loaded.load.stop_c), number(loaded.load.stop_margin_c)
    margin = number(loaded.load.margin_c)
    at_stop = hottest is not None and stop is not None and hottest >= stop > 0
    at_margin = margin is not None and stop_margin is not None and 0 < margin <= stop_margin
    stopped = case.stopped_by_heat and (at_stop or at_margin)
    return stopped or (left is not None and left <= case.thresholds.hot_margin)


def _reached(case: LoadCase, left: float | None) -> bool:
    """Close enough to a vendor's limit that a stop says something of the machine, not of a careful policy."""
    return left is not None and left <= case.thresholds.hot_margin


def _will_be_near(loaded: Loaded) -> bool:
    left, slope = distance(loaded), number(loaded.load.slope_c_per_min)
    if left is None or slope is None or not 0 < slope <= STEEPEST:
        return False
    return left - slope * AHEAD_MINUTES <= 0


def _weight(left: float | None) -> float:
    return 0.0 if left is None else -left


def _sentence(loaded: Loaded, left: float | None) -> str:
    core, memory = plausible(loaded.load.max_c), plausible(loaded.load.memory_max_c)
    parts = [f"{core:g} °C"] if core is not None else []
    parts += [f"memory {memory:g} °C"] if memory is not None else []
    parts += [f"{left:g} °C below the nearest limit"] if left is not None else []
    return f"{', '.join(parts)}." if parts else "It came to its temperature stop."


def _evidence(loaded: Loaded, left: float | None) -> dict[str, Scalar]:
    known = {
        "celsius": plausible(loaded.load.max_c),
        "memory_celsius": plausible(loaded.load.memory_max_c),
        "celsius_left": left,
    }
    return {name: value for name, value in known.items() if value is not None} | lower_watts(loaded.gpu)


def answer_hot(case: LoadCase) -> Answer:
    """What the run says about the gate of heat."""
    bad = any(seen.severity is Severity.FAIL for seen in hot_under_load(case))
    read = all(distance(loaded) is not None for loaded in case.finished) and not case.stopped_by_heat
    return answered(case, bad=bad, read=read)


RULES = (
    LoadRule(
        code="load-hot",
        title="a GPU comes close to its temperature limit under load",
        meaning=(
            "At full power of all GPUs the core or the memory is close to the temperature at which it "
            "slows down, or will be within minutes. It fails if the probe had to end the load for this "
            "reason: a job would go on and be slowed down."
        ),
        when={
            Severity.WARN: (
                "`hotMargin` (5 °C) or less is left, or will be gone in two minutes at the measured rise; "
                "without a vendor's limit, `hotWarn` (80 °C) or more; or the probe ended the load early by "
                "its own stop"
            ),
            Severity.FAIL: "the probe ended the load, and `hotMargin` or less was left",
        },
        next_step="check fans, air flow and inlet temperature of the node.",
        alone=ONE_HOT,
        way_out=(
            AIR_FLOW,
            "`probes.load.duration: 5m` in the policy shows the temperature that the GPUs settle at.",
            "Until it is cool: `nvidia-smi -pl LOWER_WATTS -i INDEX` lowers the power limit.",
        ),
        probe=Probe.LOAD,
        gate=Gate(kind=GateKind.THROTTLED, cause=Cause.THERMAL),
        check=hot_under_load,
        answer=answer_hot,
    ),
    LoadRule(
        code="load-hotter-than-siblings",
        title="a GPU is much hotter than the others under load",
        meaning=(
            "GPUs of the same model and power limit do the same work, and one is far hotter than their "
            "median: blocked air, a loose heat sink, old paste or a weak fan. It may not be slowed down "
            "yet."
        ),
        when={
            Severity.WARN: (
                "`loadHotterThanSiblings` (15 °C) or more above the median of its identical siblings"
            )
        },
        next_step="look for what blocks the air at this GPU, then at its heat sink.",
        way_out=(AIR_FLOW, "Clean filters and fins; check blanking panels and cables in the air flow."),
        probe=Probe.LOAD,
        check=hotter_than_siblings,
    ),
)
