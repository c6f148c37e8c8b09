"""The load probe on simulated machines: the real program and the real process that drives the GPUs.

Their libcuda is a simulated one, which computes what the kernels compute.  The judge passes the sound ones.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nodegauge_contract import LoadEnd, LoadResult, LoadSkip, Result, Unavailable
from nodegauge_judge import CATALOGUE, Answer, Severity, Verdict
from nodegauge_judge.loadtest_rules.judge import LoadJudgement, judge_load
from nodegauge_probes.load.storage import FILE
from nodegauge_probes.page import page
from support.nccl_probe import NcclOn, NcclRun
from testbed.driver.build import LIBRARY
from testbed.hardware.loads import announcements, following
from testbed.hardware.plugged import LOADS
from testbed.wait import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("state")]
TWO = "pcie-phb-2"
QUICK = ("--seconds", "2")


def load(run: NcclRun, *options: str) -> LoadResult:
    with following(run.hardware):
        result = run.result(*(options or QUICK), probe="load")
    assert result.problem is None
    return result.load


@dataclass
class Burning:
    run: NcclRun
    process: subprocess.Popen[bytes]

    def __call__(self) -> Result:
        return self.run.finish(self.process)

    @property
    def children(self) -> list[int]:
        return [pid for pid in self.run.left_behind() if pid != self.process.pid]


@contextmanager
def burning(run: NcclRun, *options: str) -> Iterator[Burning]:
    loads = run.hardware.directory / LOADS
    loads.unlink(missing_ok=True)  # what a run before has announced
    with following(run.hardware):
        process = run.start(*(options or ("--seconds", "30")), probe="load")

        def computes() -> bool:
            """Set-up computes, then copies, then the load: what each GPU announced last, and how often."""
            lines = [line.split() for line in loads.read_text().splitlines()] if loads.exists() else []
            each = ([percent for _, own, _, percent in lines if own == u] for u in run.hardware.uuids)
            return all(len(percents) > 2 and percents[-1] == "100" for percents in each)

        try:
            wait_for(computes, what="all GPUs compute")
            yield Burning(run, process)
        finally:
            process.kill()
            process.communicate()


@pytest.fixture
def two(nccl_on: NcclOn) -> NcclRun:
    return nccl_on(TWO)


def test_a_healthy_machine_under_load(nccl_on: NcclOn) -> None:
    result, judgement = judged(nccl_on("h100-sxm-8"), "--seconds", "4")
    assert (judgement.verdict, worse_than_info(judgement)) == (Verdict.PASS, [])
    loaded = result.load
    assert (loaded.skipped, loaded.ended, loaded.message, loaded.seconds) == ("", LoadEnd.DONE, "", 4)
    assert loaded.hz >= 2
    assert loaded.loaded_seconds >= 4
    assert [gpu.index for gpu in loaded.gpus] == list(range(8))
    for gpu, identity in zip(loaded.gpus, result.gpus, strict=True):
        assert gpu.ended == LoadEnd.DONE
        assert (gpu.limit_mw, gpu.steady_mw, gpu.generation, gpu.width) == (700_000, 690_000, 5, 16)
        assert identity.temperature.gpu == gpu.start_c < gpu.steady_c <= gpu.max_c
        assert gpu.slope_c_per_min > 0
        assert gpu.memory_start_c < gpu.memory_steady_c
        assert gpu.max_mw >= gpu.steady_mw
        assert gpu.tflops_first == pytest.approx(50, rel=0.05)
        assert gpu.reached_ms <= 2_000
        assert gpu.sm_mhz == identity.clocks.max_sm_mhz
        assert gpu.checksum == gpu.expected
        assert (gpu.mismatches, gpu.memory_mismatches) == (0, 0)
        assert gpu.checks > 5
        assert gpu.kernel == "f16-m16n8k16"
        assert gpu.tflops == pytest.approx(50, rel=0.05)
        assert gpu.memory_gbps == pytest.approx(1000, rel=0.05)
        assert gpu.h2d_gbps == pytest.approx(gpu.h2d_all_gbps, rel=0.3)
        assert gpu.growth.energy_mj > 690_000 * 2
        assert gpu.idle_mw < 100_000
    assert len({gpu.checksum for gpu in loaded.gpus}) == 1


def test_a_gpu_that_flips_bits_is_named(two: NcclRun) -> None:
    two.hardware.fault("bit-flips", gpu=1, count=3)
    two.hardware.fault("bit-flips", gpu=1, count=2, where="memory")
    result, judgement = judged(two, *QUICK)
    good, bad = result.load.gpus
    assert {code for code, _ in worse_than_info(judgement)} == {"load-corruption"}
    assert judgement.answers["load-corruption"] is Answer.BAD
    assert (good.mismatches, good.memory_mismatches) == (0, 0)
    assert bad.mismatches == 3 * bad.checks > 0
    assert bad.memory_mismatches > 0
    assert good.checksum == bad.checksum, "most of its warps are right"
    assert all(word in page.render(result) for word in ("WRONG", "TFLOPS")), "the page is for people"


def test_gpus_behind_one_uplink_slow_each_other_down(two: NcclRun) -> None:
    two.hardware.fault("shared-uplink", mbps=12_000)
    for gpu in load(two).gpus:
        assert gpu.h2d_gbps == pytest.approx(12, rel=0.1)
        assert gpu.h2d_all_gbps == pytest.approx(6, rel=0.3)


def test_a_starved_host_makes_no_gpu_slow(two: NcclRun) -> None:
    """Its work comes late after the start of a measurement; the GPU reads as fast as its sibling."""
    two.hardware.fault("state", gpu=1, key="cuda.late_ms", value="100")
    good, late = load(two).gpus
    assert late.memory_gbps == pytest.approx(good.memory_gbps, rel=0.05)
    assert late.tflops == pytest.approx(good.tflops, rel=0.05)
    assert late.checks > 5, "its launches are as long"


def test_one_gpu_that_cuda_refuses_does_not_end_the_others(two: NcclRun) -> None:
    two.hardware.fault("state", gpu=0, key="cuda.error", value="719")
    result, judgement = judged(two, *QUICK)
    bad, good = result.load.gpus
    assert (bad.ended, good.ended, result.load.ended) == ("failed", "done", "done")
    assert "CUDA_ERROR_LAUNCH_FAILED" in bad.message
    assert isinstance(bad.tflops, Unavailable)
    assert good.checks > 0
    assert (judgement.verdict, "GPU 0" in judgement.summary) == (Verdict.UNKNOWN, True)
    assert "CUDA_ERROR_LAUNCH_FAILED" in judgement.findings[0].message


def test_a_gpu_that_hangs_is_given_up(two: NcclRun) -> None:
    assert any(hangs_in_the_middle(two) for _ in range(3)), "each load was over before its GPU hung"


def hangs_in_the_middle(run: NcclRun) -> bool:
    """Whether the GPU hung while it worked: on a machine that stood still the load may have been over."""
    with burning(run, "--seconds", "3") as finish:
        run.hardware.fault("state", gpu=1, key="cuda.hang", value="1")
        in_time = set(announcements(run.hardware.directory / LOADS).values()) == {100}
        result = finish()
    run.hardware.heal("state")
    assert not in_time or [gpu.ended for gpu in result.load.gpus] == ["done", "hung"]
    return in_time


def test_somebody_else_gets_the_gpu(two: NcclRun) -> None:
    with burning(two) as finish:
        two.hardware.fault("state", gpu=1, key="processes", value="4242:1000000 4243:1000000")
        result = finish()
    assert result.load.ended == LoadEnd.GAVE_WAY
    assert "GPU 1" in result.load.message
    assert {gpu.ended for gpu in result.load.gpus} == {"gave-way"}


def test_without_libcuda_nothing_is_loaded(two: NcclRun, tmp_path: Path) -> None:
    """A pod without the driver capability `compute` has NVML alone: a reason, not a failure of the GPUs."""
    alone = tmp_path / "nvml-alone"
    alone.mkdir()
    shutil.copy(Path(two.hardware.env()["LD_LIBRARY_PATH"]) / LIBRARY, alone)
    two.environment["LD_LIBRARY_PATH"] = str(alone)
    loaded = load(two)
    assert loaded.skipped == LoadSkip.NO_CUDA
    assert "libcuda.so.1" in loaded.message
    assert loaded.gpus == []


@pytest.mark.parametrize(
    ("profile", "values", "skip"),
    [
        ("a100-sxm-8", {"gpu": 2, "key": "temperature.now", "value": "88"}, LoadSkip.HOT),
        (TWO, {"gpu": 1, "key": "processes", "value": "4242:1000000"}, LoadSkip.BUSY),
        ("a100-mig-4", {}, LoadSkip.MIG),
        ("vgpu-2", {}, LoadSkip.VGPU),
        (TWO, {}, LoadSkip.SHARED),
    ],
)
def test_what_is_not_free_whole_and_cool_is_not_loaded(
    nccl_on: NcclOn, profile: str, values: dict[str, Any], skip: LoadSkip
) -> None:
    run = nccl_on(profile)
    if values:
        run.hardware.fault("state", **values)
    if skip == LoadSkip.SHARED:
        run.environment["NODEGAUGE_SHARED"] = "MPS"
    assert load(run).skipped == skip
    assert not (run.hardware.directory / LOADS).exists()


def test_its_own_stop_is_below_the_vendor_s_slowdown(nccl_on: NcclOn) -> None:
    run = nccl_on("a100-sxm-8")
    slowdown = run.result("--window", "0.1", probe="health").gpus[0].temperature.slowdown
    with burning(run) as finish:
        run.hardware.fault("state", gpu=2, key="temperature.now", value=str(slowdown - 3))
        result = finish()
    assert result.load.ended == LoadEnd.TEMPERATURE
    assert f"GPU 2 is at {slowdown - 3} °C" in result.load.message
    assert {gpu.stop_c for gpu in result.load.gpus} == {slowdown - 3}


def test_a_preempted_pod_leaves_no_process_and_keeps_what_it_has(two: NcclRun) -> None:
    with burning(two) as finish:
        finish.process.send_signal(signal.SIGTERM)
        result = finish()
    assert result.problem.kind == "terminated"
    assert {gpu.ended for gpu in result.load.gpus} == {"cut"}
    assert all(isinstance(gpu.h2d_gbps, float) for gpu in result.load.gpus)


def test_the_load_dies_with_the_probe(two: NcclRun) -> None:
    with burning(two) as burning_run:
        burning_run.process.kill()
        two.wait_until_alone()
        wait_for(lambda: set(_loads(two)) == {0}, what="idle GPUs")


def test_a_process_that_dies_is_no_verdict_about_gpus(two: NcclRun) -> None:
    """Killed by the kernel for lack of memory, say: the load failed, and says how."""
    with burning(two) as finish:
        [child] = finish.children
        os.kill(child, signal.SIGKILL)
        result = finish()
    assert result.load.ended == LoadEnd.FAILED
    assert "signal 9" in result.load.message


def test_the_deadline_ends_it(two: NcclRun) -> None:
    assert any(is_cut(two) for _ in range(3))


def is_cut(run: NcclRun) -> bool:
    """Whether the load was cut; a machine that stands still may use up all of a run's time, not of three."""
    with following(run.hardware):
        result = run.result("--seconds", "60", "--deadline", "14", probe="load")
    if result.problem is not None:
        assert result.problem.kind == "deadline"
        return False
    return result.load.ended == LoadEnd.CUT


