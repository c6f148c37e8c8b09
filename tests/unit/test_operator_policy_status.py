"""The status of policies: counts, conditions, written when they differ and not otherwise."""

from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_operator import names
from nodegauge_operator.api.report import DesiredTaint, GateState, GateStatus, stamp
from nodegauge_operator.names import PolicyReason
from nodegauge_operator.reconcile.concurrency import Concurrency
from nodegauge_operator.reconcile.incident_status import IncidentStatus
from nodegauge_operator.reconcile.policy_status import PolicyStatus
from support.api_server import NODES, POLICIES, REPORTS, Body
from support.client import unavailable
from support.cluster import FakeCluster
from support.objects import INTERVAL, NOW
from support.operator import SETTINGS, SteppedOperator
from support.virtual_time import drive


def concurrency_of(operator: SteppedOperator) -> Concurrency:
    """The slots of an installation that allows two runs at a time."""
    counters = operator.reconciler.gate_budget.counters
    return Concurrency(operator.cache, counters, limits={"health": 2, "nccl": 2})


def incidents_of(operator: SteppedOperator) -> IncidentStatus:
    """What shows the incidents of the operator's breaker."""
    return IncidentStatus(
        client=operator.client,
        cache=operator.cache,
        breaker=operator.reconciler.breaker,
        metrics=operator.metrics,
        instance="nodegauge",
        clock=operator.cluster.clock,
    )


def status_writer(operator: SteppedOperator) -> PolicyStatus:
    """What writes the policies' statuses, on the operator's cache and client."""
    return PolicyStatus(
        client=operator.client,
        cache=operator.cache,
        gate_budget=operator.reconciler.gate_budget,
        concurrency=concurrency_of(operator),
        incidents=incidents_of(operator),
        metrics=operator.metrics,
        installation=SETTINGS.probe.installation,
        clock=operator.cluster.clock,
        jitter=lambda: 0.0,
    )


class PolicyOperator(SteppedOperator):
    """An operator of three nodes, and the status of their policies."""

    def __init__(self) -> None:
        super().__init__(FakeCluster())
        for n in range(3):
            self.cluster.add_node(f"node-{n}", tier="gold" if n == 0 else "tin")
        self.policy_status = status_writer(self)
        self.counters = self.reconciler.gate_budget.counters

    def measure(self) -> None:
        """One run on every node."""
        self.list()
        for _ in range(2):
            for name in list(self.cache.nodes):
                self.reconcile(name)
            self.cluster.kubelets()
            self.deliver()

    def write(self, *, after: float = 1.0) -> list[str]:
        """One pass, so much later; what was written."""
        self.cluster.pass_time(after)
        self.client.log.clear()
        drive(self.policy_status.write())
        return [line for line in self.client.log if "policies" in line]

    def written(self, name: str = "default") -> dict[str, Any]:
        """The policy's status in the cluster."""
        return self.cluster.objects[POLICIES][name]["status"]

    def ready(self, name: str = "default") -> tuple[str, str]:
        """Status and reason of its condition Ready."""
        condition = self.condition("Ready", name)
        return condition["status"], condition["reason"]

    def condition(self, kind: str, name: str = "default") -> dict[str, Any]:
        """The one condition of that type."""
        condition: dict[str, Any]
        (condition,) = [c for c in self.written(name)["conditions"] if c["type"] == kind]
        assert condition["message"]
        assert condition["observedGeneration"] == self.written(name)["observedGeneration"]
        return condition


@pytest.fixture
def operator() -> PolicyOperator:
    """Nothing measured yet."""
    return PolicyOperator()


