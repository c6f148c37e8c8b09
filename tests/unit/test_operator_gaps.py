"""Waiting is not staleness: after a gap of any kind a reading can be renewed before it counts as stale."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from email.utils import formatdate
from typing import Any

import pytest

import support.results as made
from nodegauge_contract import Result
from nodegauge_operator import names
from nodegauge_operator.api.report import stamp
from nodegauge_operator.core.probes.health import DRAIN_SECONDS
from nodegauge_operator.kube.client import Client
from nodegauge_operator.kube.errors import KubeError
from nodegauge_operator.reconcile.watch_sets import APPLY_SECONDS
from support.api_server import DAEMONSETS, EVIDENCE, NODES, POLICIES, REPORTS
from support.client import unavailable
from support.cluster import FakeCluster
from support.judging import listening, saying
from support.objects import INTERVAL, NOW
from support.operator import SteppedOperator, one_node
from support.virtual_operator import VirtualTimeOperator, on_virtual_time

DAY = 86_400.0

LONG = 9 * INTERVAL

GARBAGE = "Segmentation fault"

LOST = saying("gpu-lost=b")


@pytest.fixture(autouse=True)
def _judge_that_listens() -> Iterator[None]:
    with listening():
        yield


def ours(operator: SteppedOperator) -> dict[str, str]:
    """The labels of ours on the node."""
    return {key: value for key, value in operator.labels.items() if key in names.NODE_LABELS}


def failing(result: Result | None = None) -> SteppedOperator:
    """A node that was read, and whose last run failed."""
    operator = one_node()
    if result is not None:
        operator.cluster.results["node-1"] = result
    operator.run()
    operator.cluster.pass_time(INTERVAL + 1)
    operator.run(GARBAGE)
    return operator


def restart(operator: SteppedOperator) -> None:
    """The operator is away."""
    operator.cluster.pass_time(LONG)
    operator.restart()


def outage(operator: SteppedOperator) -> None:
    """The API server is away."""
    operator.client.refuse = lambda verb, path: unavailable(503)
    for seconds in (31, LONG):
        operator.cluster.pass_time(seconds)
        with pytest.raises(KubeError):
            operator.reconcile()
    operator.heal()
    operator.reconciler.gaps.answered()  # as by the full list that follows


def pause(operator: SteppedOperator) -> None:
    """The policy is paused and resumed."""
    for setting in (0, "10%"):
        operator.cluster.change(POLICIES, "default", {"spec": {"budget": {"concurrentProbes": setting}}})
        operator.catch_up(granted=False)
        operator.cluster.pass_time(LONG if setting == 0 else 0)


def away(operator: SteppedOperator, *, gone: dict[str, object], back: dict[str, object]) -> None:
    """No run may be planned on the node for a while."""
    for patch in (gone, back):
        operator.cluster.change(NODES, "node-1", patch)
        operator.catch_up(granted=False)
        operator.cluster.pass_time(LONG if patch is gone else 0)


def not_ready(operator: SteppedOperator) -> None:
    """Its kubelet is silent."""
    condition = list(operator.cluster.objects[NODES]["node-1"]["status"]["conditions"])
    states = [
        {"status": {"conditions": [c | {"status": s} if c["type"] == "Ready" else c for c in condition]}}
        for s in ("Unknown", "True")
    ]
    away(operator, gone=states[0], back=states[1])


def driver_upgrade(operator: SteppedOperator) -> None:
    """The GPU Operator changes its driver."""
    states = [
        {"metadata": {"labels": {names.GPU_UPGRADE_STATE: s}}} for s in ("drain-required", "upgrade-done")
    ]
    away(operator, gone=states[0], back=states[1])


def paused(operator: SteppedOperator) -> None:
    """The policy is in mode Paused for a while."""
    for mode in ("Paused", "Enforce"):
        operator.cluster.change(POLICIES, "default", {"spec": {"mode": mode}})
        operator.catch_up(granted=False)
        operator.cluster.pass_time(LONG if mode == "Paused" else 0)


def left_alone(operator: SteppedOperator) -> None:
    """A person leaves the node alone, and the clock ends it, before somebody sets it back by an hour."""
    texts = {
        names.OVERRIDE: "leave-alone",
        names.OVERRIDE_UNTIL: stamp(operator.cluster.now + LONG - 2 * 3600),
    }
    texts |= {names.OVERRIDE_BY: "ann", names.OVERRIDE_REASON: "fan replaced"}
    operator.cluster.change(NODES, "node-1", {"metadata": {"annotations": texts}})
    operator.catch_up(granted=False)
    operator.cluster.pass_time(LONG)


def clock_ahead(operator: SteppedOperator) -> None:
    """The cluster's clock is a month ahead."""
    operator.cluster.clock_error += 30 * DAY


