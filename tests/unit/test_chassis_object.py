"""ChassisReading as the operator reads it: whatever somebody wrote into it, and of any size."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from nodegauge_contract.chassis import BoardGpu, ChassisReading, Supply
from nodegauge_judge import Verdict
from nodegauge_judge.chassis.judge import judge_chassis
from nodegauge_operator.api.chassis import MAX_READING, parse_chassis


def body(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "gpu-1", "uid": "u", "resourceVersion": "7"}, "status": status}


def test_a_reading_comes_back_as_it_was_written() -> None:
    reading = ChassisReading(supplies=[Supply(name="PSU1", health="OK", capacity_watts=3300)])
    parsed = parse_chassis(body(number=3, source="redfish", reading=msgspec.to_builtins(reading)))
    assert (parsed.name, parsed.uid, parsed.resource_version) == ("gpu-1", "u", "7")
    assert (parsed.reading, parsed.status.number, parsed.left_out) == (reading, 3, ())


def test_a_wrong_part_is_left_out_and_named() -> None:
    parsed = parse_chassis(
        body(number=-1, problem="x", reading={"supplies": [{"name": 7}, {"name": "PSU2"}]})
    )
    assert parsed.reading is not None
    assert [one.name for one in parsed.reading.supplies] == ["PSU2"]
    assert (parsed.status.number, parsed.status.problem) == (0, "x")
    assert [one.partition(":")[0] for one in parsed.left_out][1:] == ["reading", "reading"]


def test_what_is_no_reading_counts_as_none() -> None:
    large = {"supplies": [{"name": "P" * 100}] * (MAX_READING // 100)}
    for wrong, why in ((large, "bytes"), ({"major": 2}, "version 2"), ([1], "not an object")):
        parsed = parse_chassis(body(reading=wrong))
        assert parsed.reading is None
        assert why in parsed.left_out[0]
    for empty in ({}, {"status": None}, {"status": []}):
        assert parse_chassis({"metadata": {"name": "n"}} | empty).reading is None


@pytest.mark.parametrize("absurd", [1.7e308, 2e6, 1e-300, 0.5, -800, -1.7e308])
@pytest.mark.parametrize("where", ["capacity_watts", "output_watts", "watts", "gpus"])
def test_watts_that_no_machine_has_were_not_read(absurd: float, where: str) -> None:
    supply: dict[str, Any] = {"capacity_watts": 3000, "output_watts": 900}
    machine: dict[str, Any] = {"watts": 1800} if where != "output_watts" else {}
    gpus = [BoardGpu(name="GPU0", watts=300, limit_watts=absurd if where == "gpus" else 700)]
    if where in supply:
        supply[where] = absurd
    elif where == "watts":
        machine[where] = absurd
    one = Supply(name="PSU", present=True, state="Enabled", health="OK", **supply)
    judged = judge_chassis(ChassisReading(supplies=[one, one], gpus=gpus, **machine))
    assert judged.verdict is Verdict.PASS
    numbers = (judged.load_watts, judged.peak_watts, judged.capacity_watts, judged.needed)
    assert all(number is None or 0 < number < 10_000 for number in numbers)
    expected = {"capacity_watts": judged.capacity_watts, "gpus": judged.peak_watts}
    assert expected.get(where) is None
