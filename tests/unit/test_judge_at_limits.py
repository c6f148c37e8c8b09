"""On which side a value of a BMC at exactly its limit is, and that one that was not read accuses no node."""

from __future__ import annotations

import pytest

from nodegauge_contract.chassis import AirTemperature, ChassisReading, Fan, Rail, Supply
from nodegauge_judge import Answer
from nodegauge_judge.chassis.judge import judge_chassis

GOOD = Supply(name="PSU0", present=True, state="Enabled", health="OK", capacity_watts=2000)


@pytest.mark.parametrize(
    ("reading", "codes"),
    [
        (
            ChassisReading(lists_supplies=True, watts=3900, supplies=[GOOD, Supply(name="PSU1")]),
            ["supplies-unread"],
        ),
        (ChassisReading(fans=[Fan(name="FAN1", health="OK", low_critical_rpm=500)]), []),
        (ChassisReading(air=[AirTemperature(name="Inlet", inlet=True, celsius=45)]), ["inlet-hot"]),
    ],
    ids=["a supply that was not read", "a fan whose speed was not read", "inlet air at exactly its bound"],
)
def test_what_was_not_read_is_not_accused_and_a_bound_is_too_warm(
    reading: ChassisReading, codes: list[str]
) -> None:
    """Two supplies of 2 kW are needed for 3.9 kW; 45 °C is the bound without one of the BMC's own."""
    assert [finding.code for finding in judge_chassis(reading).findings] == codes


def test_a_rail_that_was_not_read_clears_no_gate() -> None:
    rails = [Rail(name="12V", volts=12.0), Rail(name="12V GPU")]
    judgement = judge_chassis(ChassisReading(lists_supplies=True, supplies=[GOOD], rails=rails))
    assert judgement.answers["chassis-rail"] is Answer.UNSURE
