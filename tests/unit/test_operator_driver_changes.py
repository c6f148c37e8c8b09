"""Promise 7: no probe while the GPU Operator exchanges the driver or the MIG layout."""

from __future__ import annotations

import pytest

from support import make_node

UPGRADE = "nvidia.com/gpu-driver-upgrade-state"
MIG = "nvidia.com/mig.config.state"


@pytest.mark.parametrize(
    ("labels", "allowed"),
    [
        ({}, True),
        ({UPGRADE: "upgrade-done"}, True),
        ({UPGRADE: "drain-required"}, False),
        ({UPGRADE: "pod-restart-required"}, False),
        ({MIG: "success"}, True),
        ({MIG: "failed"}, True),
        ({MIG: "pending"}, False),
        ({MIG: "rebooting"}, False),
    ],
)
def test_no_run_is_planned_while_the_driver_changes(labels: dict[str, str], allowed: bool) -> None:
    """An open NVML client would block the unload; what was done or has failed is no reason to wait."""
    assert make_node().bearing(labels).may_run is allowed
