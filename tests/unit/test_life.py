"""`make life` in small: days of a fleet, and an oracle that can fail."""

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fleet import life as story
from fleet import process
from fleet.life import Size, live
from nodegauge_operator.api.report import ProbeStatus
from nodegauge_operator.api.times import unstamp
from nodegauge_operator.core import gates
from nodegauge_operator.core.context import Context
from nodegauge_operator.core.hysteresis import GateRule
from nodegauge_operator.reconcile.breaker import Breaker
from nodegauge_operator.reconcile.gate_budget import GateBudget
from nodegauge_operator.reconcile.gate_rate import GateRate

SMALL = Size(nodes=20, days=10, seed=5, fast_nodes=4, heat_waves=3)

pytestmark = pytest.mark.timeout(1800)  # days of a fleet are work: nothing is measured here


@pytest.mark.slow
def test_every_change_in_disturbed_days_has_a_cause() -> None:
    """In a process of its own: only there a seed fixes the order of sets too."""
    size = ["--nodes=20", "--days=10", "--seed=5", "--fast=4", "--heat-waves=3"]  # as SMALL
    command = [sys.executable, "-m", "fleet", "life", *size]
    result = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 violations" in result.stdout


def expires_by_waiting(self: Context, probe: ProbeStatus) -> float:
    """A reading is stale once it is old, whatever the reason."""
    return unstamp(probe.read_at) + self.stale_seconds_of(probe.name) if probe.read_at else float("inf")


def left_at_once(*args: Any, policy: Any, known: Callable[..., Any] = gates.after_run, **how: Any) -> Any:
    """One good run lifts a taint."""
    return known(*args, policy=replace(policy, leave_runs=1, dwell="1s"), **how)


IMPATIENT = replace(process.SETTINGS_OF_LIFE, release_grace=0.0)
Patch = tuple[Any, str, Any]
SABOTAGE: dict[str, tuple[int, str, list[Patch]]] = {
    "ages by waiting": (6, "without a cause", [(Context, "expires_at", expires_by_waiting)]),
    "has no grace": (4, "without a cause", [(process, "SETTINGS_OF_LIFE", IMPATIENT)]),
    "ignores budget and incidents": (
        3,
        "more nodes are tainted than the budget allows",
        [(GateBudget, "has_slot", lambda self, name: True), (Breaker, "holding", lambda self, name: {})],
    ),
    "ignores the rate": (
        3,
        "more nodes are tainted within an hour than may be",
        [(GateRate, "limit", lambda self, scope: 1000)],
    ),
    "taints at once": (5, "taint", [(GateRule, "enter_runs", property(lambda self: 1))]),
    "lifts at once": (5, "without a cause", [(gates, "after_run", left_at_once)]),
}
"""The seed of days in which it soon shows, part of the violation, and what is broken."""


@pytest.mark.slow
@pytest.mark.parametrize("what", SABOTAGE)
def test_the_oracle_sees_a_broken_operator(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seed, text, patches = SABOTAGE[what]
    for patch in patches:
        monkeypatch.setattr(*patch)
    monkeypatch.setattr(story, "MOST_VIOLATIONS", 1)
    heads = [
        violation.splitlines()[0]
        for violation in live(dataclasses.replace(SMALL, seed=seed)).oracle.violations
    ]
    assert any(text in head for head in heads), "the same days of the product as it is have no violation"
