"""On which side a value at exactly its limit is, and that one that could not be read accuses no node."""

from __future__ import annotations

from nodegauge_contract.chassis import AirTemperature, ChassisReading, Fan, Rail, Supply
from nodegauge_judge import Answer, Severity, Thresholds
from nodegauge_judge.chassis.judge import judge_chassis
from nodegauge_judge.load_rules.judge import judge_load
from support.load_results import SAMPLES, reason, spoilt


def test_exactly_the_tolerated_share_of_slowdown_is_no_finding() -> None:
    """Three samples of 120 at a share of 0.025."""
    limits = Thresholds(load_throttle_warn_share=3 / SAMPLES)
    judgement = judge_load(spoilt(reasons=reason(0x80, samples=3, first_ms=500)), thresholds=limits)
    assert judgement.findings == []


def test_exactly_the_tolerated_share_of_speed_warns() -> None:
    """Half of the siblings' TFLOPS at a share of 0.5; only less fails."""
    judgement = judge_load(spoilt(tflops=305.0), thresholds=Thresholds(load_slow_fail=0.5))
    assert [(one.code, one.severity) for one in judgement.findings] == [("load-slow-gpu", Severity.WARN)]


def test_a_supply_that_the_bmc_did_not_read_is_not_missing() -> None:
    """Two of 2 kW are needed for 3.9 kW, and one of them is only listed."""
    read = Supply(name="PSU0", present=True, state="Enabled", health="OK", capacity_watts=2000)
    reading = ChassisReading(lists_supplies=True, watts=3900, supplies=[read, Supply(name="PSU1")])
    judgement = judge_chassis(reading)
    assert "supplies-short" not in [finding.code for finding in judgement.findings]


def test_a_rail_that_was_not_read_clears_no_gate() -> None:
    """One good rail says nothing of the other."""
    rails = [Rail(name="12V", volts=12.0), Rail(name="12V GPU")]
    supply = Supply(name="PSU0", present=True, state="Enabled", health="OK")
    judgement = judge_chassis(ChassisReading(lists_supplies=True, supplies=[supply], rails=rails))
    assert judgement.answers["chassis-rail"] is Answer.UNSURE


def test_a_fan_whose_speed_was_not_read_is_not_too_slow() -> None:
    """It has a lower bound, and no reading."""
    fans = [Fan(name="FAN1", health="OK", low_critical_rpm=500)]
    assert judge_chassis(ChassisReading(fans=fans)).findings == []


def test_inlet_air_at_exactly_its_bound_warns() -> None:
    """The bound itself is too warm: 45 °C without one of the BMC's own."""
    air = [AirTemperature(name="Inlet", inlet=True, celsius=45)]
    assert [one.code for one in judge_chassis(ChassisReading(air=air)).findings] == ["inlet-hot"]
