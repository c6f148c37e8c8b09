"""A node that never validates: closed all the while, a fault after its deadline, and never healthy."""

from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_operator import names
from nodegauge_operator.core.outlets import MARKS
from nodegauge_operator.core.planner import wake_at
from nodegauge_operator.names import Reason
from support.objects import (
    LOST,
    NOW,
    ANode,
    APolicy,
    AReport,
    make_node,
    make_policy,
    make_report,
    make_snapshot,
    read,
)

HOUR = 3600.0
LATE = NOW + HOUR
NODE = replace(make_node(), created_at=NOW)
CLOSED = NODE.tainted("team", names.TAINT_UNVALIDATED)
FAULT = "unhealthy=never-validated:NoSchedule"
UNVALIDATED = "unvalidated:NoSchedule"


def within(text: str = "1h", **spec: Any) -> APolicy:
    return make_policy().of({"taints": {"validatedWithin": text} | spec.pop("taints", {})} | spec)


def marked(report: AReport, policy: APolicy, node: ANode = CLOSED, *, at: float = LATE) -> list[str]:
    """The taints of ours after the write that follows."""
    patch = MARKS.difference(report.context(node=node, policy=policy, at=at), report.status)
    taints = node.taints if patch is None or patch.taints is None else patch.taints
    return [f"{t.own[len(names.PREFIX) :]}={t.value}:{t.effect}".replace("=:", ":") for t in taints if t.own]


@pytest.mark.parametrize("runs", [0, 1])
def test_after_the_deadline_the_fault_takes_the_place_of_unvalidated(runs: int) -> None:
    """In one write; also where no run could be made."""
    policy, report = within(), make_report()
    for n in range(runs):
        report = report.after(LOST, node=CLOSED, policy=policy, at=NOW + 60 * n)
    early = report.seen(node=CLOSED, policy=policy, at=LATE - 1)
    assert marked(early, policy, at=LATE - 1) == [UNVALIDATED]
    late = early.seen(node=CLOSED, policy=policy, at=LATE)
    assert marked(late, policy) == [FAULT]
    desired, change = late.status.desired, late.status.change
    assert (desired.condition, desired.reason) == ("False", Reason.FAULTS_FOUND)
    assert (change.reason, "within 1h" in change.message) == (Reason.TAINTED, True)
    assert late.seen(node=CLOSED, policy=policy, at=LATE + 60).status == late.status


def test_the_first_pass_removes_it() -> None:
    policy = within()
    late = make_report().seen(node=CLOSED, policy=policy, at=LATE)
    good = late.after(read(made.titan()), node=CLOSED, policy=policy, at=LATE + 60)
    assert marked(good, policy, at=LATE + 60) == []
    assert good.status.desired.condition == "True"
    again = good.seen(node=CLOSED, policy=policy, at=LATE + 100 * HOUR)
    assert again.status.desired.taints == []


NOT_REPLACED: dict[str, tuple[dict[str, Any], bool]] = {
    "no slot": ({}, False),
    "a soft effect": ({"taints": {"causes": {"never-validated": "PreferNoSchedule"}}}, True),
    "no effect": ({"taints": {"causes": {"never-validated": "None"}}}, True),
}


@pytest.mark.parametrize(("spec", "slot"), NOT_REPLACED.values(), ids=NOT_REPLACED)
def test_without_a_taint_that_closes_the_node_unvalidated_stays(spec: dict[str, Any], slot: bool) -> None:
    policy = within(**spec)
    late = make_report().seen(node=CLOSED, policy=policy, at=LATE, slot=slot)
    assert UNVALIDATED in marked(late, policy)
    assert late.status.desired.condition != "True"


@pytest.mark.parametrize("spec", [{}, {"taints": {"causes": {"never-validated": "None"}}}])
def test_a_policy_that_gives_the_deadline_up_closes_the_node_as_before(spec: dict[str, Any]) -> None:
    """Its kubelet registered it closed, until the first pass."""
    late = make_report().seen(node=CLOSED, policy=within(), at=LATE)
    tainted = NODE.tainted(f"{names.TAINT_UNHEALTHY}=never-validated")
    policy = within("" if not spec else "1h", **spec)
    after = late.seen(node=tainted, policy=policy, at=LATE + 60)
    assert marked(after, policy, tainted, at=LATE + 60) == [UNVALIDATED]
    patched = NODE.tainted(names.TAINT_UNVALIDATED)
    assert marked(after.seen(node=patched, policy=policy, at=LATE + 99), policy, patched) == [UNVALIDATED]


def test_time_alone_wakes_the_node_at_its_deadline_and_a_gap_begins_it_anew() -> None:
    report = make_report().after(LOST, node=CLOSED, policy=within(), at=NOW + 60)
    context = report.context(node=CLOSED, policy=within(), at=NOW + 60)
    assert context.validates_by == LATE
    snapshot = make_snapshot(node=CLOSED, policy=within("5m"), report=report, now=NOW + 60)
    assert wake_at(snapshot) <= NOW + 300
    assert replace(context, since=NOW + 600).validates_by == LATE + 600
    older = replace(report, created_at=NOW + HOUR)
    assert older.context(node=CLOSED, policy=within()).validates_by == LATE + HOUR


def test_without_a_deadline_nothing_happens() -> None:
    late = make_report().after(LOST, node=CLOSED).seen(node=CLOSED, at=NOW + 1000 * HOUR)
    assert (late.status.gates, marked(late, make_policy())) == ([], [UNVALIDATED])
