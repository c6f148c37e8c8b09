"""`make life` in small: some days of twenty nodes, the truth of its machines, and an oracle that can fail."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from fleet import life as story
from fleet import process
from fleet.life import Size, live
from fleet.machines import FAULTS, KINDS, Machine
from nodegauge_judge import Answer, History, judge_health
from nodegauge_operator.api.report import ProbeStatus, unstamp
from nodegauge_operator.core import gates
from nodegauge_operator.core.context import Context
from nodegauge_operator.core.hysteresis import GateRule
from nodegauge_operator.reconcile.breaker import Breaker
from nodegauge_operator.reconcile.gate_budget import GateBudget
from nodegauge_operator.reconcile.gate_rate import GateRate

SMALL = Size(nodes=20, days=10, seed=3, fast_nodes=4)
INTERVAL = 3600.0
TESTS = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["3", "4"])
def test_every_change_in_a_disturbed_week_has_a_cause(seed: str) -> None:
    """Outages, restarts, clock steps, edits, reboots, odd pods and faults; at the end all nodes are right.

    In a process of its own: only there a seed fixes the order of sets too.
    """
    command = [sys.executable, "-m", "fleet", "life", "--nodes", "20", "--days", "6", "--seed", seed]
    result = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, timeout=500)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 violations" in result.stdout


def ages_by_waiting(patch: pytest.MonkeyPatch) -> None:
    """A reading is stale once it is old, whatever the reason."""

    def expires_at(self: Context, probe: ProbeStatus) -> float:
        if not probe.read_at:
            return float("inf")
        return unstamp(probe.read_at) + self.stale_seconds_of(probe.name)

    patch.setattr(Context, "expires_at", expires_at)


def has_no_grace(patch: pytest.MonkeyPatch) -> None:
    """A node that leaves its policy is released at once."""
    patch.setattr(process, "SETTINGS_OF_LIFE", replace(process.SETTINGS_OF_LIFE, release_grace=0.0))


def ignores_the_budget(patch: pytest.MonkeyPatch) -> None:
    """Every faulty node is tainted; no incident holds one back."""
    patch.setattr(GateBudget, "has_slot", lambda self, name: True)
    patch.setattr(Breaker, "holding", lambda self, name: {})


def ignores_the_rate(patch: pytest.MonkeyPatch) -> None:
    """Every faulty node is tainted at once, within the budget."""
    patch.setattr(GateRate, "limit", lambda self, scope: 1000)


def taints_at_once(patch: pytest.MonkeyPatch) -> None:
    """One bad run suffices for every taint."""
    patch.setattr(GateRule, "enter_runs", property(lambda self: 1))


def lifts_at_once(patch: pytest.MonkeyPatch) -> None:
    """One good run lifts a taint."""
    known = gates.after_run
    patch.setattr(
        gates,
        "after_run",
        lambda *args, policy, **how: known(*args, policy=replace(policy, leave_runs=1, dwell="1s"), **how),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sabotage", "text"),
    [
        (ages_by_waiting, "without a cause"),
        (has_no_grace, "without a cause"),
        (ignores_the_budget, "more nodes are tainted than the budget allows"),
        (ignores_the_rate, "more nodes are tainted within an hour than may be"),
        (taints_at_once, "taint"),
        (lifts_at_once, "without a cause"),
    ],
)
def test_the_oracle_sees_a_broken_operator(
    sabotage: Callable[[pytest.MonkeyPatch], None], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of these breaks one promise."""
    sabotage(monkeypatch)
    monkeypatch.setattr(story, "MOST_VIOLATIONS", 1)
    monkeypatch.setattr(story, "HEAT_WAVE_DAYS", 3.0)
    assert any(text in violation.splitlines()[0] for violation in live(SMALL).oracle.violations)


@pytest.mark.parametrize("loaded", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_the_world_knows_what_its_machines_are(kind: str, loaded: bool) -> None:
    """The judge says of every machine with every fault what the tables of the world say."""
    for fault in ["", *(FAULTS.keys() - KINDS[kind].immune)]:
        machine = Machine(name="node-1", kind=kind, pool="fast", idle=not loaded)
        past = History()
        for run in range(1, 3):
            past = judge_health(machine.document(run * INTERVAL), history=past, interval=INTERVAL).history
        machine.fault = fault
        judgement = judge_health(machine.document(3 * INTERVAL), history=past, interval=INTERVAL)
        seen = bool(machine.visible_fault) and (loaded or not FAULTS[fault].under_load)
        hidden = seen and FAULTS[fault].hides_interconnect
        bad = {code for code, answer in judgement.answers.items() if answer is Answer.BAD}
        taints = {f"{gates.GATES[code].kind.value}={gates.GATES[code].cause.value}" for code in bad}
        assert taints == ({FAULTS[fault].taint} if seen else set()), fault
        assert all(gates.GATES[code].runs == FAULTS[fault].runs for code in bad)
        assert judgement.interconnect.klass == (None if hidden else KINDS[kind].interconnect)
        assert hidden or judgement.interconnect.nvlink_gbps == KINDS[kind].gbps
