"""Simulated hardware: profiles that say what was recorded, and a driver that is loaded anew."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from testbed import profiles
from testbed.driver.client import NvmlClient
from testbed.hardware import FAULTS, HardwareError, plug

DRIVER_NOT_LOADED = 9
FIXTURES = Path(__file__).parents[1] / "fixtures"


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


def test_the_page_of_the_demo_counts_the_faults_right() -> None:
    page = (Path(__file__).parents[2] / "docs/demo.md").read_text("utf-8")
    assert f"the {len(FAULTS)} faults" in page


@pytest.mark.parametrize("name", profiles.names())
def test_a_profile_names_its_sources(name: str) -> None:
    wheres = [source.where for source in profiles.load(name).sources]

    named = re.findall(r"tests/fixtures/(\S+?)[,.;]?(?=\s|$)", " ".join(wheres))
    assert named or any(re.search(r"\w/\S+ (issue|pull)s? \d+|^read on ", where) for where in wheres)
    assert [file for file in named if not (FIXTURES / file).is_file()] == []