def test_nodes_are_counted_by_what_was_found(operator: PolicyOperator) -> None:
    """Selected, validated, failing, unknown; and the same in metrics."""
    operator.cluster.add_policy()
    operator.cluster.results["node-1"] = made.with_pair(made.titan(), 0, 1, read=1)
    operator.measure()
    operator.cluster.add_node("node-new")
    until = stamp(operator.cluster.now + 3600)
    texts = {names.OVERRIDE: "leave-alone", names.OVERRIDE_UNTIL: until, names.OVERRIDE_BY: "ann"}
    operator.cluster.change(
        NODES, "node-2", {"metadata": {"annotations": texts | {names.OVERRIDE_REASON: "fan"}}}
    )
    operator.deliver()
    operator.reconcile("node-2")
    operator.deliver()
    assert operator.write() == ["PATCH gpuvalidationpolicies/status"]
    counts = {"selected": 4, "validated": 2, "failing": 1, "unknown": 1, "gated": 0, "heldBack": 0}
    counts |= {"measured": 0, "contradicted": 0}
    assert operator.written()["nodes"] == counts
    assert operator.written()["observedGeneration"] == 1
    assert operator.ready() == ("True", "Active")
    shown = operator.metrics.render().decode()
    assert 'nodegauge_nodes{policy="default",verdict="fail"} 1.0' in shown
    assert 'nodegauge_nodes_by_interconnect{interconnect="none",policy="default"} 2.0' in shown
    assert 'nodegauge_health_interval_seconds{policy="default"} 900.0' in shown
    assert re.findall(r"^nodegauge_gate_slots (.+)$", shown, re.MULTILINE) == ["4.0"]
    assert 'nodegauge_overrides{kind="leave-alone",policy="default"} 1.0' in shown
    assert operator.counters.selected("default") == 4


def test_nothing_new_is_not_written_again(operator: PolicyOperator) -> None:
    """Nor after a restart, from what stands there."""
    operator.cluster.add_policy()
    operator.list()
    assert len(operator.write()) == 1
    operator.policy_status.dirty = True
    assert operator.write() == []
    assert operator.write() == []
    again = SteppedOperator(operator.cluster)
    again.list()
    status = status_writer(again)
    drive(status.write())
    assert again.client.log == []


def test_counts_that_drift_are_written_every_few_seconds(operator: PolicyOperator) -> None:
    """Five thousand nodes settling must not mean a patch a second; the first change is written at once."""
    operator.cluster.add_policy()
    operator.list()
    assert len(operator.write()) == 1
    written = 0
    for n in range(60):
        operator.cluster.add_node(f"node-{n + 10}")
        operator.deliver()
        operator.policy_status.dirty = True
        written += len(operator.write(after=1.0))
    assert 10 <= written <= 12
    operator.write(after=5.0)
    assert operator.written()["nodes"]["selected"] == 63
    operator.cluster.add_node("node-late")
    operator.deliver()
    operator.policy_status.dirty = True
    assert len(operator.write(after=10.0)) == 1


def test_the_transition_time_moves_with_the_status_only(operator: PolicyOperator) -> None:
    """Another count is no transition; another verdict on the policy is."""
    operator.cluster.add_policy()
    operator.list()
    operator.write()
    before = operator.condition("Ready")
    operator.cluster.pass_time(100)
    operator.cluster.remove("/api/v1/nodes", "node-2")
    operator.cache.drop_node("node-2")
    operator.policy_status.dirty = True
    operator.write()
    after = operator.condition("Ready")
    assert after["message"] != before["message"]
    assert after["lastTransitionTime"] == before["lastTransitionTime"]
    operator.cache.policies.clear()
    operator.cache.put_policy(bad(operator))
    operator.policy_status.dirty = True
    operator.write()
    last = operator.condition("Ready")
    assert last["lastTransitionTime"] > after["lastTransitionTime"]


def bad(operator: PolicyOperator, *, version: str = "99999") -> dict[str, Any]:
    """The policy after a change that an older CRD let through."""
    body = operator.cluster.get(POLICIES, "default")
    body["metadata"] |= {"generation": 2, "resourceVersion": version}
    body["spec"]["staleAfterIntervals"] = 1
    return body


def test_a_policy_that_cannot_be_read_says_which_field(operator: PolicyOperator) -> None:
    """And whether an earlier version of it is still in force."""
    operator.cluster.add_policy()
    operator.list()
    operator.cache.put_policy(bad(operator))
    operator.write()
    assert operator.ready() == ("False", "Invalid")
    condition = operator.condition("Ready")
    assert "spec.staleAfterIntervals" in condition["message"]
    assert "last good version stays in force" in condition["message"]
    assert (operator.written()["observedGeneration"], operator.written()["nodes"]["selected"]) == (2, 3)
    other = SteppedOperator(operator.cluster)
    other.cache.put_policy(bad(operator))
    status = PolicyStatus(
        client=other.client,
        cache=other.cache,
        gate_budget=other.reconciler.gate_budget,
        concurrency=concurrency_of(other),
        incidents=incidents_of(other),
        metrics=other.metrics,
        installation=SETTINGS.probe.installation,
        clock=lambda: NOW + 500,
    )
    drive(status.write())
    assert "The policy is not in force" in operator.written()["conditions"][0]["message"]


