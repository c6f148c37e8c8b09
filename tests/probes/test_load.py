"""The load probe on simulated machines: the real program and the real process that drives the GPUs.

Their libcuda is a simulated one, which computes what the kernels compute.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodegauge_contract import LoadEnd, LoadSkip, Unavailable, decode
from support.load_probe import QUICK, burning, load
from support.nccl_probe import NcclRun
from testbed.driver.build import LIBRARY
from testbed.hardware.loads import announcements, following
from testbed.hardware.plugged import LOADS
from testbed.profiles import Profile
from testbed.wait import wait_for

pytestmark = pytest.mark.usefixtures("state")
On = Callable[[str | Profile], NcclRun]
TWO = "pcie-phb-2"


def test_a_healthy_machine_under_load(nccl_on: On) -> None:
    """Every number of every GPU from one run: power, heat, clocks, link, rates, the same right checksum."""
    run = nccl_on("h100-sxm-8")
    with following(run.hardware):
        result = run.result("--seconds", "4", probe="load")
    loaded = result.load
    assert (loaded.skipped, loaded.ended, loaded.message, loaded.seconds) == ("", LoadEnd.DONE, "", 4)
    assert isinstance(loaded.hz, float)
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


@pytest.mark.parametrize(
    ("profile", "kernel"),
    [("dgx1-v100-8", "f16-m8n8k4"), ("titan-rtx-nv2", "f16-m16n8k8"), ("p100-sxm-8", "f32-fma")],
)
def test_older_gpus_compute_with_what_they_have(nccl_on: On, profile: str, kernel: str) -> None:
    """Volta, Turing and Pascal: their own instruction, and the result that the CPU expects."""
    loaded = load(nccl_on(profile), "--seconds", "1")
    assert {(gpu.ended, gpu.kernel) for gpu in loaded.gpus} == {("done", kernel)}
    assert {gpu.checksum == gpu.expected for gpu in loaded.gpus} == {True}


def test_a_gpu_that_flips_bits_is_named(nccl_on: On) -> None:
    """Three results of every launch, and two words of memory: counted on that GPU, and on it alone."""
    run = nccl_on(TWO)
    run.hardware.fault("bit-flips", gpu=1, count=3)
    run.hardware.fault("bit-flips", gpu=1, count=2, where="memory")
    good, bad = load(run).gpus
    assert (good.mismatches, good.memory_mismatches) == (0, 0)
    assert bad.mismatches == 3 * bad.checks > 0
    assert bad.memory_mismatches > 0
    assert good.checksum == bad.checksum, "most of its warps are right"


def test_gpus_behind_one_uplink_slow_each_other_down(nccl_on: On) -> None:
    """Alone each has the whole uplink, together half of it."""
    run = nccl_on(TWO)
    run.hardware.fault("shared-uplink", mbps=12_000)
    for gpu in load(run).gpus:
        assert gpu.h2d_gbps == pytest.approx(12, rel=0.1)
        assert gpu.h2d_all_gbps == pytest.approx(6, rel=0.3)


def test_a_slow_gpu_computes_less_than_its_sibling(nccl_on: On) -> None:
    """At the same clock, without a reason, and with the right results."""
    run = nccl_on(TWO)
    run.hardware.fault("slow-gpu", gpu=1, percent=60)
    good, slow = load(run).gpus
    assert slow.tflops == pytest.approx(0.6 * good.tflops, rel=0.05)
    assert (slow.sm_mhz, slow.mismatches) == (good.sm_mhz, 0)


def test_a_starved_host_makes_no_gpu_slow(nccl_on: On) -> None:
    """Its work comes late after the start of a measurement; the GPU reads as fast as its sibling."""
    run = nccl_on(TWO)
    run.hardware.fault("state", gpu=1, key="cuda.late_ms", value="100")
    good, late = load(run).gpus
    assert late.memory_gbps == pytest.approx(good.memory_gbps, rel=0.05)
    assert late.tflops == pytest.approx(good.tflops, rel=0.05)
    assert late.checks > 5, "its launches are as long"


def test_one_gpu_that_cuda_refuses_does_not_end_the_others(nccl_on: On) -> None:
    """Its error is kept, with CUDA's name for it."""
    run = nccl_on(TWO)
    run.hardware.fault("state", gpu=0, key="cuda.error", value="719")
    loaded = load(run)
    bad, good = loaded.gpus
    assert (bad.ended, good.ended, loaded.ended) == ("failed", "done", "done")
    assert "CUDA_ERROR_LAUNCH_FAILED" in bad.message
    assert isinstance(bad.tflops, Unavailable)
    assert good.checks > 0


def test_a_gpu_that_hangs_is_given_up(nccl_on: On) -> None:
    """In the middle of its work: the other one finishes, and no process is left."""
    run = nccl_on(TWO)
    assert any(hangs_in_the_middle(run) for _ in range(3)), "each load was over before its GPU hung"


