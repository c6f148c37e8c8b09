"""Every recorded BMC with every fault that it can have."""

from __future__ import annotations

import pytest

from corpus.bmc.table import MACHINES, WRONG, judged


@pytest.mark.parametrize("machine", MACHINES)
def test_no_fault_passes_and_no_healthy_machine_warns(machine: str) -> None:
    assert [cell for cell in judged(machine) if cell.answer == WRONG] == []
