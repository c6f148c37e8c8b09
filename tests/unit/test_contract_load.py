"""Load results on the wire: a message holds those of the largest node, with every number different."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from nodegauge_contract import (
    MESSAGE_LIMIT,
    Growth,
    LoadEnd,
    LoadGpu,
    LoadReason,
    LoadResult,
    LoadSensor,
    Result,
    decode,
    encode,
    encode_message,
)

GOLDEN = Path(__file__).parent.parent / "golden"


def one_gpu(index: int, chance: Random) -> LoadGpu:
    """Every number as a real run has it: none equals its neighbour's."""

    def ns() -> int:
        return chance.randrange(30 * 10**9)

    def gbps(base: float) -> float:
        return round(base * chance.uniform(0.9, 1.1), 1)

    power, hot = chance.randrange(600_000, 700_000), chance.randrange(60, 90)
    return LoadGpu(
        index=index,
        ended=chance.choice(list(LoadEnd)),
        seconds=round(chance.uniform(29, 31), 3),
        samples=chance.randrange(100, 130),
        limit_mw=700_000,
        idle_mw=chance.randrange(60_000, 90_000),
        steady_mw=power + 0.5,
        max_mw=power + chance.randrange(9_000),
        reached_ms=chance.randrange(30_000),
        start_c=chance.randrange(25, 40),
        steady_c=hot + 0.5,
        max_c=hot + 3,
        slope_c_per_min=round(chance.uniform(-3, 30), 1),
        memory_start_c=chance.randrange(25, 40),
        memory_steady_c=hot + 9,
        memory_max_c=hot + 12,
        margin_c=chance.randrange(2, 30),
        stop_margin_c=3,
        sm_mhz=chance.randrange(1_200, 1_980),
        sm_mhz_min=chance.randrange(300, 1_200),
        memory_mhz=2_619,
        generation=5,
        width=16,
        reasons_read=120,
        reasons=[
            LoadReason(
                bit=bit, samples=chance.randrange(120), longest=chance.randrange(60), first_ms=ns() // 10**6
            )
            for bit in (0x4, 0x20, 0x40)
        ],
        growth=Growth(
            elapsed_ms=chance.randrange(36_000, 37_000),
            sw_power_cap_ns=ns(),
            sw_thermal_ns=ns(),
            hw_thermal_ns=ns(),
            power_brake_ns=ns(),
            thermal_violation_ns=ns(),
            energy_mj=chance.randrange(2 * 10**7),
        ),
        kernel="f16-m16n8k16",
        tflops=gbps(650),
        tflops_first=gbps(670),
        memory_gbps=gbps(2_900),
        h2d_gbps=gbps(55),
        d2h_gbps=gbps(52),
        h2d_all_gbps=gbps(28),
        d2h_all_gbps=gbps(26),
        checksum=f"{chance.getrandbits(32):08x}",
        expected="0badcafe",
        checks=chance.randrange(100, 400),
        mismatches=chance.randrange(9),
        memory_mismatches=chance.randrange(9),
    )


def under_load(name: str) -> Result:
    """The identity of a recorded machine, and a load result in which no number equals another."""
    chance = Random(14)
    node = decode((GOLDEN / f"{name}.json").read_text())
    sensors = [
        LoadSensor(
            chip="pmbus",
            name=f"{kind}{n}",
            label=label,
            idle=chance.randrange(11_000, 13_000) * unit,
            loaded=chance.randrange(11_000, 13_000) * unit,
            min=chance.randrange(11_000, 12_000) * unit,
            max=chance.randrange(12_000, 13_000) * unit,
            samples=60,
        )
        for n in range(6)
        for kind, label, unit in (("in", "vout1", 1), ("power", "pin", 100_003), ("power", "pout1", 99_991))
    ]
    gpus = [one_gpu(gpu.index, chance) for gpu in node.gpus]
    load = LoadResult(seconds=30, loaded_seconds=30.123, hz=3.987, expected=16, gpus=gpus, sensors=sensors)
    return replace(node, probe="load", nccl=None, load=load)


@pytest.mark.parametrize("name", ["result-1.2-h100-nccl", "result-1.2-dgx2-nccl"])
def test_a_message_holds_a_whole_load(name: str) -> None:
    """Eight and sixteen GPUs, six supplies, every number different: nothing is dropped."""
    worst = under_load(name)
    message = encode_message(worst)
    assert len(message) < 0.9 * MESSAGE_LIMIT
    assert decode(message) == worst
    assert decode(encode(worst).decode()) == worst


def test_long_messages_cost_themselves_alone() -> None:
    """240 characters of every GPU that do not compress: every number still arrives."""
    chance = Random(5)
    text = [" ".join(f"{chance.getrandbits(32):08x}" for _ in range(27))[:240] for _ in range(16)]
    worst = under_load("result-1.2-dgx2-nccl")
    assert worst.load is not None
    gpus = [replace(gpu, message=message) for gpu, message in zip(worst.load.gpus, text, strict=True)]
    worst = replace(worst, load=replace(worst.load, gpus=gpus))
    arrived = decode(encode_message(worst))
    assert (arrived.problem, arrived.load is not None) == (None, True)
    assert [replace(gpu, message="") for gpu in arrived.load.gpus] == [
        replace(gpu, message="") for gpu in worst.load.gpus
    ]
    assert all(gpu.message[:40] == whole[:40] for gpu, whole in zip(arrived.load.gpus, text, strict=True))