PAUSE = {"metadata": {"generation": 2}, "spec": {"budget": {"concurrentProbes": 0}}}


def test_a_policy_without_nodes_says_why(operator: PolicyOperator) -> None:
    """Selecting none is something else than being overruled on all."""
    operator.cluster.add_policy("gold", nodeSelector={"matchLabels": {"tier": "gold"}}, priority=5)
    operator.cluster.add_policy("under", nodeSelector={"matchLabels": {"tier": "gold"}})
    operator.cluster.add_policy("typo", nodeSelector={"matchLabels": {"tier": "golld"}})
    operator.list()
    operator.write()
    assert operator.ready("gold") == ("True", "Active")
    assert operator.ready("under") == ("True", "Overridden")
    assert operator.ready("typo") == ("True", "NoNodes")
    operator.cluster.change(POLICIES, "gold", PAUSE)
    operator.cluster.pass_time(60)
    operator.policy_status.dirty = True
    operator.deliver()
    operator.write()
    assert operator.ready("gold") == ("True", "Paused")
    assert operator.written("under")["nodes"]["selected"] == 0


def test_a_policy_names_the_installation_that_has_its_nodes(operator: PolicyOperator) -> None:
    """They are left alone; the message has the command for an installation that is gone."""
    operator.cluster.add_policy()
    operator.measure()
    body = operator.cluster.objects[REPORTS]["node-1"]
    operator.cluster._store(REPORTS, body | {"status": body["status"] | {"installation": "a/b"}}, "MODIFIED")
    operator.deliver()
    operator.write()
    assert 'nodegauge_foreign_nodes{policy="default"} 1.0' in operator.metrics.render().decode()
    assert operator.ready() == ("False", PolicyReason.OTHER_INSTALLATION)
    assert "nodegauge cleanup --namespace a --release b" in operator.condition("Ready")["message"]


def test_reports_that_cannot_be_read_are_counted(operator: PolicyOperator) -> None:
    """Somebody else wrote there."""
    operator.cluster.add_policy()
    operator.measure()
    body = operator.cluster.objects[REPORTS]["node-1"]
    operator.cluster._store(REPORTS, body | {"status": body["status"] | {"gates": 7}}, "MODIFIED")
    operator.deliver()
    operator.write()
    assert 'nodegauge_unreadable_reports{policy="default"} 1.0' in operator.metrics.render().decode()


def test_a_status_that_cannot_be_written_is_tried_again(operator: PolicyOperator) -> None:
    """Ever later, and it stops nothing else."""
    operator.cluster.add_policy("a")
    operator.cluster.add_policy("b")
    operator.list()
    operator.client.refuse = lambda verb, path: unavailable() if "/a/" in path else None
    assert operator.write() == ["PATCH gpuvalidationpolicies/status"]
    assert "status" not in operator.cluster.objects[POLICIES]["a"]
    calls = operator.client.calls
    for _ in range(360):
        assert operator.write(after=10.0) == []
    assert operator.client.calls - calls < 20
    operator.client.refuse = lambda verb, path: None
    assert operator.write(after=301.0) == ["PATCH gpuvalidationpolicies/status"]
    assert operator.ready("a") == ("True", "Active")


def gate(operator: PolicyOperator, name: str, *codes: str, held_back: bool = False) -> None:
    """The node's report says that these gates are entered, with or without a slot."""
    report = operator.cache.reports[name]
    state = GateState.HELD_BACK if held_back else GateState.GATED
    rows = [GateStatus(code=code, state=state, since=stamp(NOW)) for code in codes]
    taints = [] if held_back else [DesiredTaint(key=names.TAINT_THROTTLED, value="thermal")]
    status = replace(report.status, gates=rows, desired=replace(report.status.desired, taints=taints))
    version = str(int(report.resource_version) + 10_000)
    operator.cache.put_report(replace(report, resource_version=version, status=status))
    operator.policy_status.dirty = True


