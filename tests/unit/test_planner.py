"""The next write for one node: due times, retries, requests, and what nobody wants any more."""

from typing import Any

import pytest
from msgspec.structs import replace

import support.nccl_results as nccl
import support.results as made
from nodegauge_operator import names
from nodegauge_operator.api.report import ProbeStatus, ReportStatus
from nodegauge_operator.api.times import NEVER
from nodegauge_operator.core import actions as steps
from nodegauge_operator.core import outlets
from nodegauge_operator.core.planner import next_step, wake_at
from nodegauge_operator.core.pod_outcome import RunEnd
from nodegauge_operator.core.probes.registry import KINDS
from support.objects import (
    BUSY,
    INTERVAL,
    LOST,
    MINUTE,
    NOW,
    STALE,
    AReport,
    make_context,
    make_node,
    make_pod,
    make_policy,
    make_report,
    make_snapshot,
    read,
    reading_of,
)

NONE: frozenset[str] = frozenset()
NONE_READ: frozenset[type] = frozenset()

NODE = make_node()
READ, REFUSED = read(made.titan()), read(made.with_pair(made.titan(), 0, 1, read=1))


def health_due_at(report: AReport | None, **known: Any) -> float:
    return KINDS[names.PROBE_HEALTH].due_at(make_context(**{"node": NODE, "report": report} | known))


def next_kind(**known: Any) -> str:
    """The name of the next step, or "nothing"."""
    step = next_step(make_snapshot(**known))
    return type(step).__name__ if step else "nothing"


def judged(**known: Any) -> ReportStatus:
    """The status after the run that ended: the node is patched first, then the report, judged once."""
    snapshot = make_snapshot(**known)
    patch = next_step(snapshot)
    assert isinstance(patch, steps.PatchNode)
    node = replace(snapshot.node.patched(patch.labels, patch.taints), resource_version="11")
    report = next_step(replace(snapshot, node=node, judged=patch.judged))
    assert report == steps.PatchReport(known["report"], patch.judged.status)
    return patch.judged.status


def up_to_date(report: AReport) -> dict[str, Any]:
    """A node that carries all that its report asks for, whose event and history have been written."""
    change = report.status.change
    known: dict[str, Any] = {
        "node": NODE.carrying(report.status.desired),
        "report": report,
        "now": NOW,
        "posted": (change.run, change.reason) if change else ("", ""),
    }
    history = outlets.HISTORY.difference(make_context(**known), report.status)
    return known | {"written": history.written if history else None}


def test_a_report_of_the_machine_before_counts_as_absent() -> None:
    earlier = make_node(uid="before")
    old = make_report(earlier).after(READ, node=earlier)
    assert next_step(make_snapshot(report=old)) == steps.DeleteReport(old)
    assert next_step(make_snapshot(report=replace(old, deleting=True))) is None, "a finalizer keeps it"
    pod = make_pod(make_node(uid="before")).with_result(made.titan())
    assert next_step(make_snapshot(pods=(pod,))) == steps.DeletePod(pod, 0)


@pytest.mark.parametrize("machine", [NODE, make_node(uid="before")])
def test_a_pod_that_is_not_gone_in_time_is_forced(machine: Any) -> None:
    known = up_to_date(make_report().after(READ, node=NODE))
    pod = make_pod(machine, number=1).running().deleting(NOW)
    assert next_kind(**known, pods=(pod,)) == "nothing"
    at = wake_at(make_snapshot(**known, pods=(pod,)))
    assert at == NOW + 2 * MINUTE
    assert next_step(make_snapshot(**known | {"now": at}, pods=(pod,))) == steps.DeletePod(pod, 0)


def test_a_pod_that_is_gone_is_not_deleted_again() -> None:
    report = make_report().after(READ, node=NODE)
    gone = make_pod(NODE, number=1).running().deleting(NOW - 999).vanished()
    assert next_kind(**up_to_date(report), pods=(gone,)) == "nothing"
    assert next_kind(node=None, pods=(gone,)) == "nothing"
    assert next_kind(policy=None, pods=(gone,)) == "nothing"
    assert next_kind(pods=(replace(gone, node_uid="before"),), granted=NONE) == "nothing"