def _loads(run: NcclRun) -> list[int]:
    return run.hardware.condition().machine().load


def test_a_gpu_that_is_lost_under_load_does_not_end_the_others(two: NcclRun) -> None:
    with burning(two, "--seconds", "6") as finish:
        two.hardware.fault("gpu-lost", gpu=1)
        result = finish()
    good, lost = result.load.gpus
    assert (good.ended, lost.ended) == ("done", "failed")
    assert good.samples > lost.samples
    assert result.gpus[1].error.kind == "gpu-lost"


def test_a_slowdown_under_load_has_its_reason_and_its_moment(nccl_on: NcclOn) -> None:
    run = nccl_on("h100-sxm-8-drv580")
    run.hardware.fault("thermal-slowdown", gpu=2)
    loaded = load(run, "--seconds", "3")
    slow, usual = loaded.gpus[2], loaded.gpus[3]
    assert [reason.bit for reason in slow.reasons if reason not in usual.reasons]
    assert min(reason.first_ms for reason in slow.reasons) < 1_500
    assert slow.growth.sw_thermal_ns > 1_000_000_000 or slow.growth.hw_thermal_ns > 1_000_000_000
    assert slow.sm_mhz_min < usual.sm_mhz_min
    assert slow.tflops < 0.9 * usual.tflops
    assert slow.checksum == usual.checksum, "slow is not wrong"


