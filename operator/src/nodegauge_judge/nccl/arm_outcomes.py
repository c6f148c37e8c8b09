"""How the arms ended: hangs, wrong data, errors, and which of them a comparison of arms explains.

An arm differs from the default one in a single thing (peer access, NVLS), so what is broken in the default
arm and fine in another is that thing.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodegauge_contract import ArmName, ArmOutcome, Phase
from nodegauge_judge.case import clip, gather
from nodegauge_judge.findings import Code
from nodegauge_judge.model import Answer, Finding, Scalar, Severity
from nodegauge_judge.nccl.floors import uses_peer_access
from nodegauge_judge.nccl.grading import Grading, of_node, size_in_words
from nodegauge_judge.nccl.headline import fine, nvls_broken
from nodegauge_judge.nccl.measurement import ArmSeen, Measured

ARMS = {
    ArmName.DEFAULT.value: "NCCL as it chooses",
    ArmName.P2P_OFF.value: "peer access off",
    ArmName.NVLS_OFF.value: "NVLS off",
}
PHASES = {
    Phase.SPAWN.value: "starting",
    Phase.INIT.value: "making communicators",
    Phase.LOAD.value: "loading kernels",
    Phase.MEASURE.value: "measuring",
    Phase.CHECK.value: "checking data",
    Phase.PAIRS.value: "copying between pairs",
    Phase.TEARDOWN.value: "ending",
}
_OUTCOMES = {
    ArmOutcome.CRASHED.value: "crashed",
    ArmOutcome.FAILED.value: "failed",
    ArmOutcome.OUT_OF_MEMORY.value: "ran out of memory",
    ArmOutcome.GARBAGE.value: "said what cannot be read",
    ArmOutcome.PARTIAL.value: "ended without saying that it was done,",
}
NO_FAILURES = (ArmOutcome.DONE, ArmOutcome.HUNG, ArmOutcome.CUT)


def wrong_data(grading: Grading) -> Iterator[Finding]:
    """Collectives that returned wrong data."""
    hits = [
        of_node(
            Severity.FAIL,
            f"{cell.collective.value} at {size_in_words(cell.bytes)} ({_arm(arm)}) returned {cell.wrong} "
            f"wrong elements.{_only_there(grading.measured, arm)}",
            evidence={
                "arm": arm.name,
                "collective": cell.collective.value,
                "bytes": cell.bytes,
                "wrong": cell.wrong or 0,
            },
            place=f"{cell.collective.value} at {size_in_words(cell.bytes)} ({_arm(arm)})",
            weight=float(cell.wrong or 0),
        )
        for arm in grading.measured.arms
        for cell in arm.cells
        if cell.wrong
    ]
    yield from gather(Code.NCCL_WRONG_DATA, hits)


def hangs(grading: Grading) -> Iterator[Finding]:
    """Arms that were killed in silence, unless peer access or NVLS explains it."""
    measured = grading.measured
    hits = [
        of_node(
            Severity.FAIL,
            f"The arm with {_arm(arm)} hung while {_phase(arm)}.{_only_there(measured, arm)}",
            evidence=_evidence(arm),
            place=arm.name,
            weight=float(arm.name == ArmName.DEFAULT),
        )
        for arm in measured.arms
        if arm.outcome == ArmOutcome.HUNG and not _explained(measured, arm)
    ]
    yield from gather(Code.NCCL_HANG, hits)


def failures(grading: Grading) -> Iterator[Finding]:
    """Arms that ended badly without hanging, unless NVLS explains it; and a run that was cut off."""
    measured = grading.measured
    hits = [
        of_node(
            Severity.WARN,
            f"The arm with {_arm(arm)} {_OUTCOMES.get(arm.outcome, f'ended as {clip(arm.outcome)}')} while "
            f"{_phase(arm)}{': ' + clip(arm.message) if arm.message else ''}.",
            evidence=_evidence(arm),
            place=arm.name,
            weight=float(arm.name == ArmName.DEFAULT),
        )
        for arm in measured.arms
        if arm.outcome not in NO_FAILURES and not _explained(measured, arm)
    ]
    if measured.problem:
        words = f"The run did not come to its end: {measured.problem}."
        hits.append(of_node(Severity.WARN, words, evidence={"problem": measured.problem}, weight=-1.0))
    yield from gather(Code.NCCL_FAILED, hits)


def broken_p2p(grading: Grading) -> Iterator[Finding]:
    """Peer access that hangs or corrupts."""
    measured = grading.measured
    arm = measured.arm(ArmName.DEFAULT)
    if arm is None or not p2p_broken(measured):
        return
    what = f"hung while {_phase(arm)}" if arm.outcome == ArmOutcome.HUNG else "returned wrong data"
    message = (
        f"With peer access NCCL {what}; without it all went well. ACS on the PCIe bridges or an IOMMU that "
        "translates does this."
    )
    yield from gather(Code.P2P_BROKEN, [of_node(Severity.FAIL, message, evidence=_evidence(arm))])


def broken_nvls(grading: Grading) -> Iterator[Finding]:
    """NVLS that NCCL cannot start with."""
    measured = grading.measured
    arm = measured.arm(ArmName.DEFAULT)
    if arm is None or not nvls_broken(measured):
        return
    what = "hung" if arm.outcome == ArmOutcome.HUNG else _OUTCOMES.get(arm.outcome, "failed")
    words = f": {clip(arm.message)}" if arm.message else ""
    message = f"With NVLS NCCL {what} while {_phase(arm)}{words}; with NVLS off all went well."
    yield from gather(Code.NVLS_BROKEN, [of_node(Severity.WARN, message, evidence=_evidence(arm))])


def slow_init(grading: Grading) -> Iterator[Finding]:
    """NCCL that takes long to start; the first start of a cold image is only mentioned."""
    limit = grading.thresholds.slow_init_seconds
    times = {arm.name: arm.start_ms / 1000 for arm in grading.measured.arms if arm.start_ms is not None}
    slow = {name: seconds for name, seconds in times.items() if seconds > limit}
    if not slow:
        return
    name, seconds = max(slow.items(), key=lambda item: item[1])
    once = len(slow) < len(times)
    why = " A later arm started faster: the first loads everything from disk." if once else ""
    hit = of_node(
        Severity.INFO if once else Severity.WARN,
        f"Communicators and kernels took {seconds:.0f} s ({ARMS.get(name, clip(name))}); more than "
        f"{limit:g} s is slow.{why}",
        evidence={"arm": name, "seconds": round(seconds, 1), "limit": limit},
    )
    yield from gather(Code.SLOW_INIT, [hit])


def p2p_broken(measured: Measured) -> bool:
    """Whether the default arm hung or returned wrong data, and peer access is what made the difference."""
    default, without = measured.arm(ArmName.DEFAULT), measured.arm(ArmName.P2P_OFF)
    if default is None or without is None or not fine(without) or fine(measured.arm(ArmName.NVLS_OFF)):
        return False
    if uses_no_peer_access(default) or measured.told_off:
        return False
    wrong = any(cell.wrong for cell in default.cells)
    checked = any(cell.wrong == 0 for cell in without.cells)
    return default.outcome == ArmOutcome.HUNG or (wrong and checked)


def uses_no_peer_access(arm: ArmSeen) -> bool:
    """Whether NCCL said that no pair of ranks is joined by peer access."""
    return uses_peer_access(arm) is False and "P2P" not in arm.transport.upper()


def answer_wrong(grading: Grading) -> Answer:
    """Bad for any wrong element; good where data was checked in what the node is judged by."""
    arms = grading.measured.arms
    if any(cell.wrong for arm in arms for cell in arm.cells):
        return Answer.BAD
    checked = any(cell.wrong == 0 for arm in _peers_arms(grading.measured) for cell in arm.cells)
    return Answer.GOOD if checked else Answer.UNSURE


def answer_hang(grading: Grading) -> Answer:
    """Bad for any hang that NVLS does not explain; good where every arm came to its end."""
    measured = grading.measured
    hung = [arm for arm in measured.arms if arm.outcome == ArmOutcome.HUNG]
    if any(not (arm.name == ArmName.DEFAULT and nvls_broken(measured)) for arm in hung):
        return Answer.BAD
    ended = [arm for arm in measured.arms if arm.outcome == ArmOutcome.DONE or _did_not_hang(measured, arm)]
    whole = measured.arm(ArmName.DEFAULT) is not None and len(ended) == len(measured.arms)
    return Answer.GOOD if whole and not measured.problem else Answer.UNSURE


def answer_p2p(grading: Grading) -> Answer:
    """Bad where peer access is broken; good where an arm that may use it came to its end with right data."""
    measured = grading.measured
    if p2p_broken(measured):
        return Answer.BAD
    arms = [arm for arm in _peers_arms(measured) if fine(arm)]
    return Answer.GOOD if any(c.wrong == 0 for arm in arms for c in arm.cells) else Answer.UNSURE


def _peers_arms(measured: Measured) -> list[ArmSeen]:
    """The arms that may use peer access."""
    return [arm for arm in measured.arms if arm.name in (ArmName.DEFAULT, ArmName.NVLS_OFF)]


def _explained(measured: Measured, arm: ArmSeen) -> bool:
    """Whether another finding says why this arm ended as it did."""
    if arm.name != ArmName.DEFAULT:
        return False
    return nvls_broken(measured) or (arm.outcome == ArmOutcome.HUNG and p2p_broken(measured))


def _did_not_hang(measured: Measured, arm: ArmSeen) -> bool:
    """Whether the arm failed for a reason that is known and is no hang."""
    return arm.outcome != ArmOutcome.HUNG and _explained(measured, arm)


def _only_there(measured: Measured, arm: ArmSeen) -> str:
    """The other arms that were fine: what to suspect."""
    others = [_arm(other) for other in measured.arms if other is not arm and fine(other)]
    return f" Fine with: {', '.join(others)}." if others else ""


def _arm(arm: ArmSeen) -> str:
    return ARMS.get(arm.name, clip(arm.name))


def _phase(arm: ArmSeen) -> str:
    return PHASES.get(arm.phase, clip(arm.phase) or "at work")


def _evidence(arm: ArmSeen) -> dict[str, Scalar]:
    found: dict[str, Scalar] = {"arm": arm.name, "outcome": arm.outcome, "phase": arm.phase}
    if arm.message:
        found["said"] = clip(arm.message)
    return found