@pytest.mark.parametrize(("owner", "step"), [("", "CreatePod"), ("report", "nothing")])
def test_only_a_pod_that_nodegauge_made_holds_a_run_back(owner: str, step: str) -> None:
    """Another one may never go: its kubelet is away, or somebody's finalizer holds it."""
    leaving = replace(make_pod(NODE, number=1).running().deleting(NOW - 1), owner_uid=owner, probe="nccl")
    assert next_kind(node=NODE, report=make_report(), pods=(leaving,)) == step


def test_a_pod_of_another_owner_is_not_the_next_run() -> None:
    pod = replace(make_pod(NODE, number=1).running(), owner_uid="report-of-before")
    assert next_kind(node=NODE, report=make_report(), pods=(pod,)) == "DeletePod"


def test_a_pod_newer_than_the_report_has_the_report_read_again_once() -> None:
    known = up_to_date(make_report().after(READ, node=NODE))
    pod = make_pod(NODE, number=3)
    assert next_step(make_snapshot(**known, pods=(pod,))) == steps.RefreshReport("node-1")
    assert next_kind(**known, pods=(pod,), fresh=frozenset({steps.RefreshReport})) == "DeletePod"


def test_the_pod_of_a_run_stays_until_its_event_is_posted() -> None:
    known = up_to_date(make_report().after(READ, node=NODE))
    pod = make_pod(NODE, number=1).running().with_result(made.titan())
    assert next_kind(**known | {"posted": ("", "")}, pods=(pod,)) == "PostEvent"
    assert next_kind(**known, pods=(pod,)) == "DeletePod"


@pytest.mark.parametrize(("mode", "step"), [("Enforce", "PatchNode"), ("Paused", "nothing")])
def test_a_paused_policy_leaves_a_node_as_others_made_it(mode: str, step: str) -> None:
    known = up_to_date(make_report().after(READ, node=NODE)) | {"granted": NONE}
    assert next_kind(**known | {"node": NODE, "policy": make_policy().of({"mode": mode})}) == step


def test_what_was_judged_by_an_older_report_is_judged_anew() -> None:
    pod = make_pod(NODE).running().with_result(made.titan())
    snapshot = make_snapshot(node=NODE, report=make_report(), pods=(pod,))
    patch = next_step(snapshot)
    assert isinstance(patch, steps.PatchNode)
    theirs = ProbeStatus(name=names.PROBE_PULL, request="theirs")
    newer = replace(snapshot.report, resource_version="11", status=ReportStatus(probes=[theirs]))
    node = NODE.patched(patch.labels, patch.taints)
    step = next_step(replace(snapshot, node=node, report=newer, judged=patch.judged))
    assert isinstance(step, steps.PatchReport)
    assert (step.report, step.status.probe[names.PROBE_PULL].request) == (newer, "theirs")
    assert step.status.probe[names.PROBE_HEALTH].read_at


@pytest.mark.parametrize(
    ("known", "part", "counts"),
    [
        ("", {}, True),
        ("uid-1/2", {}, True),
        ("uid-1/3", {}, False),
        ("uid-1/4", {}, False),
        ("uid-1/4", {"boot_id": "boot-2"}, True),
        ("uid-2/4", {}, True),
        ("", {"node_uid": "of an earlier node"}, False),
        ("", {"text": ""}, False),
    ],
)
def test_a_reading_counts_once_and_not_when_it_is_put_back(
    known: str, part: dict[str, Any], counts: bool
) -> None:
    """A boot may put back the clock by which numbers begin."""
    pod = make_pod(NODE).running().with_result(made.titan())
    reading = reading_of([pod])
    own = replace(reading.parts["health"], **{"pod_uid": "uid-1", "sequence": 3} | part)
    status = ReportStatus(probes=[ProbeStatus(name="health", reading=known, boot_id="boot-1")])
    report = replace(make_report(), status=status)
    context = make_context(node=NODE, report=report, reading=replace(reading, parts={"health": own}))
    assert context.unjudged_part("health") == (own if counts else None)
    assert replace(context, distrust="anybody may write").unjudged_part("health") is None


