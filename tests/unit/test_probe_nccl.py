"""When NCCL runs are made, what gives way, and what a run changes in a report and what not."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

import support.nccl_results as nccl
import support.results as made
from nodegauge_contract import ArmName, Problem, ProblemKind, Result, Skip, Unavailable
from nodegauge_judge import Finding, Severity, Verdict
from nodegauge_operator import names
from nodegauge_operator.api.report import GateState, Outcome, ReportStatus
from nodegauge_operator.api.times import NEVER
from nodegauge_operator.core import actions as steps
from nodegauge_operator.core.actions import DeletePod, PatchNode
from nodegauge_operator.core.planner import next_step
from nodegauge_operator.core.pod_outcome import RunEnd
from nodegauge_operator.core.probes.nccl import image_is_there
from nodegauge_operator.core.probes.registry import KINDS
from support.nccl_nodes import (
    BUSY,
    DAY,
    FAST,
    IMAGE,
    INSTALLED,
    NODE,
    PREEMPTED,
    RECHECK,
    SLOW,
    STRICT,
    WRONG,
    NcclNode,
    due,
    nccl_node,
    read,
    situation,
    skipping,
    started,
)
from support.objects import (
    DEFAULTS,
    LOST,
    MINUTE,
    NOW,
    ANode,
    APolicy,
    make_node,
    make_pod,
    make_policy,
    make_snapshot,
)

PULL, NCCL = names.PROBE_PULL, names.PROBE_NCCL
BOOTED, LATER = NODE.booted("boot-2"), NOW + 900
MEASURED = nccl_node().measured(FAST)
TOLD_OFF = make_policy().of({"probes": {"nccl": {"environment": {"NCCL_P2P_DISABLE": "1"}}}})
OFF: dict[str, Any] = {"probes": {"nccl": {"enabled": False}}}
UNTIL_NCCL = {"taints": {"unvalidated": "Set", "unvalidatedUntil": "Nccl"}}
GAP = Unavailable(unavailable="timed out")
EVIDENCE = "nodegauge.dev/interconnect-evidence"
INTERCONNECT = (names.LABEL_INTERCONNECT, "nodegauge.dev/nvlink-gbps", EVIDENCE, "interconnect")
BUSBW = tuple(f"nodegauge.dev/busbw-{name}" for name in ("allreduce", "allgather", "reducescatter"))


def seen(report: NcclNode, node: ANode, *, at: float, policy: APolicy | None = None) -> NcclNode:
    return report.seen(node=node, policy=policy or make_policy(), at=at, nccl_image=IMAGE)


def labels(report: NcclNode, *keys: str) -> dict[str, str]:
    return {key: value for key, value in report.status.desired.labels.items() if key in keys}


def test_a_confirmed_interconnect_is_measured_and_its_bandwidth_a_label() -> None:
    report = nccl_node().measured(FAST)
    assert labels(report, *INTERCONNECT) == {
        names.LABEL_INTERCONNECT: "nvlink",
        "interconnect": "nvlink",
        "nodegauge.dev/nvlink-gbps": "450",
        EVIDENCE: "measured",
    }
    assert [report.status.desired.labels[key] for key in BUSBW] == ["462", "355", "355"]
    assert report.status.bandwidth.agreement == "confirmed"
    assert report.status.verdict is Verdict.PASS


def test_a_contradicted_interconnect_loses_its_labels_at_once() -> None:
    report = nccl_node().measured(FAST).measured(SLOW, at=NOW + 60)
    assert labels(report, *INTERCONNECT, *BUSBW) == {}
    assert report.status.bandwidth.all_reduce == 21
    [day] = report.status.days.values()
    assert day.startswith("allReduce=21 ")
    interconnect = report.status.interconnect
    assert (interconnect.klass, interconnect.reported, interconnect.reason) == ("", "nvlink", "Contradicted")
    assert "21 GB/s" in interconnect.message
    assert "450 GB/s" in interconnect.message
    assert "NVML reports nvlink, bandwidth contradicts it" in report.status.desired.message
    codes = [finding.code for finding in report.status.probe[NCCL].findings]
    assert "interconnect-contradicted" in codes
    assert "nvlink (measured) -> none: all_reduce at 1 GiB" in report.status.change.message
    again = report.healthy(at=NOW + 900)
    assert again.status.change == report.status.change
    assert (again.status.interconnect.klass, labels(again, *INTERCONNECT)) == ("", {})


def test_only_a_number_that_agrees_brings_the_label_back() -> None:
    report = nccl_node().measured(SLOW)
    undecided = nccl.changed(FAST, arms=[nccl.arm("default", [nccl.cell("all_reduce", 8, 0.001, ranks=8)])])
    for n, end in enumerate((BUSY, LOST, PREEMPTED, undecided)):
        report = report.measured(end, at=NOW + n * DAY).healthy(at=NOW + n * DAY + 900)
        assert labels(report, *INTERCONNECT) == {}, end
    report = report.healthy(at=NOW + 5 * DAY).measured(FAST, at=NOW + 5 * DAY)
    returned = {names.LABEL_INTERCONNECT: "nvlink", EVIDENCE: "measured"}
    assert labels(report, *returned) == returned


def test_an_nccl_run_that_cannot_tell_brings_no_label_back_in_the_same_boot() -> None:
    report = nccl_node().measured(SLOW).measured(SLOW, at=NOW + 60, policy=TOLD_OFF)
    assert report.status.bandwidth.agreement == "contradicted"
    for looked in (report, report.healthy(BOOTED, at=LATER, policy=TOLD_OFF)):
        assert labels(looked, *INTERCONNECT) == {}
    report = looked.measured(SLOW, BOOTED, at=NOW + 960, policy=TOLD_OFF)
    assert report.status.bandwidth.agreement == "unsure"
    assert report.status.desired.labels[EVIDENCE] == "reported"


def test_bandwidth_labels_are_rewritten_on_five_per_cent() -> None:
    report = nccl_node().measured(nccl.h100(462.0))
    for gbps, label in ((445.0, "462"), (480.0, "462"), (438.0, "438"), (458.0, "438"), (462.0, "462")):
        report = report.measured(nccl.h100(gbps), at=NOW + gbps)
        assert report.status.desired.labels["nodegauge.dev/busbw-allreduce"] == label, gbps
        assert report.status.bandwidth.all_reduce in (int(gbps), round(gbps) - 1)


H200, NAMELESS = (made.every_gpu(made.h100(), name=name) for name in ("NVIDIA H200", GAP))


def driver(version: Any) -> Result:
    return replace(made.h100(), system=replace(made.h100().system, driver=version))


def divided(**labels: str) -> NcclNode:
    return seen(MEASURED, NODE.bearing({f"nvidia.com/{k}": v for k, v in labels.items()}), at=NOW + 60)


def weeks_of(end: RunEnd) -> NcclNode:
    """NCCL runs end so, day by day, between good health runs."""
    report = MEASURED
    for n in range(1, 20):
        report = report.measured(end, at=NOW + n * DAY).healthy(at=NOW + n * DAY)
    return report


MACHINES: dict[str, tuple[Callable[[], NcclNode], str]] = {
    "another boot": (lambda: MEASURED.healthy(BOOTED, at=LATER), "reported"),
    "other GPUs": (lambda: MEASURED.healthy(result=H200, at=LATER), "reported"),
    "another driver": (lambda: MEASURED.healthy(result=driver("560.1"), at=LATER), "reported"),
    "a driver not read": (lambda: MEASURED.healthy(result=driver(GAP), at=LATER), "measured"),
    "names not read": (lambda: MEASURED.healthy(result=NAMELESS, at=LATER), "measured"),
    "shared GPUs": (lambda: divided(**{"gpu.replicas": "4"}), "reported"),
    "GPUs in parts": (lambda: divided(**{"mig-1g.10gb.count": "7"}), "reported"),
    "whole again": (lambda: seen(divided(**{"gpu.replicas": "4"}), NODE, at=NOW + 120), "measured"),
    "parts that only the probe can see": (lambda: weeks_of(skipping(Skip.MIG)), "reported"),
    "busy, says the probe": (lambda: weeks_of(skipping(Skip.BUSY)), "measured"),
    "weeks without a free GPU": (lambda: weeks_of(BUSY), "measured"),
    "failures past the staleness limit": (lambda: weeks_of(LOST), "reported"),
}


@pytest.mark.parametrize("case", MACHINES)
def test_what_was_measured_counts_for_the_machine_that_was_measured(case: str) -> None:
    made_so, evidence = MACHINES[case]
    report = made_so()
    assert report.status.desired.labels[EVIDENCE] == evidence
    assert bool(labels(report, *BUSBW)) is (evidence == "measured")


def test_other_expectations_grade_the_old_numbers_without_a_run() -> None:
    report = nccl_node().measured(FAST)
    strict = make_policy().of(STRICT)
    graded = report.seen(node=NODE, policy=strict, at=NOW + 60, nccl_image=IMAGE)
    assert [f.code for f in graded.status.probe[NCCL].findings][:1] == ["busbw-low"]
    assert graded.status.probe[NCCL].last_run == report.status.probe[NCCL].last_run
    assert graded.status.gates == report.status.gates
    assert graded.status.change != report.status.change
    again = graded.seen(node=NODE, policy=strict, at=NOW + 120, nccl_image=IMAGE)
    assert again.status == graded.status
    back = again.seen(node=NODE, policy=make_policy(), at=NOW + 180, nccl_image=IMAGE)
    assert back.status.probe[NCCL].findings == []
    assert back.status.bandwidth == report.status.bandwidth


def test_an_unusable_image_is_no_pull() -> None:
    problem = Problem(kind=ProblemKind.NO_ENGINE, call="nccl4py", message="libnccl.so.2 is missing")
    end = read(Result(probe="pull", problem=problem))
    report = nccl_node().pulled(end=end, at=NOW + 60)
    pull = report.status.probe[PULL]
    assert (pull.unread, pull.image) == (1, IMAGE)
    assert pull.last_run.reason == "ImageUnusable"
    assert "libnccl.so.2 is missing" in report.status.change.message
    assert report.pulled(end=end, at=NOW + 120).status.change == report.status.change


def test_a_node_is_validated_by_an_nccl_run_where_the_policy_says_so() -> None:
    policy = make_policy().of(UNTIL_NCCL)
    report = nccl_node()
    fresh = replace(report, status=replace(report.status, passed_at=""))
    healthy = fresh.healthy(at=NOW + 900, policy=policy)
    assert [taint.key for taint in healthy.status.desired.taints] == [names.TAINT_UNVALIDATED]
    assert healthy.measured(FAST, policy=policy).status.desired.taints == []
    alone = made.machine(made.h100(1).gpus, [[0]])
    single = fresh.healthy(NODE.offering(1), result=alone, at=NOW + 900, policy=policy)
    assert single.status.desired.taints == []


ALIKE = nccl.h100(120.0, gather=120.0, ring=118.0, host=118.0)
"""Twice PCIe's speed, and no faster than through the host's memory."""
EASY = [
    {"gpu": "*", "count": 8, "collective": c, "bytes": 1 << 30, "busbw": 100, "floor": 50}
    for c in ("all_reduce", "all_gather", "reduce_scatter")
]
HUNG = nccl.swapped(FAST, ArmName.DEFAULT, outcome="hung", phase="measure")
CRASHED = nccl.swapped(FAST, ArmName.P2P_OFF, outcome="crashed", phase="measure", cells=[])
HUNG_ALONE = nccl.swapped(FAST, ArmName.P2P_OFF, outcome="hung", phase="measure", cells=[])


@pytest.mark.parametrize("broken", [HUNG, HUNG_ALONE, WRONG], ids=["hung", "hung without P2P", "wrong data"])
def test_a_collective_that_hung_or_lied_takes_the_interconnect_away_at_once(broken: Result) -> None:
    """Unconfirmed, also while a job holds the GPUs, and once its gate is forgotten: good runs return it."""
    report = nccl_node().measured(FAST).measured(broken, at=NOW + 60)
    assert report.status.interconnect.reason == "CollectivesFailed"
    assert "a collective hung or returned wrong data" in report.status.desired.message
    assert "nvlink (measured) -> none" in report.status.change.message
    for at in (NOW + 120, NOW + 9 * DAY):
        report = report.measured(BUSY, at=at).healthy(at=at + 60)
        assert labels(report, *INTERCONNECT, *BUSBW) == {}
    for hour in range(3 if broken is WRONG else 1):  # wrong data taints at once, and ends with its taint
        report = report.measured(FAST, at=NOW + 10 * DAY + hour * 3600)
    assert labels(report, names.LABEL_INTERCONNECT) == {names.LABEL_INTERCONNECT: "nvlink"}


def test_a_run_that_cannot_tell_ends_no_hang() -> None:
    report = nccl_node().measured(HUNG).measured(CRASHED, at=NOW + 60)
    assert labels(report, *INTERCONNECT, *BUSBW) == {}
    assert report.status.interconnect.reason == "CollectivesFailed"


def test_other_rules_do_not_lift_a_contradiction_that_the_last_run_could_not_speak_of() -> None:
    """The run that contradicted came before; grading the undecided one anew finds no number that agrees."""
    report = nccl_node().measured(SLOW).measured(SLOW, at=NOW + 60, policy=TOLD_OFF)
    stricter = TOLD_OFF.spec_with(thresholds=replace(TOLD_OFF.spec.thresholds, busbw_expected_share=0.8))
    graded = seen(report, NODE, at=NOW + 120, policy=stricter)
    assert graded.status.bandwidth.grade != report.status.bandwidth.grade
    assert graded.status.bandwidth.agreement == "contradicted"
    assert names.LABEL_INTERCONNECT not in graded.status.desired.labels


def test_a_contradiction_asks_for_another_run_soon_and_then_ever_less() -> None:
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
    divided = NODE.bearing(labels)
    report = seen(nccl_node().measured(SLOW), divided, at=NOW + 60)
    assert report.status.interconnect.reason == "Contradicted"
    report = report.healthy(divided.booted("boot-2"), at=LATER)
    assert report.status.interconnect.reason != "Contradicted"
    assert report.status.desired.labels[EVIDENCE] == "reported"
    cordoned = nccl_node().measured(SLOW).healthy(BOOTED.cordoned(), at=NOW + 900)
    assert cordoned.status.interconnect.reason == "Contradicted", "it will be measured again"


def test_a_row_that_nothing_answers_is_asked_for_ever_less() -> None:
    """One hang, and then runs that cannot tell: GPUs are not held every ten minutes for a week."""
    report = nccl_node().measured(HUNG).measured(CRASHED)
    [row] = report.status.gates
    assert (row.code, row.bad, row.state) == ("nccl-hang", 1, GateState.WATCHING)
    waits = []
    for _ in range(8):
        report = report.measured(CRASHED)
        waits.append(due(report) - NOW)
    assert waits == sorted(waits)
    assert waits[-1] > 12 * 3600


def test_a_restarted_device_plugin_is_no_dra() -> None:
    """It offers nothing for seconds, but the kubelet still counts its GPUs: the node waits on."""
    policy = make_policy().of(UNTIL_NCCL)
    fresh = replace(nccl_node(), status=ReportStatus())
    report = fresh.healthy(at=NOW, policy=policy).healthy(at=NOW + 900, policy=policy)
    assert report.status.passed_at == ""
    restarting = NODE.offering(0, of=8)
    after = seen(report, restarting, at=NOW + 910, policy=policy)
    assert after.status == report.status
    assert due(after, restarting, policy=policy) == NEVER


def test_another_image_is_pulled_at_once_however_often_the_one_before_failed() -> None:
    """A policy that names the right image in the end does not wait a day for the wrong one's tries."""
    report = nccl_node().healthy(BOOTED, at=NOW + 60)
    for n in range(9):
        report = report.pulled(BOOTED, end=LOST, at=NOW + 60 + n, image="nccl:typo")
    typo = make_policy().of({"podTemplate": {"ncclImage": "nccl:typo"}})
    assert due(report, BOOTED, policy=typo) > NOW + 12 * 3600
    assert due(report, BOOTED) == 0.0
    assert not image_is_there(report.context(node=BOOTED, nccl_image=IMAGE))


