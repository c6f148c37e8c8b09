"""What the judge says of load runs of the real program on simulated machines: the sound ones pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nodegauge_contract import Result
from nodegauge_judge import Severity, Verdict
from nodegauge_judge.load_rules.judge import LoadJudgement, judge_load
from support.nccl_probe import NcclRun
from testbed.hardware.fault import FAULTS, Fault
from testbed.hardware.loads import following
from testbed.hardware.machine import Machine
from testbed.profiles import Profile

On = Callable[[str | Profile], NcclRun]


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault that writes a line into the driver's state, for these tests alone."""

    def line(machine: Machine, *, gpu: int = 0, key: str = "", value: str = "") -> None:
        machine.values[machine.gpu(gpu), key] = value

    monkeypatch.setitem(FAULTS, "state", Fault(name="state", does="", apply=line))


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


def test_a_gpu_that_flips_bits_is_named(nccl_on: On) -> None:
    """The other GPU of the pair is not."""
    run = nccl_on("titan-rtx-nv2")
    run.hardware.fault("state", gpu=1, key="cuda.flips", value="3")
    result, judgement = judged(run)
    ((code, location),) = worse_than_info(judgement)
    assert (code, judgement.verdict) == ("load-corruption", Verdict.FAIL)
    assert location.startswith("GPU 1 ")
    assert judgement.findings[0].gpus[0].uuid == result.gpus[1].uuid


def test_a_shared_uplink_is_no_fault(nccl_on: On) -> None:
    """Copies of all GPUs at once are slower, and the node passes."""
    run = nccl_on("titan-rtx-nv2")
    for gpu in (0, 1):
        run.hardware.fault("state", gpu=gpu, key="cuda.uplink", value="1")
        run.hardware.fault("state", gpu=gpu, key="cuda.uplink_mbps", value="12000")
    _, judgement = judged(run)
    assert judgement.verdict is Verdict.PASS
    assert [f.code for f in judgement.findings] == ["load-uplink-shared"]


def test_a_gpu_that_cuda_refuses_leaves_the_node_unjudged(nccl_on: On) -> None:
    """It is named with CUDA's error; nothing is tainted."""
    run = nccl_on("titan-rtx-nv2")
    run.hardware.fault("state", gpu=0, key="cuda.error", value="719")
    _, judgement = judged(run)
    assert judgement.verdict is Verdict.UNKNOWN
    assert "GPU 0" in judgement.summary
    assert "CUDA_ERROR_LAUNCH_FAILED" in judgement.findings[0].message