def test_a_pod_that_left_no_reading_has_it_read_again_once() -> None:
    """The event of its reading may be on its way, and the pod's came first."""
    known = up_to_date(make_report().after(READ, node=NODE))
    ended = make_pod(NODE, number=2).running().finished_with("no driver", code=1)
    assert next_step(make_snapshot(**known, pods=(ended,), fresh=NONE_READ)) == steps.RefreshReading("node-1")
    assert next_kind(**known, pods=(ended,)) == "PatchReport"


def test_no_policy_takes_everything_of_ours_off_in_order() -> None:
    known = up_to_date(make_report().after(READ, node=NODE)) | {"policy": None}
    node, pod = known["node"].labelled(team="a"), make_pod(NODE, number=2)
    step = next_step(make_snapshot(**known | {"node": node}, pods=(pod,)))
    assert isinstance(step, steps.PatchNode)
    assert set(step.labels.values()) == {None}
    assert "team" not in step.labels
    node = node.patched(step.labels)
    assert next_step(make_snapshot(**known | {"node": node}, pods=(pod,))) == steps.SetCondition(node, None)
    node = node.saying(None)
    assert next_kind(**known | {"node": node}, pods=(pod,)) == "DeletePod"
    event = next_step(make_snapshot(**known | {"node": node}))
    assert isinstance(event, steps.PostEvent)
    posted = (event.change.run, event.change.reason)
    assert next_kind(**known | {"node": node, "posted": posted}) == "DeleteReport"
    assert next_kind(**known | {"node": node}, declined={steps.PostEvent: "no"}) == "DeleteReport"
    assert next_kind(node=node, policy=None) == "nothing"


def test_a_node_that_is_gone_leaves_no_pod_and_no_reading() -> None:
    """Its report goes by garbage collection; probes may not read the node, and so not name it as an owner."""
    pod = make_pod(NODE).running()
    assert next_step(make_snapshot(node=None, pods=(pod,))) == steps.DeletePod(pod, None)
    reading = reading_of([pod.with_result(made.titan())])
    assert next_step(make_snapshot(node=None, reading=reading)) == steps.DeleteReading("node-1", reading.uid)
    assert next_kind(node=None, report=make_report()) == "nothing"


def test_an_event_is_posted_again_after_a_restart_while_it_is_young() -> None:
    """Its name makes that harmless; an old one is not told anew."""
    known = up_to_date(make_report().after(READ, node=NODE)) | {"posted": ("", "")}
    assert next_kind(**known) == "PostEvent"
    assert next_kind(**known | {"now": NOW + outlets.EVENT_REPEAT_SECONDS}) == "nothing"


@pytest.mark.parametrize(
    ("ends", "wait"),
    [
        ([READ], INTERVAL),
        ([READ, LOST], 30),
        ([READ, LOST, LOST], 60),
        ([LOST, LOST, LOST], 120),
        ([BUSY], 30),
        ([READ, *[BUSY] * 5], 480),
        ([READ, *[LOST] * 6], INTERVAL),
        ([READ, *[LOST] * 5000], INTERVAL),
        ([LOST, READ], INTERVAL),
        ([REFUSED], MINUTE),
        ([REFUSED, LOST, LOST, LOST], 120),
    ],
)
def test_the_next_run_is_due(ends: list[RunEnd], wait: float) -> None:
    report = make_report()
    for end in ends[:12]:
        report = report.after(end, node=NODE)
    if len(ends) > 12:
        probe = replace(report.status.probes[0], unread=len(ends))
        report = replace(report, status=replace(report.status, probes=[probe]))
    assert health_due_at(report) == NOW + wait
    known = up_to_date(report)
    assert next_kind(**known | {"now": NOW + wait - 1}) == "nothing"
    assert next_kind(**known | {"now": NOW + wait}) == "CreatePod"
    assert wake_at(make_snapshot(**known)) <= NOW + wait