def full_node(operator: SteppedOperator) -> None:
    """A run finds no room on the node."""
    operator.cluster.pass_time(INTERVAL)
    operator.catch_up()
    operator.cluster.pass_time(61)
    operator.catch_up(granted=False)
    assert operator.probe["lastRun"]["outcome"] == "skipped"


GAPS = [restart, outage, pause, paused, left_alone, not_ready, driver_upgrade, clock_ahead]


@pytest.mark.parametrize("gap", GAPS)
def test_a_gap_makes_no_reading_stale(gap: Callable[[SteppedOperator], None]) -> None:
    """One failed run and a long wait: there is an interval to try again, and only then the labels go."""
    operator = failing()
    labels = ours(operator)
    gap(operator)
    operator.catch_up(granted=False)
    assert ours(operator) == labels
    operator.cluster.pass_time(INTERVAL + 2)
    operator.catch_up(granted=False)
    assert names.LABEL_INTERCONNECT not in ours(operator)


@pytest.mark.parametrize("result", [made.titan(), LOST], ids=["well", "tainted"])
@pytest.mark.parametrize("gap", [*GAPS, full_node])
def test_a_stale_reading_stays_stale(gap: Callable[[SteppedOperator], None], result: Result) -> None:
    """No restart, pause or clock brings labels back, nor a run that read nothing: only a reading does."""
    operator = failing(result)
    operator.cluster.pass_time(LONG)
    operator.catch_up(granted=False)
    bare = ours(operator)
    assert bare == ({names.LABEL_HEALTH: "fail"} if result is LOST else {})
    gap(operator)
    operator.catch_up(granted=False)
    operator.cluster.clock_error -= 3600
    operator.catch_up(granted=False)
    assert ours(operator) == bare
    operator.cluster.pass_time(INTERVAL)
    operator.run()
    assert names.LABEL_VALIDATED_AT in ours(operator)


@on_virtual_time
async def test_a_clock_that_is_set_back_blinds_nobody(operator: VirtualTimeOperator) -> None:
    """Timers that lie a month ahead are made anew, without a restart; the policy's status is written too."""
    await operator.begin(3, after=60)
    operator.cluster.clock_error = 30 * DAY
    await operator.after(60)
    operator.cluster.clock_error = 0
    before = len(operator.cluster.judged)
    operator.cluster.change(POLICIES, "default", {"metadata": {"generation": 7}})
    await operator.after(2 * INTERVAL + 60)
    assert len(operator.cluster.judged) >= before + 6
    assert operator.cluster.objects[POLICIES]["default"]["status"]["observedGeneration"] == 7


@pytest.mark.parametrize("error", [DAY, -3600.0])
def test_a_clock_neither_shortens_nor_lengthens_a_grace(error: float) -> None:
    """Ten minutes for a node that left its policy, by whatever clock."""
    operator = one_node()
    operator.run()
    labels = ours(operator)
    operator.cluster.remove(POLICIES, "default")
    operator.catch_up(granted=False)
    operator.cluster.clock_error = error
    operator.cluster.pass_time(599)
    operator.catch_up(granted=False)
    assert ours(operator) == labels
    operator.cluster.pass_time(2)
    operator.catch_up(granted=False)
    assert not operator.cluster.objects[REPORTS]


