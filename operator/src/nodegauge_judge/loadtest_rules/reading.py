"""Rules about load runs that cannot be judged: too light, or not over all GPUs to the end."""

from __future__ import annotations

from collections.abc import Iterator

from nodegauge_judge.case import clip
from nodegauge_judge.loadtest_rules.case import LoadCase, LoadRule
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


RULES = (
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
