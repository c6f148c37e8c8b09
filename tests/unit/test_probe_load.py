"""When load runs are made and what gives way, which pod makes them, and what they change in a report."""

from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import LoadEnd, Result
from nodegauge_judge import Verdict
from nodegauge_operator import names
from nodegauge_operator.api.policy import seconds
from nodegauge_operator.api.report import GateState, Outcome
from nodegauge_operator.api.times import NEVER, stamp
from nodegauge_operator.core.gpu_eligibility import hindrance
from nodegauge_operator.core.planner import wanted_slots
from nodegauge_operator.core.pod_outcome import RunEnd
from nodegauge_operator.core.probes.kind import share_of
from nodegauge_operator.core.probes.pod import probe_pod
from nodegauge_operator.core.probes.registry import KINDS
from nodegauge_probes.settings import parse
from support.load_results import everywhere, loaded, reason, spoilt
from support.nccl_nodes import FAST, INSTALLED, PREEMPTED, NcclNode, nccl_node, started
from support.objects import (
    NOW,
    ANode,
    APolicy,
    AReport,
    make_context,
    make_node,
    make_pod,
    make_policy,
    make_report,
    read,
)

HEALTH, NCCL, LOAD = names.PROBE_HEALTH, names.PROBE_NCCL, names.PROBE_LOAD
NODE: ANode = make_node().offering(8)
WEEK, RECHECK = 7 * 86_400.0, 1_800.0
DEFAULT: APolicy = make_policy()
OFF: APolicy = make_policy().of({"probes": {"load": {"enabled": False}}})
FIRST = NOW + WEEK * share_of(NODE.name)
REQUEST = "2027-01-15T09:00:00Z"
HEAT = spoilt(reasons=reason(0x20, samples=60))
SLOW = spoilt(tflops=400.0)


def healthy(node: ANode = NODE, *, result: Result | None = None) -> AReport:
    return make_report(node).after(read(result or made.h100()), node=node)


def ran(report: AReport, end: Result | RunEnd, *, at: float = NOW, request: str = "") -> AReport:
    end = end if isinstance(end, RunEnd) else read(end)
    return report.after(end, node=NODE, at=at, probe=LOAD, request=request)


def due(report: AReport, node: ANode = NODE, policy: APolicy = DEFAULT) -> float:
    return KINDS[LOAD].due_at(make_context(node=node, report=report, policy=policy))


def pod(node: ANode = NODE, policy: APolicy = DEFAULT, **defaults: Any) -> dict[str, Any]:
    context = make_context(node=node, policy=policy, defaults=replace(INSTALLED, **defaults))
    return probe_pod(context, KINDS[LOAD], context.next_run(LOAD))


def test_a_policy_switches_load_runs_off() -> None:
    report = healthy().asked(REQUEST)
    assert due(report, policy=OFF) == NEVER
    assert due(report) == 0.0
    cordoned = report.seen(node=NODE.cordoned(), policy=OFF)
    assert (cordoned.status.load.reason, cordoned.status.load.wanted_since) == ("", "")


def test_first_runs_are_spread_over_an_interval() -> None:
    """By the node's name alone: an upgrade, or a restart of the operator, starts no wave."""
    shares = sorted(share_of(f"gpu-{number}.example.com") for number in range(1000))
    assert all(abs(share - number / 1000) < 0.05 for number, share in enumerate(shares))
    old = healthy().seen(node=NODE, policy=OFF)
    asked = old.seen(node=NODE, at=NOW + 5 * WEEK)
    assert due(asked) == FIRST + 5 * WEEK
    assert due(asked.seen(node=NODE, at=NOW + 5.5 * WEEK)) == FIRST + 5 * WEEK


UPGRADE = {"nvidia.com/gpu-driver-upgrade-state": "drain-required"}


@pytest.mark.parametrize(
    ("node", "at"),
    [
        pytest.param(NODE, FIRST, id="idle"),
        pytest.param(make_node().offering(1), FIRST, id="one-gpu"),
        pytest.param(make_node(), NEVER, id="offers-none"),
        pytest.param(NODE.bearing(UPGRADE), NEVER, id="driver-upgrade"),
        pytest.param(NODE.booted("boot-2"), NEVER, id="not-read-since-boot"),
    ],
)
def test_only_whole_idle_gpus_are_loaded(node: ANode, at: float) -> None:
    assert due(healthy(), node) == at


@pytest.mark.parametrize("why", ["vgpu", "mig", "shared", "confidential-computing"])
def test_what_only_nvml_can_tell_keeps_loads_away_until_a_reboot(why: str) -> None:
    report = ran(healthy(), loaded(skipped=why, message="NVML says so"))
    assert due(report) == NEVER
    assert report.seen(node=NODE).status.load.detail == "No GPU was loaded: NVML says so."
    assert due(report.asked(REQUEST)) == 0.0