def hangs_in_the_middle(run: NcclRun) -> bool:
    """Whether the GPU hung while it worked: on a machine that stood still the load may have been over."""
    with burning(run, "--seconds", "3") as finish:
        run.hardware.fault("state", gpu=1, key="cuda.hang", value="1")
        in_time = set(announcements(run.hardware.directory / LOADS).values()) == {100}
        result = finish()
    run.hardware.heal("state")
    assert not in_time or [gpu.ended for gpu in result.load.gpus] == ["done", "hung"]
    return in_time


def test_somebody_else_gets_the_gpu(nccl_on: On) -> None:
    """A second compute process on one GPU ends the load of all, long before its time."""
    run = nccl_on(TWO)
    with burning(run) as finish:
        run.hardware.fault("state", gpu=1, key="processes", value="4242:1000000 4243:1000000")
        result = finish()
    assert result.load.ended == LoadEnd.GAVE_WAY
    assert "GPU 1" in result.load.message
    assert {gpu.ended for gpu in result.load.gpus} == {"gave-way"}


def test_without_libcuda_nothing_is_loaded(nccl_on: On, tmp_path: Path) -> None:
    """A pod without the driver capability `compute` has NVML alone: a reason, not a failure of the GPUs."""
    run = nccl_on(TWO)
    alone = tmp_path / "nvml-alone"
    alone.mkdir()
    shutil.copy(Path(run.hardware.env()["LD_LIBRARY_PATH"]) / LIBRARY, alone)
    run.environment["LD_LIBRARY_PATH"] = str(alone)
    loaded = load(run)
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
    nccl_on: On, profile: str, values: dict[str, Any], skip: LoadSkip
) -> None:
    """No process starts, and nothing is announced on any GPU."""
    run = nccl_on(profile)
    if values:
        run.hardware.fault("state", **values)
    if skip == LoadSkip.SHARED:
        run.environment["NODEGAUGE_SHARED"] = "MPS"
    assert load(run).skipped == skip
    assert not (run.hardware.directory / LOADS).exists()


def test_its_own_stop_is_below_the_vendor_s_slowdown(nccl_on: On) -> None:
    """A GPU that gets too hot ends the load of all, before the vendor's limit."""
    run = nccl_on("a100-sxm-8")
    slowdown = run.result("--window", "0.1", probe="health").gpus[0].temperature.slowdown
    with burning(run) as finish:
        run.hardware.fault("state", gpu=2, key="temperature.now", value=str(slowdown - 3))
        result = finish()
    assert result.load.ended == LoadEnd.TEMPERATURE
    assert f"GPU 2 is at {slowdown - 3} °C" in result.load.message
    assert {gpu.stop_c for gpu in result.load.gpus} == {slowdown - 3}


def test_a_preempted_pod_leaves_no_process_and_keeps_what_it_has(nccl_on: On) -> None:
    """SIGTERM in the middle: out long before its time, with what was measured until then, and no GPU done."""
    run = nccl_on(TWO)
    with burning(run) as finish:
        finish.process.send_signal(signal.SIGTERM)
        result = finish()
    assert result.problem.kind == "terminated"
    assert {gpu.ended for gpu in result.load.gpus} == {"cut"}
    assert all(isinstance(gpu.h2d_gbps, float) for gpu in result.load.gpus)


def test_the_load_dies_with_the_probe(nccl_on: On) -> None:
    """Killed without a word, by the kernel or a kubelet: nothing computes a moment later."""
    run = nccl_on(TWO)
    with burning(run) as burning_run:
        burning_run.process.kill()
        run.wait_until_alone()
        wait_for(lambda: set(_loads(run)) == {0}, what="idle GPUs")


def test_a_process_that_dies_is_no_verdict_about_gpus(nccl_on: On) -> None:
    """Killed by the kernel for lack of memory, say: the load failed, and says how."""
    run = nccl_on(TWO)
    with burning(run) as finish:
        [child] = finish.children
        os.kill(child, signal.SIGKILL)
        result = finish()
    assert result.load.ended == LoadEnd.FAILED
    assert "signal 9" in result.load.message


def test_the_deadline_ends_it(nccl_on: On) -> None:
    """With what was measured until then, and no process left."""
    run = nccl_on(TWO)
    assert any(is_cut(run) for _ in range(3))


def is_cut(run: NcclRun) -> bool:
    """Whether the load was cut; a machine that stands still may use up all of a run's time, not of three."""
    with following(run.hardware):
        result = run.result("--seconds", "60", "--deadline", "14", probe="load")
    if result.problem is not None:
        assert result.problem.kind == "deadline"
        return False
    return result.load.ended == LoadEnd.CUT


def test_the_page_is_for_people(nccl_on: On) -> None:
    """A row per GPU with watts, heat and rates; wrong results in capitals."""
    run = nccl_on(TWO)
    run.hardware.fault("state", gpu=1, key="cuda.flips", value="3")
    with following(run.hardware):
        process = run.start(*QUICK, "--format", "table", probe="load")
        page = process.communicate(timeout=60)[0].decode()
    assert "WRONG" in page
    assert "TFLOPS" in page
    assert decode(run.log.read_text()).load is not None


def _loads(run: NcclRun) -> list[int]:
    return [points[-1][1] if points else 0 for points in run.hardware.condition().loads]