@pytest.mark.parametrize(("written_after", "ahead"), [(0, 0), (19, 0), (-60, -60), (80, 60)])
def test_a_slow_answer_sets_no_clock(
    monkeypatch: pytest.MonkeyPatch, written_after: float, ahead: float
) -> None:
    """The API server wrote its time at some moment of the twenty seconds; only what lies outside is news."""
    monkeypatch.setattr("nodegauge_operator.kube.client.time.monotonic", lambda: 1020.0)
    client = Client.__new__(Client)
    client._epoch = NOW - 1000.0
    client._compare_clocks(formatdate(NOW + written_after, usegmt=True), asked_at=1000.0)
    assert client.now() == NOW + 20 + ahead


def test_a_write_that_took_long_to_fail_was_unanswered_all_the_while() -> None:
    """Forty seconds in a call, and twenty-five after it: runs were missed, and a reading can be renewed."""
    operator = failing()

    def slowly(verb: str, path: str) -> KubeError:
        operator.cluster.pass_time(40)
        return unavailable(503)

    operator.client.refuse = slowly
    operator.cluster.pass_time(INTERVAL)
    with pytest.raises(KubeError):
        operator.reconcile()
    operator.cluster.pass_time(25)
    operator.reconciler.gaps.answered()
    assert operator.reconciler.gaps.over_at(None, None) == operator.cluster.now


def test_a_clock_that_is_set_back_delays_no_evidence() -> None:
    """A write of it failed while the clock was a month ahead: a minute later it is tried again."""
    operator = one_node()
    clock_ahead(operator)
    operator.client.refuse = lambda verb, path: unavailable(503) if path.startswith(EVIDENCE) else None
    operator.run()
    operator.heal()
    operator.cluster.clock_error = 0
    operator.catch_up(granted=False)
    operator.cluster.pass_time(INTERVAL)
    operator.run()
    assert "node-1" in operator.cluster.objects[EVIDENCE]


def test_a_clock_that_is_set_back_delays_no_run_on_a_cordoned_node() -> None:
    """Seen while the clock was a month ahead: the drain is over ten minutes later, by whatever clock."""
    operator = one_node()
    operator.run()
    clock_ahead(operator)
    operator.cluster.change(NODES, "node-1", {"spec": {"unschedulable": True}})
    operator.catch_up(granted=False)
    operator.cluster.clock_error = 0
    operator.cluster.pass_time(INTERVAL)
    operator.catch_up()
    assert len(list(operator.cluster.pods())) == 1


@pytest.mark.parametrize("refused", [True, False])
def test_a_clock_that_is_set_back_delays_no_daemon_set(refused: bool) -> None:
    """It is applied at its interval; one that cannot be made is not waited for until next month."""
    cluster = FakeCluster()
    cluster.add_node()
    cluster.add_policy(probes={"health": {"mode": "Watch"}})
    operator = SteppedOperator(cluster)
    operator.list()
    operator.cluster.clock_error = 30 * DAY
    if refused:
        operator.client.refuse = lambda verb, path: (
            unavailable(503) if verb == "PATCH" and path.startswith(DAEMONSETS) else None
        )
    operator.keep_watch_sets()
    operator.cluster.clock_error = 0
    operator.cluster.pass_time(APPLY_SECONDS)
    watch_sets, policy = operator.reconciler.watch_sets, operator.cache.policies["default"]
    assert watch_sets.due_in() <= 0
    applied = watch_sets.applied(policy)
    assert applied is not None
    assert applied.watches is not refused


def test_setting_the_operator_s_own_clock_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither before the API server's next answer nor after it."""
    clock = {"time": NOW, "monotonic": 5.0}
    for name in clock:
        monkeypatch.setattr(f"nodegauge_operator.kube.client.time.{name}", lambda name=name: clock[name])
    client = Client.__new__(Client)
    client._epoch = NOW - 5.0
    for error in (30 * DAY, -30 * DAY):
        clock["time"] = NOW + error
        assert client.now() == NOW
        client._compare_clocks("Fri, 15 Jan 2027 08:00:00 GMT", asked_at=clock["monotonic"])
        assert client.now() == NOW


