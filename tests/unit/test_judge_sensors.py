"""Supplies, rails and fans: only trusted sensors count, and a missing one proves nothing."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Fan, Power, Result, Sensor, Unavailable
from nodegauge_judge import Answer, Psu, Thresholds, ThresholdsInvalid, judge_health
from support.judge_results import codes, only

NONE = Unavailable("the chip has no such limit")


def volts(
    millivolts: float, *, chip: str = "corsairpsu", label: str = "v_out +12v", **more: object
) -> Sensor:
    """A 12 V reading of a power supply."""
    return Sensor(chip=chip, name="in1", label=label, value=millivolts, **more)  # type: ignore[arg-type]


def node(*sensors: Sensor) -> Result:
    """Two healthy GPUs beside these sensors."""
    return replace(made.phb(), sensors=list(sensors))


@pytest.mark.parametrize(
    ("millivolts", "expected"),
    [
        (12_000, []),
        (12_600, []),
        (12_610, ["rail/fail"]),
        (11_400, []),
        (11_390, ["rail/warn"]),
        (11_040, ["rail/warn"]),
        (11_030, ["rail/fail"]),
    ],
)
def test_twelve_volts_have_the_tolerance_of_the_connector(millivolts: int, expected: list[str]) -> None:
    """5 % either way warns, +5 % and -8 % fail (ATX 3.0)."""
    assert codes(judge_health(node(volts(millivolts)))) == expected


@pytest.mark.parametrize(
    ("low", "high", "millivolts", "expected"),
    [
        (11_700, 12_300, 11_600, ["rail/fail"]),
        (11_700, 12_300, 12_400, ["rail/fail"]),
        (10_800, 13_200, 11_000, []),
        (10_800, 13_200, 13_000, []),
        (8_410, 15_590, 11_000, ["rail/fail"]),
        (0, 0, 12_000, []),
        (0, 0, 11_000, ["rail/fail"]),
        (10_800, NONE, 11_000, []),
        (10_800, NONE, 12_700, ["rail/fail"]),
    ],
)
def test_a_chips_own_tolerance_replaces_the_policys(
    low: int, high: int | Unavailable, millivolts: int, expected: list[str]
) -> None:
    """Where a chip has limits that can be a tolerance; switch-off points and zeroes are none."""
    assert codes(judge_health(node(volts(millivolts, low=low, high=high)))) == expected


RAILS = [
    *(
        ("corsairpsu", "v_out +12v"),
        ("acbel_fsg032", "vout1"),
        ("ibm_cffps1", "vout1"),
        ("bpa-rs600", "vout1"),
    ),
    *(("pfe1100", ""), ("asus_wmi_sensors", "+12V"), ("hp", "12V"), ("asusec", "+12V1")),
]
NO_RAILS = [
    *(("corsairpsu", "v_in"), ("acbel_fsg032", "vin"), ("nct6775", ""), ("nct6798", "in1"), ("it8686", "")),
    *(("adm1275", "vout1"), ("ina226", ""), ("dell", "12V PG"), ("asus", "3.12V"), ("asus", "112V")),
    ("asus", "12VSB"),
]


@pytest.mark.parametrize(
    ("chip", "label", "is_rail"), [(*one, True) for one in RAILS] + [(*one, False) for one in NO_RAILS]
)
def test_only_supply_outputs_and_12_volt_labels_are_rails(chip: str, label: str, is_rail: bool) -> None:
    """An output of a supply, or a label; a bare number of a mainboard chip is never taken for one."""
    low = judge_health(node(volts(10_500, chip=chip, label=label)))
    assert ("rail/fail" in codes(low)) is is_rail


@pytest.mark.parametrize("millivolts", [0, 1, 3_300, 5_000, 8_999, 15_001, 54_000, 230_000, -12_000])
def test_implausible_voltages_are_not_a_12_volt_rail(millivolts: int) -> None:
    """A supply's 54 V output, a status bit, a dead sensor."""
    judgement = judge_health(node(volts(millivolts, chip="pfe3000", label="vout1")))
    assert (codes(judgement), judgement.answers["rail"]) == ([], Answer.UNSURE)


def test_a_rail_is_good_only_if_every_rail_was_read() -> None:
    """A second supply that went mute may be the one that sags."""
    other = replace(volts(12_000), chip="corsairpsu2", value=Unavailable("EIO"))
    assert judge_health(node(volts(12_000))).answers["rail"] is Answer.GOOD
    assert judge_health(node(volts(12_000), other)).answers["rail"] is Answer.UNSURE
    assert judge_health(node()).answers["rail"] is Answer.UNSURE
    late = replace(node(volts(12_050)), omitted=["sensors"])
    assert judge_health(late).answers["rail"] is Answer.UNSURE


def test_a_rail_names_its_sensor_and_its_limits() -> None:
    """What was measured, against what."""
    finding = only(judge_health(node(volts(10_900))))
    assert finding.subject == "corsairpsu in1 (v_out +12v)"
    assert finding.message.startswith("10.90 V; should be 11.04 to 12.60 V.")
    assert finding.evidence == {"volts": 10.9, "low_volts": 11.04, "high_volts": 12.6}


