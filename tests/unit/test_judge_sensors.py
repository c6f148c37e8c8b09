"""Supplies, rails and fans: only trusted sensors count, and a missing one proves nothing."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Fan, Power, Problem, Result, Sensor, Unavailable
from nodegauge_judge import Answer, Psu, Thresholds
from support.judge_results import Row, Table, check, judge, rows

NONE = Unavailable("the chip has no such limit")


def volts(
    millivolts: float, *, chip: str = "corsairpsu", label: str = "v_out +12v", **more: object
) -> Sensor:
    return Sensor(chip=chip, name="in1", label=label, value=millivolts, **more)  # type: ignore[arg-type]


def node(*sensors: Sensor) -> Result:
    return replace(made.phb(), sensors=list(sensors))


def alarm(chip: str, name: str, **more: Any) -> Sensor:
    return Sensor(chip=chip, name=name, alarm=1, **({"value": 0} | more))


def fans(*each: Fan) -> Result:
    return made.with_gpu(made.phb(), 1, fans=list(each))


FAIL, WARN = "rail/fail", "rail/warn"
OTHER = replace(volts(12_000), chip="corsairpsu2", value=Unavailable("EIO"))
LOOSE = Thresholds.from_spec({"railWarn": 0.1, "railHigh": 0.1, "railLow": 0.12, "fanTarget": 90})
TABLE: Table = {
    "12 V: 5 % either way warns, +5 % and -8 % fail (ATX 3.0)": [
        (node(volts(millivolts)), expected)
        for expected, values in (
            ("", (12_000, 12_600, 11_400)),
            (FAIL, (12_610, 11_030)),
            (WARN, (11_390, 11_040)),
        )
        for millivolts in values
    ],
    "a chip's own limits replace the policy's where they can be a tolerance": [
        (node(volts(millivolts, low=low, high=high)), expected)
        for low, high, millivolts, expected in (
            (11_700, 12_300, 11_600, FAIL),
            (11_700, 12_300, 12_400, FAIL),
            (10_800, 13_200, 11_000, ""),
            (10_800, 13_200, 13_000, ""),
            (8_410, 15_590, 11_000, FAIL),
            (0, 0, 12_000, ""),
            (0, 0, 11_000, FAIL),
            (10_800, NONE, 11_000, ""),
            (10_800, NONE, 12_700, FAIL),
        )
    ],
    "an output of a supply, or a label, is a rail": [
        (node(volts(10_500, chip=chip, label=label)), FAIL)
        for chip, label in {
            "corsairpsu": "v_out +12v",
            "acbel_fsg032": "vout1",
            "pfe1100": "",
            "asus_wmi_sensors": "+12V",
            "hp": "12V",
            "asusec": "+12V1",
        }.items()
    ],
    "a bare number of a mainboard chip, an input and standby are no rail": [
        (node(volts(10_500, chip=chip, label=label)), "")
        for chip, labels in {
            "corsairpsu": ["v_in"],
            "acbel_fsg032": ["vin"],
            "nct6775": [""],
            "it8686": [""],
            "adm1275": ["vout1"],
            "dell": ["12V PG"],
            "asus": ["3.12V", "112V", "12VSB"],
        }.items()
        for label in labels
    ],
    "a 54 V output, a status bit and a dead sensor are no 12 V rail": [
        (node(volts(millivolts, chip="pfe3000", label="vout1")), "", {"rail": Answer.UNSURE})
        for millivolts in (0, 1, 3_300, 5_000, 8_999, 15_001, 54_000, 230_000, -12_000)
    ],
    "a rail is good only if every rail was read": [
        (node(volts(12_000)), "", {"rail": Answer.GOOD}),
        (node(volts(12_000), OTHER), "", {"rail": Answer.UNSURE}),
        (node(), "", {"rail": Answer.UNSURE}),
        (replace(node(volts(12_050)), omitted=["sensors"]), "", {"rail": Answer.UNSURE}),
    ],
    "a rail names its sensor and its limits": (
        node(volts(10_900)),
        FAIL,
        "corsairpsu in1 (v_out +12v): 10.90 V; should be 11.04 to 12.60 V.",
        {"volts": 10.9, "low_volts": 11.04, "high_volts": 12.6},
    ),
    "an alarm of a supply is a fault": (
        node(alarm("acbel_fsg032", "in1", label="vin"), volts(12_100)),
        "psu-fault/fail",
        "acbel_fsg032 in1 (vin): The power supply raises an alarm; it reads 0.00 V.",
        {"psu-fault": Answer.BAD},
    ),
    "output, current, heat and its own fan: the supply is what complains": [
        (node(alarm("ibm_cffps1", name)), "psu-fault/fail")
        for name in ("in2", "curr1", "power1", "temp1", "fan1")
    ],
    "mainboard chips compare with limits that nobody set": [
        (node(*(alarm("nct6775", name, value=16) for name in ("in4", "in5", "fan2"))), "")
    ],
    "a fan at 0 rpm with a high target warns": [
        (fans(Fan(percent=60, target=60, rpm=0)), "fan-stopped/warn"),
        (
            fans(Fan(target=90, rpm=2000), Fan(target=90, rpm=0)),
            "fan-stopped/warn",
            "GPU 1 (0000:10:00.0) fan 1: 0 rpm at a target of 90 %.",
        ),
    ],
    "fans that rest, passive cards and fans without a tachometer are left alone": [
        (fans(fan), "")
        for fan in (
            Fan(percent=59, target=59, rpm=0),
            Fan(percent=0, target=0, rpm=0),
            Fan(percent=80, target=80, rpm=2400),
            Fan(percent=80, target=80),
            Fan(percent=80, rpm=0),
        )
    ],
    "mainboards raise alarms for headers that nothing is plugged into": [
        (node(alarm("dell_smm", "fan2", label="Processor Fan")), "fan-stopped/warn"),
        (node(alarm("emc2305", "fan2")), "fan-stopped/warn"),
        (node(alarm("nct6775", "fan2")), ""),
        (node(alarm("nct6775", "fan2", label="CPU Fan")), "fan-stopped/warn"),
    ],
    "the policy sets tolerances and the fan's target": [
        (judge(result, thresholds=LOOSE), "") for result in (node(volts(10_900)), fans(Fan(target=80, rpm=0)))
    ],
}


@pytest.mark.parametrize("row", rows(TABLE))
def test_a_sensor_is_judged(row: Row) -> None:
    check(*row)


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
        (node(alarm("nct6775", "in4", value=16)), None, Answer.UNSURE),
        (node(alarm("acbel_fsg032", "in1", label="vin"), volts(12_100)), Psu.FAULT, Answer.BAD),
        (ON_MAINS, None, Answer.GOOD),
        (made.every_gpu(made.phb(), power=Power(source=2)), Psu.FAULT, Answer.BAD),
        (made.with_gpu(made.phb(), 0, error=Problem(kind="insufficient-power")), Psu.FAULT, Answer.UNSURE),
        (replace(ON_MAINS, omitted=["sensors"]), None, Answer.UNSURE),
        (replace(node(volts(12_050)), omitted=["sensors"]), None, Answer.UNSURE),
    ],
)
def test_a_supply_is_ok_only_if_all_that_would_tell_of_a_fault_was_read(
    result: Result, psu: Psu | None, answer: Answer
) -> None:
    judgement = judge(result)
    assert (judgement.psu, judgement.answers["psu-fault"]) == (psu, answer)
