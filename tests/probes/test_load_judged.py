"""What the judge says of load runs of the real program on simulated machines: the sound ones pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nodegauge_contract import Result
from nodegauge_judge import CATALOGUE, Answer, Severity, Verdict
from nodegauge_judge.load_rules.judge import LoadJudgement, judge_load
from support.nccl_probe import NcclRun
from testbed.hardware.loads import following
from testbed.profiles import Profile

pytestmark = pytest.mark.usefixtures("state")
On = Callable[[str | Profile], NcclRun]


def judged(run: NcclRun, *options: str) -> tuple[Result, LoadJudgement]:
    """One run and its judgement."""
    with following(run.hardware):
        result = run.result(*(options or ("--seconds", "3")), probe="load")
    return result, judge_load(result)


def worse_than_info(judgement: LoadJudgement) -> list[tuple[str, str]]:
    """Codes and locations of what is worth a look."""
    return [(f.code, f.subject) for f in judgement.findings if f.severity is not Severity.INFO]


@pytest.mark.parametrize("profile", ["h100-sxm-8", "titan-rtx-nv2", "l40s-4", "gh200-1"])
def test_a_sound_machine_passes(nccl_on: On, profile: str) -> None:
    """One GPU, two, four and eight, with whatever their drivers do not tell."""
    result, judgement = judged(nccl_on(profile))
    assert (judgement.verdict, worse_than_info(judgement)) == (Verdict.PASS, []), result.load
    assert judgement.gpus == len(result.gpus)


Case = tuple[str, str, dict[str, str | int], set[str], str]

FAULTY: list[Case] = [
    ("rtx3090-nv4-2", "weak-supply", {}, {"load-rail-droop"}, ""),
    (
        "l40s-4",
        "airflow-blocked",
        {"gpu": 1, "seconds": "2"},
        {"load-hot", "load-hotter-than-siblings"},
        "throttled=thermal",
    ),
    ("titan-rtx-nv2", "slow-gpu", {"gpu": 1}, {"load-slow-gpu"}, "unhealthy=slow-gpu"),
    ("titan-rtx-nv2", "shared-uplink", {}, set(), ""),
    ("titan-rtx-nv2", "bit-flips", {"gpu": 1}, {"load-corruption"}, "unhealthy=corruption"),
]
"""Machine, fault, its parameters, codes of the findings, and the taint that enough such runs set."""


@pytest.mark.parametrize(("profile", "fault", "parameters", "codes", "taint"), FAULTY)
def test_a_fault_has_its_own_finding_and_its_own_taint_or_none(
    nccl_on: On, profile: str, fault: str, parameters: dict[str, str | int], codes: set[str], taint: str
) -> None:
    """Only GPU 1 is accused, by its UUID; no other gate is bad."""
    run = nccl_on(profile)
    run.hardware.fault(fault, **parameters)
    result, judgement = judged(run, "--seconds", "5")
    findings = [finding for finding in judgement.findings if finding.severity is not Severity.INFO]
    assert {finding.code for finding in findings} == codes
    accused = {gpu.uuid for finding in findings for gpu in finding.gpus}
    assert accused == ({result.gpus[1].uuid} if "gpu" in parameters else set())
    bad = [CATALOGUE[code].gate for code, answer in judgement.answers.items() if answer is Answer.BAD]
    taints = {f"{gate.kind.value}={gate.cause.value}" for gate in bad if gate is not None}
    assert taints == ({taint} if taint else set())


def test_a_gpu_that_cuda_refuses_leaves_the_node_unjudged(nccl_on: On) -> None:
    """It is named with CUDA's error; nothing is tainted."""
    run = nccl_on("titan-rtx-nv2")
    run.hardware.fault("state", gpu=0, key="cuda.error", value="719")
    _, judgement = judged(run)
    assert judgement.verdict is Verdict.UNKNOWN
    assert "GPU 0" in judgement.summary
    assert "CUDA_ERROR_LAUNCH_FAILED" in judgement.findings[0].message
