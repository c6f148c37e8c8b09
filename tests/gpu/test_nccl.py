"""The engine nccl4py against a real NCCL and driver, on one GPU: calls and data are right, a killed child
leaves the GPU."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodegauge_contract import Skip
from nodegauge_probes.nccl import debuglog
from nodegauge_probes.nccl.protocol import CellOrder, Order
from support.engines import cells
from support.gpu_tools import CELLS, TWO_RANKS, Child, probe, wait_until_free

MIB = 1 << 20
Start = Callable[..., Child]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    children: list[Child] = []

    def begin(order: Order, **extra: str) -> Child:
        children.append(Child(order, scratch=tmp_path, extra=extra))
        return children[-1]

    yield begin
    for child in children:
        child.close()


def test_one_rank_runs_every_collective(nccl: list[str], start: Start) -> None:
    lines = start(Order(arm="default", uuids=(nccl[0],), cells=CELLS)).lines()
    assert lines[-1].done, lines
    wanted = [(order.collective, order.bytes) for order in CELLS]
    assert [(cell.collective, cell.bytes) for cell in cells(lines)] == wanted
    assert {cell.wrong for cell in cells(lines)} == {0}
    engine = lines[0].engine
    assert engine is not None
    assert nccl[0] in engine.uuids


def test_two_ranks_on_one_gpu_really_talk(nccl: list[str], start: Start, tmp_path: Path) -> None:
    order = Order(arm="default", uuids=(nccl[0], nccl[0]), cells=CELLS, pairs_bytes=64 * MIB)
    lines = start(order, **TWO_RANKS).lines()
    assert lines[-1].done, lines
    assert {cell.wrong for cell in cells(lines)} == {0}
    [rows] = [line.pairs for line in lines if line.pairs is not None]
    assert rows[0][0] == rows[1][1] == -1
    assert all(isinstance(value, float) and value > 1 for value in (rows[0][1], rows[1][0])), rows
    chosen = debuglog.read(tmp_path)
    assert isinstance(chosen.version, str)
    assert chosen.chosen("all_reduce", 64 * MIB, ranks=2)[0] in ("RING", "TREE", "NVLS")


def test_a_killed_child_leaves_the_gpu(nccl: list[str], start: Start) -> None:
    """In the middle of measuring, with SIGKILL to its process group: soon no process of it is on the GPU."""
    endless = CellOrder(collective="all_reduce", bytes=64 * MIB, spread=0, max_ms=60_000)
    child = start(Order(arm="default", uuids=(nccl[0],), cells=(endless,), budget_ms=60_000))
    while (line := child.line()) is not None and line.phase != "measure":
        assert line.failed is None, line
    os.killpg(child.process.pid, signal.SIGKILL)
    assert child.process.wait(timeout=20) == -signal.SIGKILL
    wait_until_free(nccl[0])


def test_a_whole_run_measures_every_arm_or_says_that_it_needs_two_gpus(nccl: list[str]) -> None:
    result = probe("nccl", seconds=170)
    assert result.nccl is not None
    assert [gpu.uuid for gpu in result.gpus] == nccl
    if len(nccl) == 1:
        assert result.nccl.skipped == Skip.SINGLE_GPU
        return
    assert not result.nccl.skipped, result.nccl.message
    assert {arm.outcome for arm in result.nccl.arms} == {"done"}
    assert all(cell.wrong in (0,) or cell.bytes == 1 << 30 for a in result.nccl.arms for cell in a.cells)


def test_pull_loads_the_engine(nccl: list[str]) -> None:
    result = probe("pull")
    assert result.problem is None
    assert result.nccl is not None
    assert isinstance(result.nccl.nccl, str)
