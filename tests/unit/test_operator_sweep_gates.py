"""A whole fleet hot at once: the sweep with its workers, late watches and slow calls keeps to the budget."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from nodegauge_operator import names
from nodegauge_operator.api.report import unstamp
from nodegauge_operator.kube.errors import KubeError
from support.api_server import NODES, POLICIES, REPORTS
from support.client import unavailable
from support.judging import listening, saying
from support.virtual_operator import VirtualTimeOperator, on_virtual_time

pytestmark = pytest.mark.slow

COUNT, SLOTS = 50, 10
SPEC: dict[str, Any] = {
    "probes": {"health": {"interval": "2m"}},
    "budget": {"concurrentProbes": "100%", "gatedNodes": SLOTS},
    "hysteresis": {"leaveRuns": 1, "dwell": "1m", "probationAfter": []},
}


@pytest.fixture(autouse=True)
def stated_answers() -> Iterator[None]:
    with listening():
        yield


class Watched:
    """A operator on which every single change is looked at: how many nodes are gated at that moment."""

    def __init__(self, operator: VirtualTimeOperator, *, slots: int = SLOTS) -> None:
        self.operator = operator
        self.gate_budget = slots
        self.most = (0, 0)
        self.over: list[tuple[int, int]] = []
        self.entered: list[str] = []
        operator.cluster.subscribers.append(self._look)

    def tainted(self) -> set[str]:
        """Nodes that carry a taint for a fault."""
        nodes = self.operator.cluster.objects[NODES].items()
        return {n for n, body in nodes if any(t["key"] in names.TAINTS_OF_FAULTS for t in _taints(body))}

    def reserved(self) -> set[str]:
        """Nodes whose report holds one."""
        reports = self.operator.cluster.objects[REPORTS].items()
        return {n for n, body in reports if _desired_taints(body)}

    def _look(self, path: str, kind: str, body: dict[str, Any]) -> None:
        if path == NODES:
            new = any(t["key"] in names.TAINTS_OF_FAULTS for t in _taints(body))
            name = body["metadata"]["name"]
            if new and name not in self.entered:
                self.entered.append(name)
        both = self.tainted() | self.reserved()
        self.most = max(self.most, (len(both), len(self.tainted())))
        if len(both) > self.gate_budget:
            self.over.append((len(self.tainted()), len(self.reserved())))

    def all(self, answers: str, *, load: bool = True) -> None:
        """Every node's next run ends like this."""
        for name in self.operator.cluster.objects[NODES]:
            self.operator.cluster.results[name] = saying(answers, load=load)

    def condition(self) -> dict[str, Any]:
        """The policy's condition about its budget."""
        status = self.operator.cluster.objects[POLICIES]["default"]["status"]
        (condition,) = [c for c in status["conditions"] if c["type"] == "GatesWithinBudget"]
        return condition


def _taints(body: dict[str, Any]) -> list[dict[str, Any]]:
    return (body.get("spec") or {}).get("taints") or []


def _desired_taints(body: dict[str, Any]) -> list[dict[str, Any]]:
    return body.get("status", {}).get("desired", {}).get("taints", [])


@on_virtual_time
async def test_fifty_hot_nodes_never_gate_more_than_the_budget(operator: VirtualTimeOperator) -> None:
    """At no moment, in reports and on nodes together; the policy says how many are held back, and why; as the
    first ones cool down, those that waited longest come next, until nobody is hot."""
    watched = Watched(operator)
    operator.nodes(COUNT)
    operator.cluster.add_policy(**SPEC)
    watched.all("hot=b")
    operator.start()
    await operator.after(400)
    assert len(watched.tainted()) == SLOTS
    condition = watched.condition()
    assert (condition["status"], condition["reason"]) == ("False", "BudgetExhausted")
    assert condition["message"].startswith("10 of 10 slots used, 40 nodes held back: thermal 40.")
    counts = operator.cluster.objects[POLICIES]["default"]["status"]["nodes"]
    assert (counts["gated"], counts["heldBack"]) == (SLOTS, COUNT - SLOTS)
    shown = operator.metrics.render().decode()
    assert 'nodegauge_gated_nodes{cause="thermal",policy="default",taint="throttled"} 10.0' in shown
    assert 'nodegauge_held_back_nodes{policy="default"} 40.0' in shown
    first = set(watched.entered)
    for name in first:
        operator.cluster.results[name] = saying("")
    await operator.after(400)
    assert len(watched.tainted()) == SLOTS
    assert not watched.tainted() & first
    watched.all("")
    await operator.after(1500)
    assert watched.tainted() == set()
    assert watched.condition()["reason"] == "WithinBudget"
    assert watched.over == []


