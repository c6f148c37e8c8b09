"""The health probe where something is wrong: ill GPUs, no driver, calls that never return, signals."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from nodegauge_contract import Gpu, Unavailable, decode, render_matrix
from support.probing import On, table_cells
from testbed import profiles


@pytest.mark.parametrize(
    ("fault", "kind"), [("gpu-lost", "gpu-lost"), ("insufficient-power", "insufficient-power")]
)
def test_a_gpu_that_is_ill_keeps_its_place(probe: On, fault: str, kind: str) -> None:
    """With the error, while the others are read in full."""
    on = probe("h100-sxm-8")
    on.hardware.fault(fault, gpu=3)
    result = on.result()
    assert result.problem is None
    errors = [gpu.error.kind if gpu.error else None for gpu in result.gpus]
    assert errors == [None] * 3 + [kind] + [None] * 4
    assert replace(result.gpus[3], error=None) == Gpu(index=3), "nothing else is known of it"
    assert all(isinstance(gpu.power.usage_mw, int) for gpu in result.gpus if gpu.index != 3)


def test_a_driver_that_does_not_fit_is_a_problem_of_the_node(probe: On) -> None:
    """A result with the way out, and exit code 0: the probe did its work."""
    on = probe("titan-rtx-nv2")
    on.hardware.fault("driver-mismatch")
    result = on.result()
    assert (result.problem.kind, result.problem.code) == ("driver-mismatch", 18)
    assert "reboot" in result.problem.message
    assert result.gpus == []
    assert isinstance(result.host.boot_id, str)
    assert len(result.bus.gpus) == 2, "the bus shows them without the driver"


def test_no_library_is_a_problem_of_the_node(probe: On, tmp_path: Path) -> None:
    """What a container without the NVIDIA runtime sees."""
    on = probe("titan-rtx-nv2")
    on.environment["LD_LIBRARY_PATH"] = str(tmp_path)
    result = on.result()
    assert result.problem.kind == "library-not-found"
    assert "runtimeClassName" in result.problem.message


def test_a_call_that_never_returns_is_named(probe: On) -> None:
    """One GPU's power reading hangs: the topology is there, and so is all that was read before."""
    on = probe("h100-sxm-8")
    on.hardware.fault("hung-call", call="nvmlDeviceGetPowerUsage", gpu=2)
    result = on.result("--deadline", "6")
    assert (result.problem.kind, result.problem.call) == ("call-hung", "nvmlDeviceGetPowerUsage")
    assert "GPU 2" in result.problem.message
    assert table_cells(render_matrix(result))[1][2] == "NV18"
    assert isinstance(result.gpus[1].power.usage_mw, int)
    assert result.gpus[2].power.usage_mw == Unavailable("not read")


def test_a_driver_that_never_opens_is_named(probe: On) -> None:
    """Nothing can be read, and the result says at which call."""
    on = probe("titan-rtx-nv2")
    on.hardware.fault("hung-call", call="nvmlInitWithFlags")
    result = on.result("--deadline", "6")
    assert (result.problem.kind, result.problem.call) == ("call-hung", "nvmlInit")


SLOW = """
import runpy, time
from nodegauge_probes.collectors import sampling
real = sampling.sample
def sample(*arguments):
    time.sleep(0.7)
    return real(*arguments)
sampling.sample = sample
runpy.run_module("nodegauge_probes", run_name="__main__")
"""


def test_a_deadline_ends_a_run_with_what_was_read(probe: On) -> None:
    """A window that would last longer is cut: last words, with the samples so far."""
    on = probe("h100-sxm-8")
    h100 = profiles.load("h100-sxm-8")
    run = on.python(SLOW, "health", "--window", "4", "--deadline", "5")
    result = decode(run.stdout)
    assert result.problem.kind == "deadline"
    assert [gpu.pci for gpu in result.gpus] == [gpu.address for gpu in h100.gpus]


def test_a_sensor_that_hangs_does_not_hang_the_probe(probe: On) -> None:
    """A pipe that nobody writes to stands for a dead sensor: all that was read before is there."""
    on = probe("titan-rtx-nv2")
    chip = Path(on.env()["NODEGAUGE_SYSFS"]) / "class/hwmon/hwmon9"
    chip.mkdir(parents=True)
    (chip / "name").write_text("psu\n")
    (chip / "power1_input").write_text("7\n")
    os.mkfifo(chip / "in1_input")
    result = on.result()
    assert result.problem is None
    assert result.omitted == ["sensors"]
    assert [sensor.value for sensor in result.sensors] == [7]
    assert all(gpu.window is not None for gpu in result.gpus)
