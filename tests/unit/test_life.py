"""`make life` in small: some days of twenty nodes, the truth of its machines, and an oracle that can fail."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from fleet import life as story
from fleet import process
from fleet.life import Size, live
from fleet.machines import FAULTS, KINDS, Machine
from fleet.oracle import Oracle
from fleet.record import Record
from fleet.virtual import LivingCluster
from nodegauge_judge import Answer, History, judge_health
from nodegauge_operator import names
from nodegauge_operator.api.policy import PolicySpec
from nodegauge_operator.api.report import ProbeStatus, unstamp
from nodegauge_operator.api.selector import Selector
from nodegauge_operator.core import gates
from nodegauge_operator.core.context import Context
from nodegauge_operator.core.hysteresis import GateRule
from nodegauge_operator.reconcile.breaker import Breaker
from nodegauge_operator.reconcile.gate_budget import GateBudget
from nodegauge_operator.reconcile.gate_rate import GateRate
from support.api_server import NODES

SMALL = Size(nodes=20, days=10, seed=3, fast_nodes=4)
INTERVAL = 3600.0
TESTS = Path(__file__).parents[1]


@pytest.mark.slow
def test_every_change_in_a_disturbed_week_has_a_cause() -> None:
    """Outages, restarts, clock steps, edits, reboots, odd pods and faults; at the end all nodes are right.

    In a process of its own: only there a seed fixes the order of sets too.
    """
    command = [sys.executable, "-m", "fleet", "life", "--nodes", "20", "--days", "6", "--seed", "3"]
    result = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, timeout=500)
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
SABOTAGE: dict[str, tuple[str, list[Patch]]] = {
    "ages by waiting": ("without a cause", [(Context, "expires_at", expires_by_waiting)]),
    "has no grace": ("without a cause", [(process, "SETTINGS_OF_LIFE", IMPATIENT)]),
    "ignores budget and incidents": (
        "more nodes are tainted than the budget allows",
        [(GateBudget, "has_slot", lambda self, name: True), (Breaker, "holding", lambda self, name: {})],
    ),
    "ignores the rate": (
        "more nodes are tainted within an hour than may be",
        [(GateRate, "limit", lambda self, scope: 1000)],
    ),
    "taints at once": ("taint", [(GateRule, "enter_runs", property(lambda self: 1))]),
    "lifts at once": ("without a cause", [(gates, "after_run", left_at_once)]),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", SABOTAGE)
def test_the_oracle_sees_a_broken_operator(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these breaks one promise."""
    text, patches = SABOTAGE[what]
    for patch in patches:
        monkeypatch.setattr(*patch)
    monkeypatch.setattr(story, "MOST_VIOLATIONS", 1)
    monkeypatch.setattr(story, "HEAT_WAVE_DAYS", 3.0)
    assert any(text in violation.splitlines()[0] for violation in live(SMALL).oracle.violations)


class Written:
    """Nodes with broken memory and an oracle, without an operator; nothing moves by itself."""

    def __init__(self) -> None:
        self.record = Record()
        self.record.policies["fast"] = [(-1.0, PolicySpec(node_selector=Selector()))]
        still: Any = SimpleNamespace(time=lambda: 0.0, call_later=lambda *_: None)
        self.cluster = LivingCluster(still, self.record, random.Random(1))
        self.oracle = Oracle(self.cluster, self.record)

    def node(self, name: str) -> str:
        """A machine at work that fails its repair of memory, as a node."""
        self.cluster.register(Machine(name=name, kind="2x RTX 4090", pool="fast", fault="memory"))
        return name

    def read(self, name: str, number: int) -> None:
        """The pod of this run writes its reading."""
        pod = {"metadata": {"name": f"{name}-{number}", "uid": f"{name}-{number}"}}
        self.cluster.write_reading(name, names.PROBE_HEALTH, "a document", pod=pod)

    def report(self, name: str, number: int, outcome: str = "read") -> str:
        """The report takes this run; what the record has against it."""
        run = {"number": number, "outcome": outcome, "reason": ""}
        left = self.cluster.left.pop(f"{name}-{number}", None)
        return self.record.report_written(0.0, name, run, left)

    def label(self, name: str) -> list[str]:
        """The operator labels the node as any reading of it says; new violations."""
        return self._violations(name, {"metadata": {"labels": {"nodegauge.dev/psu": "ok"}}})

    def taint(self, name: str) -> list[str]:
        """The operator taints it as two readings in a row say; new violations."""
        taint = {"key": names.TAINT_UNHEALTHY, "value": "memory", "effect": "NoSchedule"}
        return self._violations(name, {"spec": {"taints": [taint]}})

    def _violations(self, name: str, patch: dict[str, Any]) -> list[str]:
        before = len(self.oracle.violations)
        self.cluster.change(NODES, name, patch)
        return [text.splitlines()[0] for text in self.oracle.violations[before:]]


def test_a_node_follows_from_a_reading_that_is_written() -> None:
    """Before its report does, and not before it is written."""
    world = Written()
    early, late = world.node("early"), world.node("late")
    assert ["without a cause: nodegauge.dev/psu" in text for text in world.label(early)] == [True]
    world.read(late, 1)
    assert world.label(late) == []


def test_a_reading_counts_once() -> None:
    """When the node follows from it and then its report: two of them taint, one does not."""
    world = Written()
    for name, readings in {"twice": 2, "once": 1}.items():
        world.node(name)
        world.read(name, 1)
        assert world.label(name) == []
        assert world.report(name, 1) == ""
        if readings > 1:
            world.read(name, 2)
        violations = world.taint(name)
        assert ["without a cause: taint" in text for text in violations] == [True] * (2 - readings)


def test_a_report_reads_what_was_written() -> None:
    """It takes no reading that is not there, and refuses none that the node has followed from."""
    world = Written()
    name = world.node("node-1")
    assert "wrote no reading" in world.report(name, 1)
    world.read(name, 2)
    assert world.label(name) == []
    assert "counts as unknown" in world.report(name, 2, outcome="unknown")


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
