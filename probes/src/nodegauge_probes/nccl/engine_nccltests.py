"""The engine `nccl-tests`: runs NVIDIA's own programs where an image or a user has them, reads their table.

For who trusts nothing else, or has an NCCL of their own inside: `all_reduce_perf`, `all_gather_perf` and
`reduce_scatter_perf`, from the folder that `NODEGAUGE_NCCL_TESTS` names or else from PATH.  One process per
collective, with one GPU per rank, over a sweep that has every ordered size in it; what was not ordered is
left out.  They copy nothing between pairs, and they time by the host's clock.
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
from nodegauge_contract.nccl_tests import document
from nodegauge_contract.nccl_tests.log import MAX_CHARS, Columns, NcclTestsError
from nodegauge_probes.nccl.child import serve
from nodegauge_probes.nccl.emitter import NCCL_ERROR, NO_ENGINE, OUT_OF_MEMORY, WRONG_ORDER, Failure, Speaker
from nodegauge_probes.nccl.protocol import About, CellOrder, Order

NAME = document.ENGINE
FOLDER_VARIABLE = "NODEGAUGE_NCCL_TESTS"
ITERATIONS, WARM_UP = 10, 2
"""Half of what nccl-tests does by itself: it sweeps twice, in and out of place, and over sizes between."""


class Sweep(Struct, frozen=True, kw_only=True):
    """One program's sizes: from `low` to `high`, each `factor` times the one before."""

    low: int
    high: int
    factor: int
    cells: tuple[CellOrder, ...]


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """The whole program; gives its exit code."""
    return serve(partial(run, environment=environment, clock=time.monotonic), arguments, environment)


def run(
    order: Order, speaker: Speaker, *, environment: Mapping[str, str], clock: Callable[[], float]
) -> None:
    """Everything that was ordered.  Raises `Failure`."""
    programs = found(environment)
    speaker.about(About(engine=NAME))
    measured = 0.0
    for collective, sweep in sweeps(order) if order.uuids else ():
        program = programs.get(collective)
        if program is None or measured > order.budget_ms / 1000:
            for cell in sweep.cells:
                speaker.cut(f"{cell.collective}/{cell.bytes}")
            continue
        measured += _sweep(program, sweep, order=order, speaker=speaker, clock=clock)
    if order.uuids and order.pairs_bytes:
        speaker.cut(f"pairs/{order.pairs_bytes}")
    speaker.done()


def found(environment: Mapping[str, str]) -> dict[str, Path]:
    """Programs by collective.  Raises `Failure` without that of all_reduce."""
    folder = environment.get(FOLDER_VARIABLE, "")
    where = folder or environment.get("PATH", os.defpath)
    programs = {name: shutil.which(f"{name}_perf", path=where) for name in Collective}
    if not programs[Collective.ALL_REDUCE]:
        place = f"{FOLDER_VARIABLE}={folder}" if folder else "PATH"
        raise Failure(NO_ENGINE, f"no program all_reduce_perf in {place}; {FOLDER_VARIABLE} names its folder")
    return {name: Path(program) for name, program in programs.items() if program}


def sweeps(order: Order) -> Iterator[tuple[str, Sweep]]:
    """A sweep per collective, in the order of their worth.  Raises `Failure` for what nobody can sweep."""
    names = dict.fromkeys(cell.collective for cell in order.cells)
    if not names:
        raise Failure(WRONG_ORDER, "nothing to measure")
    for name in names:
        if name not in set(Collective):
            raise Failure(WRONG_ORDER, f"no such collective: {name}")
        cells = tuple(cell for cell in order.cells if cell.collective == name)
        sizes = sorted({cell.bytes for cell in cells})
        if odd := [size for size in sizes if size < 1 or size & (size - 1)]:
            raise Failure(WRONG_ORDER, f"sizes that are no power of two: {odd}")
        steps = [size.bit_length() - sizes[0].bit_length() for size in sizes]
        yield name, Sweep(low=sizes[0], high=sizes[-1], factor=2 ** (reduce(gcd, steps) or 1), cells=cells)


def command(program: Path, sweep: Sweep, *, ranks: int) -> list[str]:
    """Arguments as README.md of nccl-tests has them."""
    calls = max((cell.calls for cell in sweep.cells), default=0) or ITERATIONS
    check = int(any(cell.check for cell in sweep.cells))
    sizes = ["-b", str(sweep.low), "-e", str(sweep.high), "-f", str(sweep.factor)]
    return [str(program), *sizes, "-g", str(ranks), "-n", str(calls), "-w", str(WARM_UP), "-c", str(check)]


def _sweep(
    program: Path, sweep: Sweep, *, order: Order, speaker: Speaker, clock: Callable[[], float]
) -> float:
    """One program from its start to its end, its cells said; gives the seconds that it measured."""
    speaker.phase(Phase.INIT)
    argv = command(program, sweep, ranks=len(order.uuids))
    text, code, seconds = _watched(argv, speaker, clock=clock)
    name = program.name
    speaker.phase(Phase.TEARDOWN)
    try:
        nccl = document.result(text, collective=Collective(sweep.cells[0].collective)).nccl
    except NcclTestsError as error:
        raise _ended(name, code, text, str(error)) from None
    assert nccl is not None
    _say(nccl, sweep, argv, speaker)
    [arm] = nccl.arms
    if arm.outcome != ArmOutcome.DONE:
        raise _of_arm(name, code, arm)
    return seconds


def _watched(argv: Sequence[str], speaker: Speaker, *, clock: Callable[[], float]) -> tuple[str, int, float]:
    """What the program prints, its exit code, and seconds from its table's header, where measuring begins."""
    kept: list[str] = []
    room, began = MAX_CHARS, None
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
            if began is None and Columns.of(line) is not None:
                began = clock()
                speaker.phase(Phase.MEASURE)
            if len(line) <= room:
                kept.append(line)
                room -= len(line)
    return "".join(kept), process.returncode, clock() - began if began is not None else 0.0


def _say(nccl: NcclResult, sweep: Sweep, argv: Sequence[str], speaker: Speaker) -> None:
    """The cells that were ordered, and who measured them."""
    speaker.about(About(engine=NAME, engine_version=nccl.engine_version, nccl=nccl.nccl, cuda=nccl.cuda))
    calls = int(argv[argv.index("-n") + 1])
    wanted = {cell.bytes for cell in sweep.cells}
    for cell in nccl.arms[0].cells:
        if cell.bytes in wanted:
            speaker.cell(msgspec.structs.replace(cell, calls=calls))


def _of_arm(name: str, code: int, arm: Arm) -> Failure:
    what = OUT_OF_MEMORY if arm.outcome == ArmOutcome.OUT_OF_MEMORY else NCCL_ERROR
    return Failure(what, f"{name}: {_how(code)}: {arm.message}")


def _ended(name: str, code: int, text: str, why: str) -> Failure:
    """A program without a table: its last words say more than that there is none."""
    last = " ".join(text.split()[-40:])
    what = OUT_OF_MEMORY if "out of memory" in text.lower() else NCCL_ERROR
    return Failure(
        what, f"{name}: {_how(code)}: {why}; it said: {last}" if last else f"{name}: {_how(code)}: {why}"
    )


def _how(code: int) -> str:
    return f"ended by signal {-code}" if code < 0 else f"exit code {code}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
