"""What a node should carry: a pure function of its report, with expiry as promise 1 has it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Result
from nodegauge_judge import Verdict
from nodegauge_operator import names
from nodegauge_operator.api.report import DesiredNode, Outcome
from nodegauge_operator.core import desired_state
from nodegauge_operator.core.model import NodeView
from nodegauge_operator.core.pod_outcome import RunEnd
from nodegauge_operator.reasons import Reason
from support import INTERVAL, NOW, STALE, make_context, make_node, make_policy, make_report
from support.objects import AReport

pytestmark = pytest.mark.timeout(5)

NODE = make_node()
TOPOLOGY = {
    names.LABEL_INTERCONNECT: "nvlink",
    names.LABEL_EVIDENCE: "reported",
    names.LABEL_NVLINK_GBPS: "50",
    "interconnect": "nvlink",
}
HEALTH = {names.LABEL_HEALTH: "pass", names.LABEL_VALIDATED_AT: str(int(NOW))}
LOST = RunEnd(outcome=Outcome.UNKNOWN, reason="OOMKilled", message="no result")
BUSY = RunEnd(outcome=Outcome.SKIPPED, reason="NotScheduled", message="node is full")


def read(result: Result) -> RunEnd:
    """A run that brought this home."""
    return RunEnd(outcome=Outcome.READ, reason="Read", result=result)


def titan() -> AReport:
    """A node of two bridged TITANs, read at NOW."""
    return make_report().after(read(made.titan()), node=NODE)


def desired(report: AReport, **known: Any) -> DesiredNode:
    """What the node should carry by this report."""
    context = make_context(**{"node": NODE, "report": report} | known)
    return desired_state.desired_node(context, context.status)


def held(report: AReport, *, at: float = NOW, node: NodeView = NODE) -> DesiredNode:
    """What the node should carry at that time."""
    return desired(report, node=node, now=at)


def test_a_reading_becomes_labels_and_a_condition() -> None:
    """Class, evidence, rate, short key, health, time, and GPUValidated=True."""
    found = held(titan())
    assert found.labels == TOPOLOGY | HEALTH
    assert (found.condition, found.reason) == ("True", Reason.VALIDATED)


def test_a_node_that_was_never_read_carries_a_reason_and_no_label() -> None:
    """Unknown, with what went wrong."""
    found = held(make_report().after(LOST, node=NODE))
    assert found.labels == {}
    assert (found.condition, found.reason) == ("Unknown", Reason.NOT_YET_VALIDATED)
    assert "OOMKilled" in found.message


def test_a_node_that_never_ran_carries_nothing() -> None:
    """An empty report is no reason for a condition."""
    assert held(make_report()) == DesiredNode()


def test_pcie_has_no_rate_and_one_gpu_has_no_class() -> None:
    """Absent is the only honest value there."""
    pcie = held(make_report().after(read(made.phb()), node=NODE)).labels
    assert pcie[names.LABEL_INTERCONNECT] == "pcie"
    assert names.LABEL_NVLINK_GBPS not in pcie
    alone = held(make_report().after(read(made.h100(1)), node=NODE)).labels
    assert alone.keys() == HEALTH.keys()


def test_refused_p2p_takes_the_class_away_at_once_and_keeps_the_verdict() -> None:
    """Links that are up and cannot be used are no NVLink: one run suffices (the label goes at once)."""
    report = titan().after(read(made.with_pair(made.titan(), 0, 1, nvlink=1)), node=NODE, at=NOW + INTERVAL)
    found = held(report, at=NOW + INTERVAL)
    assert not found.labels.keys() & TOPOLOGY.keys()
    assert found.labels[names.LABEL_HEALTH] == "fail"
    assert (found.condition, found.reason) == ("False", Reason.FAULTS_FOUND)


@pytest.mark.parametrize("end", [LOST, BUSY])
def test_an_unread_run_neither_sets_nor_clears(end: RunEnd) -> None:
    """Until the staleness limit the node carries what the last reading said."""
    report = titan().after(end, node=NODE, at=NOW + INTERVAL)
    assert held(report, at=NOW + STALE) == held(titan())


def test_readings_age_also_where_no_run_was_tried() -> None:
    """Paused, not Ready, in the middle of an upgrade: what nobody confirms is not known any more."""
    assert held(titan(), at=NOW + STALE) == held(titan())
    found = held(titan(), at=NOW + STALE + 1)
    assert (found.labels, found.condition) == ({}, "Unknown")


def test_an_operator_that_was_away_does_not_strip_the_fleet_that_it_finds() -> None:
    """After a start there is one interval's time to read anew."""
    start = NOW + 365 * 86_400
    early = desired(titan(), node=NODE, now=start + 1, since=start)
    late = desired(titan(), node=NODE, now=start + INTERVAL + 1, since=start)
    assert (early.labels, late.labels) == (TOPOLOGY | HEALTH, {})


