"""Which cells a change can affect, beyond those that stand for all others (`expected.representative`).

All of a machine whose profile changed, all of a scenario whose entry in the table changed, and all scenarios
whose findings stand in a rules file that changed.  A change elsewhere (driver, probe, contract, operator) is
tried on the representatives alone: `make matrix` has them all.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import yaml

from testbed.errors import TestbedError
from testbed.matrix.expected import SCENARIOS, Machine, Scenario

ROOT = Path(__file__).resolve().parents[3]
PROFILES, RULES = "tests/testbed/profiles/", "operator/src/nodegauge_judge/rules/"


def changed_since(
    revision: str, machines: Sequence[Machine], scenarios: Sequence[Scenario]
) -> set[tuple[str, str]]:
    """Pairs of profile and scenario that differ from the merge base with `revision`.

    Raises TestbedError, with git's words, if there is no such revision.
    """
    base = _git("merge-base", "HEAD", revision).strip()
    files = _git("diff", "--name-only", base).split()
    table = SCENARIOS.relative_to(ROOT).as_posix()
    before = yaml.safe_load(_git("show", f"{base}:{table}")) if table in files else None
    texts = {name: (ROOT / name).read_text("utf-8") for name in files if (ROOT / name).is_file()}
    return affected(texts, before, machines=machines, scenarios=scenarios)


def affected(
    changed: dict[str, str], before: object, *, machines: Sequence[Machine], scenarios: Sequence[Scenario]
) -> set[tuple[str, str]]:
    """`changed`: texts of changed files by path; `before`: the table as it was, None if it is the same."""
    known = scenarios if before is None else msgspec.convert(before, list[Scenario], strict=False)
    rules = "".join(text for name, text in changed.items() if name.startswith(RULES))
    return {
        (machine.profile, scenario.name)
        for machine in machines
        for scenario in scenarios
        if f"{PROFILES}{machine.profile}.yaml" in changed
        or scenario not in known
        or any(f'"{code}"' in rules for code in _codes(scenario))
    }


def _codes(scenario: Scenario) -> Iterable[str]:
    """Of all findings that the scenario may lead to."""
    return set(scenario.findings).union(*(one.findings or {} for one in scenario.otherwise))


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TestbedError(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout
