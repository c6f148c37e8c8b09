"""Every fault shows through pynvml or sysfs, is refused where it cannot be, and can be healed."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed import profiles
from testbed.hardware import FAULTS, HardwareError
from testbed.hardware.machine import Machine


def test_the_page_of_the_demo_counts_the_faults_right() -> None:
    page = (Path(__file__).parents[2] / "docs/demo.md").read_text("utf-8")
    assert f"the {len(FAULTS)} faults" in page


@pytest.mark.parametrize("profile", profiles.names())
def test_a_fault_either_fits_a_machine_or_is_refused_in_words(profile: str) -> None:
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