@pytest.mark.parametrize("spec", [{"podTemplate": {"ncclImage": "nccl:2"}}, OFF])
def test_a_pull_of_an_image_that_nobody_wants_any_more_ends(spec: dict[str, Any]) -> None:
    report = nccl_node().healthy(BOOTED, at=NOW + 60)
    pod = replace(make_pod(NODE, probe=PULL, number=2), image=IMAGE).pending("ImagePullBackOff", placed=True)
    how: dict[str, Any] = {"now": NOW + 70, "granted": frozenset(), "defaults": INSTALLED}
    known = make_snapshot(node=NODE, report=report, pods=(pod,), **how)
    ended = next_step(replace(known, policy=make_policy().of(spec)))
    assert isinstance(ended, PatchNode)
    last = ended.judged.status.probe[PULL].last_run
    assert (last.outcome, last.reason) == (Outcome.SKIPPED, "ImageReplaced")
    assert not isinstance(next_step(known), DeletePod)
    assert getattr(next_step(known), "status", report.status).probe[PULL].unread == 0


def test_without_nccl_runs_a_taint_of_theirs_ends_by_the_policy_s_word() -> None:
    """Nobody looks any more, so nothing is lifted by itself (docs/runbook.md); effect None lifts it."""
    report = nccl_node().measured(SLOW).measured(SLOW, at=NOW + 60)
    assert [t.value for t in report.status.desired.taints] == ["busbw"]
    still = seen(report, NODE, at=NOW + 30 * MINUTE, policy=make_policy().of(OFF))
    assert [t.value for t in still.status.desired.taints] == ["busbw"]
    lifted = make_policy().of(OFF | {"taints": {"causes": {"busbw": "None", "nccl": "None"}}})
    assert seen(still, NODE, at=NOW + 31 * MINUTE, policy=lifted).status.desired.taints == []


