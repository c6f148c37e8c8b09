"""The load probe where the driver or a GPU fails in the middle."""

from __future__ import annotations

from collections.abc import Callable

from nodegauge_contract import LoadEnd
from support.load_probe import burning, load
from support.nccl_probe import NcclRun
from testbed.hardware.loads import following
from testbed.profiles import Profile

On = Callable[[str | Profile], NcclRun]


def test_seven_of_eight_are_loaded_and_the_missing_one_is_named(nccl_on: On) -> None:
    """A lost GPU is the health probe's business; the others still share air and supplies."""
    run = nccl_on("h100-sxm-8")
    run.hardware.fault("gpu-lost", gpu=3)
    with following(run.hardware):
        result = run.result("--seconds", "1", probe="load")
    assert (result.load.ended, [gpu.index for gpu in result.load.gpus]) == (
        LoadEnd.DONE,
        [0, 1, 2, 4, 5, 6, 7],
    )
    assert "7 of 8 GPUs: GPU 3" in result.load.message
    assert {gpu.ended for gpu in result.load.gpus} == {"done"}


def test_a_gpu_that_is_lost_under_load_does_not_end_the_others(nccl_on: On) -> None:
    """Its samples until then are kept, its error is NVML's."""
    run = nccl_on("pcie-phb-2")
    with burning(run, "--seconds", "6") as finish:
        run.hardware.fault("gpu-lost", gpu=1)
        result = finish()
    good, lost = result.load.gpus
    assert (good.ended, lost.ended) == ("done", "failed")
    assert good.samples > lost.samples
    assert result.gpus[1].error.kind == "gpu-lost"


def test_a_call_that_hangs_ends_the_run_and_the_load(nccl_on: On) -> None:
    """The driver no longer answers: named, with what was read, and nothing computes any more."""
    run = nccl_on("pcie-phb-2")
    with burning(run, "--seconds", "60", "--deadline", "24") as finish:
        run.hardware.fault("hung-call", call="nvmlDeviceGetPowerUsage")
        result = finish()
    assert (result.problem.kind, result.problem.call) == ("call-hung", "nvmlDeviceGetPowerUsage")
    assert {gpu.ended for gpu in result.load.gpus} == {"cut"}


def test_a_slowdown_under_load_has_its_reason_and_its_moment(nccl_on: On) -> None:
    """The bit with its first sample, the counter's growth, the lower clock, fewer operations."""
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


def test_half_of_the_lanes_show_in_link_and_copies(nccl_on: On) -> None:
    """On that GPU alone."""
    run = nccl_on("pcie-phb-2")
    run.hardware.fault("pcie-width-halved", gpu=1)
    good, narrow = load(run).gpus
    assert (good.width, narrow.width) == (16, 8)
    assert narrow.h2d_gbps < 0.6 * good.h2d_gbps
