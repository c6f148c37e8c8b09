"""How what an NCCL run said ends again: contradictions, bad rows, labels of a machine that is another now.

Whatever an NCCL run holds on a node needs a way out, and one that does not measure the node to death.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import support.nccl_results as nccl
import support.results as made
from nodegauge_contract import ArmName, Skip, Unavailable
from nodegauge_operator import names
from nodegauge_operator.api.report import NEVER, GateState, Outcome, ReportStatus
from nodegauge_operator.core.actions import DeletePod, PatchReport
from nodegauge_operator.core.planner import next_step
from nodegauge_operator.core.probes.nccl import image_is_there
from support.nccl_nodes import (
    DAY,
    FAST,
    IMAGE,
    INSTALLED,
    LOST,
    NODE,
    RECHECK,
    SLOW,
    NcclNode,
    nccl_due_at,
    nccl_node,
    skipping,
)
from support.objects import MINUTE, NOW, ANode, APolicy, make_pod, make_policy, make_snapshot

BUSBW = (names.LABEL_BUSBW_ALLREDUCE, names.LABEL_BUSBW_ALLGATHER, names.LABEL_BUSBW_REDUCESCATTER)
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


def test_other_rules_lift_a_contradiction_that_was_theirs() -> None:
    """Where the rules themselves made the last number a contradiction, and no longer do."""
    report = nccl_node().measured(nccl.h100(21.0, gather=16.0, ring=20.0, host=5.0))
    assert report.status.bandwidth.agreement == "contradicted"
    lenient = make_policy().spec_with(
        thresholds=replace(make_policy().spec.thresholds, contradicted_share=0.01, p2p_min_gain=0.001)
    )
    graded = seen(report, NODE, at=NOW + 120, policy=lenient)
    assert graded.status.bandwidth.agreement == "unsure"
    assert graded.status.desired.labels[names.LABEL_EVIDENCE] == "reported"


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


@pytest.mark.parametrize("unread", ["driver", "name"])
def test_what_a_health_run_could_not_read_makes_no_other_machine(unread: str) -> None:
    """A driver's version or GPUs' names missing once: the evidence stays, and nothing is measured anew."""
    gap, machine = Unavailable(unavailable="timed out"), made.h100()
    if unread == "driver":
        machine = replace(machine, system=replace(machine.system, driver=gap))
    else:
        machine = made.every_gpu(machine, name=gap)
    report = nccl_node().measured(FAST).healthy(result=machine, at=NOW + 900)
    assert report.status.desired.labels[names.LABEL_EVIDENCE] == "measured"
    assert due(report) == NOW + DAY


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


def test_a_gate_that_only_waits_for_its_dwell_asks_for_no_run() -> None:
    """Three good runs are enough, however long the policy has the gate stand."""
    policy = make_policy().of({"hysteresis": {"dwell": "24h"}})
    report = nccl_node().measured(SLOW, policy=policy).measured(SLOW, policy=policy)
    assert report.status.desired.taints
    for _ in range(3):
        assert due(report, policy=policy) <= NOW + 2 * RECHECK
        report = report.measured(FAST, policy=policy)
    assert report.status.desired.taints
    assert due(report, policy=policy) == NOW + DAY


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


def test_a_request_asks_also_where_the_probe_once_saw_what_it_cannot_measure() -> None:
    """MIG may be off again without a boot: who asks for a run gets one, once."""
    report = nccl_node().measured(skipping(Skip.MIG))
    assert due(report) == NEVER
    asked = replace(report, requested_at="2027-01-15T09:00:00Z")
    assert due(asked) == 0.0
    assert due(asked.measured(skipping(Skip.MIG), request="2027-01-15T09:00:00Z")) == NEVER


def test_without_nccl_runs_a_taint_of_theirs_ends_by_the_policy_s_word() -> None:
    """Nobody looks any more, so nothing is lifted by itself (docs/runbook.md); effect None lifts it."""
    report = nccl_node().measured(SLOW).measured(SLOW, at=NOW + 60)
    assert [t.value for t in report.status.desired.taints] == ["busbw"]
    off = {"probes": {"nccl": {"enabled": False}}}
    still = seen(report, NODE, at=NOW + 30 * MINUTE, policy=make_policy().of(off))
    assert [t.value for t in still.status.desired.taints] == ["busbw"]
    lifted = make_policy().of(off | {"taints": {"causes": {"busbw": "None", "nccl": "None"}}})
    assert seen(still, NODE, at=NOW + 31 * MINUTE, policy=lifted).status.desired.taints == []