def test_where_no_nccl_run_is_wanted_any_more_nothing_waits_for_one() -> None:
    report = nccl_node().measured(SLOW).healthy(at=NOW + 900, policy=make_policy().of(OFF))
    assert labels(report, *INTERCONNECT) == {}
    report = report.healthy(BOOTED, at=NOW + 1800, policy=make_policy().of(OFF))
    assert report.status.desired.labels[EVIDENCE] == "reported"
    closed = make_policy().of(OFF | UNTIL_NCCL)
    fresh = replace(nccl_node(), status=replace(nccl_node().status, passed_at=""))
    assert fresh.healthy(at=NOW + 900, policy=closed).status.desired.taints == []


HEALTH = names.PROBE_HEALTH


def unpulled() -> NcclNode:
    report = nccl_node()
    return replace(report, status=replace(report.status, probes=[report.status.probe[HEALTH]]))


def test_the_image_comes_before_the_gpus_are_held() -> None:
    assert started(unpulled()) == PULL
    assert started(nccl_node()) == NCCL
    other = make_policy().of({"podTemplate": {"ncclImage": "nccl:2"}})
    assert started(nccl_node(), policy=other) == PULL
    assert started(nccl_node().healthy(BOOTED), BOOTED) == PULL


def with_lost_gpu() -> NcclNode:
    report = nccl_node()
    lost = Finding(code="gpu-lost", severity=Severity.FAIL, subject="GPU 3", message="it fell off the bus")
    health = replace(report.status.probe[HEALTH], findings=[lost])
    return replace(report, status=replace(report.status, probes=report.status.with_probe(health)))


