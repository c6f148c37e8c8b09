"""How the arms ended: hangs, wrong data, errors, and which of them a comparison of arms explains.

An arm differs from the default arm in one setting (P2P or NVLS).  If the default arm is broken and the other
succeeds, that setting is the cause.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodegauge_contract import ArmName, ArmOutcome, Phase
from nodegauge_judge.case import clip
from nodegauge_judge.model import Answer, Cause, Gate, GateKind, Scalar, Severity
from nodegauge_judge.nccl.floors import uses_p2p
from nodegauge_judge.nccl.grading import Grading, NcclRule, nvls_broken, of_node, size_text, succeeded
from nodegauge_judge.nccl.measurement import MeasuredArm, Measurement
from nodegauge_judge.rule import (
    DRAIN,
    DRIVER_LOG,
    OWN_RUN,
    REBOOT,
    SAVE,
    SAVE_FIRST,
    VENDOR,
    Observation,
    Probe,
)

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
    ArmOutcome.HUNG.value: "hung",
    ArmOutcome.START_SLOW.value: "did not start in time",
    ArmOutcome.CRASHED.value: "crashed",
    ArmOutcome.FAILED.value: "failed",
    ArmOutcome.OUT_OF_MEMORY.value: "ran out of memory",
    ArmOutcome.GARBAGE.value: "returned invalid output",
    ArmOutcome.PARTIAL.value: "exited before it finished",
}
NOT_FAILED = (ArmOutcome.DONE, ArmOutcome.HUNG, ArmOutcome.START_SLOW, ArmOutcome.CUT)


def wrong_data(grading: Grading) -> Iterator[Observation]:
    """Collectives that returned wrong data."""
    yield from (
        of_node(
            Severity.FAIL,
            f"{cell.collective.value} at {size_text(cell.bytes)} ({arm_text(arm)}) returned {cell.wrong} "
            f"wrong elements.{other_arms(grading.measurement, arm)}",
            evidence={
                "arm": arm.name,
                "collective": cell.collective.value,
                "bytes": cell.bytes,
                "wrong": cell.wrong or 0,
            },
            location=f"{cell.collective.value} at {size_text(cell.bytes)} ({arm_text(arm)})",
            weight=float(cell.wrong or 0),
        )
        for arm in grading.measurement.arms
        for cell in arm.cells
        if cell.wrong
    )


def hangs(grading: Grading) -> Iterator[Observation]:
    """Arms that hung, unless P2P or NVLS explains it."""
    measurement = grading.measurement
    yield from (
        of_node(
            Severity.FAIL,
            f"The run with {arm_text(arm)} hung while {phase_text(arm)}{quoted(arm)}."
            f"{other_arms(measurement, arm)}",
            evidence=arm_evidence(arm),
            location=arm.name,
            weight=float(arm.name == ArmName.DEFAULT),
        )
        for arm in measurement.arms
        if arm.outcome == ArmOutcome.HUNG and not _is_explained(measurement, arm)
    )


def failures(grading: Grading) -> Iterator[Observation]:
    """Arms that failed in another way, unless NVLS explains it; and a probe that was stopped early."""
    measurement = grading.measurement
    observations = [
        of_node(
            Severity.WARN,
            f"The run with {arm_text(arm)} {outcome_text(arm)} while {phase_text(arm)}{quoted(arm)}.",
            evidence=arm_evidence(arm),
            location=arm.name,
            weight=float(arm.name == ArmName.DEFAULT),
        )
        for arm in measurement.arms
        if arm.outcome not in NOT_FAILED and not _is_explained(measurement, arm)
    ]
    if measurement.problem:
        message = f"The NCCL probe was stopped before it finished: {measurement.problem}."
        observations.append(
            of_node(Severity.WARN, message, evidence={"problem": measurement.problem}, weight=-1.0)
        )
    yield from observations


def broken_p2p(grading: Grading) -> Iterator[Observation]:
    """P2P that hangs or corrupts data."""
    measurement = grading.measurement
    arm = measurement.arm(ArmName.DEFAULT)
    if arm is None or not p2p_broken(measurement):
        return
    symptom = f"hung while {phase_text(arm)}" if arm.outcome == ArmOutcome.HUNG else "returned wrong data"
    message = (
        f"NCCL {symptom} with P2P and worked with P2P disabled. ACS on the PCIe bridges or an IOMMU that "
        "translates addresses causes this."
    )
    yield of_node(Severity.FAIL, message, evidence=arm_evidence(arm))


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
        or (arm.outcome not in (ArmOutcome.HUNG, ArmOutcome.START_SLOW) and _is_explained(measurement, arm))
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


def other_arms(measurement: Measurement, arm: MeasuredArm) -> str:
    """The other arms that worked: a hint at the cause."""
    others = [arm_text(other) for other in measurement.arms if other is not arm and succeeded(other)]
    return f" These runs worked: {', '.join(others)}." if others else ""


def arm_text(arm: MeasuredArm) -> str:
    return ARMS.get(arm.name, clip(arm.name))


def phase_text(arm: MeasuredArm) -> str:
    return PHASES.get(arm.phase, clip(arm.phase) or "running")


def outcome_text(arm: MeasuredArm) -> str:
    return _OUTCOMES.get(arm.outcome, f"ended with outcome {clip(arm.outcome)}")


def quoted(arm: MeasuredArm) -> str:
    return f": {clip(arm.message)}" if arm.message else ""


def arm_evidence(arm: MeasuredArm) -> dict[str, Scalar]:
    evidence: dict[str, Scalar] = {"arm": arm.name, "outcome": arm.outcome, "phase": arm.phase}
    if arm.message:
        evidence["message"] = clip(arm.message)
    return evidence


_FIX_ACS = (
    "In the BIOS, switch ACS off on the PCIe bridges above the GPUs and set the IOMMU to off or pass-through "
    "(`iommu=pt` on the kernel's command line). `lspci -vvv | grep -i acsctl` shows what is on."
)

NCCL_WRONG_DATA = NcclRule(
    code="nccl-wrong-data",
    title="a collective returned wrong data",
    meaning=(
        "A collective returned something other than the sum of its inputs. A training job on this node "
        "computes garbage without any error, however fast it is."
    ),
    when={Severity.FAIL: "any element of any checked collective was wrong"},
    next_step="take the node out of use now; results of jobs since the last good run may be wrong.",
    way_out=(
        DRAIN,
        "Wrong only with P2P (a `p2p-broken` finding says so): " + _FIX_ACS,
        "Wrong in every run: a GPU or its memory. `nvidia-smi -q -d ECC,ROW_REMAPPER`; `dcgmi diag -r 3`.",
        SAVE,
        DRIVER_LOG + " " + REBOOT,
    ),
    probe=Probe.NCCL,
    gate=Gate(kind=GateKind.UNHEALTHY, cause=Cause.NCCL, runs=1),
    check=wrong_data,
    answer=answer_wrong_data,
)
P2P_BROKEN = NcclRule(
    code="p2p-broken",
    title="peer access between GPUs is broken",
    meaning=(
        "NCCL hangs or returns wrong data with P2P and works without it. ACS (access control services of "
        "PCIe bridges) and an IOMMU that translates addresses cause this: they misdirect traffic between "
        "GPUs or send it through the root complex."
    ),
    when={Severity.FAIL: "NCCL hung or returned wrong data with its defaults, and worked with P2P disabled"},
    next_step="switch off ACS and the IOMMU (or set it to pass-through) in the BIOS.",
    way_out=(
        _FIX_ACS,
        "In a virtual machine the host must do this; ask the provider.",
        "`NCCL_P2P_DISABLE=1` in the jobs avoids the fault, but limits bandwidth to the path through the "
        "host.",
        DRIVER_LOG,
    ),
    probe=Probe.NCCL,
    gate=Gate(kind=GateKind.UNHEALTHY, cause=Cause.NCCL),
    check=broken_p2p,
    answer=answer_p2p,
)
NCCL_HANG = NcclRule(
    code="nccl-hang",
    title="a collective hangs",
    meaning=(
        "NCCL started, then made no progress for longer than its phase may take, and the probe killed it. "
        "The message names the run and the phase. A job would hang here too, until someone notices. A start "
        "that takes too long is no hang: see [`nccl-start-slow`](#nccl-start-slow)."
    ),
    when={
        Severity.FAIL: (
            "no progress for 90 s in the first calls, 45 s while measuring, or 10 s while shutting down; or "
            "a log of nccl-tests without a row below its header, or with `Test timeout`"
        )
    },
    next_step=f"{SAVE_FIRST}; look there for an Xid or a lost GPU: `dmesg | grep -iE 'NVRM|Xid'`.",
    way_out=(
        SAVE,
        DRIVER_LOG,
        "NVSwitch machines: `systemctl status nvidia-fabricmanager`; restart it with no job running.",
        OWN_RUN,
        "If only this node hangs: drain it and reboot. " + VENDOR,
    ),
    probe=Probe.NCCL,
    gate=Gate(kind=GateKind.UNHEALTHY, cause=Cause.NCCL),
    check=hangs,
    answer=answer_hang,
)
NCCL_FAILED = NcclRule(
    code="nccl-failed",
    title="the NCCL run failed",
    meaning=(
        "NCCL or CUDA returned an error, crashed, ran out of memory, or returned invalid output. This does "
        "not prove a hardware fault: image, driver and memory limit are equally likely. Everything measured "
        "until then counts."
    ),
    when={Severity.WARN: "a run ended with anything other than success, a hang or a lack of time"},
    next_step="read the message; the probe's log has the rest.",
    way_out=(
        "`kubectl logs -n NAMESPACE PROBE-POD` while the pod exists.",
        "`P2P is disabled between NVLINK connected GPUs`: the fabric manager or a registry key refuses peer "
        "access, see `p2p-refused`.",
        "Out of memory: raise the limit in `spec.podTemplate.ncclResources`, or find out what uses the GPUs "
        "(`nvidia-smi`).",
        "A driver too old for the image's CUDA: `nvidia-smi` shows the driver, the result document the "
        "versions of NCCL and CUDA.",
    ),
    probe=Probe.NCCL,
    check=failures,
)
