"""What an NCCL run changes in a report, and what it must leave alone."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import support.nccl_results as nccl
import support.results as made
from nodegauge_contract import Problem, ProblemKind, Result, Skip
from nodegauge_judge import Verdict
from nodegauge_operator import names
from nodegauge_operator.api.report import GateState, Outcome
from nodegauge_operator.names import Reason
from support.nccl_nodes import (
    BUSY,
    DAY,
    FAST,
    IMAGE,
    LOST,
    NODE,
    PREEMPTED,
    SLOW,
    STRICT,
    WRONG,
    NcclNode,
    nccl_node,
    read,
    skipping,
)
from support.objects import NOW, make_policy

HEALTH, PULL, NCCL = names.PROBE_HEALTH, names.PROBE_PULL, names.PROBE_NCCL
INTERCONNECT = (names.LABEL_INTERCONNECT, names.LABEL_NVLINK_GBPS, names.LABEL_EVIDENCE, "interconnect")
BUSBW = (names.LABEL_BUSBW_ALLREDUCE, names.LABEL_BUSBW_ALLGATHER, names.LABEL_BUSBW_REDUCESCATTER)


def labels(report: NcclNode, *keys: str) -> dict[str, str]:
    """What the node should carry of these."""
    return {key: value for key, value in report.status.desired.labels.items() if key in keys}


def gate_states(report: NcclNode) -> dict[str, GateState]:
    """State of each gate."""
    return {row.code: row.state for row in report.status.gates}


def test_a_confirmed_interconnect_is_measured_and_its_bandwidth_a_label() -> None:
    """`measured` beside the class of NVML, and whole GB/s of three collectives."""
    report = nccl_node().measured(FAST)
    assert labels(report, *INTERCONNECT) == {
        names.LABEL_INTERCONNECT: "nvlink",
        "interconnect": "nvlink",
        names.LABEL_NVLINK_GBPS: "450",
        names.LABEL_EVIDENCE: "measured",
    }
    assert [report.status.desired.labels[key] for key in BUSBW] == ["462", "355", "355"]
    assert report.status.bandwidth.agreement == "confirmed"
    assert report.status.verdict is Verdict.PASS


def test_a_contradicted_interconnect_loses_its_labels_at_once() -> None:
    """After one run: both keys, its rate, its evidence, and its bandwidth; the report keeps the number."""
    report = nccl_node().measured(SLOW)
    assert labels(report, *INTERCONNECT, *BUSBW) == {}
    assert report.status.bandwidth.all_reduce == 21
    interconnect = report.status.interconnect
    assert (interconnect.klass, interconnect.reported, interconnect.reason) == ("", "nvlink", "Contradicted")
    assert "21 GB/s" in interconnect.message
    assert "450 GB/s" in interconnect.message
    assert "NVML reports nvlink, bandwidth contradicts it" in report.status.desired.message
    codes = [finding.code for finding in report.status.probe(NCCL).findings]
    assert "interconnect-contradicted" in codes


def test_an_event_says_which_number_took_the_label_off() -> None:
    """The change names label, number and what NVML reports; the next health run tells nothing again."""
    report = nccl_node().measured(FAST).measured(SLOW, at=NOW + 60)
    change = report.status.change
    assert "nvlink (measured) -> none: all_reduce at 1 GiB" in change.message
    again = report.healthy(at=NOW + 900)
    assert again.status.change == change
    assert again.status.interconnect.klass == ""
    assert labels(again, *INTERCONNECT) == {}


def test_only_a_number_that_agrees_brings_the_label_back() -> None:
    """Not health runs, not time, not skipped, lost or undecided NCCL runs."""
    report = nccl_node().measured(SLOW)
    undecided = nccl.changed(FAST, arms=[nccl.arm("default", [nccl.cell("all_reduce", 8, 0.001, ranks=8)])])
    for n, end in enumerate((BUSY, LOST, PREEMPTED, undecided)):
        report = report.measured(end, at=NOW + n * DAY).healthy(at=NOW + n * DAY + 900)
        assert labels(report, *INTERCONNECT) == {}, end
    report = report.healthy(at=NOW + 5 * DAY).measured(FAST, at=NOW + 5 * DAY)
    assert labels(report, names.LABEL_INTERCONNECT, names.LABEL_EVIDENCE) == {
        names.LABEL_INTERCONNECT: "nvlink",
        names.LABEL_EVIDENCE: "measured",
    }


def test_an_nccl_run_that_cannot_tell_brings_no_label_back_in_the_same_boot() -> None:
    """Peer access switched off by the policy: nothing agrees and nothing contradicts.  A boot ends it."""
    policy = make_policy().of({"probes": {"nccl": {"environment": {"NCCL_P2P_DISABLE": "1"}}}})
    report = nccl_node().measured(SLOW).measured(SLOW, at=NOW + 60, policy=policy)
    assert labels(report, *INTERCONNECT) == {}
    assert report.status.bandwidth.agreement == "contradicted"
    booted = NODE.booted("boot-2")
    report = report.healthy(booted, at=NOW + 900, policy=policy)
    assert labels(report, *INTERCONNECT) == {}
    report = report.measured(SLOW, booted, at=NOW + 960, policy=policy)
    assert report.status.bandwidth.agreement == "unsure"
    assert report.status.desired.labels[names.LABEL_EVIDENCE] == "reported"


@pytest.mark.parametrize("end", [BUSY, PREEMPTED, LOST, skipping(Skip.BUSY, "a job computes on GPU 3")])
@pytest.mark.parametrize("before", [FAST, SLOW])
def test_a_run_that_measured_nothing_changes_nothing_but_its_own_record(end: Any, before: Result) -> None:
    """Labels, verdict, rows, bandwidth and findings stay; the run is counted, with its reason."""
    report = nccl_node().measured(before)
    after = report.measured(end, at=NOW + 60)
    assert after.status.desired == report.status.desired
    assert after.status.bandwidth == report.status.bandwidth
    assert after.status.gates == report.status.gates
    assert after.status.interconnect == report.status.interconnect
    mine, was = after.status.probe(NCCL), report.status.probe(NCCL)
    assert (mine.verdict, mine.findings, mine.history, mine.read_at) == (
        was.verdict,
        was.findings,
        was.history,
        was.read_at,
    )
    assert mine.unread == 1
    assert mine.last_run.outcome is not Outcome.READ


def test_gpus_in_use_by_someone_else_skip_the_run() -> None:
    """`skipped`, with what the probe saw, and never a failure that ages anything."""
    report = nccl_node().measured(FAST).measured(skipping(Skip.BUSY, "a job computes on GPU 3"))
    last = report.status.probe(NCCL).last_run
    assert (last.outcome, last.reason) == (Outcome.SKIPPED, "Busy")
    assert "GPU 3" in last.message
    assert report.status.probe(NCCL).failing_since == ""


def test_an_nccl_run_leaves_the_health_probe_alone() -> None:
    """Its status, the GPUs and the supply are what the health run read."""
    report = nccl_node()
    after = report.measured(WRONG, at=NOW + 60)
    assert after.status.probe(HEALTH) == report.status.probe(HEALTH)
    assert after.status.gpus == report.status.gpus
    assert after.status.psu == report.status.psu


def test_wrong_data_taints_after_one_run_and_fails_the_node() -> None:
    """Whatever the speed, and whatever the health probe says."""
    report = nccl_node().measured(WRONG)
    assert [(t.key, t.value) for t in report.status.desired.taints] == [(names.TAINT_UNHEALTHY, "nccl")]
    assert report.status.verdict is Verdict.FAIL
    assert (report.status.desired.condition, report.status.desired.reason) == ("False", Reason.FAULTS_FOUND)
    assert "NCCL probe: fail (nccl-wrong-data" in report.status.desired.message


def test_low_bandwidth_needs_two_runs_of_the_nccl_run() -> None:
    """Health runs in between count for nothing: neither against it nor for it."""
    report = nccl_node().measured(SLOW)
    assert gate_states(report) == {"busbw-low": GateState.WATCHING}
    for n in range(5):
        report = report.healthy(at=NOW + 900 * n)
    assert [(row.bad, row.good) for row in report.status.gates] == [(1, 0)]
    report = report.healthy(at=NOW + DAY).measured(SLOW, at=NOW + DAY)
    assert gate_states(report) == {"busbw-low": GateState.GATED}
    for n in range(5):
        report = report.healthy(at=NOW + DAY + 900 * n)
    assert gate_states(report) == {"busbw-low": GateState.GATED}
    for n in (1, 2, 3):
        assert report.status.desired.taints
        report = report.healthy(at=NOW + (1 + n) * DAY).measured(FAST, at=NOW + (1 + n) * DAY)
    assert report.status.desired.taints == []


def test_an_nccl_run_counts_for_no_row_of_the_health_probe() -> None:
    """A node whose P2P is refused stays so, however many NCCL runs are fast."""
    broken = made.with_pair(made.h100(), 0, 1, nvlink=4, read=4, write=4)
    report = nccl_node().healthy(result=broken, at=NOW + 900)
    before = [(row.code, row.state, row.bad, row.good, row.readable_since) for row in report.status.gates]
    assert [code for code, *_ in before] == ["p2p-refused"]
    for n in range(3):
        report = report.measured(FAST, at=NOW + 1000 + n)
    after = [(row.code, row.state, row.bad, row.good, row.readable_since) for row in report.status.gates]
    assert after == before


def test_bandwidth_labels_are_rewritten_on_five_per_cent() -> None:
    """Less than that leaves the label; the report has the exact number."""
    report = nccl_node().measured(nccl.h100(462.0))
    for gbps, label in ((445.0, "462"), (480.0, "462"), (438.0, "438"), (458.0, "438"), (462.0, "462")):
        report = report.measured(nccl.h100(gbps), at=NOW + gbps)
        assert report.status.desired.labels[names.LABEL_BUSBW_ALLREDUCE] == label, gbps
        assert report.status.bandwidth.all_reduce in (int(gbps), round(gbps) - 1)


def test_another_boot_takes_the_measurement_off_and_not_the_contradiction() -> None:
    """What was measured counts in its boot; a contradiction waits for the next NCCL run."""
    booted = NODE.booted("boot-2")
    measured = nccl_node().measured(FAST).healthy(booted, at=NOW + 900)
    assert measured.status.desired.labels[names.LABEL_EVIDENCE] == "reported"
    assert labels(measured, *BUSBW) == {}
    contradicted = nccl_node().measured(SLOW).healthy(booted, at=NOW + 900)
    assert labels(contradicted, *INTERCONNECT) == {}
    assert contradicted.status.interconnect.reason == "Contradicted"


def test_where_no_nccl_run_is_wanted_any_more_another_boot_ends_a_contradiction() -> None:
    """Or no label could ever come back."""
    report = nccl_node().measured(SLOW)
    off = make_policy().of({"probes": {"nccl": {"enabled": False}}})
    assert labels(report.healthy(at=NOW + 900, policy=off), *INTERCONNECT) == {}
    report = report.healthy(NODE.booted("boot-2"), at=NOW + 1800, policy=off)
    assert report.status.desired.labels[names.LABEL_EVIDENCE] == "reported"


@pytest.mark.parametrize(
    "other",
    [
        made.every_gpu(made.h100(), name="NVIDIA H200"),
        replace(made.h100(), system=replace(made.h100().system, driver="560.1")),
    ],
)
def test_other_gpus_or_another_driver_are_not_what_was_measured(other: Result) -> None:
    """The evidence falls back to what NVML reports, without a reboot."""
    report = nccl_node().measured(FAST).healthy(result=other, at=NOW + 900)
    assert report.status.desired.labels[names.LABEL_EVIDENCE] == "reported"
    assert labels(report, *BUSBW) == {}


def test_busy_nodes_keep_what_was_measured_and_failing_ones_do_not() -> None:
    """Weeks without a free GPU age nothing; failures past the staleness limit do."""
    report = nccl_node().measured(FAST)
    busy = failing = report
    for n in range(1, 20):
        busy = busy.measured(BUSY, at=NOW + n * DAY).healthy(at=NOW + n * DAY)
        failing = failing.measured(LOST, at=NOW + n * DAY).healthy(at=NOW + n * DAY)
    assert busy.status.desired.labels[names.LABEL_EVIDENCE] == "measured"
    assert labels(busy, *BUSBW)
    assert failing.status.desired.labels[names.LABEL_EVIDENCE] == "reported"
    assert labels(failing, *BUSBW) == {}


def test_other_expectations_grade_the_old_numbers_without_a_run() -> None:
    """Findings and verdict follow; no run is counted, no gate entered, and the same rules change nothing."""
    report = nccl_node().measured(FAST)
    strict = make_policy().of(STRICT)
    graded = report.seen(node=NODE, policy=strict, at=NOW + 60, nccl_image=IMAGE)
    assert [f.code for f in graded.status.probe(NCCL).findings][:1] == ["busbw-low"]
    assert graded.status.probe(NCCL).last_run == report.status.probe(NCCL).last_run
    assert graded.status.gates == report.status.gates
    assert graded.status.change != report.status.change
    again = graded.seen(node=NODE, policy=strict, at=NOW + 120, nccl_image=IMAGE)
    assert again.status == graded.status
    back = again.seen(node=NODE, policy=make_policy(), at=NOW + 180, nccl_image=IMAGE)
    assert back.status.probe(NCCL).findings == []
    assert back.status.bandwidth == report.status.bandwidth


def test_seven_of_eight_gpus_are_measured_and_named() -> None:
    """The finding says how many took part; the label is what those reach."""
    seven = nccl.changed(nccl.h100(440.0, count=7), expected=8)
    report = nccl_node(NODE.offering(7, of=8)).measured(seven, NODE.offering(7, of=8))
    assert (report.status.bandwidth.gpus, report.status.bandwidth.of) == (7, 8)
    assert "fewer-gpus" in [finding.code for finding in report.status.probe(NCCL).findings]


def test_an_unusable_image_is_no_pull() -> None:
    """The engine cannot be loaded there: unknown, with the probe's words, and an event once."""
    problem = Problem(kind=ProblemKind.NO_ENGINE, call="nccl4py", message="libnccl.so.2 is missing")
    end = read(Result(probe="pull", problem=problem))
    report = nccl_node().pulled(end=end, at=NOW + 60)
    pull = report.status.probe(PULL)
    assert (pull.unread, pull.image) == (1, IMAGE)
    assert pull.last_run.reason == "ImageUnusable"
    assert "libnccl.so.2 is missing" in report.status.change.message
    assert report.pulled(end=end, at=NOW + 120).status.change == report.status.change