UNREAD = NcclNode(name="node-1", uid="u", resource_version="1", node_uid=NODE.uid)
REQUEST = "2027-01-15T09:00:00Z"
HURT = with_lost_gpu()
OTHERS = (NAMELESS, driver("560.1"), driver(GAP))
UNNAMED, CHANGED, DRIVERLESS = (MEASURED.healthy(result=result, at=NOW + 60) for result in OTHERS)
REQUESTED = replace(MEASURED, requested_at=REQUEST)
ALONE = replace(MEASURED, requested_probes={NCCL: REQUEST})
OF_LOAD = replace(MEASURED, requested_probes={names.PROBE_LOAD: REQUEST})
ANSWERED = ALONE.measured(BUSY, request=REQUEST)
# GPU Operator sets `mig.strategy` on every node, MIG or not (k8s-device-plugin, internal/lm)
MIG_STRATEGY = NODE.bearing({"nvidia.com/mig.strategy": "single"})


@pytest.mark.parametrize(
    ("report", "node", "at"),
    [
        pytest.param(UNREAD, NODE, NEVER, id="no-health-run"),
        pytest.param(nccl_node(), NODE, 0.0, id="never-measured"),
        pytest.param(nccl_node().after(LOST, node=NODE, nccl_image=IMAGE), NODE, NEVER, id="health-run-lost"),
        pytest.param(nccl_node(), BOOTED, NEVER, id="not-read-since-boot"),
        pytest.param(nccl_node(), MIG_STRATEGY, 0.0, id="mig-strategy-alone"),
        pytest.param(MEASURED, NODE, NOW + DAY, id="after-the-interval"),
        pytest.param(CHANGED, NODE, NOW + RECHECK, id="other-driver"),
        pytest.param(DRIVERLESS, NODE, NOW + DAY, id="driver-not-read"),
        pytest.param(UNNAMED, NODE, NOW + DAY, id="names-not-read"),
        pytest.param(MEASURED.healthy(BOOTED, at=NOW + 60), BOOTED, 0.0, id="rebooted-and-read"),
        pytest.param(HURT, NODE, NEVER, id="lost-gpu-offered"),
        pytest.param(HURT, NODE.offering(7, of=8), 0.0, id="lost-gpu-withdrawn"),
        pytest.param(REQUESTED, NODE, 0.0, id="requested"),
        pytest.param(REQUESTED.measured(BUSY, request=REQUEST), NODE, NOW + RECHECK, id="request-answered"),
        pytest.param(ALONE, NODE, 0.0, id="requested-alone"),
        pytest.param(OF_LOAD, NODE, NOW + DAY, id="another-requested"),
        pytest.param(ANSWERED, NODE, NOW + RECHECK, id="request-alone-answered"),
        pytest.param(replace(ANSWERED, requested_at=REQUEST), NODE, 0.0, id="then-all-requested"),
    ],
)
def test_an_nccl_run_is_due(report: NcclNode, node: ANode, at: float) -> None:
    assert due(report, node) == at


