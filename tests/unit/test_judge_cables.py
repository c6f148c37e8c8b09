"""Power inventories: what GPUs may draw against what their slot and cables carry, and the supply's watts."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Power, Result, Unavailable
from nodegauge_judge import Judgement, NodeFacts, Verdict, judge_health
from nodegauge_judge.power_inventory import PowerInventory
from nodegauge_judge.rule import measured
from support.judge_results import of_what_was_asked

ADDRESS = made.phb().gpus[0].pci
NAME = made.phb().gpus[0].name
EIGHT = {"connector": "8-pin"}


def node(*watts: float | None, most: float | None = None, least: float = 50) -> Result:
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


def judge(result: Result, **inventory: Any) -> Judgement:
    judgement = judge_health(result, node=NodeFacts(power=PowerInventory.of_file(inventory)))
    return of_what_was_asked(judgement)


def codes(judgement: Judgement) -> list[str]:
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
    """A cable carries what its one plug at the supply carries, however many plugs it has at the card; an
    adapter's plugs are 8-pin.  At what they carry nothing is wrong; one watt above warns."""
    entry = {"gpu": "0", "sockets": sockets}
    other = {"gpu": "1", "sockets": [plug("12VHPWR", watts=600)] * 3}
    assert "cable-watts/warn" not in codes(judge(node(carried, 75), gpus=[entry, other]))
    judgement = judge(node(carried + 1, 75), gpus=[entry, other])
    assert judgement.verdict is Verdict.WARN
    (finding,) = [one for one in judgement.findings if one.code == "cable-watts"]
    assert finding.evidence == {"limit_watts": carried + 1, "cable_watts": carried}
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
def test_a_limit_that_could_be_raised_is_information(
    limit: float | None, most: float | None, expected: list[str]
) -> None:
    assert codes(judge(node(limit, most=most), gpus=[{"gpu": "*", "sockets": [EIGHT]}])) == expected


def test_a_limit_that_cannot_go_low_enough_is_said() -> None:
    (finding,) = judge(node(300, least=250), gpus=[{"gpu": "*", "sockets": [EIGHT]}]).findings
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
    judgement = judge(node(76, 75), gpus=entries)
    assert codes(judgement) == ["cable-watts/warn"]
    (finding,) = [one for one in judgement.findings if one.code == "cable-watts"]
    assert (finding.gpus[0].index, finding.evidence.get("also")) == (0, None)


def test_the_first_matching_entry_applies() -> None:
    entries = [{"gpu": "1", "sockets": []}, {"gpu": "*", "sockets": [plug("8-pin", "a")]}]
    judgement = judge(node(225), gpus=entries)
    assert codes(judgement) == ["cable-watts/warn"]
    assert judgement.findings[0].gpus[0].index == 1


def test_a_shared_cable_is_said() -> None:
    pigtail = judge(node(225), gpus=[{"gpu": "*", "sockets": [plug("8-pin", "a"), plug("8-pin", "a")]}])
    assert codes(pigtail) == ["cable-shared/info"]
    assert "Cable a feeds 2 of its plugs" in pigtail.findings[0].message
    entries = [{"gpu": str(index), "sockets": [plug("8-pin", "b")]} for index in range(2)]
    across = judge(node(151), gpus=entries)
    assert codes(across) == ["cable-watts/warn", "cable-shared/info"]
    assert across.findings[0].evidence["cable_watts"] == 150
    assert "Cable b feeds also GPU 1" in across.findings[1].message


@pytest.mark.parametrize(
    ("supply", "rest", "limits", "expected"),
    [
        (1000, 300, (300, 300), []),
        (1000, 301, (300, 300), ["supply-watts/warn"]),
        (1000, 300, (300, None), ["power-inventory/info"]),
        (1000, 700, (300, None), ["supply-watts/warn", "power-inventory/info"]),
    ],
)
def test_a_supply_needs_watts_to_spare(
    supply: int, rest: int, limits: tuple[float | None, ...], expected: list[str]
) -> None:
    """All limits and the rest may take nine tenths of the supply; what was not read is not guessed."""
    assert codes(judge(node(*limits), supplyWatts=supply, otherWatts=rest)) == expected


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
    judgement = judge(node(75), gpus=entries)
    assert codes(judgement) == ["power-inventory/info"]
    assert part in judgement.findings[0].message
    assert judgement.verdict is Verdict.PASS


def test_what_was_not_read_is_not_called_absent() -> None:
    result = made.with_gpu(node(400, 75), 0, uuid=Unavailable("NVML"))
    judgement = judge(result, gpus=[{"gpu": made.uuid(0)}, {"gpu": "*", "sockets": [EIGHT]}])
    assert "cable-watts/warn" not in codes(judgement)
    assert not any("no such GPU" in measured(one) for one in judgement.findings)


@pytest.mark.parametrize("power", [None, PowerInventory()])
def test_without_an_inventory_nothing_is_judged(power: PowerInventory | None) -> None:
    assert codes(judge_health(node(900, most=1000), node=NodeFacts(power=power))) == []
    assert codes(judge_health(node(None), node=NodeFacts(power=power))) == []
    assert codes(judge(replace(node(75), gpus=[]), gpus=[{"gpu": "0"}], supplyWatts=10, otherWatts=10)) == []


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