def test_an_alarm_of_a_supply_is_a_fault() -> None:
    """The finding, the gate's answer and the label say the same."""
    alarm = Sensor(chip="acbel_fsg032", name="in1", label="vin", value=0, alarm=1)
    judgement = judge_health(node(alarm, volts(12_100)))
    assert codes(judgement) == ["psu-fault/fail"]
    assert (judgement.psu, judgement.answers["psu-fault"]) == (Psu.FAULT, Answer.BAD)
    assert only(judgement).subject == "acbel_fsg032 in1 (vin)"
    assert "The power supply raises an alarm; it reads 0.00 V." in only(judgement).message


@pytest.mark.parametrize("name", ["in2", "curr1", "power1", "temp1", "fan1"])
def test_every_kind_of_alarm_of_a_supply_counts(name: str) -> None:
    """Output, current, heat and its own fan: the supply is what complains."""
    alarm = Sensor(chip="ibm_cffps1", name=name, value=1, alarm=1)
    assert codes(judge_health(node(alarm))) == ["psu-fault/fail"]


def test_alarms_of_mainboard_chips_do_not_count() -> None:
    """SuperIO chips compare with limits that nobody set."""
    noise = [Sensor(chip="nct6775", name=name, value=16, alarm=1) for name in ("in4", "in5", "fan2")]
    judgement = judge_health(node(*noise))
    assert (codes(judgement), judgement.psu) == ([], None)


MUTE = Sensor(chip="corsairpsu", name="in0", label="v_in", value=Unavailable("EIO"))
ON_MAINS = made.every_gpu(made.phb(), power=Power(source=0))


@pytest.mark.parametrize(
    ("result", "psu", "answer"),
    [
        (node(), None, Answer.UNSURE),
        (node(MUTE), None, Answer.UNSURE),
        (node(volts(12_050), MUTE), None, Answer.UNSURE),
        (node(volts(12_000, chip="asus_wmi_sensors", label="+12V")), None, Answer.UNSURE),
        (node(volts(11_300)), None, Answer.GOOD),
        (node(volts(12_050)), Psu.OK, Answer.GOOD),
        (ON_MAINS, None, Answer.GOOD),
        (replace(ON_MAINS, omitted=["sensors"]), None, Answer.UNSURE),
        (replace(node(volts(12_050)), omitted=["sensors"]), None, Answer.UNSURE),
    ],
)
def test_a_supply_is_ok_only_if_all_that_would_tell_of_a_fault_was_read(
    result: Result, psu: Psu | None, answer: Answer
) -> None:
    """No sensor, a mute one, some that were not read in time, a rail that is off; NVML's power source answers
    alone where there is no sensor."""
    judgement = judge_health(result)
    assert (judgement.psu, judgement.answers["psu-fault"]) == (psu, answer)


@pytest.mark.parametrize(
    ("fan", "expected"),
    [
        (Fan(percent=60, target=60, rpm=0), ["fan-stopped/warn"]),
        (Fan(percent=59, target=59, rpm=0), []),
        (Fan(percent=0, target=0, rpm=0), []),
        (Fan(percent=80, target=80, rpm=2400), []),
        (Fan(percent=80, target=80), []),
        (Fan(percent=80, rpm=0), []),
    ],
)
def test_a_fan_at_0_rpm_with_a_high_target_warns(fan: Fan, expected: list[str]) -> None:
    """Fans that rest, passive cards and fans without a tachometer are left alone."""
    assert codes(judge_health(made.with_gpu(made.phb(), 0, fans=[fan]))) == expected


def test_a_fan_is_named_with_its_gpu() -> None:
    """GPU and number of the fan."""
    fans = [Fan(target=90, rpm=2000), Fan(target=90, rpm=0)]
    finding = only(judge_health(made.with_gpu(made.phb(), 1, fans=fans)))
    assert finding.subject == "GPU 1 (0000:10:00.0) fan 1"
    assert finding.message.startswith("0 rpm at a target of 90 %.")


@pytest.mark.parametrize(
    ("chip", "label", "expected"),
    [
        ("dell_smm", "Processor Fan", ["fan-stopped/warn"]),
        ("emc2305", "", ["fan-stopped/warn"]),
        ("nct6775", "", []),
        ("nct6775", "CPU Fan", ["fan-stopped/warn"]),
    ],
)
def test_fan_alarms_count_only_for_connected_fans(chip: str, label: str, expected: list[str]) -> None:
    """Mainboards raise alarms for headers that nothing is plugged into."""
    alarm = Sensor(chip=chip, name="fan2", label=label, value=0, alarm=1)
    assert codes(judge_health(node(alarm))) == expected


def test_the_policy_sets_tolerances_and_fan_targets() -> None:
    """Tolerances and the fan's target are fields."""
    loose = Thresholds.of({"railWarn": 0.1, "railHigh": 0.1, "railLow": 0.12, "fanTarget": 90})
    assert codes(judge_health(node(volts(10_900)), thresholds=loose)) == []
    fan = made.with_gpu(made.phb(), 0, fans=[Fan(target=80, rpm=0)])
    assert codes(judge_health(fan, thresholds=loose)) == []
    with pytest.raises(ThresholdsInvalid, match="railLow"):
        Thresholds.of({"railLow": 7})