def test_without_an_image_or_where_the_policy_says_no_nothing_changes() -> None:
    report = nccl_node()
    assert due(report, defaults=DEFAULTS) == NEVER
    assert due(report, policy=make_policy().of(OFF)) == NEVER
    cordoned = report.seen(node=NODE.cordoned())
    assert cordoned.status.bandwidth.reason == ""


def test_health_goes_first_and_one_pod_runs_at_a_time() -> None:
    report = nccl_node()
    later = NOW + 15 * MINUTE
    assert started(report, now=later) == HEALTH
    assert started(report, now=later, granted=frozenset({NCCL})) == NCCL
    assert started(report, granted=frozenset({HEALTH})) == ""
    for probe, number in ((HEALTH, 2), (PULL, 2), (NCCL, 1)):
        pod = make_pod(NODE, probe=probe, number=number)
        assert next_step(situation(report, pods=(pod,), now=NOW + 1)) is None, probe


def test_a_pod_of_a_probe_that_nobody_knows_is_tidied() -> None:
    pod = replace(make_pod(NODE), probe="watch", number=7).running()
    assert next_step(situation(nccl_node(), pods=(pod,))) == steps.DeletePod(pod, None)


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (NODE.offering(1, of=1), "SingleGpu"),
        (NODE.labelled(nvidia_com__gpu_sharing="x").bearing({"nvidia.com/gpu.replicas": "4"}), "Shared"),
        (NODE.bearing({"nvidia.com/gpu.sharing-strategy": "mps"}), "Shared"),
        (NODE.bearing({"nvidia.com/gpu.product": "NVIDIA-A100-MIG-1g.5gb"}), "Mig"),
        (NODE.bearing({"nvidia.com/mig-1g.5gb.count": "7"}), "Mig"),
        (NODE.cordoned(), "Cordoned"),
    ],
)
def test_a_node_that_cannot_be_measured_says_why(node: ANode, reason: str) -> None:
    report = nccl_node()
    assert due(report, node) == NEVER
    after = report.seen(node=node, nccl_image=IMAGE)
    assert after.status.bandwidth.reason == reason
    assert after.status.bandwidth.detail
    again = after.seen(node=node, at=NOW + 60, nccl_image=IMAGE)
    assert again.status == after.status
    assert again.seen(node=NODE, at=NOW + 120, nccl_image=IMAGE).status.bandwidth.reason == ""


