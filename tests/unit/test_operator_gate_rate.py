"""The rate of new taints: in any hour no more nodes than may, whatever is lifted or restarted meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nodegauge_operator import names
from nodegauge_operator.api.policy import Budget
from nodegauge_operator.api.report import DesiredNode, DesiredTaint, GateState, GateStatus, stamp
from nodegauge_operator.core import desired_state
from nodegauge_operator.reconcile.cache import Cache
from nodegauge_operator.reconcile.gate_budget import DOUBT_SECONDS, GateBudget
from nodegauge_operator.reconcile.node_counts import CLUSTER
from support.api_server import NODES, POLICIES
from support.judging import listening, saying
from support.objects import MINUTE, NOW, make_context, make_node, make_policy, make_report, taint
from support.operator import SETTINGS
from support.properties import tried
from support.virtual_operator import VirtualTimeOperator, on_virtual_time

HOUR = 3600.0
COUNT = 12
THERMAL = DesiredTaint(key=names.TAINT_THROTTLED, value="thermal")


class RatedNodes:
    """Nodes of two policies; `time` passes evenly, and somebody may set the `clock` ahead or back."""

    def __init__(self, *, per_hour: int | str = 2, cluster: int | str = "100%", slots: int = COUNT) -> None:
        self.time, self.ahead, self._version, self._cluster = 1000.0, 0.0, 100, cluster
        self.cache = Cache()
        self.tainted_at: dict[str, tuple[float, str]] = {}
        """By UID, of all nodes that there ever were: when it was last tainted, and the policy then."""
        for name in ("even", "odd"):
            policy = make_policy(name).selecting(pool=name)
            self.cache.policies[name] = policy.spec_with(
                budget=Budget(gated_nodes=slots, gated_nodes_per_hour=per_hour)
            )
        for n in range(COUNT):
            self.register(f"node-{n}", "odd" if n % 2 else "even")
        self.restart()

    def restart(self) -> None:
        """Another process, which knows what the cluster holds."""
        self.budget = GateBudget(
            self.cache, clock=lambda: self.time, now=self.now, cluster="100%", per_hour=self._cluster
        )

    def now(self) -> float:
        """What the operator's clock shows, epoch seconds."""
        return NOW + self.time + self.ahead

    def register(self, name: str, pool: str) -> None:
        """A node, without a taint."""
        self._version += 1
        node = make_node(name, version=self._version).labelled(pool=pool)
        self.cache.put_node(replace(node, uid=f"{name}-{self._version}"))

    def replaced(self, name: str) -> None:
        """The machine is deleted with its report, and another one takes its name."""
        pool = self.cache.nodes[name].labels["pool"]
        self.cache.drop_node(name)
        self.cache.reports.pop(name, None)
        self.register(name, pool)

    def gate(self, name: str, *, answered: bool = True) -> bool:
        """The node turns out bad: whether its report reserves the taint, which it then carries."""
        if not self.budget.reserve(name):
            return False
        if answered:
            self._write(name, THERMAL)
            self.budget.confirm(name)
        else:
            self.budget.unanswered(name)
        return answered

    def lift(self, name: str) -> None:
        """The node is well again."""
        self._write(name)

    def _write(self, name: str, *taints: DesiredTaint) -> None:
        """The report as the operator's core fills it in, then the node."""
        self._version += 1
        node = self.cache.nodes[name]
        known = self.cache.reports.get(name) or replace(make_report(node), node_uid=node.uid)
        desired = replace(known.status, desired=DesiredNode(taints=list(taints)))
        context = make_context(node=node, policy=make_policy(), report=known, now=self.now())
        status = replace(desired, tainted_at=desired_state.budget.newly_tainted_at(context, desired))
        self.cache.put_report(replace(known, status=status, resource_version=str(self._version)))
        carried = tuple(taint(f"{t.key}={t.value}") for t in taints)
        if carried and not node.taints:
            self.tainted_at[node.uid] = (self.time, node.labels["pool"])
        self.cache.put_node(replace(node, taints=carried, resource_version=str(self._version)))

    def last_hour(self, pool: str = "") -> int:
        """Nodes of the policy, or of both, that took a taint within the last hour."""
        recent = [policy for at, policy in self.tainted_at.values() if at > self.time - HOUR]
        return len([policy for policy in recent if pool in ("", policy)])

    def gate_all(self) -> int:
        """Every node turns out bad; how many carry a taint then."""
        for name in list(self.cache.nodes):
            self.gate(name)
        return sum(bool(node.taints) for node in self.cache.nodes.values())


