"""Waiting is not staleness: after a gap of any kind a reading can be renewed before it counts as stale."""

from __future__ import annotations

from collections.abc import Callable
from email.utils import formatdate

import pytest

import support.results as made
from nodegauge_contract import Result
from nodegauge_operator import names
from nodegauge_operator.api.report import stamp
from nodegauge_operator.core.probes.health import DRAIN_SECONDS
from nodegauge_operator.core.probes.registry import label_keys
from nodegauge_operator.kube.client import Client
from nodegauge_operator.kube.errors import KubeError
from nodegauge_operator.reconcile.watch_sets import APPLY_SECONDS
from support.api_server import DAEMONSETS, NODES, POLICIES, REPORTS, Body
from support.client import unavailable
from support.judging import saying
from support.objects import INTERVAL, NOW
from support.operator import SteppedOperator, one_node
from support.virtual_operator import VirtualTimeOperator, on_virtual_time, refusing

pytestmark = pytest.mark.usefixtures("stated_answers")

DAY = 86_400.0
LONG = 9 * INTERVAL
LOST = saying("gpu-lost=b")
Gap = Callable[[SteppedOperator], object]


def ours(operator: SteppedOperator) -> dict[str, str]:
    """The labels of ours on the node."""
    return {key: value for key, value in operator.labels.items() if key in label_keys()}


def failing(result: Result | None = None) -> SteppedOperator:
    """A node that was read, and whose last run failed."""
    operator = one_node()
    if result is not None:
        operator.cluster.results["node-1"] = result
    operator.run()
    operator.cluster.pass_time(INTERVAL + 1)
    operator.run("Segmentation fault")
    return operator


def ahead(operator: SteppedOperator) -> None:
    """The cluster's clock is a month ahead."""
    operator.cluster.clock_error += 30 * DAY


def outage(operator: SteppedOperator) -> None:
    """The API server is away."""
    operator.client.refuse = lambda verb, path: unavailable(503)
    for seconds in (31, LONG):
        operator.cluster.pass_time(seconds)
        with pytest.raises(KubeError):
            operator.reconcile()
    operator.heal()
    operator.reconciler.gaps.answered()  # as by the full list that follows


def left_alone(operator: SteppedOperator) -> None:
    """A person leaves the node alone, and the clock ends it, before somebody sets it back by an hour."""
    until = stamp(operator.cluster.now + LONG - 2 * 3600)
    texts = {names.OVERRIDE: "leave-alone", names.OVERRIDE_UNTIL: until}
    texts |= {names.OVERRIDE_BY: "ann", names.OVERRIDE_REASON: "fan replaced"}
    write(operator, NODES, {"metadata": {"annotations": texts}})
    operator.cluster.pass_time(LONG)


def full_node(operator: SteppedOperator) -> None:
    """A run finds no room on the node."""
    operator.cluster.pass_time(INTERVAL)
    operator.catch_up()
    operator.cluster.pass_time(61)
    operator.catch_up(granted=False)
    assert operator.probe["lastRun"]["outcome"] == "skipped"


def write(operator: SteppedOperator, path: str, patch: Body) -> None:
    """Somebody writes the node or the policy, and the operator makes no run."""
    operator.cluster.change(path, "node-1" if path == NODES else "default", patch)
    operator.catch_up(granted=False)


def meanwhile(path: str, gone: Body, back: Body) -> Gap:
    """Somebody stops all runs for a while."""

    def gap(operator: SteppedOperator) -> None:
        write(operator, path, gone)
        operator.cluster.pass_time(LONG)
        write(operator, path, back)

    return gap


def ready(status: str) -> Body:
    """What a node's kubelet says."""
    return {"status": {"conditions": [{"type": "Ready", "status": status}]}}


def upgrade(state: str) -> Body:
    """What the GPU Operator says while it changes the driver."""
    return {"metadata": {"labels": {names.GPU_UPGRADE_STATE: state}}}


def slots(count: int | str) -> Body:
    """A policy with so many runs at a time."""
    return {"spec": {"budget": {"concurrentProbes": count}}}


GAPS: dict[str, Gap] = {
    "restart": lambda operator: (operator.cluster.pass_time(LONG), operator.restart()),
    "outage": outage,
    "no slots": meanwhile(POLICIES, slots(0), slots("10%")),
    "mode Paused": meanwhile(POLICIES, {"spec": {"mode": "Paused"}}, {"spec": {"mode": "Enforce"}}),
    "left alone": left_alone,
    "not ready": meanwhile(NODES, ready("Unknown"), ready("True")),
    "driver upgrade": meanwhile(NODES, upgrade("drain-required"), upgrade("upgrade-done")),
    "clock ahead": ahead,
}


@pytest.mark.parametrize("gap", GAPS.values(), ids=GAPS)
def test_a_gap_makes_no_reading_stale(gap: Gap) -> None:
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
@pytest.mark.parametrize("gap", [*GAPS.values(), full_node], ids=[*GAPS, "full node"])
def test_a_stale_reading_stays_stale(gap: Gap, result: Result) -> None:
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


