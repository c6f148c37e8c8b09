"""The engines: nccl4py against a fake (tests/gpu shows that real ones agree), nccl-tests by made programs."""

from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

import pytest
from msgspec import structs

from nodegauge_contract import Unavailable
from nodegauge_probes.nccl import engine, engine_nccl4py, engine_nccltests
from nodegauge_probes.nccl.protocol import CellOrder, Line, Order
from support import engines
from support.engines import cells
from support.nccltests import installed, scripted

FAKES = Path(__file__).parent / "fakes"
UUIDS = ("GPU-11111111-2222-3333-4444-555555555555", "GPU-aaaaaaaa-2222-3333-4444-555555555555")
SMALL = tuple(
    CellOrder(collective=name, bytes=size, check=True, batch_ms=0.5, max_ms=200)
    for name in ("all_reduce", "all_gather", "reduce_scatter")
    for size in (8, 4096)
)


def ordered(**changes: object) -> Order:
    members = {"arm": "default", "uuids": UUIDS, "cells": SMALL, "warm_up_ms": 1.0, "pairs_bytes": 4096}
    return Order(**(members | changes))  # type: ignore[arg-type]


def run(
    order: Order | str, *, visible: tuple[str, ...] = UUIDS, libraries: Path | None = FAKES, **more: str
) -> engines.Outcome:
    """`more`: variables of NCCL by their names, and the fake's in lower case."""
    given = {name if name.isupper() else f"NODEGAUGE_FAKE_{name.upper()}": more[name] for name in more}
    environment = {"CUDA_VISIBLE_DEVICES": ",".join(visible)} | given
    main = partial(engine.main, engine_nccl4py.Nccl4py)
    return engines.run(main, order, environment, libraries=libraries)


def phases(lines: list[Line]) -> list[str]:
    names = [line.phase for line in lines if line.phase]
    return [phase for index, phase in enumerate(names) if index == 0 or names[index - 1] != phase]


def test_an_arm_says_who_measures_what_and_that_it_is_done() -> None:
    code, lines, printed = run(ordered())
    assert code == 0, printed
    info = lines[0].engine
    assert (info.name, info.version, info.nccl, info.cuda) == ("nccl4py", "0.6.0", "2.32.3", "12.9")
    assert tuple(info.uuids) == UUIDS
    assert phases(lines)[:3] == ["init", "load", "measure"]
    assert phases(lines)[-2:] == ["pairs", "teardown"]
    assert [(cell.collective, cell.bytes) for cell in cells(lines)] == [
        (order.collective, order.bytes) for order in SMALL
    ]
    assert lines[-1].done


def test_times_are_those_of_the_events() -> None:
    unhurried = tuple(structs.replace(cell, max_ms=60_000) for cell in SMALL)
    _, lines, printed = run(ordered(cells=unhurried), us="20", gbps="10")
    large = [cell for cell in cells(lines) if cell.bytes == 4096]
    assert len(large) == 3, printed
    for cell in large:
        assert cell.us == pytest.approx(20.4096, rel=1e-3)
        assert cell.us_min == pytest.approx(cell.us_max)
        assert (cell.wrong, cell.batches) == (0, 5)
        assert cell.calls >= 100


@pytest.mark.parametrize(("policy", "code"), [({}, 0), ({"NCCL_P2P_DIRECT_DISABLE": "0"}, 1)])
def test_nccl_does_not_address_buffers_of_a_memory_pool(policy: dict[str, str], code: int) -> None:
    """It is closed to other GPUs (NCCL user guide, NCCL_P2P_DIRECT_DISABLE), unless a policy says so."""
    assert run(ordered(cells=SMALL[:1], pairs_bytes=0), **policy)[0] == code


def test_the_order_of_ranks_is_the_orders_and_not_cudas() -> None:
    """CUDA may show the GPUs the other way round: they are found by UUID."""
    code, lines, printed = run(ordered(cells=SMALL[:1], pairs_bytes=0), visible=UUIDS[::-1])
    assert (code, cells(lines)[0].wrong) == (0, 0), printed


