"""How the arms ended: hangs, wrong data, errors, and which of them a comparison of arms explains.

An arm differs from the default arm in one setting (P2P or NVLS).  If the default arm is broken and the other
succeeds, that setting is the cause.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodegauge_contract import ArmName, ArmOutcome, Phase
from nodegauge_judge.case import clip, gather
from nodegauge_judge.findings import Code
from nodegauge_judge.model import Answer, Finding, Scalar, Severity
from nodegauge_judge.nccl.floors import uses_p2p
from nodegauge_judge.nccl.grading import Grading, node_hit, nvls_broken, size_text, succeeded
from nodegauge_judge.nccl.measurement import MeasuredArm, Measurement

ARMS = {
    ArmName.DEFAULT.value: "NCCL defaults",
    ArmName.P2P_OFF.value: "P2P disabled",
    ArmName.NVLS_OFF.value: "NVLS disabled",
}
PHASES = {
    Phase.SPAWN.value: "starting",
    Phase.INIT.value: "creating communicators",
    Phase.LOAD.value: "loading kernels",
    Phase.MEASURE.value: "measuring",
    Phase.CHECK.value: "checking data",
    Phase.PAIRS.value: "copying between pairs",
    Phase.TEARDOWN.value: "shutting down",
}
_OUTCOMES = {
    ArmOutcome.CRASHED.value: "crashed",
    ArmOutcome.FAILED.value: "failed",
    ArmOutcome.OUT_OF_MEMORY.value: "ran out of memory",
    ArmOutcome.GARBAGE.value: "returned invalid output",
    ArmOutcome.PARTIAL.value: "exited before it finished",
}
NOT_FAILED = (ArmOutcome.DONE, ArmOutcome.HUNG, ArmOutcome.CUT)


def wrong_data(grading: Grading) -> Iterator[Finding]:
    """Collectives that returned wrong data."""
    hits = [
        node_hit(
            Severity.FAIL,
            f"{cell.collective.value} at {size_text(cell.bytes)} ({_arm(arm)}) returned {cell.wrong} wrong "
            f"elements.{_other_arms(grading.measurement, arm)}",
            evidence={
                "arm": arm.name,
                "collective": cell.collective.value,
                "bytes": cell.bytes,
                "wrong": cell.wrong or 0,
            },
            location=f"{cell.collective.value} at {size_text(cell.bytes)} ({_arm(arm)})",
            weight=float(cell.wrong or 0),
        )
        for arm in grading.measurement.arms
        for cell in arm.cells
        if cell.wrong
    ]
    yield from gather(Code.NCCL_WRONG_DATA, hits)


def hangs(grading: Grading) -> Iterator[Finding]:
    """Arms that hung, unless P2P or NVLS explains it."""
    measurement = grading.measurement
    hits = [
        node_hit(
            Severity.FAIL,
            f"The run with {_arm(arm)} hung while {_phase(arm)}.{_other_arms(measurement, arm)}",
            evidence=_evidence(arm),
            location=arm.name,
            weight=float(arm.name == ArmName.DEFAULT),
        )
        for arm in measurement.arms
        if arm.outcome == ArmOutcome.HUNG and not _is_explained(measurement, arm)
    ]
    yield from gather(Code.NCCL_HANG, hits)


def failures(grading: Grading) -> Iterator[Finding]:
    """Arms that failed in another way, unless NVLS explains it; and a probe that was stopped early."""
    measurement = grading.measurement
    hits = [
        node_hit(
            Severity.WARN,
            f"The run with {_arm(arm)} {_outcome(arm)} while {_phase(arm)}{_quoted(arm)}.",
            evidence=_evidence(arm),
            location=arm.name,
            weight=float(arm.name == ArmName.DEFAULT),
        )
        for arm in measurement.arms
        if arm.outcome not in NOT_FAILED and not _is_explained(measurement, arm)
    ]
    if measurement.problem:
        message = f"The NCCL probe was stopped before it finished: {measurement.problem}."
        hits.append(node_hit(Severity.WARN, message, evidence={"problem": measurement.problem}, weight=-1.0))
    yield from gather(Code.NCCL_FAILED, hits)


def broken_p2p(grading: Grading) -> Iterator[Finding]:
    """P2P that hangs or corrupts data."""
    measurement = grading.measurement
    arm = measurement.arm(ArmName.DEFAULT)
    if arm is None or not p2p_broken(measurement):
        return
    symptom = f"hung while {_phase(arm)}" if arm.outcome == ArmOutcome.HUNG else "returned wrong data"
    message = (
        f"NCCL {symptom} with P2P and worked with P2P disabled. ACS on the PCIe bridges or an IOMMU that "
        "translates addresses causes this."
    )
    yield from gather(Code.P2P_BROKEN, [node_hit(Severity.FAIL, message, evidence=_evidence(arm))])


def broken_nvls(grading: Grading) -> Iterator[Finding]:
    """NVLS that NCCL cannot start with."""
    measurement = grading.measurement
    arm = measurement.arm(ArmName.DEFAULT)
    if arm is None or not nvls_broken(measurement):
        return
    symptom = "hung" if arm.outcome == ArmOutcome.HUNG else _outcome(arm)
    message = f"NCCL {symptom} with NVLS while {_phase(arm)}{_quoted(arm)}; it worked with NVLS disabled."
    yield from gather(Code.NVLS_BROKEN, [node_hit(Severity.WARN, message, evidence=_evidence(arm))])


def slow_init(grading: Grading) -> Iterator[Finding]:
    """NCCL that starts slowly; a slow first start alone is only mentioned, as the image was cold."""
    limit = grading.thresholds.slow_init_seconds
    times = {arm.name: arm.start_ms / 1000 for arm in grading.measurement.arms if arm.start_ms is not None}
    slow = {name: seconds for name, seconds in times.items() if seconds > limit}
    if not slow:
        return
    name, seconds = max(slow.items(), key=lambda item: item[1])
    cold = len(slow) < len(times)
    excuse = " Another run started faster, so the first one probably loaded from disk." if cold else ""
    hit = node_hit(
        Severity.INFO if cold else Severity.WARN,
        f"Creating communicators and loading kernels took {seconds:.0f} s ({ARMS.get(name, clip(name))}); "
        f"the limit is {limit:g} s.{excuse}",
        evidence={"arm": name, "seconds": round(seconds, 1), "limit": limit},
    )
    yield from gather(Code.SLOW_INIT, [hit])


def p2p_broken(measurement: Measurement) -> bool:
    """Whether the default arm hung or returned wrong data because of P2P."""
    default, p2p_off = measurement.arm(ArmName.DEFAULT), measurement.arm(ArmName.P2P_OFF)
    if default is None or p2p_off is None or not succeeded(p2p_off):
        return False
    if succeeded(measurement.arm(ArmName.NVLS_OFF)):  # it used P2P, so NVLS is the cause
        return False
    if _uses_no_p2p(default) or measurement.p2p_disabled:
        return False
    wrong = any(cell.wrong for cell in default.cells)
    checked = any(cell.wrong == 0 for cell in p2p_off.cells)
    return default.outcome == ArmOutcome.HUNG or (wrong and checked)


def _uses_no_p2p(arm: MeasuredArm) -> bool:
    """Whether NCCL logged that no pair of ranks uses P2P."""
    return uses_p2p(arm) is False and "P2P" not in arm.transport.upper()


def answer_wrong_data(grading: Grading) -> Answer:
    """Bad for any wrong element; good if the data of an arm with P2P was checked."""
    arms = grading.measurement.arms
    if any(cell.wrong for arm in arms for cell in arm.cells):
        return Answer.BAD
    checked = any(cell.wrong == 0 for arm in _p2p_arms(grading.measurement) for cell in arm.cells)
    return Answer.GOOD if checked else Answer.UNSURE


def answer_hang(grading: Grading) -> Answer:
    """Bad for any hang that NVLS does not explain; good if no arm hung and none was left out."""
    measurement = grading.measurement
    hung = [arm for arm in measurement.arms if arm.outcome == ArmOutcome.HUNG]
    if any(not (arm.name == ArmName.DEFAULT and nvls_broken(measurement)) for arm in hung):
        return Answer.BAD
    ended = [
        arm
        for arm in measurement.arms
        if arm.outcome == ArmOutcome.DONE
        or (arm.outcome != ArmOutcome.HUNG and _is_explained(measurement, arm))
    ]
    complete = measurement.arm(ArmName.DEFAULT) is not None and len(ended) == len(measurement.arms)
    return Answer.GOOD if complete and not measurement.problem else Answer.UNSURE


def answer_p2p(grading: Grading) -> Answer:
    """Bad if P2P is broken; good if an arm that may use it finished with data that was checked."""
    measurement = grading.measurement
    if p2p_broken(measurement):
        return Answer.BAD
    arms = [arm for arm in _p2p_arms(measurement) if succeeded(arm)]
    return Answer.GOOD if any(cell.wrong == 0 for arm in arms for cell in arm.cells) else Answer.UNSURE


def _p2p_arms(measurement: Measurement) -> list[MeasuredArm]:
    """The arms that may use P2P."""
    return [arm for arm in measurement.arms if arm.name in (ArmName.DEFAULT, ArmName.NVLS_OFF)]


def _is_explained(measurement: Measurement, arm: MeasuredArm) -> bool:
    """Whether another finding explains the outcome of this arm."""
    if arm.name != ArmName.DEFAULT:
        return False
    return nvls_broken(measurement) or (arm.outcome == ArmOutcome.HUNG and p2p_broken(measurement))


def _other_arms(measurement: Measurement, arm: MeasuredArm) -> str:
    """The other arms that worked: a hint at the cause."""
    others = [_arm(other) for other in measurement.arms if other is not arm and succeeded(other)]
    return f" These runs worked: {', '.join(others)}." if others else ""


def _arm(arm: MeasuredArm) -> str:
    return ARMS.get(arm.name, clip(arm.name))


def _phase(arm: MeasuredArm) -> str:
    return PHASES.get(arm.phase, clip(arm.phase) or "running")


def _outcome(arm: MeasuredArm) -> str:
    return _OUTCOMES.get(arm.outcome, f"ended with outcome {clip(arm.outcome)}")


def _quoted(arm: MeasuredArm) -> str:
    return f": {clip(arm.message)}" if arm.message else ""


def _evidence(arm: MeasuredArm) -> dict[str, Scalar]:
    evidence: dict[str, Scalar] = {"arm": arm.name, "outcome": arm.outcome, "phase": arm.phase}
    if arm.message:
        evidence["message"] = clip(arm.message)
    return evidence
