"""`testbed faults`: what a fault needs to be seen follows from what it does and from the matrix's table."""

from __future__ import annotations

import pytest

from testbed.matrix.needs import able, needs


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("nccl-wrong-data", ["an NCCL run"]),
        ("bit-flips", ["a load run"]),
        ("supply-failed", ["a BMC"]),
        ("thermal-slowdown", ["GPU load", "2 runs"]),
        ("gpu-lost", ["a run"]),
        ("device-unhealthy", []),
    ],
)
def test_a_fault_says_what_shows_it(fault: str, expected: list[str]) -> None:
    assert needs()[fault] == expected
    assert able(fault, "h100-sxm-8")


def test_a_machine_without_a_bmc_cannot_have_a_failed_supply() -> None:
    assert not able("supply-failed", "titan-rtx-nv2")
