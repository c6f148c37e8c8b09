"""Supplies, rails and fans by trusted sensors, and what slot, cables and supply carry."""

import re
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Fan, Power, Problem, Result, Sensor, Unavailable
from nodegauge_judge import CATALOGUE, Answer, Judgement, NodeFacts, Psu, Thresholds, Verdict, judge_health
from nodegauge_judge.power_inventory import PowerInventory
from nodegauge_judge.rule import measured
from support.judge_results import Row, Table, check, judge, of_what_was_asked, rows

NONE = Unavailable("the chip has no such limit")


def volts(millivolts: float, *, chip: str = "corsairpsu", label: str = "v_out +12v", **more: Any) -> Sensor:
    return Sensor(chip=chip, name="in1", label=label, value=millivolts, **more)  # type: ignore[arg-type]


def node(*sensors: Sensor) -> Result:
    return replace(made.phb(), sensors=list(sensors))


def alarm(chip: str, name: str, **more: Any) -> Sensor:
    return Sensor(chip=chip, name=name, alarm=1, **({"value": 0} | more))


def fans(*each: Fan) -> Result:
    return made.with_gpu(made.phb(), 1, fans=list(each))


FAIL, WARN, WARNS = "rail/fail", "rail/warn", (11_390, 11_040)
OTHER = replace(volts(12_000), chip="corsairpsu2", value=Unavailable("EIO"))
LOOSE = Thresholds.from_spec({"railWarn": 0.1, "railHigh": 0.1, "railLow": 0.12, "fanTarget": 90})
TABLE: Table = {
    "12 V: 5 % either way warns, +5 % and -8 % fail (ATX 3.0)": [
        (node(volts(millivolts)), expected)
        for expected, values in (("", (12_000, 12_600, 11_400)), (FAIL, (12_610, 11_030)), (WARN, WARNS))
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
        (made.with_gpu(made.phb(), 0, error=Problem(kind="insufficient-power")), None, Answer.UNSURE),
        (replace(ON_MAINS, omitted=["sensors"]), None, Answer.UNSURE),
        (replace(node(volts(12_050)), omitted=["sensors"]), None, Answer.UNSURE),
    ],
)
def test_a_supply_is_ok_only_if_all_that_would_tell_of_a_fault_was_read(
    result: Result, psu: Psu | None, answer: Answer
) -> None:
    judgement = judge(result)
    assert (judgement.psu, judgement.answers["psu-fault"]) == (psu, answer)


ADDRESS = made.phb().gpus[0].pci
NAME = made.phb().gpus[0].name
EIGHT = {"connector": "8-pin"}


def limited(*watts: float | None, most: float | None = None, least: float = 50) -> Result:
    result = made.phb()
    for position in range(len(result.gpus)):
        limit = watts[min(position, len(watts) - 1)]
        power = Power(
            enforced_limit_mw=Unavailable("NVML") if limit is None else round(limit * 1000),
            default_limit_mw=Unavailable("NVML") if limit is None else round(limit * 1000),
            max_limit_mw=Unavailable("NVML") if most is None else round(most * 1000),
            min_limit_mw=round(least * 1000),
        )
        result = made.with_gpu(result, position, power=power, window=None)
    return result


def wired(result: Result, **inventory: Any) -> Judgement:
    judgement = judge_health(result, node=NodeFacts(power=PowerInventory.of_file(inventory)))
    return of_what_was_asked(judgement)


def of_power(judgement: Judgement) -> list[str]:
    ours = ("cable-watts", "cable-shared", "supply-watts", "power-inventory")
    return [f"{one.code}/{one.severity}" for one in judgement.findings if one.code in ours]


def plug(connector: str, *cables: str, watts: int = 0) -> dict[str, Any]:
    return {"connector": connector, "watts": watts, "cables": list(cables)}