@on_virtual_time
async def test_who_was_hot_first_is_gated_first(operator: VirtualTimeOperator) -> None:
    """A slot that becomes free goes to the node that has waited longest, whoever asks first."""
    watched = Watched(operator, slots=1)
    await operator.begin(3, **(SPEC | {"budget": {"concurrentProbes": "100%", "gatedNodes": 1}}))
    for name in ("node-2", "node-0", "node-1"):
        operator.cluster.results[name] = saying("gpu-lost=b")
        await operator.after(150)
    assert watched.entered == ["node-2"]
    waiting = {n: _row(operator, n)["since"] for n in ("node-0", "node-1")}
    assert unstamp(waiting["node-0"]) < unstamp(waiting["node-1"])
    operator.cluster.results["node-2"] = saying("")
    await operator.after(200)
    assert watched.entered == ["node-2", "node-0"]
    assert watched.over == []


def _row(operator: VirtualTimeOperator, name: str) -> dict[str, Any]:
    gate: dict[str, Any]
    (gate,) = operator.cluster.objects[REPORTS][name]["status"]["gates"]
    assert gate["state"] == "held-back"
    return gate


@pytest.mark.parametrize("seed", range(4))
@on_virtual_time
async def test_answers_that_are_lost_lose_no_place(operator: VirtualTimeOperator, seed: int) -> None:
    """A third of the writes to reports is made or not, and no answer comes: the budget holds all the same,
    and in the end as many nodes are gated as there are slots."""
    dice = random.Random(seed)
    watched = Watched(operator)
    operator.nodes(COUNT)
    operator.cluster.add_policy(**SPEC)
    watched.all("gpu-lost=b")

    def lost(verb: str, path: str) -> KubeError | None:
        hit = verb == "PATCH" and path.startswith(REPORTS) and dice.random() < 0.17
        return unavailable() if hit else None

    def unheard(verb: str, path: str) -> None:
        error = lost(verb, path)
        if error is not None:
            raise error

    operator.client.refuse, operator.client.answered = lost, unheard
    operator.start()
    await operator.after(300)
    assert watched.over == []
    assert len(watched.tainted()) == SLOTS


@on_virtual_time
async def test_a_restart_counts_what_it_finds(operator: VirtualTimeOperator) -> None:
    """A new process lists first: what its predecessor gated keeps its slots, also if no watch ever tells."""
    watched = Watched(operator, slots=2)
    operator.nodes(6)
    operator.cluster.add_policy(**(SPEC | {"budget": {"concurrentProbes": "100%", "gatedNodes": 2}}))
    watched.all("gpu-lost=b")
    operator.start()
    await operator.after(100)
    before = watched.tainted()
    assert len(before) == 2
    again = VirtualTimeOperator(operator.loop)
    again.cluster.objects = operator.cluster.objects
    again.cluster._version, again.cluster._uids = operator.cluster._version, operator.cluster._uids
    operator.task.cancel()
    after = Watched(again, slots=2)
    after.all("gpu-lost=b")
    again.start()
    await again.after(400)
    assert (after.tainted(), after.over) == (before, [])
    again.task.cancel()
