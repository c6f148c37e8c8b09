"""The engine nccl-tests with programs that print what nccl-tests prints, and with some that do not."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

import pytest

from nodegauge_contract import Unavailable
from nodegauge_probes.nccl import engine_nccltests
from nodegauge_probes.nccl.protocol import CellOrder, Order
from support import engines
from support.engines import cells
from support.nccltests import installed, scripted

FIXTURES = Path(__file__).parents[1] / "fixtures"
CELLS = (
    CellOrder(collective="all_reduce", bytes=1 << 26, check=True),
    CellOrder(collective="all_gather", bytes=1 << 30),
    CellOrder(collective="reduce_scatter", bytes=1 << 16),
    CellOrder(collective="all_reduce", bytes=1 << 28),
    CellOrder(collective="all_gather", bytes=1 << 16),
    CellOrder(collective="all_reduce", bytes=1 << 30),
)


def ordered(**changes: object) -> Order:
    members = {"arm": "default", "uuids": tuple("abcd"), "cells": CELLS, "pairs_bytes": 1 << 28}
    return Order(**(members | changes))  # type: ignore[arg-type]


def run(order: Order, folder: Path, **environment: str) -> engines.Outcome:
    own = {"PATH": "/nonexistent", "NODEGAUGE_NCCL_TESTS": str(folder)}
    return engines.run(engine_nccltests.main, order, own | environment)


@pytest.mark.parametrize("old", [False, True], ids=["new", "old"])
def test_ordered_sizes_are_measured_by_one_program_each(tmp_path: Path, old: bool) -> None:
    code, lines, printed = run(ordered(), installed(tmp_path, old=old))
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
            (
                CellOrder(collective="all_reduce", bytes=8, calls=5),
                CellOrder(collective="all_reduce", bytes=4096),
            ),
            "-b 8 -e 4096 -f 512 -g 4 -n 5 -w 2 -c 0",
        ),
    ],
)
def test_a_sweep_has_every_size(tmp_path: Path, cells: tuple[CellOrder, ...], arguments: str) -> None:
    scripted(tmp_path, "all_reduce", f'#!/bin/sh\necho "$@" > "{tmp_path}/said"\nexit 3\n')
    run(ordered(cells=cells), tmp_path)
    assert (tmp_path / "said").read_text().strip() == arguments


def test_programs_are_found_on_the_path_too(tmp_path: Path) -> None:
    installed(tmp_path)
    code, lines, printed = run(ordered(), tmp_path, NODEGAUGE_NCCL_TESTS="", PATH=str(tmp_path))
    assert (code, len(cells(lines))) == (0, len(CELLS)), printed


def test_without_all_reduce_there_is_no_engine(tmp_path: Path) -> None:
    for order in (ordered(), ordered(uuids=(), cells=())):
        code, lines, _ = run(order, tmp_path)
        failed = lines[-1].failed
        assert (code, failed.kind) == (1, "no-engine")
        assert f"NODEGAUGE_NCCL_TESTS={tmp_path}" in failed.message
    code, lines, _ = run(ordered(), installed(tmp_path, names=("all_reduce",)))
    assert code == 0
    assert {line.cut for line in lines if line.cut} >= {"all_gather/65536", "reduce_scatter/65536"}


def test_an_order_without_gpus_starts_nothing(tmp_path: Path) -> None:
    scripted(tmp_path, "all_reduce", f"#!/bin/sh\ntouch '{tmp_path}/started'\n")
    code, lines, _ = run(ordered(uuids=(), cells=()), tmp_path)
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
    code, lines, printed = run(ordered(uuids=tuple("abcdefgh"), cells=CELLS[:1]), tmp_path)
    failed = lines[-1].failed
    assert (code, failed.kind, text in failed.message) == (1, what, True), printed


def test_a_recorded_log_is_read_like_any_other(tmp_path: Path) -> None:
    log = FIXTURES / "nccl-tests_allreduce_superbench.log"
    scripted(tmp_path, "all_reduce", f"#!/bin/sh\nexec /bin/cat '{log}'\n")
    code, lines, printed = run(ordered(uuids=tuple("abcdefgh"), cells=CELLS[:1]), tmp_path)
    assert code == 0, printed
    [cell] = cells(lines)
    assert (cell.bytes, cell.us) == (1 << 26, 581.9)
    assert isinstance(cell.wrong, Unavailable)


@pytest.mark.parametrize(
    ("cells", "text"),
    [
        ((), "nothing to measure"),
        ((CellOrder(collective="alltoall", bytes=8),), "unknown collective: alltoall"),
        ((CellOrder(collective="all_reduce", bytes=100),), "not powers of two: [100]"),
    ],
)
def test_an_impossible_order_is_refused(tmp_path: Path, cells: tuple[CellOrder, ...], text: str) -> None:
    _, lines, _ = run(ordered(cells=cells), installed(tmp_path))
    failed = lines[-1].failed
    assert (failed.kind, text in failed.message) == ("wrong-order", True)


def test_what_has_no_time_left_is_cut(tmp_path: Path) -> None:
    _, lines, _ = run(ordered(budget_ms=0.0), installed(tmp_path))
    assert {cell.collective for cell in cells(lines)} == {"all_reduce"}
    assert {line.cut for line in lines if line.cut} > {"all_gather/65536", "reduce_scatter/65536"}