def test_an_image_that_is_gone_is_brought_anew_before_gpus_are_held() -> None:
    """An NCCL run whose own pod could not get its image forgets that the image was there."""
    gone = replace(LOST, reason="ImagePullBackOff")
    assert nccl_node().measured(gone).status.probe(PULL).image == ""
    assert nccl_node().measured(LOST).status.probe(PULL).image == IMAGE


def test_unread_reports_of_one_probe_keep_those_of_the_others() -> None:
    """A lost health run loses no NCCL run."""
    report = nccl_node().measured(FAST).after(LOST, node=NODE, at=NOW + 900, nccl_image=IMAGE)
    assert [probe.name for probe in report.status.probes] == [HEALTH, PULL, NCCL]
    assert report.status.desired.labels[names.LABEL_EVIDENCE] == "measured"


def test_a_node_is_validated_by_an_nccl_run_where_the_policy_says_so() -> None:
    """Not by its first health run; on a node with one GPU by that all the same."""
    policy = make_policy().of({"taints": {"unvalidated": "Set", "unvalidatedUntil": "Nccl"}})
    report = nccl_node()
    fresh = replace(report, status=replace(report.status, passed_at=""))
    healthy = fresh.healthy(at=NOW + 900, policy=policy)
    assert [taint.key for taint in healthy.status.desired.taints] == [names.TAINT_UNVALIDATED]
    assert healthy.measured(FAST, policy=policy).status.desired.taints == []
    single = fresh.healthy(
        NODE.offering(1), result=made.machine(made.h100(1).gpus, [[0]]), at=NOW + 900, policy=policy
    )
    assert single.status.desired.taints == []


def test_a_node_that_was_cordoned_or_lost_its_gpu_waits_for_its_nccl_run() -> None:
    """What passes is no reason to let a node in unmeasured."""
    policy = make_policy().of({"taints": {"unvalidated": "Set", "unvalidatedUntil": "Nccl"}})
    report = nccl_node()
    fresh = replace(report, status=replace(report.status, passed_at=""))
    cordoned = fresh.healthy(NODE.cordoned(), at=NOW + 900, policy=policy)
    assert [taint.key for taint in cordoned.status.desired.taints] == [names.TAINT_UNVALIDATED]
    assert cordoned.status.bandwidth.reason == "Cordoned"