def test_one_failure_among_runs_that_found_no_room_does_not_age_topology() -> None:
    """Only an unbroken row of failures does."""
    report = titan().after(LOST, node=NODE, at=NOW + INTERVAL)
    for n in range(2, 40):
        report = report.after(BUSY, node=NODE, at=NOW + n * INTERVAL)
    assert held(report, at=NOW + 40 * INTERVAL).labels == TOPOLOGY


def test_after_the_limit_failed_runs_expire_to_absent_labels() -> None:
    """Nothing readable for longer than the limit: no label, condition Unknown with why."""
    report = titan().after(LOST, node=NODE, at=NOW + INTERVAL)
    found = held(report, at=NOW + STALE + 1)
    assert found.labels == {}
    assert (found.condition, found.reason) == ("Unknown", Reason.STALE)
    assert "OOMKilled" in found.message
    verdict = make_context(node=NODE, report=report, now=NOW + STALE + 1).verdict
    assert verdict is Verdict.UNKNOWN


def test_skipped_runs_expire_health_and_never_topology() -> None:
    """A busy node's wiring is what it was."""
    report = titan()
    for n in range(1, 50):
        report = report.after(BUSY, node=NODE, at=NOW + n * INTERVAL)
    assert held(report, at=NOW + 50 * INTERVAL).labels == TOPOLOGY


def test_another_boot_takes_topology_away_and_leaves_health() -> None:
    """After a boot the links may be others: not known until read."""
    found = held(titan(), node=NODE.booted("boot-2"))
    assert found.labels == HEALTH
    assert held(titan(), node=NODE.booted("")).labels == TOPOLOGY | HEALTH


def test_the_limit_follows_the_policy() -> None:
    """Intervals times their number."""
    report = titan().after(LOST, node=NODE, at=NOW + 30)
    quick = make_policy().of({"probes": {"health": {"interval": "30s"}}, "staleAfterIntervals": 4})
    context = make_context(node=NODE, report=report, policy=quick)
    at = context.expires_at(report.status.probe(names.PROBE_HEALTH))
    assert at == NOW + 120
    before = desired(report, node=NODE, policy=quick, now=at)
    after = desired(report, node=NODE, policy=quick, now=at + 1)
    assert (len(before.labels), len(after.labels)) == (6, 0)


def test_validated_at_is_rewritten_after_half_the_limit_only() -> None:
    """Fewer writes, and still young enough for Gt (ADR 0008)."""
    report = titan()
    stamps = []
    for n in range(1, 7):
        report = report.after(read(made.titan()), node=NODE, at=NOW + n * INTERVAL)
        stamps.append(int(report.status.desired.labels[names.LABEL_VALIDATED_AT]))
    assert [(s - NOW) / INTERVAL for s in stamps] == [0, 2, 2, 4, 4, 6]


def test_validated_at_never_lies_in_the_future_and_survives_nonsense() -> None:
    """A value that a person wrote, or a clock that went back, is replaced."""
    for before in (str(int(NOW) + 999_999), "soon", "", "²", "9" * 5000, "-5"):
        report = titan()
        carried = replace(report.status.desired, labels={names.LABEL_VALIDATED_AT: before})
        report = replace(report, status=replace(report.status, desired=carried))
        labels = desired(report, node=NODE, now=NOW).labels
        assert labels[names.LABEL_VALIDATED_AT] == str(int(NOW))


def test_a_policy_that_observes_puts_nothing_on_a_node() -> None:
    """Reports are written; nodes are left alone."""
    policy = make_policy().observing()
    assert desired(titan(), node=NODE, policy=policy, now=NOW) == DesiredNode()


def test_a_short_key_of_somebody_else_is_left_alone_and_reported() -> None:
    """The long key is ours alone; the short one may be taken."""
    found = held(titan(), node=NODE.labelled(interconnect="infiniband"))
    assert "interconnect" not in found.labels
    assert found.conflicts == ["interconnect"]
    assert found.labels[names.LABEL_INTERCONNECT] == "nvlink"


def test_a_short_key_of_somebody_else_with_the_same_value_is_no_conflict() -> None:
    """They agree: it stays theirs, and nobody is bothered."""
    found = held(titan(), node=NODE.labelled(interconnect="nvlink"))
    assert found.conflicts == []
    assert "interconnect" not in found.labels


def test_take_over_and_our_own_key_are_written() -> None:
    """The policy may say so; and what we wrote before is ours to change."""
    theirs = NODE.labelled(interconnect="infiniband")
    taken = make_policy().keyed("interconnect", take_over=True)
    found = desired(titan(), node=theirs, policy=taken, now=NOW)
    assert (found.labels["interconnect"], found.conflicts) == ("nvlink", [])
    ours = held(titan(), node=NODE.ours({"interconnect": "pcie"}))
    assert (ours.labels["interconnect"], ours.conflicts) == ("nvlink", [])


def test_the_short_key_can_be_left_out() -> None:
    """An empty key means none."""
    found = desired(titan(), node=NODE, policy=make_policy().keyed(""), now=NOW)
    assert found.labels == {k: v for k, v in (TOPOLOGY | HEALTH).items() if k != "interconnect"}