ANSWERS = {0: {0: 0, 4: 0, DAY: DAY, -DAY: -DAY}, 20: {0: 0, 19: 0, -60: -60, 80: 60}}
"""Seconds that an answer took: when it was written, and how far that clock is ahead."""
DATES = [
    (took, formatdate(NOW + at, usegmt=True), by) for took, of in ANSWERS.items() for at, by in of.items()
]


@pytest.mark.parametrize("error", [0, 30 * DAY, -30 * DAY])
@pytest.mark.parametrize(("took", "date", "ahead"), [*DATES, (0, "", 0), (0, "yesterday", 0)])
def test_the_api_server_s_clock_counts(
    monkeypatch: pytest.MonkeyPatch, took: float, date: str, ahead: float, error: float
) -> None:
    """The error of the operator's own clock decides nothing, before an answer and after it.  The API server
    wrote its time at some moment of a slow one; a second or two of difference are none."""
    for name, now in (("time", NOW + error), ("monotonic", 1000.0 + took)):
        monkeypatch.setattr(f"nodegauge_operator.kube.client.time.{name}", lambda now=now: now)
    client = Client.__new__(Client)
    client._epoch = NOW - 1000.0
    assert client.now() == NOW + took
    client._compare_clocks(date, asked_at=1000.0)
    assert client.now() == NOW + took + ahead


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


def test_a_clock_that_is_set_back_delays_no_run_on_a_cordoned_node() -> None:
    """Seen while the clock was a month ahead: the drain is over ten minutes later, by whatever clock."""
    operator = one_node()
    operator.run()
    ahead(operator)
    operator.cluster.change(NODES, "node-1", {"spec": {"unschedulable": True}})
    operator.catch_up(granted=False)
    operator.cluster.clock_error = 0
    operator.cluster.pass_time(INTERVAL)
    operator.catch_up()
    assert len(list(operator.cluster.pods())) == 1


@pytest.mark.parametrize("refused", [True, False])
def test_a_clock_that_is_set_back_delays_no_daemon_set(refused: bool) -> None:
    """It is applied at its interval; one that cannot be made is not waited for until next month."""
    operator = one_node()
    write(operator, POLICIES, {"spec": {"probes": {"health": {"mode": "Watch"}}}})
    ahead(operator)
    if refused:
        operator.client.refuse = refusing(unavailable(503), "PATCH", DAEMONSETS)
    operator.keep_watch_sets()
    operator.cluster.clock_error = 0
    operator.cluster.pass_time(APPLY_SECONDS)
    watch_sets, policy = operator.reconciler.watch_sets, operator.cache.policies["default"]
    assert watch_sets.due_in() <= 0
    assert (applied := watch_sets.applied(policy)) is not None
    assert applied.watches is not refused


def cordoned(*, taint_at: float | None = None) -> SteppedOperator:
    """A node that was read once, an interval ago, and is cordoned now; `taint_at`: when the node controller
    set its taint."""
    operator = one_node()
    operator.run()
    operator.cluster.pass_time(INTERVAL)
    taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    taint |= {"timeAdded": stamp(taint_at)} if taint_at else {}
    write(operator, NODES, {"spec": {"unschedulable": True, "taints": [taint]}})
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
    operator = cordoned(taint_at=taint_at)
    assert not runs(operator)
    assert operator.reconcile().wake_at == NOW + INTERVAL + DRAIN_SECONDS
    operator.cluster.pass_time(DRAIN_SECONDS - 1)
    assert not runs(operator)
    operator.cluster.pass_time(1)
    assert runs(operator)


def test_a_cordon_of_long_ago_stops_no_run_after_a_restart() -> None:
    """The taint says since when; this process need not have seen it."""
    operator = cordoned(taint_at=NOW + INTERVAL - DRAIN_SECONDS)
    operator.restart()
    assert runs(operator)


@pytest.mark.parametrize(
    ("path", "patch"),
    [
        (REPORTS, {"spec": {"requestedAt": stamp(NOW + INTERVAL)}}),
        (NODES, {"status": {"nodeInfo": {"bootID": "boot-2"}}}),
        (NODES, {"spec": {"unschedulable": None, "taints": None}}),
    ],
    ids=["asked", "rebooted", "uncordoned"],
)
def test_a_request_a_reboot_and_an_uncordon_do_not_wait_for_the_drain(path: str, patch: Body) -> None:
    """Somebody works on the node and wants to know how it is.  The next cordon may begin another drain."""
    operator = cordoned()
    assert not runs(operator)
    operator.cluster.change(path, "node-1", patch)
    assert runs(operator)
    operator.end_run()
    operator.cluster.pass_time(INTERVAL)
    for unschedulable in (None, True):
        write(operator, NODES, {"spec": {"unschedulable": unschedulable, "taints": None}})
    assert not runs(operator)


def test_a_report_that_exists_controls_every_pod() -> None:
    """`kubectl drain` evicts pods with a controller, and a pod is garbage once its owner is gone."""
    operator = one_node()
    operator.reconcile()
    [pod] = operator.cluster.pods()
    [owner] = pod["metadata"]["ownerReferences"]
    uid = operator.cluster.get(REPORTS, "node-1")["metadata"]["uid"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("NodeReport", "node-1", uid)
    assert owner["controller"] is True
    assert owner["blockOwnerDeletion"] is False, "true would need a right on the report's finalizers"