def judged(run: NcclRun, *options: str) -> tuple[Result, LoadJudgement]:
    with following(run.hardware):
        result = run.result(*(options or ("--seconds", "3")), probe="load")
    return result, judge_load(result)


def worse_than_info(judgement: LoadJudgement) -> list[tuple[str, str]]:
    return [(f.code, f.subject) for f in judgement.findings if f.severity is not Severity.INFO]


@pytest.mark.parametrize(
    ("profile", "kernel"),
    [
        ("dgx1-v100-8", "f16-m8n8k4"),
        ("titan-rtx-nv2", "f16-m16n8k8"),
        ("p100-sxm-8", "f32-fma"),
        ("l40s-4", "f16-m16n8k16"),
        ("gh200-1", "f16-m16n8k16"),
    ],
)
def test_a_sound_machine_passes_with_what_it_can_compute(nccl_on: NcclOn, profile: str, kernel: str) -> None:
    result, judgement = judged(nccl_on(profile))
    assert (judgement.verdict, worse_than_info(judgement)) == (Verdict.PASS, []), result.load
    assert judgement.gpus == len(result.gpus)
    assert {gpu.kernel for gpu in result.load.gpus} == {kernel}
    assert all(gpu.checksum == gpu.expected for gpu in result.load.gpus)


