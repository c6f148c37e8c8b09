"""Benchmarks on the wire: how much of one a message holds."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from nodegauge_contract import MESSAGE_LIMIT, Arm, NcclResult, Num, Result, decode, encode_message

GOLDEN = Path(__file__).parent.parent / "golden"


def golden(name: str) -> tuple[Result, NcclResult]:
    result = decode((GOLDEN / f"result-1.2-{name}.json").read_text())
    assert result.nccl is not None
    return result, result.nccl


def noisy(nccl: NcclResult, *, message: str = "") -> NcclResult:
    """No two numbers alike, a matrix in every arm that has one, and this message in all of them."""
    chance = Random(4)

    def us(base: float) -> float:
        return round(base * chance.uniform(0.9, 1.1), 3 if base < 1000 else 1)

    def arm(given: Arm) -> Arm:
        cells = [
            replace(
                cell,
                us=us(10_000 * 3**n / 500),
                us_min=us(9_000 * 3**n / 500),
                us_max=us(12_000 * 3**n / 500),
                spread=round(chance.uniform(0.001, 0.2), 3),
                calls=chance.randrange(5, 9_000),
                batches=chance.randrange(5, 60),
            )
            for n, cell in enumerate(given.cells)
        ]
        size = len(given.pairs)
        pairs: list[list[Num]] = [
            [-1 if i == j else round(chance.uniform(120, 280), 1) for j in range(size)] for i in range(size)
        ]
        times = {name: chance.randrange(50_000) for name in ("spawn_ms", "init_ms", "load_ms", "measure_ms")}
        return replace(given, cells=cells, pairs=pairs, message=message, **times)

    return replace(nccl, arms=[arm(each) for each in nccl.arms], message=message)


VALUES = "exit code 1: " + " ".join(f"{n * 2654435761 % 2**32:08x}" for n in range(25))


@pytest.mark.parametrize(
    ("name", "cells", "ranks"), [("h100-nccl", [10, 4, 1], 8), ("dgx2-nccl", [10, 4], 16)]
)
def test_a_message_holds_a_whole_benchmark(name: str, cells: list[int], ranks: int) -> None:
    """All arms, cells and the full pair matrix, with every number different: nothing is given up."""
    result, nccl = golden(name)
    assert ([len(arm.cells) for arm in nccl.arms], len(nccl.arms[0].pairs)) == (cells, ranks)
    worst = replace(result, nccl=noisy(nccl))
    message = encode_message(worst)
    assert len(message) < 0.8 * MESSAGE_LIMIT
    assert decode(message) == worst


@pytest.mark.parametrize("name", ["h100-nccl", "dgx2-nccl"])
def test_long_messages_of_every_arm_cost_pairs_at_most(name: str) -> None:
    """240 characters that do not compress, four times: cells and times are still whole."""
    result, nccl = golden(name)
    worst = replace(result, nccl=noisy(nccl, message=VALUES[:240]))
    arrived = decode(encode_message(worst))
    assert (arrived.problem, arrived.nccl is not None) == (None, True)
    assert set(arrived.omitted) <= {"gpus.affinities", "gpus.serials", "bench.pairs", "bench.messages"}
    assert [arm.cells for arm in arrived.nccl.arms] == [arm.cells for arm in worst.nccl.arms]