def test_nodes_whose_gpus_dra_gives_out_are_skipped() -> None:
    node = make_node()
    report = nccl_node()
    assert due(report, node) == NEVER
    nccl = KINDS[names.PROBE_NCCL]
    assert nccl.hindrance(report.context(node=node, nccl_image=IMAGE)) is None
    later = report.healthy(node, at=NOW + 900)
    why_not = nccl.hindrance(later.context(node=node, nccl_image=IMAGE))
    assert why_not.reason == "Dra"


@pytest.mark.parametrize("why", [Skip.VGPU, Skip.MIG, Skip.CONFIDENTIAL, Skip.SHARED])
def test_what_only_the_probe_can_see_is_asked_once_a_boot(why: Skip) -> None:
    report = nccl_node().measured(skipping(why, "says NVML"))
    assert due(report) == NEVER
    assert report.status.bandwidth.detail.endswith("says NVML.")
    assert due(report.healthy(BOOTED, at=NOW + 60), BOOTED) == 0.0


@pytest.mark.parametrize("end", [BUSY, LOST])
def test_what_found_no_gpus_comes_back_with_growing_delay(end: Any) -> None:
    report = nccl_node()
    waits = []
    for _ in range(10):
        report = report.measured(end)
        waits.append(due(report) - NOW)
    assert waits == [min(DAY, RECHECK * 2**n) for n in range(10)]
    assert due(report.measured(FAST)) == NOW + DAY


