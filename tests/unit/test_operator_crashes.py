"""Promise 3: killed between any two writes, started again: nothing is lost, nothing is done twice.

The real worker, adapter and handlers run on a cluster in memory; SIGKILL is an exception that nothing
catches, before or after a write took effect, and the next process knows only what the cluster holds.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_operator import names
from nodegauge_operator.core import planner
from nodegauge_operator.kube.errors import KubeError
from support.api_server import NODES, POLICIES
from support.client import Killed
from support.cluster import FakeCluster
from support.judging import saying
from support.objects import INTERVAL
from support.operator import SteppedOperator, one_node

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("stated_answers")]

Story = Callable[[FakeCluster], Iterator[None]]
WARMER = made.every_gpu(made.titan(), temperature=replace(made.titan().gpus[0].temperature, gpu=33))


def two_runs(cluster: FakeCluster) -> Iterator[None]:
    """A node is read, and 15 minutes later P2P is refused: labels come, and some go."""
    cluster.add_node(team="a", interconnect_owner="nobody")
    cluster.add_policy()
    yield
    cluster.pass_time(INTERVAL)
    cluster.results["node-1"] = made.with_pair(made.titan(), 0, 1, read=1)
    yield


def _goes(cluster: FakeCluster) -> Iterator[None]:
    """The policy is deleted: its node keeps everything for a while, as often as crashes begin that anew."""
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
    """Operators that live a story and die one after another: before or after which write took effect."""

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

    def end(self, *, pods: int = 1) -> dict[str, Any]:
        """What counts at the end; no run was judged twice, none had more pods, no pod is left."""
        uids = [uid for *_, uid in self.cluster.judged]
        assert len(uids) == len(set(uids))
        assert max(self.cluster.created.values()) <= pods
        assert list(self.cluster.pods()) == []
        return self.cluster.state()


CALM: dict[Story, tuple[str, int, bool, list[str]]] = {
    two_runs: ("warn", 2, False, ["FaultsFound", "Validated"]),
    policy_goes: ("", 1, False, ["Released", "Validated"]),
    node_is_replaced: ("pass", 2, False, ["Validated", "Validated"]),
    gets_hot_and_cools: ("pass", 7, True, ["FaultsFound", "TaintLifted", "Tainted", *["Validated"] * 2]),
    is_lost_and_let_go: ("", 1, True, ["Released", "Tainted"]),
}
"""The label of health, how many runs were judged, whether there was a taint, and events."""


@pytest.mark.parametrize("story", CALM, ids=lambda s: s.__name__)
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
@pytest.mark.parametrize("story", CALM, ids=lambda s: s.__name__)
def test_one_death_at_any_write(story: Story, when: str) -> None:
    calm = CrashingOperators(story)
    for write in range(len(calm.writes)):
        end = CrashingOperators(story, (write, when)).end()
        assert end == calm.end(), f"killed {when} write {write}: {calm.writes[write]}"


class Accompanied(CrashingOperators):
    """Another operator, there by mistake, does all that it would before one call of the first."""

    def __init__(self, story: Story, call: int) -> None:
        self.call, self.calls = call, 0
        super().__init__(story)

    def _born(self) -> None:
        super()._born()
        self.other = SteppedOperator(self.cluster)
        self.other.list()
        self.operator.client.refuse = self._between

    def _between(self, verb: str, path: str) -> None:
        self.calls += 1
        for _ in range(3 if self.calls == self.call else 0):
            with suppress(KubeError):  # it is tried again, later
                self.other.catch_up()
            self.cluster.kubelets()


@pytest.mark.parametrize("story", CALM, ids=lambda s: s.__name__)
def test_two_operators_by_mistake_do_no_harm(story: Story) -> None:
    """No run is judged or counted twice.  Who has not heard of the other's pod may make it again, once."""
    calm = Accompanied(story, 0)
    for call in range(1, calm.calls + 1):
        both = Accompanied(story, call)
        assert both.end(pods=2) == calm.end(), call
        assert len(both.cluster.judged) == len(calm.cluster.judged)
        counted = both.operator.runs_counted() + both.other.runs_counted()
        assert counted == len(both.cluster.judged), "where it was written"


def test_what_a_run_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """And how often it is decided: no write that follows from a report in line asks again."""
    decided: list[object] = []
    known = planner.decide
    monkeypatch.setattr(planner, "decide", lambda *asked: decided.append(asked) or known(*asked))
    operator = one_node()
    pod, status, gone = "POST pods", "PATCH nodereports/status", "DELETE pods"
    first = ["POST nodereports", pod, "PATCH nodes", status, "PATCH nodes/status", "POST events", gone]
    for expected in (first, [pod, status, gone], [pod, "PATCH nodes", status, gone], [pod, status, gone]):
        for log in (operator.client.log, operator.client.reads, decided):
            log.clear()
        operator.run()
        operator.catch_up(granted=False)
        assert (operator.client.log, operator.client.reads, len(decided)) == (expected, [], 4)
        operator.cluster.pass_time(INTERVAL)
        operator.cluster.results["node-1"] = WARMER
