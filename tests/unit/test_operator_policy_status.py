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
from nodegauge_operator.reconcile.node_counts import NodeCounters
from nodegauge_operator.reconcile.policy_status import PolicyStatus
from support.api_server import NODES, POLICIES, REPORTS
from support.client import unavailable
from support.cluster import FakeCluster
from support.objects import NOW
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


def test_reports_that_cannot_be_read_are_counted(operator: PolicyOperator) -> None:
    """Until a run replaces what somebody else wrote there."""
    operator.cluster.add_policy()
    operator.measure()

    def shown() -> float | None:
        operator.write()
        labels = {"policy": "default"}
        return operator.metrics.registry.get_sample_value("nodegauge_unreadable_reports", labels)

    assert shown() == 0
    body = operator.cluster.objects[REPORTS]["node-1"]
    operator.cluster._store(REPORTS, body | {"status": body["status"] | {"gates": 7}}, "MODIFIED")
    operator.deliver()
    operator.policy_status.dirty = True
    assert shown() == 1
    operator.cluster.pass_time(1000)
    operator.measure()
    operator.policy_status.dirty = True
    assert shown() == 0


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


def test_what_somebody_changed_in_a_policy_is_answered_at_once(operator: PolicyOperator) -> None:
    """A new generation or another state does not wait for the counts' turn."""
    operator.cluster.add_policy()
    operator.list()
    assert len(operator.write()) == 1
    operator.cache.put_policy(bad(operator))
    operator.policy_status.dirty = True
    assert len(operator.write(after=1.0)) == 1
    assert operator.ready() == ("False", "Invalid")


def test_a_count_reads_changed_nodes_only(operator: PolicyOperator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 5,000 nodes a handful changes in a second; the counts equal those of a fresh look at all."""
    operator.cluster.add_policy()
    operator.cluster.add_policy("gold", nodeSelector={"matchLabels": {"tier": "gold"}}, priority=5)
    for n in range(200):
        operator.cluster.add_node(f"more-{n}", tier="gold" if n % 2 else "tin")
    operator.list()
    operator.inbox.clear()
    operator.write()
    looked: list[str] = []
    count = NodeCounters._count
    monkeypatch.setattr(
        NodeCounters, "_count", lambda self, name: (looked.append(name), count(self, name))[1]
    )
    operator.cluster.change(NODES, "more-1", {"metadata": {"labels": {"tier": "tin"}}})
    operator.cache.drop_node("more-3")
    operator.cache.outside_selector.add("more-5")
    operator.cache.put_node(operator.cache.nodes["more-5"])
    operator.deliver()
    counts = {name: operator.counters.selected(name) for name in ("default", "gold")}
    assert sorted(looked) == ["more-1", "more-3", "more-5"]
    assert counts == {"default": 103, "gold": 98}
    fresh = NodeCounters(operator.cache)
    assert {name: fresh.selected(name) for name in counts} == counts


def test_places_follow_the_policies_at_once(operator: PolicyOperator) -> None:
    """Per cent of the nodes that a selector had a moment ago would be the wrong number of probes."""
    operator.cluster.add_policy()
    operator.list()
    assert operator.counters.selected("default") == 3
    operator.cluster.change(
        POLICIES, "default", {"spec": {"nodeSelector": {"matchLabels": {"tier": "gold"}}}}
    )
    operator.deliver()
    assert operator.counters.selected("default") == 1
    assert operator.counters.selected("unknown") == 0


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


def test_a_status_that_cannot_be_written_is_tried_again(operator: PolicyOperator) -> None:
    """Ever later, and it stops nothing else."""
    operator.cluster.add_policy("a")
    operator.cluster.add_policy("b")
    operator.list()
    operator.client.refuse = lambda verb, path: unavailable() if "/a/" in path else None
    assert operator.write() == ["PATCH gpuvalidationpolicies/status"]
    assert "status" not in operator.cluster.objects[POLICIES]["a"]
    calls = operator.client.calls
    for _ in range(3600):
        assert operator.write(after=1.0) == []
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


def test_a_policy_that_was_never_readable_says_nothing_of_its_budget(operator: PolicyOperator) -> None:
    """It has none; what an earlier version left behind goes with it."""
    operator.cluster.add_policy()
    operator.cache.put_policy(bad(operator))
    operator.write()
    assert [c["type"] for c in operator.written()["conditions"]] == ["Ready"]


def test_a_message_counts_the_most_frequent_causes(operator: PolicyOperator) -> None:
    """A table's cell has room for a few."""
    operator.cluster.add_policy(budget={"gatedNodes": 0})
    operator.measure()
    gate(
        operator, "node-0", "hot", "xid", "ecc", "psu-fault", "p2p-refused", "nvlink-degraded", held_back=True
    )
    gate(operator, "node-1", "xid", "pcie-narrow", "gpu-lost", held_back=True)
    operator.write()
    message = operator.condition("GatesWithinBudget")["message"]
    assert message.startswith("0 of 0 slots used, 2 nodes held back: xid 2, ")
    assert message.count(" 1,") == 5
    assert "2 more causes." in message