def test_new_taints_come_hour_by_hour() -> None:
    """Two of each policy an hour; those before keep theirs."""
    nodes = RatedNodes()
    assert nodes.gate_all() == 4
    nodes.time += HOUR - 1
    assert nodes.gate_all() == 4
    nodes.time += 1
    assert nodes.gate_all() == 8


def test_the_cluster_has_a_rate_of_its_own() -> None:
    """Policies add up to it, and 0 is none at all."""
    assert RatedNodes(cluster=3).gate_all() == 3
    assert RatedNodes(cluster=0).gate_all() == 0
    assert RatedNodes(per_hour=0).gate_all() == 0
    assert RatedNodes(per_hour="5%").gate_all() == 2, "a percentage is never less than one node"


def test_a_taint_that_was_lifted_counts_for_its_hour() -> None:
    """Else a fault that comes and goes would taint every node within the hour; the node itself may return."""
    nodes = RatedNodes(cluster=2)
    assert nodes.gate_all() == 2
    nodes.lift("node-0")
    assert not nodes.gate("node-4")
    nodes.restart()
    assert not nodes.gate("node-4")
    assert nodes.gate("node-0"), "it counts already"


def test_a_deleted_node_counts_for_its_hour() -> None:
    """A cluster that replaces tainted nodes is not tainted node by node."""
    nodes = RatedNodes(cluster=2)
    assert nodes.gate_all() == 2
    nodes.replaced("node-0")
    nodes.cache.drop_report("node-1", nodes.cache.reports["node-1"].uid)
    assert not nodes.gate("node-0")
    assert nodes.budget.rate.count(CLUSTER) == 2


def test_an_unanswered_write_counts_until_the_report_shows_it_was_not_made() -> None:
    """Nobody else is tainted meanwhile."""
    nodes = RatedNodes(cluster=1)
    nodes.gate("node-0", answered=False)
    assert not nodes.gate("node-1")
    nodes.time += DOUBT_SECONDS
    assert nodes.gate("node-1")


@pytest.mark.parametrize("ahead", [5 * HOUR, -5 * HOUR])
def test_a_clock_that_is_set_frees_no_room(ahead: float) -> None:
    """The hour of a taint is counted by a clock that nobody sets."""
    nodes = RatedNodes(cluster=1)
    assert nodes.gate("node-0")
    nodes.ahead = ahead
    nodes.lift("node-0")
    assert not nodes.gate("node-1")
    nodes.time += HOUR
    assert nodes.gate("node-1")


def test_a_report_that_somebody_wrote_taints_no_node_beyond_the_rate() -> None:
    """A reservation without a time, or one whose time is taken away, takes room like any other."""
    nodes = RatedNodes(cluster=1)
    for name in ("node-0", "node-2"):
        report = replace(make_report(nodes.cache.nodes[name]), node_uid=nodes.cache.nodes[name].uid)
        forged = replace(report.status, desired=DesiredNode(taints=[THERMAL]))
        nodes.cache.put_report(replace(report, status=forged, resource_version="99"))
    assert nodes.gate_all() == 1
    report = nodes.cache.reports["node-0"]
    for version, time in (("9998", ""), ("9999", stamp(nodes.now() - HOUR + MINUTE))):
        status = replace(report.status, tainted_at=time)
        nodes.cache.put_report(replace(report, status=status, resource_version=version))
        assert nodes.gate_all() == 1
    nodes.time += 2 * MINUTE
    assert nodes.gate_all() == 1


def test_waiting_nodes_are_woken_as_the_rate_allows() -> None:
    """One for each that may be tainted now; the longest wait first."""
    nodes = RatedNodes(cluster=1)
    assert nodes.gate("node-0")
    for n in (4, 2):
        row = GateStatus(code="hot", state=GateState.HELD_BACK, since=stamp(NOW + MINUTE * n))
        report = replace(
            make_report(nodes.cache.nodes[f"node-{n}"]), node_uid=nodes.cache.nodes[f"node-{n}"].uid
        )
        nodes.cache.put_report(replace(report, status=replace(report.status, gates=[row])))
    assert nodes.budget.offer(busy=set()) == []
    nodes.time += HOUR
    assert nodes.budget.offer(busy=set()) == ["node-2"]
    assert not nodes.gate("node-6"), "the room is kept"


