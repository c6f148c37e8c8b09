"""Plugged hardware: what NVML, sysfs and procfs say agrees with the profile, and with each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.driver.client import NvmlClient
from testbed.hardware import HardwareError, plug

NOT_SUPPORTED, DRIVER_NOT_LOADED = 3, 9


def test_two_machines_of_a_kind_are_two_machines(tmp_path: Path) -> None:
    """UUIDs and boot ids differ; the same seed makes the same GPUs."""
    one, two = plug("pcie-phb-2", tmp_path / "1", seed="a"), plug("pcie-phb-2", tmp_path / "2")
    again = plug("pcie-phb-2", tmp_path / "3", seed="a")

    boots = {
        (Path(hw.env()["NODEGAUGE_PROCFS"]) / "sys/kernel/random/boot_id").read_text()
        for hw in (one, two, again)
    }
    assert len(boots) == 3
    assert not set(one.uuids) & set(two.uuids)
    assert one.uuids == again.uuids


def test_a_driver_is_reloaded_once_nobody_uses_it(tmp_path: Path) -> None:
    """As on a machine: no unload under an open session; another version afterwards, and counters anew."""
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