def test_a_boot_or_a_request_is_answered_by_one_run_at_once() -> None:
    """Whatever is due, also after failures; and the same value of a request never asks twice."""
    failing, booted = make_report().after(READ, node=NODE), NODE.booted("boot-2")
    assert health_due_at(failing, node=booted) == 0.0
    assert health_due_at(failing, node=NODE.booted("")) == NOW + INTERVAL
    for _ in range(6):
        failing = failing.after(LOST, node=NODE)
    assert health_due_at(failing, node=booted) == 0.0
    assert health_due_at(failing.after(LOST, node=booted), node=booted) == NOW + INTERVAL
    report = make_report().after(READ, node=NODE).asked("2027-01-15T08:00:01Z")
    assert health_due_at(report) == 0.0
    answered = report.after(LOST, node=NODE, request="2027-01-15T08:00:01Z")
    assert health_due_at(answered) == NOW + 30
    again = answered.asked("2027-01-15T09:00:00Z")
    assert health_due_at(again) == 0.0


def test_a_request_made_during_a_run_is_answered_by_the_next_one() -> None:
    """Who fixed a cable and asks must not be given what was measured before."""
    pod = replace(make_pod(NODE).with_result(made.titan()), request="")
    asked = make_report().asked("2027-01-15T08:00:01Z")
    report = replace(asked, status=judged(report=asked, pods=(pod,)))
    assert health_due_at(report) == 0.0


def test_a_reading_from_before_a_boot_does_not_vouch_for_the_machine_after_it() -> None:
    pod = replace(make_pod(NODE).with_result(made.titan()), boot_id="boot-1")
    node = NODE.booted("boot-2")
    status = judged(report=make_report(), node=node, pods=(pod,))
    assert "interconnect" not in status.desired.labels
    report = replace(make_report(), status=status)
    assert health_due_at(report, node=node) == 0.0


@pytest.mark.parametrize(
    ("node", "policy"),
    [
        (NODE.not_ready(), make_policy()),
        (replace(NODE, deleting=True), make_policy()),
        (NODE.tainted("karpenter.sh/disrupted"), make_policy()),
        (NODE, make_policy().of({"probes": {"health": {"enabled": False}}})),
    ],
    ids=["not Ready", "being deleted", "being scaled down", "probe switched off"],
)
def test_no_run_is_planned_where_it_could_not_end_or_is_not_wanted(node: Any, policy: Any) -> None:
    assert health_due_at(None, node=node, policy=policy) == NEVER
    assert next_kind(node=node, policy=policy, report=make_report()) == "nothing"


def test_a_node_whose_pod_is_gone_is_woken_for_its_next_run() -> None:
    """Last words that were judged must not hold up the timer: else only the full list would find the node."""
    known = up_to_date(make_report().after(LOST, node=NODE))
    gone = make_pod(NODE, number=1).running().deleting().vanished()
    assert wake_at(make_snapshot(**known, pods=(gone,))) == NOW + 30


def test_the_moment_of_expiry_is_woken_for() -> None:
    known = up_to_date(make_report().after(READ, node=NODE).after(LOST, node=NODE, at=NOW + INTERVAL))
    at = wake_at(make_snapshot(**known | {"now": NOW + STALE - 10}))
    assert NOW + STALE < at <= NOW + STALE + 1
    known |= {"now": at, "granted": NONE}
    stale = next_step(make_snapshot(**known))
    assert isinstance(stale, steps.PatchNode)
    assert stale.labels[names.LABEL_INTERCONNECT] is None
    known["node"] = known["node"].patched(stale.labels)
    assert next_kind(**known) == "PatchReport"


def test_the_moment_at_which_another_kind_s_reading_expires_is_woken_for() -> None:
    """Nobody renews it: the policy has switched the kind off."""
    policy = make_policy().of({"probes": {"nccl": {"enabled": False}}})
    report = make_report().after(READ, node=NODE).after(read(nccl.titan()), probe="nccl", node=NODE)
    known: dict[str, Any] = {"node": NODE, "report": report, "policy": policy}
    ends = make_context(**known).expires_at(report.status.probe["nccl"])
    assert ends < NEVER
    assert wake_at(make_snapshot(**known, now=ends - 1)) == ends + 1
