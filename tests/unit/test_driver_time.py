"""What changes with time: heat, clocks, and throttle counters that faults and load drive."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.machines import SECOND, with_driver
from testbed.hardware import Hardware, HardwareError, plug
from testbed.hardware.plugged import boottime_ns

CHILD = """
import sys
from pynvml import *
nvmlInit()
gpu = nvmlDeviceGetHandleByIndex
for line in sys.stdin:
    print(eval(line), flush=True)
"""


@contextmanager
def nvml(hardware: Hardware) -> Iterator[Callable[[str], float]]:
    """A process that goes on, and says what calls of pynvml answer; `gpu(0)`: a handle."""
    command, pipe = [sys.executable, "-c", CHILD], subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, text=True, env=os.environ | hardware.env()
    ) as process:

        def ask(call: str) -> float:
            print(call, file=process.stdin, flush=True)
            return float(process.stdout.readline())

        yield ask


def test_a_blocked_gpu_warms_up_and_then_slows_down(tmp_path: Path) -> None:
    start = boottime_ns()
    hardware = plug("h100-sxm-8", tmp_path, clock=lambda: start - 200 * SECOND)
    Hardware(tmp_path, clock=lambda: start - 7 * SECOND).fault("airflow-blocked", gpu=1)
    Hardware(tmp_path, clock=lambda: start - 6 * SECOND).load(100)
    with nvml(hardware) as ask:
        calm, hot = (ask(f"nvmlDeviceGetTemperature(gpu({gpu}), 0)") for gpu in (0, 1))
    assert 33 < calm < hot < 87
    calm_past, hot_past = hardware.condition().pasts[:2]
    [(since, per_mille)] = hot_past.reasons["sw_thermal"]
    assert (since > start - 6 * SECOND, per_mille) == (True, 1000)
    assert "sw_thermal" not in calm_past.reasons


def test_unrepairable_memory_is_told_by_drivers_that_know_of_it(tmp_path: Path) -> None:
    call, name = "nvmlDeviceGetUnrepairableMemoryFlag_v1(gpu({}))", "memory-unrepairable"
    hardware = with_driver("590.44.01", tmp_path / "new")
    with nvml(hardware) as ask:
        assert ask(call.format(2)) == 0
        hardware.fault(name, gpu=2)
        assert [ask(call.format(gpu)) for gpu in (1, 2)] == [0, 1]
    with pytest.raises(HardwareError, match="h100-sxm-8 has no"):
        plug("h100-sxm-8", tmp_path / "old").fault(name)


def test_a_clock_step_moves_times_of_day_and_nothing_else(tmp_path: Path) -> None:
    hardware = plug("pcie-phb-2", tmp_path)
    joules, stamp = "nvmlDeviceGetTotalEnergyConsumption(gpu(0))", "nvmlDeviceGetFieldValues(gpu(0), [83])[0]"
    with nvml(hardware) as ask:
        energy = ask(joules)
        for seconds in (3600, -3600):
            hardware.fault("clock-step", seconds=seconds)
            before = time.time()
            assert before - 1 <= ask(f"{stamp}.timestamp") / 1e6 - seconds <= time.time() + 1
            hardware.heal()
        assert ask(joules) >= energy
