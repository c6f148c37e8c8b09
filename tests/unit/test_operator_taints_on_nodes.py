"""Taints on nodes through the operator's own worker and adapter: how they come and what takes them off."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from nodegauge_operator import names
from nodegauge_operator.core.actions import PatchNode, PatchReport, Step
from nodegauge_operator.core.model import ConditionView, Taint
from nodegauge_operator.kube.errors import KubeError, Refused, Unavailable
from nodegauge_operator.names import Reason
from nodegauge_operator.reconcile.gate_budget import DOUBT_SECONDS
from nodegauge_operator.reconcile.node_counts import CLUSTER
from nodegauge_operator.reconcile.writer import NoSlot, Writer
from support.api_server import NODES, POLICIES, REPORTS
from support.client import AnsweringClient, Call, unavailable
from support.cluster import FakeCluster
from support.objects import MINUTE, make_context, make_node, make_snapshot
from support.operator import SteppedOperator, some_nodes
from support.virtual_time import drive

GRACE = 10 * MINUTE
UNVALIDATED = names.TAINT_UNVALIDATED


pytestmark = pytest.mark.usefixtures("stated_answers")
SELECTED: dict[str, Any] = {"nodeSelector": {"matchLabels": {"gpu": "yes"}}}


def tainting(*nodes: str, **how: Any) -> SteppedOperator:
    return some_nodes(*nodes or ("node-1",), labels={"gpu": "yes"}, **how)


def change(operator: SteppedOperator, path: str, name: str, patch: dict[str, Any]) -> None:
    operator.cluster.change(path, name, patch)
    operator.deliver()


def pass_grace(operator: SteppedOperator) -> None:
    """The time for which a node that left its policy keeps everything."""
    operator.catch_up(granted=False)
    operator.cluster.pass_time(GRACE)
    operator.catch_up(granted=False)


def test_a_taint_goes_up_in_the_patch_of_the_labels_before_the_report() -> None:
    operator = tainting(taints=("team",))
    operator.measure("")
    operator.client.log.clear()
    operator.client.reads.clear()
    operator.measure("gpu-lost=b")
    assert operator.client.log[1:3] == ["PATCH nodes", "PATCH nodereports/status"]
    assert f"{NODES}/node-1" not in operator.client.reads
    assert operator.cluster.taints() == ["team:NoSchedule", "unhealthy=gpu-lost:NoSchedule"]
    assert operator.status["desired"]["taints"] == [
        {"key": names.TAINT_UNHEALTHY, "value": "gpu-lost", "effect": "NoSchedule"}
    ]
    events = [reason for reason, _ in operator.events]
    assert sorted(events) == [Reason.TAINTED, Reason.VALIDATED]


def test_a_slot_is_free_again_where_the_policy_goes_before_the_report_holds_the_taint() -> None:
    operator = tainting()
    budget = operator.reconciler.gate_budget
    operator.measure("")

    def answered(verb: str, path: str) -> None:
        if (verb, path) == ("PATCH", f"{NODES}/node-1"):
            operator.client.answered = lambda verb, path: None
            operator.cluster.remove(POLICIES, "default")
            operator.deliver()

    operator.client.answered = answered
    operator.measure("gpu-lost=b")
    assert operator.cluster.faults() == ["gpu-lost"]
    assert budget.used(CLUSTER) == 1
    pass_grace(operator)
    assert operator.cluster.faults() == []
    assert budget.used(CLUSTER) == 0


def test_a_taint_on_its_way_uses_its_slot_and_one_without_an_answer_keeps_it_for_a_while() -> None:
    operator = tainting("node-1", "node-2", budget={"gatedNodes": 1, "gatedNodesPerHour": 2})
    budget, seen = operator.reconciler.gate_budget, list[bool]()
    operator.measure("")
    assert budget.has_slot("node-2")

    def refuse(verb: str, path: str) -> KubeError | None:
        if (verb, path) != ("PATCH", f"{NODES}/node-1"):
            return None
        seen.append(budget.has_slot("node-2"))
        return unavailable()

    operator.client.refuse = refuse
    with pytest.raises(Unavailable):
        operator.measure("gpu-lost=b")
    assert (seen, budget.has_slot("node-2")) == ([False], False)
    operator.cluster.pass_time(DOUBT_SECONDS)
    assert budget.has_slot("node-2")


def test_a_taint_of_a_node_that_has_just_gone_keeps_no_slot() -> None:
    """The API server says so in its answer, before the watch does."""
    operator = tainting()
    operator.measure("")

    def refuse(verb: str, path: str) -> None:
        if (verb, path) == ("PATCH", f"{NODES}/node-1"):
            operator.heal()
            operator.cluster.remove(NODES, "node-1")

    operator.client.refuse = refuse
    operator.measure("gpu-lost=b")
    assert not operator.cluster.objects[NODES]
    assert operator.reconciler.gate_budget.used(CLUSTER) == 0


WITHOUT_REPORT: dict[str, Callable[[FakeCluster], object]] = {
    "deleted": lambda cluster: cluster.remove(REPORTS, "node-1"),
    "owned by nothing": lambda cluster: cluster.change(
        REPORTS, "node-1", {"metadata": {"ownerReferences": []}}
    ),
}


@pytest.mark.parametrize("how", WITHOUT_REPORT)
def test_without_its_report_a_taint_goes_only_by_readings(how: str) -> None:
    """Whatever the budget has become, and it is no new taint; the report says where it comes from."""
    operator = tainting(taints=("team",), budget={"gatedNodes": 1})
    operator.measure("gpu-lost=b")
    WITHOUT_REPORT[how](operator.cluster)
    change(operator, POLICIES, "default", {"spec": {"budget": {"gatedNodes": 0}}})
    operator.catch_up(granted=False)
    assert operator.cluster.taints() == ["team:NoSchedule", "unhealthy=gpu-lost:NoSchedule"]
    assert "unhealthy=gpu-lost:NoSchedule" in operator.status["summary"]
    assert "found without a report" in operator.status["summary"]
    assert "taintedAt" not in operator.status
    condition = operator.cluster.state()["nodes"]["node-1"]["conditions"][names.CONDITION]
    assert (operator.labels[names.LABEL_HEALTH], condition["status"]) == ("fail", "False")
    for left in (2, 2, 1):
        operator.measure("")
        assert len(operator.cluster.taints()) == left


PSU = "tainted unhealthy=psu:NoSchedule since T: a supply [{}]"


@pytest.mark.parametrize(
    ("taint", "code", "adopted"),
    [("psu", "chassis-rail", "chassis-rail"), ("psu", "other", "psu-fault"), ("strange", "rail", None)],
)
def test_the_condition_names_the_finding_of_a_lone_taint(taint: str, code: str, adopted: str | None) -> None:
    """Else one of the cause that the health probe answers; a cause that is none of ours has no gate."""
    condition = ConditionView(status="False", reason="FaultsFound", message=PSU.format(code))
    standing = (Taint(key=names.TAINT_UNHEALTHY, value=taint, effect="NoSchedule"),)
    node = replace(make_node(), taints=standing, condition=condition)
    gates = make_context(node=node, report=None).status.gates
    assert [gate.code for gate in gates] == [adopted] * bool(adopted)


@pytest.mark.parametrize("how", ["label flaps", "policy replaced", "policy renamed"])
def test_a_node_that_leaves_its_policy_for_a_moment_keeps_everything(how: str) -> None:
    operator = tainting("node-1", "node-2", budget={"gatedNodes": 1}, **SELECTED)
    operator.measure("gpu-lost=b")
    operator.measure("", name="node-2", after=1)
    before, policy = operator.cluster.state()["nodes"], operator.cluster.objects[POLICIES]["default"]
    if how == "label flaps":
        change(operator, NODES, "node-1", {"metadata": {"labels": {"gpu": None}}})
    else:
        operator.cluster.remove(POLICIES, "default")
    operator.catch_up()
    operator.cluster.pass_time(GRACE - 1)
    operator.catch_up()
    assert operator.cluster.taints() == ["unhealthy=gpu-lost:NoSchedule"]
    assert operator.reconciler.gate_budget.used("default") == 1
    if how == "label flaps":
        change(operator, NODES, "node-1", {"metadata": {"labels": {"gpu": "yes"}}})
    else:
        name = {"policy renamed": "other"}.get(how, "default")
        operator.cluster.add_policy(name, **policy["spec"])
    operator.catch_up(granted=False)
    assert operator.cluster.state()["nodes"] == before
    assert [gate["state"] for gate in operator.status["gates"]] == ["gated"]


def test_while_the_api_server_keeps_a_taint_its_evidence_stays() -> None:
    operator = tainting()
    operator.measure("gpu-lost=b")
    operator.cluster.remove(POLICIES, "default")
    operator.refuse("PATCH", f"{NODES}/node-1", Refused("webhook said no", status=422))
    pass_grace(operator)
    assert (len(operator.cluster.taints()), "node-1" in operator.cluster.objects[REPORTS]) == (1, True)
    operator.heal()
    operator.catch_up(granted=False)
    assert (operator.cluster.taints(), operator.cluster.objects[REPORTS]) == ([], {})


def test_a_kubelet_s_unvalidated_is_lifted_at_the_first_pass_of_a_node_of_ours() -> None:
    """It registered with it; the label that will select it comes later, from somebody else."""
    operator = tainting(taints=(UNVALIDATED,), nodeSelector={"matchLabels": {"late": "yes"}})
    operator.catch_up(granted=False)
    assert (operator.cluster.taints(), operator.client.log) == (["unvalidated:NoSchedule"], [])
    change(operator, NODES, "node-1", {"metadata": {"labels": {"late": "yes"}}})
    operator.catch_up(granted=False)
    assert operator.cluster.taints() == ["unvalidated:NoSchedule"]
    operator.measure("gpu-lost=b")
    assert operator.cluster.taints() == ["unvalidated:NoSchedule", "unhealthy=gpu-lost:NoSchedule"]
    operator.measure("")
    assert operator.cluster.taints() == ["unhealthy=gpu-lost:NoSchedule"]
    change(operator, NODES, "node-1", {"spec": {"taints": [{"key": UNVALIDATED, "effect": "NoExecute"}]}})
    operator.catch_up(granted=False)
    assert operator.cluster.taints() == ["unhealthy=gpu-lost:NoSchedule"]


@pytest.mark.parametrize("probed", [True, False])
def test_a_new_node_is_closed_where_a_run_can_open_it(probed: bool) -> None:
    """Without a slot for a run; and not at all where no run will ever pass."""
    operator = tainting(taints=("team",), probes={"health": {"enabled": probed}})
    change(operator, POLICIES, "default", {"spec": {"taints": {"unvalidated": "Set"}}})
    operator.catch_up(granted=False)
    assert operator.cluster.taints() == ["team:NoSchedule", *["unvalidated:NoSchedule"] * probed]
    assert probed or operator.client.log == []
    operator.cluster.remove(POLICIES, "default")
    pass_grace(operator)
    assert (operator.cluster.taints(), operator.cluster.objects[REPORTS]) == (["team:NoSchedule"], {})


def write(operator: SteppedOperator, step: Step, budget: Any, client: Any = None) -> None:
    """The planned write, with this budget of nodes and of devices."""
    [report], [node] = operator.cache.reports.values(), operator.cache.nodes.values()
    writer = Writer(
        client=client or operator.client,
        cache=operator.cache,
        gate_budget=budget,
        device_budget=budget,
        metrics=operator.metrics,
        namespace="",
        instance="",
    )
    drive(writer.write(step, make_snapshot(node=node, report=report)))


def test_no_gate_is_written_without_a_slot() -> None:
    """Another worker took it since this write was planned."""
    operator = tainting()
    operator.measure("gpu-lost=b")
    [report], [node] = operator.cache.reports.values(), operator.cache.nodes.values()
    operator.client.log.clear()
    full = SimpleNamespace(has_slot=lambda name: True, reserve=lambda name: False)
    before = replace(node, taints=())
    for step in (PatchReport(report, report.status), PatchNode(before, labels={}, taints=node.taints)):
        with pytest.raises(NoSlot):
            write(operator, step, full)
    assert operator.client.log == []


@pytest.mark.parametrize(
    ("error", "then"), [(unavailable(), "unanswered"), (Refused("no", status=422), "confirm")]
)
def test_a_report_that_gates_keeps_its_slot_only_without_an_answer(error: KubeError, then: str) -> None:
    operator = tainting()
    operator.measure("gpu-lost=b")
    [report] = operator.cache.reports.values()
    budget = Mock()

    def answer(call: Call) -> Any:
        raise error

    with pytest.raises(KubeError):
        write(operator, PatchReport(report, report.status), budget, AnsweringClient(answer))
    assert [name for name, *_ in budget.method_calls] == ["reserve", then]
