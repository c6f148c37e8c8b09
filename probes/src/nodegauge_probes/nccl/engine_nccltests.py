"""The engine `nccl-tests`: runs NVIDIA's programs and parses their table.

For users who trust only nccl-tests, or whose image has another NCCL: `all_reduce_perf`, `all_gather_perf` and
`reduce_scatter_perf`, from the folder in `NODEGAUGE_NCCL_TESTS` or from PATH.  One process per collective,
with one GPU per rank, over a sweep that includes every ordered size; other sizes are ignored.  They have no
pair matrix, and they use the host's clock.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, reduce
from math import gcd
from pathlib import Path

import msgspec
from msgspec import Struct

from nodegauge_contract import Arm, ArmOutcome, Collective, NcclResult, Phase
from nodegauge_contract.nccl import GRADED
from nodegauge_contract.nccl_tests import document
from nodegauge_contract.nccl_tests.captures import MAX_CHARS
from nodegauge_contract.nccl_tests.log import NcclTestsError
from nodegauge_contract.nccl_tests.table import Columns
from nodegauge_probes.nccl.protocol import (
    NCCL_ERROR,
    NO_ENGINE,
    OUT_OF_MEMORY,
    WRONG_ORDER,
    CellOrder,
    Emitter,
    EngineInfo,
    Failure,
    Order,
    serve,
)

NAME = document.ENGINE
FOLDER_VARIABLE = "NODEGAUGE_NCCL_TESTS"
ITERATIONS, WARM_UP = 10, 2
"""Half of nccl-tests' default: it sweeps twice, in and out of place, and includes other sizes."""


class Sweep(Struct, frozen=True, kw_only=True):
    """One program's sizes: from `low` to `high`, each `factor` times the one before."""

    low: int
    high: int
    factor: int
    cells: tuple[CellOrder, ...]


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """The program; returns its exit code."""
    return serve(partial(run, environment=environment, clock=time.monotonic), arguments, environment)


def run(
    order: Order, emitter: Emitter, *, environment: Mapping[str, str], clock: Callable[[], float]
) -> None:
    """Do the whole order.  Raises `Failure`."""
    programs = find_programs(environment)
    emitter.engine(EngineInfo(name=NAME))
    measured = 0.0
    for collective, sweep in sweeps(order) if order.uuids else ():
        program = programs.get(collective)
        if program is None or measured > order.budget_ms / 1000:
            for cell in sweep.cells:
                emitter.cut(f"{cell.collective}/{cell.bytes}")
            continue
        measured += _sweep(program, sweep, order=order, emitter=emitter, clock=clock)
    if order.uuids and order.pairs_bytes:
        emitter.cut(f"pairs/{order.pairs_bytes}")
    emitter.done()


def find_programs(environment: Mapping[str, str]) -> dict[str, Path]:
    """Programs by collective.  Raises `Failure` without all_reduce_perf."""
    folder = environment.get(FOLDER_VARIABLE, "")
    path = folder or environment.get("PATH", os.defpath)
    programs = {name: shutil.which(f"{name}_perf", path=path) for name in GRADED}
    if not programs[Collective.ALL_REDUCE]:
        searched = f"{FOLDER_VARIABLE}={folder}" if folder else "PATH"
        raise Failure(
            NO_ENGINE, f"no program all_reduce_perf in {searched}; set {FOLDER_VARIABLE} to its folder"
        )
    return {name: Path(program) for name, program in programs.items() if program}


