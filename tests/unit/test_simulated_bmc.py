"""The BMC of a simulated machine, read by the real reader over HTTPS: healthy and with each fault."""

from pathlib import Path

import pytest

from nodegauge_judge import Psu
from nodegauge_judge.chassis.judge import judge_chassis
from support.bmc_access import Bmcs, codes
from testbed import profiles
from testbed.hardware import plug
from testbed.hardware.bmcs import tree_of

pytestmark = pytest.mark.slow
WITH_BMC = [name for name in profiles.names() if profiles.load(name).chassis is not None]
H100, TWO, FOUR, RACK = "h100-sxm-8", "hgx-a100-4", "l40s-4", "gb200-4"

FAULTS: list[tuple[str, str, int, set[str], Psu | None]] = [
    (H100, "supply-failed", 0, {"supply-failed"}, Psu.REDUNDANCY_LOST),
    (TWO, "supply-input-lost", 100, {"supply-no-input", "redundancy-lost"}, Psu.REDUNDANCY_LOST),
    (TWO, "supply-removed", 0, {"redundancy-lost"}, Psu.REDUNDANCY_LOST),
    (H100, "weak-supply", 100, {"chassis-rail"}, Psu.FAULT),
    (FOUR, "chassis-fan-stopped", 0, {"fan-failed"}, Psu.OK),
    (RACK, "inlet-hot", 0, {"inlet-hot"}, None),
    (RACK, "leak", 0, {"leak"}, None),
]
"""Profile, fault, load, codes of the findings, and the supplies in one word."""


@pytest.mark.parametrize("profile", WITH_BMC)
async def test_a_healthy_machine_has_no_finding(profile: str, bmcs: Bmcs, tmp_path: Path) -> None:
    hardware = plug(profile, tmp_path)
    hardware.load(100)
    chassis = hardware.profile.chassis
    reading = await bmcs.reading(tree_of(hardware))
    judgement = judge_chassis(reading)
    assert (codes(judgement), reading.unread) == (set(), [])
    assert len(reading.supplies) == (chassis.supplies.count if chassis.supplies else 0)
    assert len(reading.fans) == chassis.fans
    assert len(reading.gpus) == (len(hardware.profile.gpus) if chassis.board else 0)
    assert judgement.psu == (Psu.OK if chassis.supplies else None)


@pytest.mark.parametrize(("profile", "fault", "load", "findings", "psu"), FAULTS)
async def test_a_fault_has_its_finding_and_no_other(
    profile: str, fault: str, load: int, findings: set[str], psu: Psu | None, bmcs: Bmcs, tmp_path: Path
) -> None:
    hardware = plug(profile, tmp_path)
    hardware.load(load)
    hardware.fault(fault)
    judgement = judge_chassis(await bmcs.reading(tree_of(hardware)))
    assert (codes(judgement), judgement.psu) == (findings, psu), judgement.findings
    hardware.heal()
    assert codes(judge_chassis(await bmcs.reading(tree_of(hardware)))) == set()


async def test_a_board_s_bmc_shows_links_that_are_down(bmcs: Bmcs, tmp_path: Path) -> None:
    hardware = plug(H100, tmp_path)
    hardware.fault("link-down", gpu=3, link=5)
    hardware.fault("driver-mismatch")
    gpus = (await bmcs.reading(tree_of(hardware))).gpus
    assert [gpu.ports_up for gpu in gpus] == [18, 18, 18, 17, 18, 18, 18, 18]
    assert {gpu.port_gbps for gpu in gpus} == {212.496}
