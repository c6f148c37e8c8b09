"""When NCCL runs are made, where they are not, what gives way, and which pod comes next."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Skip, Unavailable
from nodegauge_judge import Finding, Severity
from nodegauge_operator import names
from nodegauge_operator.api.report import NEVER, Outcome
from nodegauge_operator.core import actions as steps
from nodegauge_operator.core.planner import next_step
from nodegauge_operator.core.probes.registry import KINDS
from support.nccl_nodes import (
    BUSY,
    DAY,
    FAST,
    IMAGE,
    NODE,
    RECHECK,
    NcclNode,
    due,
    nccl_node,
    situation,
    skipping,
    started,
)
from support.objects import DEFAULTS, LOST, MINUTE, NOW, ANode, make_node, make_pod, make_policy

HEALTH, PULL, NCCL = names.PROBE_HEALTH, names.PROBE_PULL, names.PROBE_NCCL


def unpulled() -> NcclNode:
    report = nccl_node()
    return replace(report, status=replace(report.status, probes=[report.status.probe[HEALTH]]))


def test_the_image_comes_before_the_gpus_are_held() -> None:
    """Pull, then the NCCL run; the image of another policy, or another boot, is pulled anew."""
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
BOOTED = NODE.booted("boot-2")
UNREADABLE = Unavailable("NVML_ERROR_UNKNOWN")
DRIVERS = [replace(made.h100().system, driver=driver) for driver in ("560.1", UNREADABLE)]
OTHERS = [made.every_gpu(made.h100(), name=UNREADABLE), *(replace(made.h100(), system=s) for s in DRIVERS)]
REQUEST = "2027-01-15T09:00:00Z"
HURT, MEASURED = with_lost_gpu(), nccl_node().measured(FAST)
NAMELESS, CHANGED, DRIVERLESS = (MEASURED.healthy(result=result, at=NOW + 60) for result in OTHERS)
REQUESTED = replace(MEASURED, requested_at=REQUEST)
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
        pytest.param(NAMELESS, NODE, NOW + DAY, id="names-not-read"),
        pytest.param(MEASURED.healthy(BOOTED, at=NOW + 60), BOOTED, 0.0, id="rebooted-and-read"),
        pytest.param(HURT, NODE, NEVER, id="lost-gpu-offered"),
        pytest.param(HURT, NODE.offering(7, of=8), 0.0, id="lost-gpu-withdrawn"),
        pytest.param(REQUESTED, NODE, 0.0, id="requested"),
        pytest.param(REQUESTED.measured(BUSY, request=REQUEST), NODE, NOW + RECHECK, id="request-answered"),
    ],
)
def test_an_nccl_run_is_due(report: NcclNode, node: ANode, at: float) -> None:
    assert due(report, node) == at


def test_without_an_image_or_where_the_policy_says_no_nothing_changes() -> None:
    report = nccl_node()
    assert due(report, defaults=DEFAULTS) == NEVER
    assert due(report, policy=make_policy().of({"probes": {"nccl": {"enabled": False}}})) == NEVER
    cordoned = report.seen(node=NODE.cordoned())
    assert cordoned.status.bandwidth.reason == ""


def test_health_goes_first_and_one_pod_runs_at_a_time() -> None:
    """Also where both have a place; a pod of any probe holds the others back."""
    report = nccl_node()
    later = NOW + 15 * MINUTE
    assert started(report, now=later) == HEALTH
    assert started(report, now=later, granted=frozenset({NCCL})) == NCCL
    assert started(report, granted=frozenset({HEALTH})) == ""
    for probe, number in ((HEALTH, 2), (PULL, 2), (NCCL, 1)):
        pod = make_pod(NODE, probe=probe, number=number)
        assert next_step(situation(report, pods=(pod,), now=NOW + 1)) is None, probe


def test_a_pod_of_a_probe_that_nobody_knows_is_tidied() -> None:
    """A version that was newer made it: it is neither judged nor waited for."""
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
    """No `nvidia.com/gpu` although GPUs were read: said only once it is no matter of seconds after a boot."""
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
    """Its answer stands in the report, and is not asked for every ten minutes."""
    report = nccl_node().measured(skipping(why, "says NVML"))
    assert due(report) == NEVER
    assert report.status.bandwidth.detail.endswith("says NVML.")
    assert due(report.healthy(BOOTED, at=NOW + 60), BOOTED) == 0.0


@pytest.mark.parametrize("end", [BUSY, LOST])
def test_what_found_no_gpus_comes_back_with_growing_delay(end: Any) -> None:
    """Ten minutes, twice that, and so on up to the interval; a measurement begins anew."""
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
    """Skipped, and its pod deleted, also where the drain has ended it already; old results stay."""
    report = nccl_node().measured(FAST)
    number = 2
    running = make_pod(node, probe=probe, number=number).running()
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
    """Half an hour, where an NCCL run that holds GPUs has five minutes to start."""
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
