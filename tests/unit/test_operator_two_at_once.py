"""Two operators at once, by mistake, do no harm: whoever goes next, the end is that of one alone.

Each has its own store, which lags behind by as many watch events as hypothesis likes, and gives its turn away
before every call: between what it decided and what it writes, anything may have happened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import support.results as made
from nodegauge_operator import names
from nodegauge_operator.api.report import GateState
from nodegauge_operator.kube.errors import KubeError
from support.api_server import NODES, PODS, REPORTS
from support.cluster import FakeCluster
from support.judging import listening, saying
from support.objects import INTERVAL
from support.operator import HEALTH, SteppedOperator
from support.properties import tried
from support.virtual_time import Turn

pytestmark = pytest.mark.slow


async def turn() -> None:
    """Let the other one go first."""
    await Turn()


class Racer:
    """One operator, whose settling of the node can be stopped before each call."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.operator = SteppedOperator(cluster)
        self.operator.list()
        self.operator.client._turn = turn
        self._work: Coroutine[Any, Any, Any] | None = None

    @property
    def idle(self) -> bool:
        """Whether it reconciles nothing now."""
        return self._work is None

    def go(self) -> None:
        """Begin to reconcile, or go on up to the next call."""
        if self._work is None:
            self._work = self.operator.reconciler.reconcile("node-1", granted=HEALTH, since=0.0)
        try:
            self._work.send(None)
        except StopIteration:
            self._work = None
        except KubeError:
            self._work = None  # tried again, later

    def finish(self) -> None:
        """Go on until the reconcile has ended."""
        while self._work is not None:
            self.go()


class Race:
    """Two racers on one cluster."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.cluster.add_node(team="a")
        self.cluster.add_policy()
        self.racers = [Racer(self.cluster), Racer(self.cluster)]

    def act(self, action: str) -> None:
        """One thing happens."""
        racer = self.racers[1 if action.endswith("2") else 0]
        match action.rstrip("12"):
            case "go":
                racer.go()
            case "see":
                racer.operator.deliver(1)
            case "relist":
                if racer.idle:
                    racer.operator.client._turn = None
                    racer.operator.list()
                    racer.operator.client._turn = turn
            case "kubelets":
                self.cluster.kubelets()
            case "stranger":
                self.cluster.change(NODES, "node-1", {"metadata": {"labels": {"foreign": "1"}}})
            case "person":
                if "node-1" in self.cluster.objects[REPORTS]:
                    asked = {"spec": {"requestedAt": "2027-01-15T08:00:01Z"}}
                    self.cluster.change(REPORTS, "node-1", asked)
            case "time":
                self.cluster.pass_time(20)

    def rest(self) -> None:
        """Everybody sees everything and works until there is nothing left to do."""
        for _ in range(60):
            before = sum(len(r.operator.client.log) for r in self.racers)
            for racer in self.racers:
                racer.finish()
                racer.operator.deliver()
                racer.go()
                racer.finish()
            worked = self.cluster.kubelets()
            after = sum(len(r.operator.client.log) for r in self.racers)
            if not worked and before == after and not any(r.operator.inbox for r in self.racers):
                return
        raise AssertionError("they never came to rest")


ACTIONS = st.sampled_from(
    ["go1", "go2"] * 5
    + ["see1", "see2"] * 4
    + ["relist1", "relist2", "kubelets", "kubelets"]
    + ["stranger", "person", "time"]
)


@given(actions=st.lists(ACTIONS, min_size=20, max_size=100))
@tried(250)
def test_whoever_goes_next_the_end_is_the_same(actions: list[str]) -> None:
    """Labels, condition, verdict as of one operator; no run judged twice; no pod left; strangers unharmed."""
    race = Race()
    for action in actions:
        race.act(action)
    race.rest()
    race.cluster.pass_time(INTERVAL)
    race.cluster.results["node-1"] = made.with_pair(made.titan(), 0, 1, read=1)
    race.rest()
    judged = [(node, number) for node, number, _ in race.cluster.judged]
    assert max(Counter(judged).values()) == 1, judged
    numbers = [number for _, number in judged]
    assert numbers == sorted(numbers)
    state = race.cluster.state()
    assert state["pods"] == []
    labels = state["nodes"]["node-1"]["labels"]
    assert labels["team"] == "a"
    assert labels.get("foreign", "1") == "1"
    assert ("foreign" in labels) == ("stranger" in actions)
    assert labels[names.LABEL_HEALTH] == "warn"  # one run of two
    assert not labels.keys() & {names.LABEL_INTERCONNECT, names.LABEL_NVLINK_GBPS, "interconnect"}
    desired = state["reports"]["node-1"]["desired"]
    ours = {k: v for k, v in labels.items() if k in names.NODE_LABELS or k == "interconnect"}
    assert desired["labels"] == ours
    condition = state["nodes"]["node-1"]["conditions"][names.CONDITION]
    assert (condition["status"], condition["message"]) == (desired["condition"], desired["message"])


@given(actions=st.lists(ACTIONS, min_size=20, max_size=80))
@tried(150)
def test_a_run_is_counted_where_it_was_written(actions: list[str]) -> None:
    """Who lost the race for the report has judged nothing: both counters together count each run once."""
    race = Race()
    for action in actions:
        race.act(action)
    race.rest()
    counted = sum(racer.operator.runs_counted() for racer in race.racers)
    assert counted == len(race.cluster.judged)


def test_two_that_do_not_hear_of_each_other_exceed_the_budget_by_what_each_entered_and_say_so() -> None:
    """One slot; each gates a node before it has seen the other's report. Once they have, neither adds one,
    and both count what there is."""
    with listening():
        cluster = FakeCluster()
        for n in range(3):
            cluster.add_node(f"node-{n}")
            cluster.results[f"node-{n}"] = saying("gpu-lost=b")
        cluster.add_policy(budget={"concurrentProbes": "100%", "gatedNodes": 1})
        both = [SteppedOperator(cluster) for _ in range(2)]
        for operator in both:
            operator.list()
        for n, operator in enumerate(both):
            operator.reconcile(f"node-{n}")
            cluster.kubelets()
            operator.inbox = [event for event in operator.inbox if event[0] == PODS]
            operator.deliver()
            operator.reconcile(f"node-{n}")
        assert [tainted(cluster, f"node-{n}") for n in range(3)] == [True, True, False]
        for operator in both:
            operator.list()
            assert list(operator.reconciler.gate_budget.exceeded()) == [("default", 2, 1, False)]
        both[0].reconcile("node-2")
        cluster.kubelets()
        both[0].deliver()
        both[0].reconcile("node-2")
        assert both[0].cache.reports["node-2"].status.gates[0].state is GateState.HELD_BACK
        assert [tainted(cluster, f"node-{n}") for n in range(3)] == [True, True, False]


def tainted(cluster: FakeCluster, name: str) -> bool:
    """Whether the node carries a taint for a fault."""
    taints = (cluster.objects[NODES][name].get("spec") or {}).get("taints") or []
    return any(taint["key"] in names.TAINTS_OF_FAULTS for taint in taints)
