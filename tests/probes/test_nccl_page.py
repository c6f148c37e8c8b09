"""A benchmark on the page for a person."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from nodegauge_contract import Arm, Cell, NcclResult, Problem, ProblemKind, Result, decode
from nodegauge_probes.page import page as table

GOLDEN = Path(__file__).parent.parent / "golden"


def page(nccl: NcclResult, *, problem: Problem | None = None) -> str:
    return table.render(Result(probe="nccl", nccl=nccl, problem=problem))


def cells(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_a_page_of_eight_h100() -> None:
    """Who measured, the arms, collectives side by side, all pairs, and the matrix that it belongs to."""
    shown = table.render(decode((GOLDEN / "result-1.2-h100-nccl.json").read_text()))
    rows = cells(shown)
    assert ["Collective", "Size", "default", "p2p-off", "nvls-off"] in rows
    assert ["all_reduce", "1", "GiB", "462.3", "GB/s", "NVLS", "-", "352.4", "GB/s", "RING"] in rows
    assert sum(row[:1] == ["from"] for row in rows) == 8
    assert "8 x NVIDIA H100 80GB HBM3" in shown
    assert shown.count("NV18") >= 56


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    """2 GiB in 1 s on 4 GPUs: times 1.5 for all_reduce, 0.75 for the others; small messages are a time."""
    arm = Arm(
        name="default",
        cells=[
            Cell(collective="all_reduce", bytes=1 << 31, us=1e6),
            Cell(collective="all_gather", bytes=1 << 31, us=1e6, algorithm="RING", wrong=3),
            Cell(collective="reduce_scatter", bytes=4096, us=17.25, launch_us=9.0),
            Cell(collective="reduce_scatter", bytes=8, us=17.25, launch_us=16.0),
        ],
    )
    rows = cells(page(NcclResult(engine="script", ranks=4, arms=[arm])))
    assert ["all_reduce", "2", "GiB", "3.221", "GB/s"] in rows
    assert ["all_gather", "2", "GiB", "1.611", "GB/s", "RING", "3", "WRONG"] in rows
    assert ["reduce_scatter", "4", "KiB", "17.25", "us"] in rows
    assert ["reduce_scatter", "8", "B", "17.25", "us", "launch-bound"] in rows


def test_how_an_arm_ended_and_what_was_left_out() -> None:
    """With its phase and its words."""
    arm = Arm(name="default", outcome="hung", phase="init", message="init exceeded its time limit", init_ms=9)
    shown = page(NcclResult(ranks=2, arms=[arm], cut=["all_reduce/8", "pairs/268435456"]))
    assert "hung in init" in shown
    assert "init exceeded its time limit" in shown
    assert "Left out for lack of time or memory: all_reduce/8, pairs/268435456" in shown


def test_a_node_that_was_skipped() -> None:
    """In words, and nothing beside them."""
    shown = page(NcclResult(skipped="busy", message="GPU 2 is in use by 1 compute process"))
    assert shown.strip() == "NOT MEASURED: busy. GPU 2 is in use by 1 compute process"


def test_a_run_that_was_ended() -> None:
    """The problem first, and what there is."""
    problem = Problem(kind=ProblemKind.TERMINATED, call="", message="SIGTERM after 3.0 s")
    nccl = replace(NcclResult(ranks=2), arms=[Arm(name="default", outcome="cut", phase="measure")])
    shown = page(nccl, problem=problem)
    assert "INCOMPLETE: terminated. SIGTERM after 3.0 s." in shown
    assert "cut in measure" in shown
