"""Every fault shows through pynvml or sysfs, is refused where it cannot be, and can be healed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testbed import profiles
from testbed.hardware import FAULTS, HardwareError, plug
from testbed.hardware.machine import Machine


def test_the_page_of_the_demo_counts_the_faults_right() -> None:
    """Whoever reads of so many finds so many."""
    page = (Path(__file__).parents[2] / "docs/demo.md").read_text("utf-8")
    assert f"the {len(FAULTS)} faults" in page


@pytest.mark.parametrize("profile", profiles.names())
def test_a_fault_either_fits_a_machine_or_is_refused_in_words(profile: str) -> None:
    """Every fault on every kind of hardware changes the machine, or the error names the hardware."""
    result = profiles.load(profile)
    refused = 0
    for name, fault in FAULTS.items():
        machine = Machine.healthy(result)
        try:
            fault.on(machine, {})
        except HardwareError as error:
            refused += profile in str(error)
        else:
            assert machine != Machine.healthy(result) or name in UNREADABLE, name
            refused += 1
    assert refused == len(FAULTS)


UNREADABLE = {"row-remap"}
"""With MIG on, nobody can read it."""


@pytest.mark.parametrize(
    ("profile", "name", "parameters", "reported"),
    [
        ("pcie-phb-2", "fire", {}, "no fault 'fire'.*gpu-lost"),
        ("pcie-phb-2", "hot", {"gpu": 2}, "no GPU 2: they are 0 to 1"),
        ("pcie-phb-2", "hot", {"degrees": 3}, "no parameter degrees: it has gpu, celsius"),
        ("pcie-phb-2", "hot", {"celsius": "warm"}, "celsius is 'warm'"),
        ("pcie-phb-2", "link-down", {}, "it has none"),
        ("titan-rtx-nv2", "link-down", {"link": 2}, "no NVLink 2: they are 0, 1"),
        ("titan-rtx-nv2", "p2p-refused", {"kind": "some"}, "choose one of all, read, write, nvlink"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    tmp_path: Path, profile: str, name: str, parameters: dict[str, Any], reported: str
) -> None:
    hardware = plug(profile, tmp_path)
    state = Path(hardware.env()["NODEGAUGE_SIM_HARDWARE"])
    before = state.read_bytes()

    with pytest.raises(HardwareError, match=reported):
        hardware.fault(name, **parameters)

    assert (hardware.faults(), state.read_bytes()) == ([], before)