TAINT = "node.kubernetes.io/unschedulable"


def cordon(operator: SteppedOperator, *, taint_at: float | None = None) -> None:
    """`kubectl cordon`, and the taint of the node controller if it has set one at that time."""
    taints = [{"key": TAINT, "effect": "NoSchedule"} | ({"timeAdded": stamp(taint_at)} if taint_at else {})]
    operator.cluster.change(NODES, "node-1", {"spec": {"unschedulable": True, "taints": taints}})
    operator.deliver()


def uncordon(operator: SteppedOperator) -> None:
    """`kubectl uncordon`."""
    operator.cluster.change(NODES, "node-1", {"spec": {"unschedulable": None, "taints": None}})
    operator.deliver()


def measured() -> SteppedOperator:
    """A node that was read once, an interval ago."""
    operator = one_node()
    operator.run()
    operator.cluster.pass_time(INTERVAL)
    return operator


def runs(operator: SteppedOperator) -> bool:
    """Whether a run is made now."""
    operator.catch_up()
    return bool(list(operator.cluster.pods()))


@pytest.mark.parametrize(
    "taint_at", [None, NOW + INTERVAL, NOW + INTERVAL + 3600], ids=["no", "now", "ahead"]
)
def test_a_node_that_was_cordoned_just_now_gets_no_health_run(taint_at: float | None) -> None:
    """Until a drain must be over; by the taint's time, or else since this process saw the cordon."""
    operator = measured()
    cordon(operator, taint_at=taint_at)
    assert not runs(operator)
    assert operator.reconcile().wake_at == NOW + INTERVAL + DRAIN_SECONDS
    operator.cluster.pass_time(DRAIN_SECONDS - 1)
    assert not runs(operator)
    operator.cluster.pass_time(1)
    assert runs(operator)


def test_a_cordon_of_long_ago_stops_no_run_after_a_restart() -> None:
    """The taint says since when; this process need not have seen it."""
    operator = measured()
    cordon(operator, taint_at=NOW + INTERVAL - DRAIN_SECONDS)
    operator.restart()
    assert runs(operator)


def test_an_uncordoned_node_is_read_at_once_and_the_next_cordon_counts_anew() -> None:
    """Each cordon may begin a drain."""
    operator = measured()
    cordon(operator)
    assert not runs(operator)
    uncordon(operator)
    assert runs(operator)
    operator.end_run()
    operator.cluster.pass_time(INTERVAL)
    cordon(operator)
    assert not runs(operator)


@pytest.mark.parametrize("wanted", ["asked", "rebooted"])
def test_a_person_s_request_or_a_reboot_does_not_wait_for_the_drain(wanted: str) -> None:
    """Both say that somebody works on the node and wants to know how it is before it is uncordoned."""
    operator = measured()
    cordon(operator)
    assert not runs(operator)
    if wanted == "asked":
        operator.cluster.change(REPORTS, "node-1", {"spec": {"requestedAt": stamp(operator.cluster.now)}})
    else:
        operator.cluster.change(NODES, "node-1", {"status": {"nodeInfo": {"bootID": "boot-2"}}})
    assert runs(operator)


def test_a_report_that_exists_controls_every_pod() -> None:
    """`kubectl drain` evicts pods with a controller, and a pod is garbage once its owner is gone."""
    operator = one_node()
    operator.reconcile()
    [pod] = operator.cluster.pods()
    [owner] = pod["metadata"]["ownerReferences"]
    report: dict[str, Any] = operator.cluster.get(REPORTS, "node-1")
    assert (owner["kind"], owner["name"], owner["uid"]) == (
        "NodeReport",
        "node-1",
        report["metadata"]["uid"],
    )
    assert owner["controller"] is True
    assert owner["blockOwnerDeletion"] is False, "true would need a right on the report's finalizers"