@pytest.mark.parametrize(
    ("sockets", "carried"),
    [
        ([], 75),
        ([plug("6-pin")], 150),
        ([plug("8-pin")], 225),
        ([plug("8-pin", "a"), plug("8-pin", "b")], 375),
        ([plug("8-pin", "a"), plug("8-pin", "a")], 225),
        ([plug("8-pin", "a"), plug("6-pin", "a")], 225),
        ([plug("12-pin", watts=300)], 375),
        ([plug("12VHPWR", "a", watts=600)], 675),
        ([plug("12V-2x6", watts=450), plug("12V-2x6", watts=450)], 975),
        ([plug("12VHPWR", "a", "b", "c", "d", watts=600)], 675),
        ([plug("12VHPWR", "a", "b", "c", "d", watts=450)], 525),
        ([plug("12VHPWR", "a", "a", "b", "b", watts=600)], 375),
    ],
)
def test_slot_and_cables_carry_so_much(sockets: list[Any], carried: int) -> None:
    """A cable carries what its one plug at the supply carries; an adapter's plugs are 8-pin."""
    entry = {"gpu": "0", "sockets": sockets}
    other = {"gpu": "1", "sockets": [plug("12VHPWR", watts=600)] * 3}
    assert "cable-watts/warn" not in of_power(wired(limited(carried, 75), gpus=[entry, other]))
    judgement = wired(limited(carried + 1, 75), gpus=[entry, other])
    assert judgement.verdict is Verdict.WARN
    (finding,) = [one for one in judgement.findings if one.code == "cable-watts"]
    assert finding.evidence == {"limit_watts": carried + 1, "cable_watts": carried, "lower_watts": carried}
    assert f"`nvidia-smi -pl {carried} -i 0`" in finding.message
    assert finding.gpus[0].index == 0


@pytest.mark.parametrize(
    ("limit", "most", "expected"),
    [
        (225, 225, []),
        (225, 226, ["cable-watts/info"]),
        (226, 300, ["cable-watts/warn"]),
        (225, None, []),
        (None, 300, ["power-inventory/info"]),
        (0, 300, ["power-inventory/info"]),
    ],
)
def test_a_raisable_limit_informs(limit: float | None, most: float | None, expected: list[str]) -> None:
    assert of_power(wired(limited(limit, most=most), gpus=[{"gpu": "*", "sockets": [EIGHT]}])) == expected
    (finding,) = wired(limited(300, least=250), gpus=[{"gpu": "*", "sockets": [EIGHT]}]).findings
    assert "no limit below 250 W" in finding.message


@pytest.mark.parametrize("key", ["index", "uuid", "UUID", "pci", "PCI", "short", "model", "MODEL"])
def test_an_entry_names_its_gpu_by_index_uuid_address_or_model(key: str) -> None:
    domain, _, slot = str(ADDRESS).partition(":")
    forms = {
        "uuid": made.uuid(0),
        "UUID": "GPU-" + made.uuid(0)[4:].upper(),
        "pci": str(ADDRESS),
        "PCI": f"0000{domain}:{slot}".upper(),
        "short": slot,
        "model": str(NAME),
        "MODEL": f"*{str(NAME)[3:].upper()}",
    }
    entries = [{"gpu": forms.get(key, "0"), "sockets": []}]
    if not key.lower().startswith("model"):
        entries.append({"gpu": "1", "sockets": [EIGHT, EIGHT]})
    judgement = wired(limited(76, 75), gpus=entries)
    assert of_power(judgement) == ["cable-watts/warn"]
    (finding,) = [one for one in judgement.findings if one.code == "cable-watts"]
    assert (finding.gpus[0].index, finding.evidence.get("also")) == (0, None)


def test_a_shared_cable_is_said() -> None:
    pigtail = wired(limited(225), gpus=[{"gpu": "*", "sockets": [plug("8-pin", "a"), plug("8-pin", "a")]}])
    assert of_power(pigtail) == ["cable-shared/info"]
    assert "Cable a feeds 2 of its plugs" in pigtail.findings[0].message
    entries = [{"gpu": str(index), "sockets": [plug("8-pin", "b")]} for index in range(2)]
    across = wired(limited(151), gpus=entries)
    assert of_power(across) == ["cable-watts/warn", "cable-shared/info"]
    assert across.findings[0].evidence["cable_watts"] == 150
    assert "Cable b feeds also GPU 1" in across.findings[1].message