def test_a_policy_says_whether_all_that_should_be_gated_is(operator: PolicyOperator) -> None:
    """Slots used; then who is held back, how many, and for what; then more than the budget has slots."""
    operator.cluster.add_policy(budget={"concurrentProbes": "100%", "gatedNodes": "40%"})
    operator.measure()
    operator.write()
    condition = operator.condition("GatesWithinBudget")
    assert (condition["status"], condition["reason"]) == ("True", "WithinBudget")
    assert condition["message"] == "0 of 1 slots used (40% of 3 nodes)"
    since = condition["lastTransitionTime"]
    gate(operator, "node-0", "hot")
    operator.write(after=10)
    condition = operator.condition("GatesWithinBudget")
    assert (condition["reason"], condition["lastTransitionTime"]) == ("WithinBudget", since)
    gate(operator, "node-1", "hot", "xid", held_back=True)
    assert len(operator.write()) == 1, "another reason is written at once"
    condition = operator.condition("GatesWithinBudget")
    assert (condition["status"], condition["reason"]) == ("False", "BudgetExhausted")
    assert condition["message"].startswith(
        "1 of 1 slots used (40% of 3 nodes), 1 node held back: thermal 1, xid 1."
    )
    assert condition["lastTransitionTime"] > since
    assert operator.written()["nodes"]["heldBack"] == 1
    gate(operator, "node-2", "hot")
    operator.write()
    condition = operator.condition("GatesWithinBudget")
    assert (condition["status"], condition["reason"]) == ("False", "BudgetExceeded")
    assert condition["message"].startswith("2 of 1 slots used")
    assert (operator.written()["nodes"]["gated"], operator.ready()) == (2, ("True", "Active"))


UNREADABLE: list[Body] = [
    {"mode": "Quarantine"},
    {"taints": {"effect": "Evict"}},
    {"budget": {"gatedNodes": "a few"}},
    {"probes": {"nccl": {"engine": "rccl"}}},
]

NEW_SELECTORS: list[Any] = [
    "all",
    {"matchLabels": ["tier=gold"]},
    {"matchExpressions": [{"key": "tier", "operator": "Matches", "values": ["gold.*"]}]},
]


class Fleet:
    """Node-1 follows `top`, node-2 follows `low`, which selects both nodes and only observes."""

    def __init__(self, *, priority: int = 5) -> None:
        self.cluster = FakeCluster()
        self.cluster.add_node("node-1", tier="gold")
        self.cluster.add_node("node-2", tier="tin")
        self.cluster.add_policy("low", mode="Observe")
        selector = {"matchLabels": {"tier": "gold"}}
        self.cluster.add_policy("top", priority=priority, nodeSelector=selector)
        self.operator = SteppedOperator(self.cluster)
        self.operator.list()
        self.look()

    def look(self) -> None:
        """Both nodes are reconciled, and every pod ends."""
        for _ in range(2):
            for name in ("node-1", "node-2"):
                self.operator.catch_up(name)
            self.cluster.kubelets()
        self.operator.deliver()

    def edit(self, **spec: Any) -> None:
        """The API server holds this in the policy `top`, which this version would not write."""
        body = self.cluster.objects[POLICIES]["top"]
        self.cluster._store(POLICIES, body | {"spec": body["spec"] | spec}, "MODIFIED")

    def labels(self, name: str = "node-1") -> dict[str, str]:
        """The node's labels."""
        labels: dict[str, str] = self.cluster.objects[NODES][name]["metadata"]["labels"]
        return labels

    def policy_of(self, name: str) -> str:
        """The policy in the node's report."""
        return str(self.cluster.objects[REPORTS][name]["status"]["policy"])

    def rolled_back(self, **spec: Any) -> dict[str, str]:
        """The labels of node-1 before `top` became unreadable, after which the operator restarted and an
        interval passed."""
        before = self.labels()
        self.edit(**spec)
        self.operator.restart()
        self.cluster.pass_time(INTERVAL + 1)
        self.look()
        return before