def test_a_rate_that_was_lowered_is_said() -> None:
    """Nothing is lifted, and nothing added."""
    nodes = RatedNodes()
    nodes.gate_all()
    policy: Any = nodes.cache.policies["odd"]
    nodes.cache.policies["odd"] = policy.spec_with(budget=Budget(gated_nodes=COUNT, gated_nodes_per_hour=1))
    nodes.cache.policies_changed()
    assert list(nodes.budget.exceeded()) == [("odd", 2, 1, True)]


NAMES = st.sampled_from([f"node-{n}" for n in range(COUNT)])
EVENTS = st.one_of(
    st.tuples(st.sampled_from(["gate", "gate", "lost", "lift", "replaced"]), NAMES),
    st.tuples(st.just("time"), st.sampled_from([MINUTE, 20 * MINUTE, HOUR])),
    st.tuples(st.just("clock"), st.sampled_from([-HOUR, 0.0, HOUR])),
    st.tuples(st.just("restart"), st.none()),
)


@pytest.mark.slow
@tried(300)
@given(st.lists(EVENTS, max_size=60))
def test_no_order_of_events_breaks_the_rate(events: list[tuple[str, Any]]) -> None:
    """At most two of a policy and three in all within any hour, and three at a time.  A process that starts
    reads the hour from the reports: it knows no deleted node, and needs a clock that is right."""
    nodes = RatedNodes(cluster=3, slots=3)
    for what, value in events:
        match what:
            case "gate":
                nodes.gate(value)
            case "lost":
                nodes.gate(value, answered=False)
            case "lift":
                nodes.lift(value)
                assert not nodes.cache.nodes[value].taints
            case "replaced":
                nodes.replaced(value)
            case "time":
                nodes.time += value
            case "clock":
                nodes.ahead = value
            case "restart" if not nodes.ahead:
                there = {node.uid for node in nodes.cache.nodes.values()}
                nodes.tainted_at = {uid: at for uid, at in nodes.tainted_at.items() if uid in there}
                nodes.restart()
        assert nodes.last_hour() <= 3
        assert max(nodes.last_hour("even"), nodes.last_hour("odd")) <= 2


RATED = replace(SETTINGS, max_gated_nodes_per_hour=3)
SPEC: dict[str, Any] = {
    "probes": {"health": {"interval": "2m"}},
    "hysteresis": {"probationAfter": []},
    "budget": {"concurrentProbes": "100%", "gatedNodes": "100%", "gatedNodesPerHour": 5},
}


@pytest.mark.slow
def test_a_fleet_that_is_bad_at_once_is_tainted_hour_by_hour() -> None:
    """The whole operator, with a restart in between; the policy says why others wait, and healing needs no
    room."""

    async def story(operator: VirtualTimeOperator) -> None:
        def tainted() -> int:
            bodies = operator.cluster.objects[NODES].values()
            return sum(any(t["key"] in names.TAINTS_OF_FAULTS for t in b["spec"]["taints"]) for b in bodies)

        operator.nodes(COUNT)
        operator.cluster.add_policy(**SPEC)
        for n in range(COUNT):
            operator.cluster.results[f"node-{n}"] = saying("gpu-lost=b")
        operator.start()
        await operator.after(600)
        assert tainted() == 3
        conditions = operator.cluster.objects[POLICIES]["default"]["status"]["conditions"]
        (within,) = [c for c in conditions if c["type"] == "GatesWithinBudget"]
        assert (within["status"], within["reason"]) == ("False", "RateExhausted")
        assert "3 of 3 new ones within an hour, 9 nodes held back" in within["message"]
        assert "operator.maxGatedNodesPerHour" in within["message"]
        shown = operator.metrics.render().decode()
        assert 'nodegauge_newly_gated_nodes{policy="default"} 3.0' in shown
        await operator.stop()
        again = VirtualTimeOperator(operator.loop, settings=RATED, cluster=operator.cluster)
        again.start()
        await again.after(600)
        assert tainted() == 3, "the reports say when"
        await again.after(HOUR)
        assert tainted() == 6
        for n in range(COUNT):
            operator.cluster.results[f"node-{n}"] = saying("")
        await again.after(1800)
        assert tainted() == 0
        await again.stop()

    with listening():
        on_virtual_time(story, settings=RATED)()