@pytest.mark.parametrize(("probe", "gpus"), [(LOAD, 0), (names.PROBE_NCCL, 0), (names.PROBE_NCCL, 1)])
def test_too_few_gpus_are_said_as_they_are(probe: str, gpus: int) -> None:
    status = healthy().status
    why = hindrance(replace(status, gpus=replace(status.gpus, count=gpus)), NODE, probe=probe, fewest=2)
    wanted = "a collective needs 2 GPUs; this node has 1" if gpus else "this node has no GPU"
    assert why.detail == wanted


def test_a_run_a_week_and_soon_after_one_that_was_bad() -> None:
    good = ran(healthy(), loaded())
    assert due(good) == NOW + WEEK
    assert due(good.asked(REQUEST)) == 0.0
    assert due(ran(good.asked(REQUEST), loaded(), request=REQUEST)) == NOW + WEEK
    assert due(ran(good, PREEMPTED)) == NOW + RECHECK
    bad = ran(healthy(), SLOW)
    assert due(bad) == NOW + RECHECK
    assert due(ran(ran(bad, SLOW), SLOW)) == NOW + 4 * RECHECK


@pytest.mark.parametrize("last", [HEAT, loaded()], ids=["bad", "good"])
def test_other_gpus_are_loaded_soon(last: Result) -> None:
    other = replace(made.h100(), system=replace(made.h100().system, driver="560.1"))
    report = ran(healthy(), last).after(read(other), node=NODE, at=NOW + 60)
    assert due(report) == NOW + RECHECK
    assert report.status.verdict is not Verdict.FAIL
    assert "Load probe" not in report.status.summary


def test_a_reboot_keeps_what_was_measured() -> None:
    booted = NODE.booted("boot-2")
    report = ran(healthy(), SLOW).after(read(made.h100()), node=booted, at=NOW + 60)
    assert due(report, booted) == NOW + RECHECK
    assert "Load probe" in report.status.summary