@pytest.mark.parametrize("spec", UNREADABLE)
def test_its_nodes_keep_what_they_carry(spec: Body) -> None:
    """They got the observing policy instead, which took every label off them; others go on."""
    fleet = Fleet()
    assert "interconnect" in fleet.labels()
    before = fleet.rolled_back(**spec)
    assert fleet.labels() == before
    assert (fleet.policy_of("node-1"), fleet.policy_of("node-2")) == ("top", "low")
    numbers = [n for node, n, _ in fleet.cluster.judged if node == "node-2"]
    assert numbers == [1, 2], "a node that it does not select is read as before"


@pytest.mark.parametrize("selector", NEW_SELECTORS)
def test_of_an_unreadable_selector_the_reports_say_whose_the_nodes_are(selector: Any) -> None:
    """An unknown operator of an expression matched no node, as if the policy had none."""
    fleet = Fleet()
    before = fleet.rolled_back(nodeSelector=selector)
    assert fleet.labels() == before
    assert fleet.policy_of("node-1") == "top"
    assert [n for node, n, _ in fleet.cluster.judged if node == "node-2"] == [1, 2]


def test_of_lower_priority_it_holds_nobody_up() -> None:
    """Its nodes follow a policy that can be read, as they did before."""
    fleet = Fleet(priority=-5)
    assert fleet.policy_of("node-1") == "low"
    fleet.rolled_back(mode="Quarantine")
    assert [n for node, n, _ in fleet.cluster.judged if node == "node-1"] == [1, 2]


def test_a_new_node_that_it_selects_is_left_alone() -> None:
    """No lower policy may be the first to write there."""
    fleet = Fleet()
    fleet.rolled_back(mode="Quarantine")
    fleet.cluster.add_node("node-3", tier="gold")
    fleet.operator.catch_up("node-3")
    assert "node-3" not in fleet.cluster.objects[REPORTS]


@pytest.mark.parametrize("mended", [True, False])
def test_once_it_can_be_read_or_is_gone_its_nodes_go_on(mended: bool) -> None:
    """And each is woken for it, by the watch alone."""
    fleet = Fleet()
    before = fleet.rolled_back(mode="Quarantine")
    epoch = fleet.operator.cache.epoch
    if mended:
        fleet.edit(mode="Enforce")
    else:
        fleet.cluster.remove(POLICIES, "top")
    fleet.operator.deliver()
    assert fleet.operator.policies_changed == [True]
    assert fleet.operator.cache.epoch > epoch
    fleet.look()
    assert fleet.policy_of("node-1") == ("top" if mended else "low")
    assert (fleet.labels().keys() == before.keys()) is mended


def test_an_unreadable_version_of_a_policy_in_force_changes_nothing() -> None:
    """The last good version stays in force while the process lives, also for nodes that come later."""
    fleet = Fleet()
    fleet.edit(mode="Quarantine", nodeSelector={"matchLabels": {"tier": "tin"}})
    fleet.operator.deliver()
    assert fleet.operator.policies_changed == [False]
    fleet.cluster.pass_time(INTERVAL + 1)
    fleet.look()
    assert [n for node, n, _ in fleet.cluster.judged if node == "node-1"] == [1, 2]
    assert (fleet.policy_of("node-1"), fleet.policy_of("node-2")) == ("top", "low")


def test_without_a_readable_priority_it_counts_as_the_highest() -> None:
    """Nobody knows how high."""
    fleet = Fleet()
    before = fleet.rolled_back(priority="high")
    assert fleet.labels() == before


def test_a_policy_that_is_deleted_while_another_is_written_is_no_error(operator: PolicyOperator) -> None:
    """An exception here would end the whole process."""
    operator.cluster.add_policy("a", nodeSelector={"matchLabels": {"tier": "none"}})
    operator.cluster.add_policy("b", nodeSelector={"matchLabels": {"tier": "none"}})
    operator.list()

    def delete(verb: str, path: str) -> None:
        if verb == "PATCH" and path.endswith("/a/status") and "b" in operator.cluster.objects[POLICIES]:
            operator.cluster.remove(POLICIES, "b")
            operator.deliver()

    operator.client.answered = delete
    assert operator.write() == ["PATCH gpuvalidationpolicies/status"]
    assert list(operator.cache.policies) == ["a"]