def test_a_pair_matrix_is_copied() -> None:
    _, lines, printed = run(ordered(cells=SMALL[:1], pairs_bytes=1 << 20), us="0", gbps="25")
    [rows] = [line.pairs for line in lines if line.pairs is not None]
    assert [[rows[0][0], rows[1][1]]] == [[-1, -1]], printed
    assert rows[0][1] == pytest.approx(25)
    assert rows[1][0] == pytest.approx(25)


def test_a_pair_that_cannot_be_copied_says_why() -> None:
    code, lines, _ = run(
        ordered(cells=[CellOrder(collective="all_reduce", bytes=8, calls=2)]), trouble="no-copies"
    )
    [rows] = [line.pairs for line in lines if line.pairs is not None]
    assert code == 0
    assert isinstance(rows[0][1], Unavailable)
    assert "CUDA_ERROR_INVALID_VALUE" in rows[0][1].unavailable


def test_so_many_calls_are_one_batch() -> None:
    cell = CellOrder(collective="all_reduce", bytes=65536, calls=5)
    _, lines, _ = run(ordered(cells=[cell], pairs_bytes=0))
    [measured] = cells(lines)
    assert (measured.batches, measured.calls) == (1, 5)
    assert isinstance(measured.spread, Unavailable)
    assert isinstance(measured.wrong, Unavailable)


def test_wrong_data_is_counted() -> None:
    _, lines, _ = run(ordered(), trouble="wrong-data")
    assert [cell.wrong for cell in cells(lines) if cell.collective != "all_gather"] == [1, 1, 1, 1]
    assert [cell.wrong for cell in cells(lines) if cell.collective == "all_gather"] == [2, 2]


def test_an_order_without_gpus_loads_libraries_and_touches_none() -> None:
    code, lines, printed = run(ordered(uuids=(), cells=()), visible=(), trouble="no-driver")
    assert code == 0, printed
    assert [bool(lines[0].engine), lines[-1].done, len(lines)] == [True, True, 2]


def test_what_has_no_time_is_cut() -> None:
    code, lines, _ = run(ordered(budget_ms=0.0))
    assert code == 0
    assert len(cells(lines)) == 1
    assert [line.cut for line in lines if line.cut] == [
        *(f"{cell.collective}/{cell.bytes}" for cell in SMALL[1:]),
        "pairs/4096",
    ]


def test_what_has_no_memory_is_cut() -> None:
    code, lines, printed = run(ordered(pairs_bytes=8192), bytes="100")
    assert code == 0, printed
    assert {cell.bytes for cell in cells(lines)} == {8}
    cut = [line.cut for line in lines if line.cut]
    assert cut == ["all_reduce/4096", "all_gather/4096", "reduce_scatter/4096", "pairs/8192"]


FAILURES: dict[str, tuple[Order, dict[str, Any], str, str]] = {
    "no libnccl": (ordered(), {"trouble": "no-libnccl"}, "no-engine", "libnccl.so.2"),
    "no driver": (ordered(), {"trouble": "no-driver"}, "no-engine", "NVIDIA driver library"),
    "no packages": (ordered(), {"libraries": None}, "no-engine", ""),
    "init": (ordered(), {"trouble": "nccl-init"}, "nccl-error", "system error (the network is down)"),
    "memory of NCCL": (ordered(), {"trouble": "nccl-memory"}, "out-of-memory", "Cuda failure 2"),
    "async": (ordered(), {"trouble": "async"}, "nccl-error", "remote process exited"),
    "memory": (ordered(), {"bytes": "4"}, "out-of-memory", "CUDA_ERROR_OUT_OF_MEMORY"),
    "a hidden GPU": (ordered(), {"visible": UUIDS[:1]}, "wrong-order", f"not visible to CUDA: {UUIDS[1]}"),
    "no GPU": (ordered(), {"visible": ()}, "cuda-error", "CUDA_ERROR_NO_DEVICE"),
    "a collective": (
        ordered(cells=[CellOrder(collective="alltoall", bytes=8)]),
        {},
        "wrong-order",
        "alltoall",
    ),
    "nothing": (ordered(cells=()), {}, "wrong-order", "nothing to measure"),
}
"""What is ordered where, the kind of the failure, and part of its message."""


