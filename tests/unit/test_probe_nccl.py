"""What an NCCL run changes in a report, and what it must leave alone."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import support.nccl_results as nccl
import support.results as made
from nodegauge_contract import ArmName, Problem, ProblemKind, Result, Skip, Unavailable
from nodegauge_judge import Verdict
from nodegauge_operator import names
from nodegauge_operator.api.report import NEVER, GateState, Outcome, ReportStatus
from nodegauge_operator.core.actions import DeletePod, PatchReport
from nodegauge_operator.core.planner import next_step
from nodegauge_operator.core.probes.nccl import image_is_there
from nodegauge_operator.names import Reason
from support.nccl_nodes import (
    BUSY,
    DAY,
    FAST,
    IMAGE,
    INSTALLED,
    LOST,
    NODE,
    PREEMPTED,
    RECHECK,
    SLOW,
    STRICT,
    WRONG,
    NcclNode,
    nccl_due_at,
    nccl_node,
    read,
    skipping,
)
from support.objects import MINUTE, NOW, ANode, APolicy, make_pod, make_policy, make_snapshot

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


@pytest.mark.parametrize("unread", ["driver", "name"])
def test_what_a_health_run_could_not_read_makes_no_other_machine(unread: str) -> None:
    """Missing once: the evidence stays, and nothing is measured anew."""
    gap, machine = Unavailable(unavailable="timed out"), made.h100()
    if unread == "driver":
        machine = replace(machine, system=replace(machine.system, driver=gap))
    else:
        machine = made.every_gpu(machine, name=gap)
    report = nccl_node().measured(FAST).healthy(result=machine, at=NOW + 900)
    assert report.status.desired.labels[names.LABEL_EVIDENCE] == "measured"
    assert due(report) == NOW + DAY


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


TOLD_OFF = make_policy().of({"probes": {"nccl": {"environment": {"NCCL_P2P_DISABLE": "1"}}}})

ALIKE = nccl.h100(120.0, gather=120.0, ring=118.0, host=118.0)
"""Twice PCIe's speed, and no faster than through the host's memory."""

EASY = [
    {"gpu": "*", "count": 8, "collective": c, "bytes": 1 << 30, "busbw": 100, "floor": 50}
    for c in ("all_reduce", "all_gather", "reduce_scatter")
]

HUNG = nccl.swapped(FAST, ArmName.DEFAULT, outcome="hung", phase="measure")

CRASHED = nccl.swapped(FAST, ArmName.P2P_OFF, outcome="crashed", phase="measure", cells=[])


def due(report: NcclNode, node: ANode = NODE, policy: APolicy | None = None) -> float:
    """When the next pull or NCCL run may start."""
    return nccl_due_at(report, node, policy=policy or make_policy())


def seen(report: NcclNode, node: ANode, *, at: float, policy: APolicy | None = None) -> NcclNode:
    """The report once the node was looked at."""
    return report.seen(node=node, policy=policy or make_policy(), at=at, nccl_image=IMAGE)


def test_other_rules_do_not_lift_a_contradiction_that_the_last_run_could_not_speak_of() -> None:
    """The run that contradicted came before; grading the undecided one anew finds no number that agrees."""
    report = nccl_node().measured(SLOW).measured(SLOW, at=NOW + 60, policy=TOLD_OFF)
    stricter = TOLD_OFF.spec_with(thresholds=replace(TOLD_OFF.spec.thresholds, busbw_expected_share=0.8))
    graded = seen(report, NODE, at=NOW + 120, policy=stricter)
    assert graded.status.bandwidth.grade != report.status.bandwidth.grade
    assert graded.status.bandwidth.agreement == "contradicted"
    assert names.LABEL_INTERCONNECT not in graded.status.desired.labels


def test_a_contradiction_asks_for_another_run_soon_and_then_ever_less() -> None:
    """Also where no floor was missed: nobody else would ask before tomorrow."""
    policy = make_policy().of({"expectations": EASY})
    report, waits = nccl_node(), []
    for _ in range(5):
        report = report.measured(ALIKE, policy=policy)
        assert report.status.bandwidth.agreement == "contradicted"
        assert report.status.gates == []
        waits.append(due(report, policy=policy) - NOW)
    assert waits == [RECHECK * 2**n for n in range(5)]
    healed = report.measured(FAST, policy=policy)
    assert due(healed, policy=policy) == NOW + RECHECK, "two runs disagree"
    assert due(healed.measured(FAST, policy=policy), policy=policy) == NOW + DAY


@pytest.mark.parametrize(
    "labels", [{"nvidia.com/gpu.replicas": "4"}, {"nvidia.com/gpu.product": "NVIDIA-H100-MIG-1g.10gb"}]
)
def test_a_contradiction_ends_with_a_boot_where_no_nccl_run_can_run_any_more(labels: dict[str, str]) -> None:
    """Within the boot nobody looked; after it nobody ever could."""
    divided = NODE.bearing(labels)
    report = seen(nccl_node().measured(SLOW), divided, at=NOW + 60)
    assert report.status.interconnect.reason == "Contradicted"
    booted = divided.booted("boot-2")
    report = report.healthy(booted, at=NOW + 900)
    assert report.status.interconnect.reason != "Contradicted"
    assert report.status.desired.labels[names.LABEL_EVIDENCE] == "reported"
    cordoned = nccl_node().measured(SLOW).healthy(NODE.booted("boot-2").cordoned(), at=NOW + 900)
    assert cordoned.status.interconnect.reason == "Contradicted", "it will be measured again"


@pytest.mark.parametrize("labels", [{"nvidia.com/gpu.replicas": "4"}, {"nvidia.com/mig-1g.10gb.count": "7"}])
def test_divided_gpus_are_not_what_was_measured(labels: dict[str, str]) -> None:
    """Without a boot: what whole GPUs reached says nothing to a pod that gets parts of them."""
    report = seen(nccl_node().measured(FAST), NODE.bearing(labels), at=NOW + 60)
    assert report.status.desired.labels[names.LABEL_EVIDENCE] == "reported"
    assert not report.status.desired.labels.keys() & set(BUSBW)
    whole = seen(report, NODE, at=NOW + 120)
    assert whole.status.desired.labels[names.LABEL_EVIDENCE] == "measured"


def test_divided_gpus_that_only_the_probe_can_see_are_not_what_was_measured_either() -> None:
    """MIG without GPU feature discovery: the run is skipped for it, which ages nothing."""
    report = nccl_node().measured(FAST).measured(skipping(Skip.MIG), at=NOW + DAY)
    report = report.healthy(at=NOW + DAY)
    assert report.status.desired.labels[names.LABEL_EVIDENCE] == "reported"
    assert not report.status.desired.labels.keys() & set(BUSBW)
    busy = nccl_node().measured(FAST).measured(skipping(Skip.BUSY), at=NOW + DAY).healthy(at=NOW + DAY)
    assert busy.status.desired.labels[names.LABEL_EVIDENCE] == "measured"


def test_a_row_that_nothing_answers_is_asked_for_ever_less() -> None:
    """One hang, and then runs that cannot tell: GPUs are not held every ten minutes for a week."""
    report = nccl_node().measured(HUNG).measured(CRASHED)
    assert [(row.code, row.bad, row.state) for row in report.status.gates] == [
        ("nccl-hang", 1, GateState.WATCHING)
    ]
    waits = []
    for _ in range(8):
        report = report.measured(CRASHED)
        waits.append(due(report) - NOW)
    assert waits == sorted(waits)
    assert waits[-1] > 12 * 3600


def test_a_restarted_device_plugin_is_no_dra() -> None:
    """It offers nothing for seconds, but the kubelet still counts its GPUs: nothing is written, and a node
    that waits for its first NCCL run waits on."""
    policy = make_policy().of({"taints": {"unvalidated": "Set", "unvalidatedUntil": "Nccl"}})
    fresh = replace(nccl_node(), status=ReportStatus())
    report = fresh.healthy(at=NOW, policy=policy).healthy(at=NOW + 900, policy=policy)
    assert report.status.passed_at == ""
    restarting = NODE.offering(0, of=8)
    after = seen(report, restarting, at=NOW + 910, policy=policy)
    assert after.status == report.status
    assert due(after, restarting, policy) == NEVER


def test_another_image_is_pulled_at_once_however_often_the_one_before_failed() -> None:
    """A policy that names the right image in the end does not wait a day for the wrong one's tries."""
    report = nccl_node().healthy(NODE.booted("boot-2"), at=NOW + 60)
    booted = NODE.booted("boot-2")
    for n in range(9):
        report = report.pulled(booted, end=LOST, at=NOW + 60 + n, image="nccl:typo")
    typo = make_policy().of({"podTemplate": {"ncclImage": "nccl:typo"}})
    assert due(report, booted, typo) > NOW + 12 * 3600
    assert due(report, booted) == 0.0
    context = report.context(node=booted, nccl_image=IMAGE)
    assert not image_is_there(context)