def sweeps(order: Order) -> Iterator[tuple[str, Sweep]]:
    """A sweep per collective, the most valuable first.  Raises `Failure` for an invalid order."""
    names = dict.fromkeys(cell.collective for cell in order.cells)
    if not names:
        raise Failure(WRONG_ORDER, "nothing to measure")
    for name in names:
        if name not in GRADED:
            raise Failure(WRONG_ORDER, f"unknown collective: {name}")
        cells = tuple(cell for cell in order.cells if cell.collective == name)
        sizes = sorted({cell.bytes for cell in cells})
        if odd := [size for size in sizes if size < 1 or size & (size - 1)]:
            raise Failure(WRONG_ORDER, f"sizes that are not powers of two: {odd}")
        steps = [size.bit_length() - sizes[0].bit_length() for size in sizes]
        yield name, Sweep(low=sizes[0], high=sizes[-1], factor=2 ** (reduce(gcd, steps) or 1), cells=cells)


def command(program: Path, sweep: Sweep, *, ranks: int) -> list[str]:
    """Arguments as in nccl-tests' README.md."""
    calls = max((cell.calls for cell in sweep.cells), default=0) or ITERATIONS
    check = int(any(cell.check for cell in sweep.cells))
    sizes = ["-b", str(sweep.low), "-e", str(sweep.high), "-f", str(sweep.factor)]
    return [str(program), *sizes, "-g", str(ranks), "-n", str(calls), "-w", str(WARM_UP), "-c", str(check)]


def _sweep(
    program: Path, sweep: Sweep, *, order: Order, emitter: Emitter, clock: Callable[[], float]
) -> float:
    """Run one program and emit its cells; returns the seconds that it measured."""
    emitter.phase(Phase.INIT)
    argv = command(program, sweep, ranks=len(order.uuids))
    text, code, seconds = _run(argv, emitter, clock=clock)
    name = program.name
    emitter.phase(Phase.TEARDOWN)
    try:
        nccl = document.result(text, collective=Collective(sweep.cells[0].collective)).nccl
    except NcclTestsError as error:
        raise _unparsable(name, code, text, str(error)) from None
    assert nccl is not None
    _emit(nccl, sweep, argv, emitter)
    [arm] = nccl.arms
    if arm.outcome != ArmOutcome.DONE:
        raise _failed(name, code, arm)
    return seconds


def _run(argv: Sequence[str], emitter: Emitter, *, clock: Callable[[], float]) -> tuple[str, int, float]:
    """The program's output, its exit code, and seconds since its table's header, where measuring begins."""
    lines: list[str] = []
    chars_left, began = MAX_CHARS, None
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        errors="replace",
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if began is None and Columns.from_header(line) is not None:
                began = clock()
                emitter.phase(Phase.MEASURE)
            if len(line) <= chars_left:
                lines.append(line)
                chars_left -= len(line)
    return "".join(lines), process.returncode, clock() - began if began is not None else 0.0


def _emit(nccl: NcclResult, sweep: Sweep, argv: Sequence[str], emitter: Emitter) -> None:
    """The ordered cells, and the engine's versions."""
    emitter.engine(EngineInfo(name=NAME, version=nccl.engine_version, nccl=nccl.nccl, cuda=nccl.cuda))
    calls = int(argv[argv.index("-n") + 1])
    sizes = {cell.bytes for cell in sweep.cells}
    for cell in nccl.arms[0].cells:
        if cell.bytes in sizes:
            emitter.cell(msgspec.structs.replace(cell, calls=calls))


def _failed(name: str, code: int, arm: Arm) -> Failure:
    kind = OUT_OF_MEMORY if arm.outcome == ArmOutcome.OUT_OF_MEMORY else NCCL_ERROR
    return Failure(kind, f"{name}: {_exit(code)}: {arm.message}")


def _unparsable(name: str, code: int, text: str, reason: str) -> Failure:
    """Output without a table: its end explains more than the missing table."""
    end = " ".join(text.split()[-40:])
    kind = OUT_OF_MEMORY if "out of memory" in text.lower() else NCCL_ERROR
    message = f"{name}: {_exit(code)}: {reason}"
    return Failure(kind, f"{message}; output: {end}" if end else message)


def _exit(code: int) -> str:
    return f"ended by signal {-code}" if code < 0 else f"exit code {code}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
