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

import support.results as made
from nodegauge_operator import names
from nodegauge_operator.api.report import GateState
from nodegauge_operator.kube.errors import KubeError
from support.api_server import NODES, PODS, POLICIES, REPORTS
from support.client import Killed
from support.cluster import FakeCluster
from support.judging import listening, saying
from support.objects import INTERVAL
from support.operator import HEALTH, SteppedOperator
from support.properties import tried
from support.virtual_time import Turn

pytestmark = pytest.mark.slow

Story = Callable[[], tuple[FakeCluster, Iterator[None]]]


def two_runs() -> tuple[FakeCluster, Iterator[None]]:
    """A node is read, and 15 minutes later P2P is refused: labels come, and some go."""
    cluster = FakeCluster()
    cluster.add_node(team="a", interconnect_owner="nobody")
    cluster.add_policy()

    def events() -> Iterator[None]:
        yield
        cluster.pass_time(INTERVAL)
        cluster.results["node-1"] = made.with_pair(made.titan(), 0, 1, read=1)
        yield

    return cluster, events()


def _graces(cluster: FakeCluster) -> Iterator[None]:
    """The time for which a node that left its policy keeps everything, as often as crashes begin it anew."""
    for _ in range(10):
        cluster.pass_time(600)
        yield


def policy_goes() -> tuple[FakeCluster, Iterator[None]]:
    """A node is read, then its policy is deleted while a second run is under way."""
    cluster = FakeCluster()
    cluster.add_node(team="a")
    cluster.add_policy()

    def events() -> Iterator[None]:
        yield
        cluster.pass_time(INTERVAL)
        cluster.remove(POLICIES, "default")
        yield
        yield from _graces(cluster)

    return cluster, events()


def node_is_replaced() -> tuple[FakeCluster, Iterator[None]]:
    """A node is read, then another machine registers under its name."""
    cluster = FakeCluster()
    cluster.add_node()
    cluster.add_policy()

    def events() -> Iterator[None]:
        yield
        cluster.pass_time(INTERVAL)
        cluster.remove(NODES, "node-1")
        cluster.add_node(boot="boot-9")
        cluster.results["node-1"] = made.phb()
        yield

    return cluster, events()


def gets_hot_and_cools() -> tuple[FakeCluster, Iterator[None]]:
    """A node that registered unvalidated is read, hot twice, idle, and cool three times under load."""
    cluster = FakeCluster()
    cluster.add_node(taints=("team", names.TAINT_UNVALIDATED))
    cluster.add_policy(budget={"gatedNodes": 1}, hysteresis={"probationAfter": []})

    def events() -> Iterator[None]:
        for answers in ("", "hot=b", "hot=b", "hot=n", "", "", ""):
            cluster.results["node-1"] = saying(answers, load=answers != "hot=n")
            yield
            cluster.pass_time(INTERVAL)

    return cluster, events()


def is_lost_and_let_go() -> tuple[FakeCluster, Iterator[None]]:
    """A node set unvalidated by the policy loses a GPU, then the policy is deleted."""
    cluster = FakeCluster()
    cluster.add_node(taints=("team",))
    cluster.add_policy(taints={"unvalidated": "Set"})

    def events() -> Iterator[None]:
        cluster.results["node-1"] = saying("gpu-lost=b")
        yield
        cluster.remove(POLICIES, "default")
        yield
        yield from _graces(cluster)

    return cluster, events()


class CrashingOperators:
    """Operators that die one after another; `deaths`: at which write, and before or after it takes effect."""

    def __init__(self, cluster: FakeCluster, deaths: list[tuple[int, str]]) -> None:
        self.cluster = cluster
        self.deaths = deaths
        self.writes: list[str] = []
        self.gated = 0
        self.operator = self._born()

    def _born(self) -> SteppedOperator:
        while True:
            operator = SteppedOperator(self.cluster)
            operator.client.kill_at = self.deaths.pop(0) if self.deaths else None
            operator.client.answered = self._reserved
            operator.list()
            return operator

    def _reserved(self, verb: str, path: str) -> None:
        """A taint for a fault is on no node before its report reserves it: the budget is counted there."""
        if (verb, path) != ("PATCH", f"{NODES}/node-1"):
            return
        report = self.cluster.objects[REPORTS].get("node-1", {}).get("status", {})
        desired = [t["key"] for t in report.get("desired", {}).get("taints", ())]
        for taint in self.cluster.objects[NODES]["node-1"]["spec"]["taints"]:
            assert taint["key"] not in names.TAINTS_OF_FAULTS or taint["key"] in desired
            self.gated += taint["key"] in names.TAINTS_OF_FAULTS

    def calm(self) -> None:
        """Work until nothing is left to do, being born again after each death."""
        for _ in range(200):
            before = len(self.operator.client.log)
            try:
                self.operator.deliver()
                self.operator.reconcile()
            except Killed:
                self.operator.die()
                self.writes += self.operator.client.log
                self.operator = self._born()
                continue
            worked = self.cluster.kubelets() if not self.operator.inbox else True
            if not worked and not self.operator.inbox and len(self.operator.client.log) == before:
                return
        raise AssertionError("it never came to rest")


