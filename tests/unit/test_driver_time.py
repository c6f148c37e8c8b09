"""What changes with time: heat, clocks, and throttle counters that faults and load drive."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from support.machines import SECOND, with_driver
from testbed.driver.client import GPU, NvmlClient
from testbed.hardware import Hardware, HardwareError, plug
from testbed.hardware.plugged import boottime_ns


def test_a_blocked_gpu_warms_up_and_then_slows_down(tmp_path: Path) -> None:
    start = boottime_ns()
    hardware = plug("h100-sxm-8", tmp_path, clock=lambda: start - 200 * SECOND)
    Hardware(tmp_path, clock=lambda: start - 7 * SECOND).fault("airflow-blocked", gpu=1)
    Hardware(tmp_path, clock=lambda: start - 6 * SECOND).load(100)
    with NvmlClient(hardware.env()) as nvml:
        calm, hot = (nvml.ask("nvmlDeviceGetTemperature", GPU(gpu), 0) for gpu in (0, 1))
    assert 33 < calm < hot < 87
    calm_past, hot_past = hardware.condition().pasts[:2]
    [(since, per_mille)] = hot_past.reasons["sw_thermal"]
    assert (since > start - 6 * SECOND, per_mille) == (True, 1000)
    assert "sw_thermal" not in calm_past.reasons


def test_unrepairable_memory_is_told_by_drivers_that_know_of_it(tmp_path: Path) -> None:
    call, name = "nvmlDeviceGetUnrepairableMemoryFlag_v1", "memory-unrepairable"
    hardware = with_driver("590.44.01", tmp_path / "new")
    with NvmlClient(hardware.env()) as nvml:
        assert nvml.ask(call, GPU(2)) == 0
        hardware.fault(name, gpu=2)
        assert [nvml.ask(call, GPU(gpu)) for gpu in (1, 2)] == [0, 1]
    with pytest.raises(HardwareError, match="h100-sxm-8 has no"):
        plug("h100-sxm-8", tmp_path / "old").fault(name)


def test_a_clock_step_moves_times_of_day_and_nothing_else(tmp_path: Path) -> None:
    hardware = plug("pcie-phb-2", tmp_path)
    with NvmlClient(hardware.env()) as nvml:
        energy = nvml.ask("nvmlDeviceGetTotalEnergyConsumption", GPU(0))
        for seconds in (3600, -3600):
            hardware.fault("clock-step", seconds=seconds)
            before = time.time()
            assert before - 1 <= nvml.field(0, 83)["timestamp"] / 1e6 - seconds <= time.time() + 1
            hardware.heal()
        assert nvml.ask("nvmlDeviceGetTotalEnergyConsumption", GPU(0)) >= energy