@pytest.mark.parametrize("case", FAILURES)
def test_what_the_libraries_raise_and_what_cannot_be_done_is_said(case: str) -> None:
    """The light image has none of the packages; the child says so instead of dying."""
    order, where, what, text = FAILURES[case]
    code, lines, printed = run(order, **where)
    failed = lines[-1].failed
    assert (code, failed.kind, text in failed.message) == (1, what, True), printed


def test_an_order_that_nobody_can_read_is_exit_code_2() -> None:
    """Said where the parent keeps what a child prints, for there is nothing to say it with."""
    code, lines, printed = run("{}")
    assert (code, lines) == (2, [])
    assert "invalid order" in printed


def test_a_mistake_of_ours_is_not_blamed_on_a_library() -> None:
    assert engine_nccl4py.failure_kind(KeyError("x"), "KeyError: x") is None
    assert engine_nccl4py.failure_kind(AssertionError(), "out of memory") is None


FIXTURES = Path(__file__).parents[1] / "fixtures"
CELLS = (
    CellOrder(collective="all_reduce", bytes=1 << 26, check=True),
    CellOrder(collective="all_gather", bytes=1 << 30),
    CellOrder(collective="reduce_scatter", bytes=1 << 16),
    CellOrder(collective="all_reduce", bytes=1 << 28),
    CellOrder(collective="all_gather", bytes=1 << 16),
    CellOrder(collective="all_reduce", bytes=1 << 30),
)


def asked(**changes: object) -> Order:
    members = {"arm": "default", "uuids": tuple("abcd"), "cells": CELLS, "pairs_bytes": 1 << 28}
    return Order(**(members | changes))  # type: ignore[arg-type]


def ran(order: Order, folder: Path, **environment: str) -> engines.Outcome:
    own = {"PATH": "/nonexistent", "NODEGAUGE_NCCL_TESTS": str(folder)}
    return engines.run(engine_nccltests.main, order, own | environment)


@pytest.mark.parametrize("old", [False, True], ids=["new", "old"])
def test_ordered_sizes_are_measured_by_one_program_each(tmp_path: Path, old: bool) -> None:
    code, lines, printed = ran(asked(), installed(tmp_path, old=old))
    assert code == 0, printed
    measured = {(cell.collective, cell.bytes): cell for cell in cells(lines)}
    assert set(measured) == {(cell.collective, cell.bytes) for cell in CELLS}
    assert len(cells(lines)) == len(CELLS)
    for (_, size), cell in measured.items():
        assert cell.us == pytest.approx(20 + size / 1e4, abs=0.01)
        assert (cell.wrong, cell.calls, cell.batches) == (0, 10, 1)
    assert [line.cut for line in lines if line.cut] == [f"pairs/{1 << 28}"]
    assert lines[-1].done
    assert [line.phase for line in lines if line.phase] == ["init", "measure", "teardown"] * 3
    first, *others = [line.engine for line in lines if line.engine is not None]
    assert first.name == others[0].name == "nccl-tests"
    assert isinstance(first.nccl, Unavailable)
    assert old or (others[0].nccl, others[0].version) == ("2.30.3", "2.18.3")


@pytest.mark.parametrize(
    ("cells", "arguments"),
    [
        (CELLS[:1], "-b 67108864 -e 67108864 -f 2 -g 4 -n 10 -w 2 -c 1"),
        (CELLS[3::2], "-b 268435456 -e 1073741824 -f 4 -g 4 -n 10 -w 2 -c 0"),
        (
            tuple(
                CellOrder(collective="all_reduce", bytes=size, calls=calls)
                for size, calls in ((8, 5), (4096, 0))
            ),
            "-b 8 -e 4096 -f 512 -g 4 -n 5 -w 2 -c 0",
        ),
    ],
)
def test_a_sweep_has_every_size(tmp_path: Path, cells: tuple[CellOrder, ...], arguments: str) -> None:
    scripted(tmp_path, "all_reduce", f'#!/bin/sh\necho "$@" > "{tmp_path}/said"\nexit 3\n')
    ran(asked(cells=cells), tmp_path)
    assert (tmp_path / "said").read_text().strip() == arguments