def test_a_load_pod_holds_every_gpu_and_yields_to_everybody() -> None:
    made_pod = pod(priority_class_name="nodegauge-probe")
    (container,) = made_pod["spec"]["containers"]
    assert container["image"] == INSTALLED.image
    assert container["resources"]["limits"][names.GPU_RESOURCE] == "8"
    assert made_pod["spec"]["priorityClassName"] == "nodegauge-nccl"
    env = {entry["name"]: entry["value"] for entry in container["env"]}
    assert env["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
    assert "NVIDIA_VISIBLE_DEVICES" not in env
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert made_pod["spec"]["activeDeadlineSeconds"] == 600
    keys = {toleration["key"] for toleration in pod(NODE.cordoned())["spec"]["tolerations"]}
    assert keys == set(names.NODE_TAINTS)


@pytest.mark.parametrize(
    ("settings", "active"), [({}, 600), ({"duration": "5m", "deadline": "20m", "stopBelow": 8}, 1200)]
)
def test_the_policy_says_how_hard_and_how_long(settings: dict[str, Any], active: int) -> None:
    policy = make_policy().of({"probes": {"load": {"enabled": True} | settings}})
    spec = pod(policy=policy)["spec"]
    (container,) = spec["containers"]
    env = {entry["name"]: entry["value"] for entry in container["env"]}
    arguments = [container["command"][3], *container["args"]]
    parsed = parse(arguments, env, probes=[LOAD], engines=["nccl4py"])
    load = policy.spec.probes.load
    assert (parsed.seconds, parsed.stop_below) == (seconds(load.duration), load.stop_below)
    assert (parsed.deadline, spec["activeDeadlineSeconds"]) == (0.9 * active, active)
    assert parsed.deadline > 1.5 * parsed.seconds


@pytest.mark.parametrize("node", [NODE.cordoned(), NODE.bearing(UPGRADE)])
def test_a_running_load_gives_way_at_once(node: ANode) -> None:
    running = make_pod(NODE, probe=LOAD).running()
    end = KINDS[LOAD].ending(running, make_context(node=node, report=healthy(), pods=(running,)))
    assert end.outcome is Outcome.SKIPPED


@pytest.mark.parametrize(
    "end",
    [
        PREEMPTED,
        loaded(ended=LoadEnd.GAVE_WAY),
        loaded(ended=LoadEnd.CUT),
        everywhere(steady_mw=300_000),
        loaded(skipped="busy"),
        RunEnd(outcome=Outcome.UNKNOWN, reason="OOMKilled", message="no result"),
    ],
)
@pytest.mark.parametrize("before", [loaded(), SLOW])
def test_a_run_that_shows_nothing_changes_its_record_alone(before: Result, end: Result | RunEnd) -> None:
    was = ran(healthy(), before).status
    now = ran(ran(healthy(), before), end, at=NOW + 60).status
    assert (now.gates, now.load, now.desired) == (was.gates, was.load, was.desired)
    probe = now.probe[LOAD]
    assert (probe.verdict, probe.unread) == (was.probe[LOAD].verdict, 1)
    assert probe.last_run.outcome is not Outcome.READ


def test_heat_under_load_taints_after_two_runs_and_only_load_runs_lift_it() -> None:
    report = ran(healthy(), HEAT)
    (gate,) = report.status.gates
    assert (gate.code, gate.state) == ("load-heat-slowdown", GateState.WATCHING)
    assert report.status.verdict is Verdict.WARN
    report = report.after(read(made.h100()), node=NODE, at=NOW + 900)
    report = ran(report, HEAT, at=NOW + 1_800)
    assert [(t.key, t.value) for t in report.status.desired.taints] == [(names.TAINT_THROTTLED, "thermal")]
    assert report.status.desired.labels["nodegauge.dev/throttled"] == "thermal"
    for n in range(4):
        report = report.after(read(made.h100()), node=NODE, at=NOW + 2_700 + 900 * n)
    assert report.status.desired.taints
    for n in range(3):
        assert report.status.desired.taints
        report = ran(report, loaded(), at=NOW + 10_000 + 1_800 * n)
    assert report.status.desired.taints == []


def test_wrong_results_taint_after_one_run() -> None:
    result = spoilt(mismatches=1)
    known = healthy(result=replace(result, probe="health", load=None))
    report = ran(known, result)
    assert [(t.key, t.value) for t in report.status.desired.taints] == [(names.TAINT_UNHEALTHY, "corruption")]
    assert report.status.verdict is Verdict.FAIL
    change = report.status.change
    assert "GPU 3" in change.message
    assert "1654922000003" in change.message
    assert "Load probe: fail (load-corruption)" in report.status.desired.message


def test_a_load_run_leaves_health_and_nccl_alone() -> None:
    report = nccl_node().measured(FAST)
    after = report.after(read(HEAT), node=NODE, probe=LOAD, nccl_image="nccl:1", at=NOW + 60)
    for probe in (HEALTH, NCCL):
        assert after.status.probe[probe] == report.status.probe[probe]
    assert after.status.bandwidth == report.status.bandwidth
    failed = {names.LABEL_HEALTH: "", f"{names.PREFIX}h2d-gbps": ""}
    assert after.status.desired.labels | failed == report.status.desired.labels | failed


def test_a_good_load_run_shows_what_was_reached() -> None:
    status = ran(healthy(), loaded()).status
    load = status.load
    assert (load.tflops, load.power_percent, load.hottest, load.gpus) == (610.0, 99, 63, 8)
    [day] = status.days.values()
    assert "tflops=610 hottest=63 " in day
    assert "700 W" in load.fingerprint
    assert status.verdict is Verdict.PASS
    assert "Load probe: 8x NVIDIA H100" in status.summary


def test_a_reading_that_only_waits_does_not_age() -> None:
    """A node that is busy for months keeps it; without load runs it goes after three weeks."""
    report = ran(healthy(), SLOW)
    for policy, at in ((DEFAULT, NEVER), (OFF, NOW + 3 * WEEK)):
        context = make_context(node=NODE, report=report, policy=policy, now=NOW + 60)
        assert context.expires_at(report.status.probe[LOAD]) == at


def test_nccl_and_load_wait_in_one_queue_and_never_run_together() -> None:
    """Bandwidth first; who was never loaded goes first even where bandwidth was measured just now."""
    report = nccl_node()
    assert started(report) == NCCL
    measured = report.measured(FAST)
    assert started(measured) == ""
    wanted = replace(measured.status.load, wanted_since=stamp(NOW - WEEK))
    measured = replace(measured, status=replace(measured.status, load=wanted))
    assert started(measured) == LOAD
    assert started(measured, pods=(make_pod(NODE, probe=NCCL, number=2),)) == ""
    assert started(measured, pods=(make_pod(NODE, probe=LOAD),)) == ""
    assert since(measured) == {"nccl": 0.0}
    loaded_now = report.after(read(loaded()), node=NODE, probe=LOAD, nccl_image="nccl:1")
    assert since(replace(loaded_now, requested_at=REQUEST)) == {"nccl": 0.0, "health": 0.0}


def since(report: NcclNode) -> dict[str, float]:
    context = make_context(node=NODE, report=report, defaults=INSTALLED, now=NOW + 60)
    return {pool: wait.since for pool, wait in wanted_slots(context).items()}
