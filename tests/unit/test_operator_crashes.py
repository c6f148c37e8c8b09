"""Promise 3: killed between any two writes, started again: nothing is lost, nothing is done twice.

The real worker, adapter and handlers run on a cluster in memory; SIGKILL is an exception that nothing
catches, before or after a write took effect, and the next process knows only what the cluster holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import support.results as made
from nodegauge_operator import names
from nodegauge_operator.api.report import GateState
from nodegauge_operator.core.probes.registry import label_keys
from nodegauge_operator.kube.errors import KubeError
from support.api_server import NODES, PODS, POLICIES, REPORTS
from support.client import Killed
from support.cluster import FakeCluster
from support.judging import saying
from support.objects import INTERVAL
from support.operator import HEALTH, SteppedOperator, one_node
from support.properties import tried
from support.virtual_time import Turn

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("stated_answers")]

Story = Callable[[FakeCluster], Iterator[None]]
LINK_LOST = made.with_pair(made.titan(), 0, 1, read=1)
WARMER = made.every_gpu(made.titan(), temperature=replace(made.titan().gpus[0].temperature, gpu=33))


def two_runs(cluster: FakeCluster) -> Iterator[None]:
    """A node is read, and 15 minutes later P2P is refused: labels come, and some go."""
    cluster.add_node(team="a", interconnect_owner="nobody")
    cluster.add_policy()
    yield
    cluster.pass_time(INTERVAL)
    cluster.results["node-1"] = LINK_LOST
    yield


def _goes(cluster: FakeCluster) -> Iterator[None]:
    """The policy is deleted. A node that left its policy keeps everything for a while, as often as crashes
    begin that anew."""
    cluster.remove(POLICIES, "default")
    for _ in range(11):
        yield
        cluster.pass_time(600)


def policy_goes(cluster: FakeCluster) -> Iterator[None]:
    """A node is read, then its policy is deleted while a second run is under way."""
    cluster.add_node(team="a")
    cluster.add_policy()
    yield
    cluster.pass_time(INTERVAL)
    yield from _goes(cluster)


def node_is_replaced(cluster: FakeCluster) -> Iterator[None]:
    """A node is read, then another machine registers under its name."""
    cluster.add_node()
    cluster.add_policy()
    yield
    cluster.pass_time(INTERVAL)
    cluster.remove(NODES, "node-1")
    cluster.add_node(boot="boot-9")
    cluster.results["node-1"] = made.phb()
    yield


def gets_hot_and_cools(cluster: FakeCluster) -> Iterator[None]:
    """A node that registered unvalidated is read, hot twice, idle, and cool three times under load."""
    cluster.add_node(taints=("team", names.TAINT_UNVALIDATED))
    cluster.add_policy(budget={"gatedNodes": 1}, hysteresis={"probationAfter": []})
    for answers in ("", "hot=b", "hot=b", "hot=n", "", "", ""):
        cluster.results["node-1"] = saying(answers, load=answers != "hot=n")
        yield
        cluster.pass_time(INTERVAL)


def is_lost_and_let_go(cluster: FakeCluster) -> Iterator[None]:
    """A node set unvalidated by the policy loses a GPU, then the policy is deleted."""
    cluster.add_node(taints=("team",))
    cluster.add_policy(taints={"unvalidated": "Set"})
    cluster.results["node-1"] = saying("gpu-lost=b")
    yield
    yield from _goes(cluster)


class CrashingOperators:
    """Operators that live a story and die one after another; `deaths`: at which write, and before or after it
    takes effect."""

    def __init__(self, story: Story, *deaths: tuple[int, str]) -> None:
        self.cluster = FakeCluster()
        self.deaths = list(deaths)
        self.writes: list[str] = []
        self.gated = 0
        events = story(self.cluster)
        next(events)
        self._born()
        self._calm()
        for _ in events:
            self._calm()
        self.writes += self.operator.client.log

    def _born(self) -> None:
        self.operator = SteppedOperator(self.cluster)
        self.operator.client.kill_at = self.deaths.pop(0) if self.deaths else None
        self.operator.client.answered = self._count_taints
        self.operator.list()

    def _count_taints(self, verb: str, path: str) -> None:
        if (verb, path) == ("PATCH", f"{NODES}/node-1"):
            self.gated += bool(self.cluster.faults())

    def _calm(self) -> None:
        """Work until nothing is left to do, being born again after each death."""
        for _ in range(200):
            before = len(self.operator.client.log)
            try:
                self.operator.deliver()
                self.operator.reconcile()
            except Killed:
                self.operator.die()
                self.writes += self.operator.client.log
                self._born()
                continue
            worked = self.cluster.kubelets() if not self.operator.inbox else True
            if not worked and not self.operator.inbox and len(self.operator.client.log) == before:
                return
        raise AssertionError("it never came to rest")

    def end(self) -> dict[str, Any]:
        """What counts at the end; no run was judged twice, no run had two pods, no pod is left."""
        uids = [uid for *_, uid in self.cluster.judged]
        assert len(uids) == len(set(uids))
        assert set(self.cluster.created.values()) <= {1}
        assert list(self.cluster.pods()) == []
        return self.cluster.state()


STORIES: list[Story] = [two_runs, policy_goes, node_is_replaced, gets_hot_and_cools, is_lost_and_let_go]


def ours(labels: dict[str, str]) -> dict[str, str]:
    return {key: text for key, text in labels.items() if key in label_keys() or key == "interconnect"}


CALM: dict[Story, tuple[str, int, bool, list[str]]] = {
    two_runs: ("warn", 2, False, ["FaultsFound", "Validated"]),
    policy_goes: ("", 1, False, ["Released", "Validated"]),
    node_is_replaced: ("pass", 2, False, ["Validated", "Validated"]),
    gets_hot_and_cools: (
        "pass",
        7,
        True,
        ["FaultsFound", "TaintLifted", "Tainted", "Validated", "Validated"],
    ),
    is_lost_and_let_go: ("", 1, True, ["Released", "Tainted"]),
}
"""The label of health, how many runs were judged, whether there was a taint, and events."""


@pytest.mark.parametrize("story", STORIES, ids=lambda s: s.__name__)
def test_a_calm_life(story: Story) -> None:
    """Without deaths the story ends as expected; the others are compared with this."""
    operators = CrashingOperators(story)
    state = operators.end()
    node, health = state["nodes"]["node-1"], CALM[story][0]
    reasons = [reason for _, reason, _ in state["events"]]
    seen = (node["labels"].get(names.LABEL_HEALTH, ""), len(operators.cluster.judged), operators.gated > 0)
    assert (*seen, reasons) == CALM[story]
    assert (state["reports"] == {}, names.CONDITION not in node["conditions"]) == (not health, not health)
    assert [taint["key"] for taint in node["taints"]] in ([], ["team"])


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("story", STORIES, ids=lambda s: s.__name__)
def test_one_death_at_any_write(story: Story, when: str) -> None:
    calm = CrashingOperators(story)
    for write in range(len(calm.writes)):
        end = CrashingOperators(story, (write, when)).end()
        assert end == calm.end(), f"killed {when} write {write}: {calm.writes[write]}"


@given(
    deaths=st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["before", "after"])), max_size=8),
    story=st.sampled_from(STORIES),
)
@tried(120)
def test_any_number_of_deaths(story: Story, deaths: list[tuple[int, str]]) -> None:
    assert CrashingOperators(story, *deaths).end() == CrashingOperators(story).end()


def test_what_a_run_writes() -> None:
    operator = one_node()
    pod, status, gone = "POST pods", "PATCH nodereports/status", "DELETE pods"
    first = ["POST nodereports", pod, "PATCH nodes", status, "PATCH nodes/status", "POST events", gone]
    for expected in (first, [pod, status, gone], [pod, "PATCH nodes", status, gone], [pod, status, gone]):
        operator.client.log.clear()
        operator.client.reads.clear()
        operator.run()
        operator.catch_up(granted=False)
        assert (operator.client.log, operator.client.reads) == (expected, [])
        operator.cluster.pass_time(INTERVAL)
        operator.cluster.results["node-1"] = WARMER


class Racer(SteppedOperator):
    """One operator, whose reconcile of the node can be stopped before each call."""

    def __init__(self, cluster: FakeCluster) -> None:
        super().__init__(cluster)
        self.list()
        self.client._turn = Turn
        self.work: Coroutine[Any, Any, Any] | None = None

    def go(self, most: int = 1) -> None:
        """Begin to reconcile, or go on, up to the next call or as many."""
        for _ in range(most):
            if self.work is None:
                self.work = self.reconciler.reconcile("node-1", granted=HEALTH, since=0.0)
            try:
                self.work.send(None)
            except (StopIteration, KubeError):
                self.work = None  # after an error it is tried again, later
                return


class Race:
    """Two racers on one cluster."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.cluster.add_node(team="a")
        self.cluster.add_policy()
        self.racers = [Racer(self.cluster), Racer(self.cluster)]

    def act(self, action: str) -> None:
        racer = self.racers[1 if action.endswith("2") else 0]
        match action.rstrip("12"):
            case "go":
                racer.go()
            case "see":
                racer.deliver(1)
            case "relist" if racer.work is None:
                racer.client._turn = None
                racer.list()
                racer.client._turn = Turn
            case "kubelets":
                self.cluster.kubelets()
            case "stranger":
                self.cluster.change(NODES, "node-1", {"metadata": {"labels": {"foreign": "1"}}})
            case "person" if "node-1" in self.cluster.objects[REPORTS]:
                asked = {"spec": {"requestedAt": "2027-01-15T08:00:01Z"}}
                self.cluster.change(REPORTS, "node-1", asked)
            case "time":
                self.cluster.pass_time(20)

    def rest(self) -> None:
        """Everybody sees everything and works until there is nothing left to do."""
        for _ in range(60):
            before = sum(len(racer.client.log) for racer in self.racers)
            for racer in self.racers:
                if racer.work is not None:
                    racer.go(most=1000)
                racer.deliver()
                racer.go(most=1000)
            worked = self.cluster.kubelets()
            after = sum(len(racer.client.log) for racer in self.racers)
            if not worked and before == after and not any(racer.inbox for racer in self.racers):
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
    race = Race()
    for action in actions:
        race.act(action)
    race.rest()
    race.cluster.pass_time(INTERVAL)
    race.cluster.results["node-1"] = LINK_LOST
    race.rest()
    judged = [(node, number) for node, number, _ in race.cluster.judged]
    assert max(Counter(judged).values()) == 1, judged
    assert sum(racer.runs_counted() for racer in race.racers) == len(judged), "where it was written"
    assert judged == sorted(judged)
    state = race.cluster.state()
    assert state["pods"] == []
    labels, desired = state["nodes"]["node-1"]["labels"], state["reports"]["node-1"]["desired"]
    assert labels["team"] == "a"
    assert labels.get("foreign") == ("1" if "stranger" in actions else None)
    assert labels[names.LABEL_HEALTH] == "warn"  # one run of two
    assert not labels.keys() & {names.LABEL_INTERCONNECT, "nodegauge.dev/nvlink-gbps", "interconnect"}
    assert desired["labels"] == ours(labels)
    condition = state["nodes"]["node-1"]["conditions"][names.CONDITION]
    assert (condition["status"], condition["message"]) == (desired["condition"], desired["message"])


def test_two_that_do_not_hear_of_each_other_exceed_the_budget_by_what_each_entered_and_say_so() -> None:
    """One slot; each gates a node before it has seen the other's report."""

    def gated() -> list[bool]:
        taints = [body["spec"].get("taints") or () for body in cluster.objects[NODES].values()]
        return [any(taint["key"] in names.TAINTS_OF_FAULTS for taint in each) for each in taints]

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
    assert gated() == [True, True, False]
    for operator in both:
        operator.list()
        assert list(operator.reconciler.gate_budget.exceeded()) == [("default", 2, 1, False)]
    both[0].reconcile("node-2")
    cluster.kubelets()
    both[0].deliver()
    both[0].reconcile("node-2")
    assert both[0].cache.reports["node-2"].status.gates[0].state is GateState.HELD_BACK
    assert gated() == [True, True, False]