Case = tuple[str, str, dict[str, str | int], set[str], str]

HOT = {"load-hot", "load-hotter-than-siblings"}
FAULTY: list[Case] = [
    ("rtx3090-nv4-2", "weak-supply", {}, {"load-rail-droop"}, ""),
    ("l40s-4", "airflow-blocked", {"gpu": 1, "seconds": "2"}, HOT, "throttled=thermal"),
    ("titan-rtx-nv2", "slow-gpu", {"gpu": 1}, {"load-slow-gpu"}, "unhealthy=slow-gpu"),
]
"""Machine, fault, its parameters, codes of the findings, and the taint that enough such runs set."""


@pytest.mark.parametrize(("profile", "fault", "parameters", "codes", "taint"), FAULTY)
def test_a_fault_has_its_own_finding_and_its_own_taint_or_none(
    nccl_on: NcclOn, profile: str, fault: str, parameters: dict[str, str | int], codes: set[str], taint: str
) -> None:
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


def test_a_disk_is_read_after_the_load_and_not_after_one_that_was_cut(two: NcclRun, tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(os.urandom(16 << 20))
    options = (*QUICK, "--nvme", str(tmp_path), "--nvme-path", "/mnt/a", "--nvme-gib", "0.015625")
    result, judgement = judged(two, *options)
    assert (judgement.verdict, result.load.storage.problem) == (Verdict.PASS, "")
    assert judgement.offload.nvme_read_gbps == pytest.approx(result.load.storage.read_gbps, rel=0.01)
    shown = page.render(result)
    assert "Storage /mnt/a   ext4 on nvme0n1   NUMA node 0   reads" in shown
    with burning(two, "--seconds", "30", *options[2:]) as run:
        run.process.send_signal(signal.SIGTERM)
        assert run().load.storage.problem == "the run ended before it was read"