def test_a_pull_that_fails_comes_back_with_growing_delay() -> None:
    report = unpulled()
    for n in range(3):
        report = report.pulled(end=LOST)
        assert due(report) == NOW + RECHECK * 2**n
        assert started(report, now=NOW + RECHECK * 2**n, granted=frozenset({NCCL})) == PULL


@pytest.mark.parametrize("probe", [PULL, NCCL])
@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (NODE.cordoned(), "Cordoned"),
        (NODE.tainted("ToBeDeletedByClusterAutoscaler"), "NodeLeaving"),
        (NODE.bearing({names.GPU_UPGRADE_STATE: "drain-required"}), "DriverChanges"),
        (NODE.bearing({names.GPU_UPGRADE_STATE: "upgrade-required"}), "DriverChanges"),
    ],
)
def test_an_nccl_run_gives_way_to_whoever_empties_the_node(node: ANode, reason: str, probe: str) -> None:
    report = nccl_node().measured(FAST)
    running = make_pod(node, probe=probe, number=2).running()
    for pod in (running, running.deleting(NOW), running.vanished()):
        step = next_step(situation(report, node, pods=(pod,)))
        assert isinstance(step, steps.PatchReport)
        last = step.status.probe[probe].last_run
        assert (last.outcome, last.reason) == (Outcome.SKIPPED, reason)
        assert step.status.bandwidth.all_reduce == 462
        after = replace(report, status=step.status)
        gone = next_step(situation(after, node, pods=(running,)))
        assert gone == steps.DeletePod(running, None)


@pytest.mark.parametrize(("probe", "wait"), [(PULL, 30 * MINUTE), (NCCL, 5 * MINUTE)])
def test_a_pull_may_take_its_time(probe: str, wait: float) -> None:
    report = unpulled() if probe == PULL else nccl_node()
    pod = make_pod(NODE, probe=probe).pending("ContainerCreating", placed=True)
    report = report.healthy(at=NOW + wait)
    early = next_step(situation(report, pods=(pod,), now=NOW + wait - 1))
    late = next_step(situation(report, pods=(pod,), now=NOW + wait))
    assert early is None
    assert isinstance(late, steps.PatchReport)
    last = late.status.probe[probe].last_run
    assert (last.outcome, last.reason) == (Outcome.UNKNOWN, "ContainerCreating")


def test_a_health_run_goes_on_while_its_node_is_cordoned() -> None:
    pod = make_pod(NODE, number=2).running()
    report = nccl_node()
    cordoned = report.seen(node=NODE.cordoned(), nccl_image=IMAGE)
    assert next_step(situation(cordoned, NODE.cordoned(), pods=(pod,), now=NOW + 1)) is None