def lived(story: Story, deaths: list[tuple[int, str]]) -> CrashingOperators:
    """The story with these deaths, to its end."""
    cluster, events = story()
    operators = CrashingOperators(cluster, deaths)
    with listening():
        for _ in events:
            operators.calm()
    operators.writes += operators.operator.client.log
    return operators


STORIES: list[Story] = [two_runs, policy_goes, node_is_replaced, gets_hot_and_cools, is_lost_and_let_go]


def end_of(operators: CrashingOperators) -> dict[str, Any]:
    """What counts at the end."""
    return operators.cluster.state()


def check_invariants(operators: CrashingOperators) -> None:
    """No run was judged twice, no run had two pods, no pod is left."""
    judged = [(node, number) for node, number, _ in operators.cluster.judged]
    assert len(judged) == len(set(operators.cluster.judged))
    uids = [uid for _, _, uid in operators.cluster.judged]
    assert len(uids) == len(set(uids))
    assert set(operators.cluster.created.values()) <= {1}
    assert list(operators.cluster.pods()) == []


@pytest.mark.parametrize("story", STORIES, ids=lambda s: s.__name__)
def test_a_calm_life(story: Story) -> None:
    """Without deaths the story ends as expected; the others are compared with this."""
    operators = lived(story, [])
    check_invariants(operators)
    state = end_of(operators)
    carried = state["nodes"]["node-1"]["labels"]
    ours = {k: v for k, v in carried.items() if k in names.NODE_LABELS or k == "interconnect"}
    if story is two_runs:
        assert carried["team"] == "a"
        assert ours == {names.LABEL_HEALTH: "warn", names.LABEL_VALIDATED_AT: ours[names.LABEL_VALIDATED_AT]}
        assert len(operators.cluster.judged) == 2
        assert [reason for _, reason, _ in state["events"]] == ["FaultsFound", "Validated"]
    elif story is policy_goes:
        assert carried == {"kubernetes.io/hostname": "node-1", "team": "a"}
        assert state["reports"] == {}
        assert names.CONDITION not in state["nodes"]["node-1"]["conditions"]
    elif story is gets_hot_and_cools:
        assert [t["key"] for t in state["nodes"]["node-1"]["taints"]] == ["team"]
        assert ours[names.LABEL_THROTTLED] == "none"
        assert [row["state"] for row in state["reports"]["node-1"]["gates"]] == ["watching"]
        assert [reason for _, reason, _ in state["events"]].count("Tainted") == 1
        assert "TaintLifted" in [reason for _, reason, _ in state["events"]]
        assert operators.gated > 0
    elif story is is_lost_and_let_go:
        assert state["nodes"]["node-1"]["taints"] == [{"key": "team", "effect": "NoSchedule"}]
        assert state["reports"] == {}
        assert operators.gated > 0
    else:
        assert ours[names.LABEL_INTERCONNECT] == "pcie"
        assert state["reports"]["node-1"]["probes"][0]["bootID"] == "boot-9"


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("story", STORIES, ids=lambda s: s.__name__)
def test_one_death_at_any_write(story: Story, when: str) -> None:
    """Whichever write it dies at, the end is that of a calm operators."""
    calm = lived(story, [])
    for write in range(len(calm.writes)):
        operators = lived(story, [(write, when)])
        check_invariants(operators)
        assert end_of(operators) == end_of(calm), f"killed {when} write {write}: {calm.writes[write]}"


@given(
    deaths=st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["before", "after"])), max_size=8),
    story=st.sampled_from(STORIES),
)
@tried(120)
def test_any_number_of_deaths(story: Story, deaths: list[tuple[int, str]]) -> None:
    """Killed again and again, at any writes: the end is that of a calm operators."""
    operators = lived(story, list(deaths))
    check_invariants(operators)
    assert end_of(operators) == end_of(lived(story, []))


def test_what_a_run_writes() -> None:
    """Eight writes on a first run, three when nothing changed, and now and then one more for validated-at."""
    cluster = FakeCluster()
    cluster.add_node()
    cluster.add_policy()
    operators = CrashingOperators(cluster, [])
    operators.calm()
    report, pod, status, gone = "POST nodereports", "POST pods", "PATCH nodereports/status", "DELETE pods"
    first = [
        report,
        pod,
        "POST nodeevidences",
        status,
        "PATCH nodes",
        "PATCH nodes/status",
        "POST events",
        gone,
    ]
    assert operators.operator.client.log == first
    for expected in ([pod, status, gone], [pod, status, "PATCH nodes", gone], [pod, status, gone]):
        operators.operator.client.log.clear()
        operators.operator.client.reads.clear()
        cluster.pass_time(INTERVAL)
        operators.calm()
        assert operators.operator.client.log == expected
        assert operators.operator.client.reads == []
    operators.calm()
    assert operators.operator.client.log == expected


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
    assert sum(racer.operator.runs_counted() for racer in race.racers) == len(judged), "where it was written"
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
