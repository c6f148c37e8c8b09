"""Rules about load runs that cannot be judged: too light, or not over all GPUs to the end."""

from __future__ import annotations

from collections.abc import Iterator

from nodegauge_contract import Growth, LoadGpu, Unavailable
from nodegauge_judge.case import clip, number
from nodegauge_judge.loadtest_rules.case import LoadCase, Loaded, LoadRule
from nodegauge_judge.model import Severity
from nodegauge_judge.rule import POD_LOG, REPORT, Effect, Observation, Probe


def too_light(case: LoadCase) -> Iterator[Observation]:
    """GPUs that drew too little for a load.  One that the probe stopped for heat may not have come so far."""
    if case.stopped_by_heat:
        return
    least = case.thresholds.load_power_share
    for loaded in case.light:
        share = loaded.power_share
        text = "Its power could not be read" if share is None else f"It drew {share:.0%} of its power limit"
        yield loaded.observed(
            Severity.WARN,
            f"{text}; a load draws {least:.0%} or more.",
            {} if share is None else {"power_share": round(share, 3)},
            weight=1.0 if share is None else 1 - share,
        )


def incomplete(case: LoadCase) -> Iterator[Observation]:
    """GPUs whose load failed or hung, and GPUs that were not loaded."""
    for loaded in case.gpus:
        if loaded not in case.finished:
            why = clip(loaded.load.message)
            yield loaded.observed(
                Severity.WARN,
                f"Its load ended early ({clip(loaded.load.ended)}){f': {why}' if why else ''}.",
                {"ended": clip(loaded.load.ended)},
                weight=1.0,
            )
    problem = case.result.problem
    if problem is not None:
        why = clip(problem.message or problem.kind)
        yield Observation(
            severity=Severity.WARN,
            location="node",
            message=f"The run ended before everything was measured: {why.rstrip('.')}.",
            evidence={"problem": clip(problem.kind)},
        )
    missing = case.expected - len(case.gpus)
    if missing > 0:
        yield Observation(
            severity=Severity.WARN,
            location="node",
            message=f"{len(case.gpus)} of {case.expected} GPUs were loaded.",
            evidence={"gpus": len(case.gpus), "expected": case.expected},
        )


_ALWAYS = frozenset(
    {"max_c", "sm_mhz", "reasons_read", "tflops", "checksum", "expected", "mismatches", "memory_mismatches"}
)
"""What a load that ran to its end always measures; the probe computes or samples all of it itself."""
_BY_CHANCE = frozenset({"reached_ms", "stop_c", "stop_margin_c", "slope_c_per_min"})
"""What a healthy GPU may lack beside siblings that have it: it never came near its limit, or was cool."""


def values_unread(case: LoadCase) -> Iterator[Observation]:
    """GPUs of which values are missing that their siblings gave, or that every load measures."""
    for loaded in case.finished:
        missing = {
            name: value.unavailable
            for name in LoadGpu.__struct_fields__
            if isinstance(value := getattr(loaded.load, name), Unavailable)
            and _is_expected(case, loaded, name)
        }
        if loaded.load.checks == 0:
            missing["checks"] = "no result was compared"
        if missing:
            first = next(iter(missing))
            yield loaded.observed(
                Severity.WARN,
                f"Not measured: {clip(', '.join(missing))} ({first}: {clip(missing[first])}).",
                {"values": clip(", ".join(missing)), "answer": clip(missing[first])},
                weight=len(missing),
            )


def _is_expected(case: LoadCase, loaded: Loaded, name: str) -> bool:
    if name == "reasons_read" and _counts_slowdown(loaded.load.growth):
        return False
    siblings = (getattr(other.load, name) for other in case.alike(loaded))
    given = any(not isinstance(value, Unavailable) for value in siblings)
    return name in _ALWAYS or (given and name not in _BY_CHANCE)


def _counts_slowdown(growth: Growth | None) -> bool:
    """Whether a counter stands in for clock reasons that cannot be read."""
    return growth is not None and number(growth.hw_thermal_ns) is not None


RULES = (
    LoadRule(
        code="load-values-unread",
        title="values of a GPU under load were not measured",
        meaning=(
            "The GPU worked to the end, but some of what decides about it was not measured: its results, "
            "temperature, clocks or the reasons for low clocks. What was not measured cannot be called "
            "healthy, so the run is no pass."
        ),
        when={
            Severity.WARN: (
                "a value is missing that other GPUs of the node gave; or the temperature, SM clock, clock "
                "reasons, TFLOPS or compared results are missing"
            )
        },
        next_step="run `nvidia-smi -q -i INDEX` on the node; if it fails too, drain and reset the GPU.",
        way_out=("`nvidia-smi -q -i INDEX` on the node.", POD_LOG, REPORT),
        probe=Probe.LOAD,
        check=values_unread,
    ),
    LoadRule(
        code="load-too-light",
        title="the load was too light to judge",
        meaning=(
            "A GPU drew so little power that the run says nothing about heat, power and speed at full "
            "load. Such a run never counts as a pass."
        ),
        when={Severity.WARN: "below `loadPowerShare` (0.6) of the power limit, or its power cannot be read"},
        next_step="look at what the run reports about kernel, clocks and power.",
        way_out=(
            REPORT,
            "`nvidia-smi -q -d CLOCK,POWER -i INDEX`: locked clocks keep the power low on purpose.",
            "If the machine is sound and its GPUs never draw more: lower `loadPowerShare` in the policy.",
        ),
        probe=Probe.LOAD,
        effect=Effect.UNJUDGED,
        check=too_light,
    ),
    LoadRule(
        code="load-incomplete",
        title="not every GPU was loaded to the end",
        meaning=(
            "A GPU was missing, or CUDA failed on it or hung. The run says nothing about the node as a whole."
        ),
        when={Severity.WARN: "a GPU of the node was not loaded, failed or hung; or the run ended early"},
        next_step="read the message of the GPU; the health probe says whether the GPU still answers.",
        way_out=(POD_LOG, "On the node: `dmesg | grep -iE 'NVRM|Xid'` shows what the driver logged."),
        probe=Probe.LOAD,
        effect=Effect.UNJUDGED,
        check=incomplete,
    ),
)
