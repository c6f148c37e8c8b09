"""Runs machines through scenarios, a few machines at a time, and compares the result with the expectation."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import msgspec

from testbed import hostarchive, profiles
from testbed.errors import TestbedError
from testbed.hardware import plug
from testbed.matrix import worker
from testbed.matrix.expected import Machine, Row, Scenario, exists, expected, healthy

TESTS = Path(__file__).resolve().parents[2]
AT_A_TIME = 4
"""Machines read at once: a worker mostly waits for its windows."""
WORKER_SECONDS = 1800.0
TRIES = 3


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One machine with one fault (None: healthy, under `load`): what must be, and what was seen.

    `seen` is text where the hardware refused the fault; `must` None where it has to.
    """

    machine: Machine
    scenario: Scenario | None
    load: int
    must: Row | None
    seen: Row | str

    @property
    def good(self) -> bool:
        """Whether it is as it must be."""
        return isinstance(self.seen, str) if self.must is None else self.must == self.seen

    @property
    def name(self) -> str:
        """Machine and scenario."""
        what = self.scenario.name if self.scenario else f"healthy, load {self.load} %"
        return f"{self.machine.profile}: {what}"


def play(
    machines: Sequence[Machine],
    scenarios: Mapping[str, Sequence[Scenario]],
    *,
    done: Callable[[list[Cell]], None] = lambda _: None,
) -> list[Cell]:
    """Each machine while healthy and with the scenarios of its profile; `done` gets a machine's cells."""
    for machine in machines:  # msgspec learns a type at its first use, which is not safe in threads
        profiles.load(machine.profile)
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        tasks = [pool.submit(_machine, machine, scenarios[machine.profile]) for machine in machines]
        for task in as_completed(tasks):
            done(task.result())
        return [cell for task in tasks for cell in task.result()]


def _machine(machine: Machine, scenarios: Sequence[Scenario]) -> list[Cell]:
    """A cell that differs is tried again: a busy machine stretches milliseconds, a wrong rule stays wrong."""
    items: list[tuple[Scenario | None, int]] = [(None, 0), (None, 100)]
    items += [(scenario, scenario.load) for scenario in scenarios]
    cells = _cells(machine, items)
    for _ in range(TRIES - 1):
        wrong = [number for number, cell in enumerate(cells) if not cell.good]
        if not wrong:
            break
        again = _cells(machine, [items[number] for number in wrong])
        for number, cell in zip(wrong, again, strict=True):
            cells[number] = cell
    return cells


def _cells(machine: Machine, items: Sequence[tuple[Scenario | None, int]]) -> list[Cell]:
    with tempfile.TemporaryDirectory(prefix="nodegauge-matrix-") as folder:
        seen = dict(_work(machine.profile, Path(folder) / "hardware", items))
    return [
        Cell(
            machine=machine,
            scenario=scenario,
            load=load,
            must=_must(machine, scenario, load),
            seen=seen[number],
        )
        for number, (scenario, load) in enumerate(items)
    ]


def _must(machine: Machine, scenario: Scenario | None, load: int) -> Row | None:
    if scenario is None:
        return healthy(machine, load=load)
    return expected(machine, scenario) if exists(machine, scenario) else None


def _work(
    profile: str, directory: Path, items: Sequence[tuple[Scenario | None, int]]
) -> Iterator[tuple[int, Row | str]]:
    """One process with the machine's driver; raises `TestbedError` with its last words when it fails."""
    hardware = plug(profile, directory)
    environ = hardware.env()
    hardware.unplug()
    order = worker.Order(
        profile=profile,
        directory=str(directory),
        items=[(number, scenario, load) for number, (scenario, load) in enumerate(items)],
        archive=str(hostarchive.host_archive()),
    )
    done = subprocess.run(
        [sys.executable, "-m", "testbed.matrix.worker"],
        input=msgspec.json.encode(order),
        env={**os.environ, **environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
        capture_output=True,
        timeout=WORKER_SECONDS,
        check=False,
    )
    if done.returncode:
        raise TestbedError(f"{profile}: {done.stderr.decode(errors='replace')[-2000:]}")
    for line in done.stdout.splitlines():
        yield msgspec.json.decode(line, type=tuple[int, Row | str])