@pytest.mark.parametrize(
    "spec", [{"podTemplate": {"ncclImage": "nccl:2"}}, {"probes": {"nccl": {"enabled": False}}}]
)
def test_a_pull_of_an_image_that_nobody_wants_any_more_ends(spec: dict[str, Any]) -> None:
    """It could try for half an hour; an image of the policy in force is waited for."""
    report = nccl_node().healthy(NODE.booted("boot-2"), at=NOW + 60)
    pod = replace(make_pod(NODE, probe=names.PROBE_PULL, number=2), image=IMAGE).pending(
        "ImagePullBackOff", placed=True
    )
    known = make_snapshot(
        node=NODE, report=report, pods=(pod,), now=NOW + 70, granted=frozenset(), defaults=INSTALLED
    )
    ended = next_step(replace(known, policy=make_policy().of(spec)))
    assert isinstance(ended, PatchReport)
    last = ended.status.probe(names.PROBE_PULL).last_run
    assert (last.outcome, last.reason) == (Outcome.SKIPPED, "ImageReplaced")
    assert not isinstance(next_step(known), DeletePod)
    assert getattr(next_step(known), "status", report.status).probe(names.PROBE_PULL).unread == 0


def test_without_nccl_runs_a_taint_of_theirs_ends_by_the_policy_s_word() -> None:
    """Nobody looks any more, so nothing is lifted by itself (docs/runbook.md); effect None lifts it."""
    report = nccl_node().measured(SLOW).measured(SLOW, at=NOW + 60)
    assert [t.value for t in report.status.desired.taints] == ["busbw"]
    off = {"probes": {"nccl": {"enabled": False}}}
    still = seen(report, NODE, at=NOW + 30 * MINUTE, policy=make_policy().of(off))
    assert [t.value for t in still.status.desired.taints] == ["busbw"]
    lifted = make_policy().of(off | {"taints": {"causes": {"busbw": "None", "nccl": "None"}}})
    assert seen(still, NODE, at=NOW + 31 * MINUTE, policy=lifted).status.desired.taints == []


def test_where_no_nccl_run_is_wanted_any_more_nothing_waits_for_one() -> None:
    """A boot ends a contradiction, and a health run opens a new node."""
    off: dict[str, Any] = {"probes": {"nccl": {"enabled": False}}}
    report = nccl_node().measured(SLOW).healthy(at=NOW + 900, policy=make_policy().of(off))
    assert labels(report, *INTERCONNECT) == {}
    report = report.healthy(NODE.booted("boot-2"), at=NOW + 1800, policy=make_policy().of(off))
    assert report.status.desired.labels[names.LABEL_EVIDENCE] == "reported"
    closed = make_policy().of(off | {"taints": {"unvalidated": "Set", "unvalidatedUntil": "Nccl"}})
    fresh = replace(nccl_node(), status=replace(nccl_node().status, passed_at=""))
    assert fresh.healthy(at=NOW + 900, policy=closed).status.desired.taints == []