@pytest.mark.parametrize(
    ("rest", "limits", "expected", "advised"),
    [
        (300, (300, 300), [], ""),
        (301, (300, 300), ["supply-watts/warn"], "`nvidia-smi -pl 299`"),
        (850, (300, 300), ["supply-watts/warn"], ""),
        (300, (300, None), ["power-inventory/info"], ""),
        (700, (300, None), ["supply-watts/warn", "power-inventory/info"], "`nvidia-smi -pl 100`"),
    ],
)
def test_a_supply_needs_watts_to_spare(
    rest: int, limits: tuple[float | None, ...], expected: list[str], advised: str
) -> None:
    """The advice has the limit for all GPUs; none that no driver takes."""
    judgement = wired(limited(*limits), supplyWatts=1000, otherWatts=rest)
    assert of_power(judgement) == expected
    steps = " ".join(step for each in judgement.findings for step in CATALOGUE[each.code].steps(each))
    assert re.findall("`nvidia-smi -pl [^`]*`", steps) == [advised] * bool(advised)


@pytest.mark.parametrize(
    ("entries", "part"),
    [
        ([{"gpu": "*"}, {"gpu": "7"}], "powerInventory.gpus[1].gpu is '7', and this node has no such GPU"),
        ([{"gpu": "*"}, {"gpu": made.uuid(9)}], "powerInventory.gpus[1].gpu"),
        ([{"gpu": "*"}, {"gpu": "0"}], "an earlier entry"),
        ([{"gpu": "0"}], "No entry of powerInventory.gpus is about it"),
    ],
)
def test_an_entry_without_a_gpu_and_a_gpu_without_an_entry_are_said(entries: list[Any], part: str) -> None:
    judgement = wired(limited(75), gpus=entries)
    assert of_power(judgement) == ["power-inventory/info"]
    assert part in judgement.findings[0].message
    assert judgement.verdict is Verdict.PASS


def test_what_was_not_read_is_not_called_absent() -> None:
    result = made.with_gpu(limited(400, 75), 0, uuid=Unavailable("NVML"))
    judgement = wired(result, gpus=[{"gpu": made.uuid(0)}, {"gpu": "*", "sockets": [EIGHT]}])
    assert "cable-watts/warn" not in of_power(judgement)
    assert not any("no such GPU" in measured(one) for one in judgement.findings)


@pytest.mark.parametrize("power", [None, PowerInventory()])
def test_without_an_inventory_nothing_is_judged(power: PowerInventory | None) -> None:
    assert of_power(judge_health(limited(900, most=1000), node=NodeFacts(power=power))) == []
    assert of_power(judge_health(limited(None), node=NodeFacts(power=power))) == []
    empty = replace(limited(75), gpus=[])
    assert of_power(wired(empty, gpus=[{"gpu": "0"}], supplyWatts=10, otherWatts=10)) == []


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("gpus: [{gpu: 0}]", ("gpus[0].gpu", "quotes")),
        ("gpus: [{gpu: 0000:01:00.0}]", ("gpus[0].gpu", "quotes")),
        ("gpus: [{gpu: '01:00'}]", ("gpus[0]", "PCI address")),
        ("gpus: [{gpu: ''}]", ("gpus[0].gpu",)),
        ("gpus: [{sockets: []}]", ("gpus[0]", "gpu")),
        ("gpus: [{gpu: '0', sockets: [{connector: 7-pin}]}]", ("sockets[0].connector",)),
        ("gpus: [{gpu: '0', sockets: [{connector: 12VHPWR}]}]", ("sockets[0]", "watts")),
        ("gpus: [{gpu: '0', sockets: [{connector: 12-pin, watts: 500}]}]", ("sockets[0]", "watts")),
        ("gpus: [{gpu: '0', sockets: [{connector: 8-pin, watts: 150}]}]", ("sockets[0]", "watts")),
        ("gpus: [{gpu: '0', sockets: [{connector: 8-pin, cables: [a, b]}]}]", ("sockets[0]", "cables")),
        ("gpus: [{gpu: '0', slotWatts: 76}]", ("gpus[0].slotWatts",)),
        ("gpus: [{gpu: '0', socket: []}]", ("gpus[0].socket",)),
        ("supplyWatts: 1000", ("supplyWatts", "otherWatts")),
        ("suplyWatts: 1000", ("suplyWatts",)),
        ("[]", ("object",)),
    ],
)
def test_nonsense_is_refused_by_its_field(text: str, parts: tuple[str, ...]) -> None:
    with pytest.raises(ValueError) as error:
        PowerInventory.of_file(yaml.safe_load(text))
    for part in parts:
        assert part in str(error.value)
