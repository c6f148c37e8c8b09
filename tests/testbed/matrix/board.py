"""Has machines go through scenarios, and compares the result with the expectation."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from testbed import profiles
from testbed.driver.build import library_folder
from testbed.errors import TestbedError
from testbed.matrix import worker
from testbed.matrix.expected import Machine, Row, Scenario, exists, expected, healthy

TESTS = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """`seen`: text where the hardware refused the fault; `must`: None where it has to."""

    machine: Machine
    scenario: Scenario | None
    load: int
    must: Row | None
    seen: Row | str

    @property
    def good(self) -> bool:
        return isinstance(self.seen, str) if self.must is None else self.must == self.seen

    @property
    def name(self) -> str:
        what = self.scenario.name if self.scenario else f"healthy, load {self.load} %"
        return f"{self.machine.profile}: {what}"


def play(
    machines: Sequence[Machine],
    scenarios: Mapping[str, Sequence[Scenario]],
    *,
    done: Callable[[list[Cell]], None] = lambda _: None,
) -> list[Cell]:
    with tempfile.TemporaryDirectory(dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")) as top:
        orders = {one.profile: _order(one, scenarios[one.profile], Path(top)) for one in machines}
        by_profile = {machine.profile: machine for machine in machines}
        result: dict[str, list[Cell]] = {}
        with (
            (Path(top) / "errors").open("w+b") as errors,
            subprocess.Popen(
                [sys.executable, "-m", "testbed.matrix.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
            ) as process,
        ):
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(msgspec.json.encode([*orders.values()]))
            process.stdin.close()
            for line in process.stdout:
                profile = line.decode().strip()
                if orders[profile].answers.exists():
                    result[profile] = _cells(by_profile[profile], orders[profile])
                    done(result[profile])
            process.wait()
            if process.returncode:
                errors.seek(0)
                raise TestbedError(f"the matrix failed: {errors.read().decode(errors='replace')[-2000:]}")
    return [cell for machine in machines for cell in result[machine.profile]]


def _order(machine: Machine, scenarios: Sequence[Scenario], top: Path) -> worker.Order:
    library_folder(profiles.load(machine.profile).driver.version)
    (top / machine.profile).mkdir()
    items: list[tuple[Scenario | None, int]] = [(None, 0), (None, 100)]
    items += [(scenario, scenario.load) for scenario in scenarios]
    return worker.Order(
        profile=machine.profile,
        directory=str(top / machine.profile),
        items=[(number, scenario, load) for number, (scenario, load) in enumerate(items)],
    )


def _cells(machine: Machine, order: worker.Order) -> list[Cell]:
    seen = dict(msgspec.json.decode(order.answers.read_bytes(), type=worker.Answers))
    cells = []
    for number, scenario, load in order.items:
        must = healthy(machine, load=load) if scenario is None else None
        if scenario is not None and exists(machine, scenario):
            must = expected(machine, scenario)
        cells.append(Cell(machine=machine, scenario=scenario, load=load, must=must, seen=seen[number]))
    return cells
