"""Faults of the API server, of etcd and of everybody, on two fleets; each ends as a calm day."""

import argparse
import contextlib
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from fleet.injections import INJECTIONS, KILLS, Injection, killed
from fleet.real import RealFleet, interrupted, living, watched
from testbed.binaries import find_or_build
from testbed.errors import TestbedError
from testbed.interruption import scratch
from testbed.table import table
from testbed.wait import Progress

FEW = 5
"""Kills of the operator in each state of the short form."""
FLEETS = 2
UNWATCHED = {"API server killed", "etcd restored", "CRDs deleted"}
"""There the budget is looked at in the end alone: two end the watch of nodes, the last all reports."""


@dataclass(frozen=True)
class Outcome:
    """What became of one fault: seconds from its end until all was as it should be, or what was wrong."""

    fault: str
    seconds: float
    wrong: str = ""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="repeats a run; default: 1")
    parser.add_argument("--only", nargs="+", choices=list(INJECTIONS), metavar="FAULT")
    parser.add_argument(
        "--short", action="store_true", help=f"{2 * FEW} kills of the operator instead of {2 * KILLS}"
    )


def run_scenario(chosen: argparse.Namespace) -> int:
    """0 when every fault ended as a calm run does, else a `TestbedError` with what was wrong."""
    injections = {name: INJECTIONS[name] for name in chosen.only or INJECTIONS}
    if "operator killed" in injections:
        injections["operator killed"] = killed(FEW if chosen.short else KILLS)
    progress = Progress()
    find_or_build(progress=progress.say)
    with scratch("faults") as folder:
        print(f"{len(injections)} faults, --seed {chosen.seed}, logs in {folder}", flush=True)
        outcomes = _all_lived(injections, folder, seed=chosen.seed, progress=progress)
        rows = [[one.fault, "no" if one.wrong else "yes", f"{one.seconds:.1f} s"] for one in outcomes]
        print(f"\n{table([['injected', 'converged', 'worst'], *rows])}")
        if wrong := [f"{one.fault}: {one.wrong}" for one in outcomes if one.wrong]:
            raise TestbedError("\n".join(wrong))
    return 0


def _all_lived(
    injections: Mapping[str, Injection], folder: Path, *, seed: int, progress: Progress
) -> list[Outcome]:
    def lived(number: int) -> list[Outcome]:
        share = dict(list(injections.items())[number::FLEETS])
        return _lived(share, folder / f"fleet-{number}", seed=seed, progress=progress)

    with ThreadPoolExecutor(FLEETS) as fleets:
        lives = [fleets.submit(lived, number) for number in range(min(FLEETS, len(injections)))]
        try:
            return [outcome for life in lives for outcome in life.result()]
        except BaseException:
            interrupted.set()
            raise


def _lived(
    injections: Mapping[str, Injection], folder: Path, *, seed: int, progress: Progress
) -> list[Outcome]:
    outcomes = []
    folder.mkdir(parents=True, exist_ok=True)
    with living(folder, seed=seed) as fleet:
        progress.say(f"{folder.name}: a calm day is known")
        for name, injection in injections.items():
            outcomes.append(outcome := _tried(fleet, name, injection))
            progress.say(f"{name}: {outcome.wrong or f'as on a calm day after {outcome.seconds:.1f} s'}")
    return outcomes


def _tried(fleet: RealFleet, name: str, injection: Injection) -> Outcome:
    worst, state = 0.0, ""
    try:
        with contextlib.nullcontext() if name in UNWATCHED else watched(fleet):
            for state in ("bad", "good"):
                with injection(fleet):
                    fleet.change(state)
                began = time.monotonic()
                fleet.settle()
                worst = max(worst, time.monotonic() - began)
    except Exception as error:
        _recover(fleet)
        return Outcome(name, worst, f"{state}: {error if isinstance(error, TestbedError) else repr(error)}")
    return Outcome(name, worst)


def _recover(fleet: RealFleet) -> None:
    fleet.change("good")
    try:
        fleet.settle()
    except TestbedError as error:
        print(f"  the fleet is not well again: {error}", flush=True)
