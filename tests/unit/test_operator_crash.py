"""Promise 3: killed between any two writes, started again: nothing is lost, nothing is done twice.

The real worker, adapter and handlers run on a cluster in memory; SIGKILL is an exception that nothing
catches, before or after a write took effect, and the next process knows only what the cluster holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import support.results as made
from nodegauge_operator import names
from support import INTERVAL, tried
from support.client import Killed
from support.cluster import NODES, POLICIES, REPORTS
from support.judging import listening, saying
from support.operator import Operator, World

pytestmark = pytest.mark.timeout(30)

Story = Callable[[], tuple[World, Iterator[None]]]


def two_runs() -> tuple[World, Iterator[None]]:
    """A node is read, and 15 minutes later P2P is refused: labels come, and some go."""
    world = World()
    world.cluster.add_node(team="a", interconnect_owner="nobody")
    world.cluster.add_policy()

    def events() -> Iterator[None]:
        yield
        world.pass_time(INTERVAL)
        world.machines["node-1"] = made.with_pair(made.titan(), 0, 1, read=1)
        yield

    return world, events()


def policy_goes() -> tuple[World, Iterator[None]]:
    """A node is read, then its policy is deleted while a second run is under way."""
    world = World()
    world.cluster.add_node(team="a")
    world.cluster.add_policy()

    def events() -> Iterator[None]:
        yield
        world.pass_time(INTERVAL)
        world.cluster.remove(POLICIES, "default")
        yield

    return world, events()


def node_is_replaced() -> tuple[World, Iterator[None]]:
    """A node is read, then another machine registers under its name."""
    world = World()
    world.cluster.add_node()
    world.cluster.add_policy()

    def events() -> Iterator[None]:
        yield
        world.pass_time(INTERVAL)
        world.cluster.remove(NODES, "node-1")
        world.cluster.add_node(boot="boot-9")
        world.machines["node-1"] = made.phb()
        yield

    return world, events()


def gets_hot_and_cools() -> tuple[World, Iterator[None]]:
    """A node that registered unvalidated is read, hot twice, idle, and cool three times under load."""
    world = World()
    world.cluster.add_node(taints=("team", names.TAINT_UNVALIDATED))
    world.cluster.add_policy(budget={"gatedNodes": 1}, hysteresis={"probationAfter": []})

    def events() -> Iterator[None]:
        for words in ("", "hot=b", "hot=b", "hot=n", "", "", ""):
            world.machines["node-1"] = saying(words, load=words != "hot=n")
            yield
            world.pass_time(INTERVAL)

    return world, events()


def is_lost_and_let_go() -> tuple[World, Iterator[None]]:
    """A node set unvalidated by the policy loses a GPU, then the policy is deleted."""
    world = World()
    world.cluster.add_node(taints=("team",))
    world.cluster.add_policy(taints={"unvalidated": "Set"})

    def events() -> Iterator[None]:
        world.machines["node-1"] = saying("gpu-lost=b")
        yield
        world.cluster.remove(POLICIES, "default")
        yield

    return world, events()


class Life:
    """Operators that live and die on one world; `deaths` says at which write of each life, and when."""

    def __init__(self, world: World, deaths: list[tuple[int, str]]) -> None:
        self.world = world
        self.deaths = deaths
        self.writes: list[str] = []
        self.gated = 0
        self.operator = self._born()

    def _born(self) -> Operator:
        while True:
            operator = Operator(self.world.cluster)
            operator.client.kill_at = self.deaths.pop(0) if self.deaths else None
            operator.client.answered = self._reserved
            operator.list()
            return operator

    def _reserved(self, verb: str, path: str) -> None:
        """A taint for a fault is on no node before its report reserves it: the budget is counted there."""
        if (verb, path) != ("PATCH", f"{NODES}/node-1"):
            return
        report = self.world.cluster.objects[REPORTS].get("node-1", {}).get("status", {})
        held = [t["key"] for t in report.get("desired", {}).get("taints", ())]
        for taint in self.world.cluster.objects[NODES]["node-1"]["spec"]["taints"]:
            assert taint["key"] not in names.TAINTS_OF_FAULTS or taint["key"] in held
            self.gated += taint["key"] in names.TAINTS_OF_FAULTS

    def calm(self) -> None:
        """Work until nothing is left to do, being born again after each death."""
        for _ in range(200):
            before = len(self.operator.client.log)
            try:
                self.operator.deliver()
                self.operator.settle()
            except Killed:
                self.operator.die()
                self.writes += self.operator.client.log
                self.operator = self._born()
                continue
            worked = self.world.kubelets() if not self.operator.inbox else True
            if not worked and not self.operator.inbox and len(self.operator.client.log) == before:
                return
        raise AssertionError("it never came to rest")


def lived(story: Story, deaths: list[tuple[int, str]]) -> Life:
    """The story with these deaths, to its end."""
    world, events = story()
    life = Life(world, deaths)
    with listening():
        for _ in events:
            life.calm()
    life.writes += life.operator.client.log
    return life


STORIES: list[Story] = [two_runs, policy_goes, node_is_replaced, gets_hot_and_cools, is_lost_and_let_go]


def end_of(life: Life) -> dict[str, Any]:
    """What counts at the end."""
    return life.world.state()


def check_invariants(life: Life) -> None:
    """No run was judged twice, no run had two pods, no pod is left."""
    judged = [(node, number) for node, number, _ in life.world.cluster.judged]
    assert len(judged) == len(set(life.world.cluster.judged))
    uids = [uid for _, _, uid in life.world.cluster.judged]
    assert len(uids) == len(set(uids))
    assert set(life.world.cluster.created.values()) <= {1}
    assert list(life.world.cluster.pods()) == []


@pytest.mark.parametrize("story", STORIES, ids=lambda s: s.__name__)
def test_a_calm_life(story: Story) -> None:
    """Without deaths the story ends as told: this is what the others are held against."""
    life = lived(story, [])
    check_invariants(life)
    state = end_of(life)
    carried = state["nodes"]["node-1"]["labels"]
    ours = {k: v for k, v in carried.items() if k in names.NODE_LABELS or k == "interconnect"}
    if story is two_runs:
        assert carried["team"] == "a"
        assert ours == {names.LABEL_HEALTH: "fail", names.LABEL_VALIDATED_AT: ours[names.LABEL_VALIDATED_AT]}
        assert len(life.world.cluster.judged) == 2
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
        assert life.gated > 0
    elif story is is_lost_and_let_go:
        assert state["nodes"]["node-1"]["taints"] == [{"key": "team", "effect": "NoSchedule"}]
        assert state["reports"] == {}
        assert life.gated > 0
    else:
        assert ours[names.LABEL_INTERCONNECT] == "pcie"
        assert state["reports"]["node-1"]["probes"][0]["bootID"] == "boot-9"


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("story", STORIES, ids=lambda s: s.__name__)
def test_one_death_at_any_write(story: Story, when: str) -> None:
    """Whichever write it dies at, the end is that of a calm life."""
    calm = lived(story, [])
    for write in range(len(calm.writes)):
        life = lived(story, [(write, when)])
        check_invariants(life)
        assert end_of(life) == end_of(calm), f"killed {when} write {write}: {calm.writes[write]}"


@given(
    deaths=st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["before", "after"])), max_size=8),
    story=st.sampled_from(STORIES),
)
@tried(120)
def test_any_number_of_deaths(story: Story, deaths: list[tuple[int, str]]) -> None:
    """Killed again and again, at any writes: the end is that of a calm life."""
    life = lived(story, list(deaths))
    check_invariants(life)
    assert end_of(life) == end_of(lived(story, []))


def test_what_a_run_writes() -> None:
    """Seven writes on a first run, three when nothing changed, and now and then one more for validated-at."""
    world = World()
    world.cluster.add_node()
    world.cluster.add_policy()
    life = Life(world, [])
    life.calm()
    report, pod, status, gone = "POST nodereports", "POST pods", "PATCH nodereports/status", "DELETE pods"
    first = [report, pod, status, "PATCH nodes", "PATCH nodes/status", "POST events", gone]
    assert life.operator.client.log == first
    for expected in ([pod, status, gone], [pod, status, "PATCH nodes", gone], [pod, status, gone]):
        life.operator.client.log.clear()
        life.operator.client.reads.clear()
        world.pass_time(INTERVAL)
        life.calm()
        assert life.operator.client.log == expected
        assert life.operator.client.reads == []
    life.calm()
    assert life.operator.client.log == expected
