"""`make faults`: one fault after the other, a line each, and a table at the end; the seed repeats it."""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fleet.injections import INJECTIONS, Injection, killed
from fleet.real import World, Wrong, living, watched
from testbed.errors import TestbedError

KILLS, FEW = 100, 5
"""How often the operator is killed while machines break, and again while they are repaired."""


@dataclass(frozen=True)
class Outcome:
    """What became of one fault: seconds from its end until all was as it should be, or what was wrong."""

    fault: str
    seconds: float
    wrong: str = ""


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when every fault ended as a calm run does, 1 if one did not, 130 on Ctrl-C."""
    options = _parser().parse_args(arguments)
    folder = Path(options.folder or tempfile.mkdtemp(prefix="nodegauge-faults-"))
    folder.mkdir(parents=True, exist_ok=True)
    chosen = {name: INJECTIONS[name] for name in options.only or INJECTIONS}
    if "operator killed" in chosen:
        chosen["operator killed"] = killed(FEW if options.short else KILLS)
    print(f"{len(chosen)} faults, --seed {options.seed}, logs in {folder}", flush=True)
    began, outcomes = time.monotonic(), []
    try:
        with living(folder, seed=options.seed) as world:
            print(f"[{time.monotonic() - began:6.1f} s] a calm day is known", flush=True)
            for name, injection in chosen.items():
                outcomes.append(outcome := _tried(world, name, injection))
                end = outcome.wrong or f"as on a calm day after {outcome.seconds:.1f} s"
                print(f"[{time.monotonic() - began:6.1f} s] {name}: {end}", flush=True)
    except KeyboardInterrupt:
        return 130
    except (TestbedError, Wrong) as error:
        print(f"no calm day: {error}; the logs are in {folder}", flush=True)
        return 1
    _table(outcomes)
    return 1 if any(outcome.wrong for outcome in outcomes) else 0


def _tried(world: World, name: str, injection: Injection) -> Outcome:
    """The machines break under the fault, and are repaired under it."""
    worst = 0.0
    for state in ("bad", "good"):
        try:
            with contextlib.nullcontext() if name in UNWATCHED else watched(world):
                with injection(world):
                    world.change(state)
                began = time.monotonic()
                world.settle()
                worst = max(worst, time.monotonic() - began)
        except Exception as error:
            _recover(world)
            return Outcome(name, worst, f"{state}: {error if isinstance(error, Wrong) else repr(error)}")
    return Outcome(name, worst)


UNWATCHED = {"API server killed", "CRDs deleted"}
"""Faults that end a watch of the API server itself: there the budget is looked at in the end alone."""


def _recover(world: World) -> None:
    """Go on with the next fault from a world that is well, if it can be."""
    world.change("good")
    try:
        world.settle()
    except Wrong as wrong:
        print(f"  the world is not well again: {wrong}", flush=True)


def _table(outcomes: Sequence[Outcome]) -> None:
    print(f"\n{'injected':<26} {'converged':<9}  worst")
    for outcome in outcomes:
        converged = "no" if outcome.wrong else "yes"
        print(f"{outcome.fault:<26} {converged:<9}  {outcome.seconds:.1f} s")
    for outcome in outcomes:
        if outcome.wrong:
            print(f"\n{outcome.fault}: {outcome.wrong}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make faults",
        description="Faults of the API server, of etcd and of everybody, each with the end of a calm day.",
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="repeats a run; default: 1")
    parser.add_argument("--only", nargs="+", choices=list(INJECTIONS), metavar="FAULT")
    parser.add_argument(
        "--short", action="store_true", help=f"{2 * FEW} kills of the operator instead of {2 * KILLS}"
    )
    parser.add_argument("--folder", metavar="DIR", help="for logs; default: a new one")
    return parser


if __name__ == "__main__":
    sys.exit(main())
