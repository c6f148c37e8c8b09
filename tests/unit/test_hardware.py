"""Plugged hardware: what NVML, sysfs and procfs say agrees with the profile, and with each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.driver.client import NvmlClient
from testbed.hardware import HardwareError, plug

DRIVER_NOT_LOADED = 9


def test_a_driver_is_reloaded_once_nobody_uses_it(tmp_path: Path) -> None:
    hardware = plug("h100-sxm-8", tmp_path / "machine")
    boot_id = hardware.condition().boot_id
    with NvmlClient(hardware.env()) as nvml:
        assert nvml.ask("nvmlDeviceGetCount") == 8
        with pytest.raises(HardwareError, match="in use"):
            hardware.unload_driver()
    hardware.unload_driver()
    with NvmlClient(hardware.env(), initialise=False) as nvml:
        assert nvml.refusal("nvmlInit") == DRIVER_NOT_LOADED
    with pytest.raises(HardwareError, match="same release"):
        hardware.load_driver("580.65.06")
    hardware.load_driver("550.90.07")
    with NvmlClient(hardware.env()) as nvml:
        assert nvml.ask("nvmlSystemGetDriverVersion") == "550.90.07"
        assert nvml.ask("nvmlSystemGetNVMLVersion") == "12.550.90.07"
    assert hardware.condition().boot_id == boot_id