def test_programs_are_found_on_the_path_too(tmp_path: Path) -> None:
    installed(tmp_path)
    code, lines, printed = ran(asked(), tmp_path, NODEGAUGE_NCCL_TESTS="", PATH=str(tmp_path))
    assert (code, len(cells(lines))) == (0, len(CELLS)), printed


def test_without_all_reduce_there_is_no_engine(tmp_path: Path) -> None:
    for order in (asked(), asked(uuids=(), cells=())):
        code, lines, _ = ran(order, tmp_path)
        failed = lines[-1].failed
        assert (code, failed.kind) == (1, "no-engine")
        assert f"NODEGAUGE_NCCL_TESTS={tmp_path}" in failed.message
    code, lines, _ = ran(asked(), installed(tmp_path, names=("all_reduce",)))
    assert code == 0
    assert {line.cut for line in lines if line.cut} >= {"all_gather/65536", "reduce_scatter/65536"}


def test_an_order_without_gpus_starts_nothing(tmp_path: Path) -> None:
    scripted(tmp_path, "all_reduce", f"#!/bin/sh\ntouch '{tmp_path}/started'\n")
    code, lines, _ = ran(asked(uuids=(), cells=()), tmp_path)
    assert (code, len(lines), lines[-1].done) == (0, 2, True)
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(
    ("script", "what", "text"),
    [
        ("exit 0", "nccl-error", "all_reduce_perf: exit code 0: no line `Rank 0"),
        ("echo 'box: Test CUDA failure common.cu:732 out of memory'; exit 2", "out-of-memory", "exit code 2"),
        ("echo 'symbol lookup error: libnccl.so.2' >&2; exit 127", "nccl-error", "symbol lookup error"),
        ("kill -SEGV $$", "nccl-error", "ended by signal 11"),
        ("sed '/Out of bounds/,$d' {log}", "nccl-error", "ends before its line `# Avg bus bandwidth`"),
        ("sed '/Avg/,$d' {log}; echo 'box: Test NCCL failure a.cu:1 x'", "nccl-error", "Test NCCL failure"),
        ("sed 's/float/quad/' {log}", "nccl-error", "unknown type quad"),
    ],
    ids=["silent", "memory", "loader", "crash", "cut-off", "failure", "unreadable"],
)
def test_a_program_that_fails_says_how(tmp_path: Path, script: str, what: str, text: str) -> None:
    log = FIXTURES / "nccl-tests_allreduce_superbench.log"
    body = script.replace("{log}", quote(str(log)))
    scripted(tmp_path, "all_reduce", f"#!/bin/sh\nPATH=/usr/bin:/bin\n{body}\n")
    code, lines, printed = ran(asked(uuids=tuple("abcdefgh"), cells=CELLS[:1]), tmp_path)
    failed = lines[-1].failed
    assert (code, failed.kind, text in failed.message) == (1, what, True), printed


@pytest.mark.parametrize(
    ("cells", "text"),
    [
        ((), "nothing to measure"),
        ((CellOrder(collective="alltoall", bytes=8),), "unknown collective: alltoall"),
        ((CellOrder(collective="all_reduce", bytes=100),), "not powers of two: [100]"),
    ],
)
def test_an_impossible_order_is_refused(tmp_path: Path, cells: tuple[CellOrder, ...], text: str) -> None:
    _, lines, _ = ran(asked(cells=cells), installed(tmp_path))
    failed = lines[-1].failed
    assert (failed.kind, text in failed.message) == ("wrong-order", True)


def test_what_has_no_time_left_is_cut(tmp_path: Path) -> None:
    _, lines, _ = ran(asked(budget_ms=0.0), installed(tmp_path))
    assert {cell.collective for cell in cells(lines)} == {"all_reduce"}
    assert {line.cut for line in lines if line.cut} > {"all_gather/65536", "reduce_scatter/65536"}
