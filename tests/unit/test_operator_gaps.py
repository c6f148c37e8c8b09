"""Waiting is not staleness: after a gap of any kind a reading can be renewed before it counts as stale.

And no clock that jumps, no odd time and no odd word of a pod leaves a run stuck.
"""

from collections.abc import Callable
from email.utils import formatdate
from operator import attrgetter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import support.results as made
from nodegauge_contract import Result
from nodegauge_operator import names
from nodegauge_operator.api.clamped_times import without_future_times
from nodegauge_operator.api.times import stamp
from nodegauge_operator.core.probes.health import DRAIN_SECONDS
from nodegauge_operator.core.probes.registry import label_keys
from nodegauge_operator.kube.client import Client
from nodegauge_operator.kube.errors import KubeError, Refused
from nodegauge_operator.reconcile.watch_sets import MISSING_SECONDS
from support.api_server import DAEMONSETS, NODES, PODS, POLICIES, REPORTS, Body
from support.cleaning import failing
from support.client import unavailable
from support.judging import saying
from support.objects import INTERVAL, NOW, make_node, make_report, read
from support.operator import SteppedOperator, one_node
from support.properties import tried
from support.virtual_operator import RUN_SECONDS, VirtualTimeOperator, on_virtual_time, refusing

pytestmark = pytest.mark.usefixtures("stated_answers")

DAY = 86_400.0
LONG = 9 * INTERVAL
LOST = saying("gpu-lost=b")
Gap = Callable[[SteppedOperator], object]


def ours(operator: SteppedOperator) -> dict[str, str]:
    return {key: value for key, value in operator.labels.items() if key in label_keys()}


def read_then_failed(result: Result | None = None) -> SteppedOperator:
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


def observed(operator: SteppedOperator) -> None:
    """The policy only observes for a while, and the operator began in that time: nodes carry nothing."""
    for mode in ("Observe", "Enforce"):
        write(operator, POLICIES, {"spec": {"mode": mode}})
        operator.restart()
        operator.catch_up(granted=False)
    assert operator.status["desired"]["condition"] == "Unknown"


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
    return {"status": {"conditions": [{"type": "Ready", "status": status}]}}


def upgrade(state: str) -> Body:
    """What the GPU Operator says while it changes the driver."""
    return {"metadata": {"labels": {names.GPU_UPGRADE_STATE: state}}}


def slots(count: int | str) -> Body:
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
    operator = read_then_failed()
    labels = ours(operator)
    gap(operator)
    operator.catch_up(granted=False)
    assert ours(operator) | {names.LABEL_HEALTH: "pass"} == labels
    operator.cluster.pass_time(INTERVAL + 2)
    operator.catch_up(granted=False)
    assert names.LABEL_INTERCONNECT not in ours(operator)


@pytest.mark.parametrize("result", [made.titan(), LOST], ids=["well", "tainted"])
@pytest.mark.parametrize("gap", [*GAPS.values(), full_node, observed], ids=[*GAPS, "full node", "observed"])
def test_a_stale_reading_stays_stale(gap: Gap, result: Result) -> None:
    operator = read_then_failed(result)
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
DATES = [(s, formatdate(NOW + at, usegmt=True), by) for s, of in ANSWERS.items() for at, by in of.items()]


@pytest.mark.parametrize("error", [0, 30 * DAY, -30 * DAY])
@pytest.mark.parametrize(("took", "date", "ahead"), [*DATES, (0, "", 0), (0, "yesterday", 0)])
def test_the_api_server_s_clock_counts(
    monkeypatch: pytest.MonkeyPatch, took: float, date: str, ahead: float, error: float
) -> None:
    """It wrote its time at some moment of a slow answer; a second or two of difference are none."""
    for name, now in (("time", NOW + error), ("monotonic", 1000.0 + took)):
        monkeypatch.setattr(f"nodegauge_operator.kube.client.time.{name}", lambda now=now: now)
    client = Client.__new__(Client)
    client._epoch = NOW - 1000.0
    assert client.now() == NOW + took
    client._compare_clocks(date, asked_at=1000.0)
    assert client.now() == NOW + took + ahead


def test_a_write_that_took_long_to_fail_was_unanswered_all_the_while() -> None:
    operator = read_then_failed()

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


def test_what_time_changes_while_a_write_is_made_is_looked_at_next() -> None:
    operator = one_node()
    operator.run()
    operator.cluster.pass_time(INTERVAL)
    operator.client.answered = lambda verb, path: operator.cluster.pass_time(LONG) if path == PODS else None
    assert operator.catch_up().wake_at < operator.cluster.now


def test_a_clock_that_is_set_back_delays_no_run_on_a_cordoned_node() -> None:
    operator = one_node()
    operator.run()
    ahead(operator)
    operator.cluster.change(NODES, "node-1", {"spec": {"unschedulable": True}})
    operator.catch_up(granted=False)
    operator.cluster.clock_error = 0
    operator.cluster.pass_time(INTERVAL)
    operator.catch_up()
    assert len(list(operator.cluster.pods())) == 1


@pytest.mark.parametrize("error", [30 * DAY, -3600.0])
@pytest.mark.parametrize("refused", [True, False])
def test_a_clock_that_is_set_neither_delays_nor_hurries_a_daemon_set(refused: bool, error: float) -> None:
    operator = one_node()
    write(operator, POLICIES, {"spec": {"probes": {"health": {"mode": "Watch"}}}})
    operator.cluster.clock_error = error
    if refused:
        operator.client.refuse = refusing(unavailable(503), "PATCH", DAEMONSETS)
    operator.keep_watch_sets()
    operator.cluster.clock_error = 0
    watch_sets, policy = operator.reconciler.watch_sets, operator.cache.policies["default"]
    node = operator.cache.nodes["node-1"]
    assert watch_sets.applied(policy, node) is policy
    operator.cluster.pass_time(MISSING_SECONDS)
    assert (watch_sets.due_in() <= 0) is refused, "nothing is applied anew that nobody changed"
    assert (applied := watch_sets.applied(policy, node)) is not None
    assert applied.watches is not refused


def cordoned(*, taint_at: float | None = None) -> SteppedOperator:
    """A node that was read an interval ago, and is cordoned now; `taint_at`: when it was given its taint."""
    operator = one_node()
    operator.run()
    operator.cluster.pass_time(INTERVAL)
    taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    taint |= {"timeAdded": stamp(taint_at)} if taint_at else {}
    write(operator, NODES, {"spec": {"unschedulable": True, "taints": [taint]}})
    return operator


def runs(operator: SteppedOperator) -> bool:
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
    long_ago = cordoned(taint_at=NOW + INTERVAL - DRAIN_SECONDS)
    long_ago.restart()
    assert runs(long_ago)


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


@pytest.fixture
def operator() -> SteppedOperator:
    return one_node()


@pytest.mark.parametrize(
    "field", ["since", "read_at", "failing_since", "last_run.started_at", "last_run.finished_at"]
)
def test_no_stored_time_lies_in_the_future(field: str) -> None:
    report = make_report().after(read(made.titan()), node=make_node(), at=NOW + DAY)
    status = without_future_times(report.status, now=NOW)
    assert attrgetter(field)(status.probes[0]) in ("", stamp(NOW))
    assert status.change.at <= stamp(NOW)


@pytest.mark.parametrize("waited", [INTERVAL - 60, INTERVAL + 60])
def test_a_result_is_as_old_as_its_container_s_end(operator: SteppedOperator, waited: float) -> None:
    operator.catch_up()
    operator.cluster.kubelets()
    ended = operator.cluster.clock()
    operator.cluster.pass_time(waited)
    operator.restart()
    operator.catch_up()
    run = operator.probe["lastRun"]
    if waited < INTERVAL:
        assert (run["outcome"], run["finishedAt"]) == ("read", stamp(ended))
    else:
        assert (run["outcome"], run["reason"]) == ("unknown", "ResultTooOld")
        operator.cluster.pass_time(31)
        operator.run()
        assert operator.probe["lastRun"]["outcome"] == "read"


def test_a_report_that_the_api_server_calls_invalid_ends_the_run(operator: SteppedOperator) -> None:
    operator.client.refuse = failing(1, f"PATCH {REPORTS}", lambda: Refused("too long", status=422))
    operator.run()
    run = operator.probe["lastRun"]
    assert (run["outcome"], run["reason"]) == ("unknown", "ReportRefused")
    assert "too long" in run["message"]
    assert not list(operator.cluster.pods())


ODD = ["", "X" * 70_000, "\x1b[2J\r\n\x00\x9b", "\u2028\u202e\ufffe\U0010ffff", "é" * 600, "%s %n {0}"]
TEXT = st.one_of(st.text(max_size=40), st.sampled_from(ODD))
YEARS = ("0001-01-01", "0002-01-01", "1969-12-31", "2027-01-15", "9999-12-31")
CLOCKS = ("T00:00:00Z", "T08:00:00.999999999Z", "T23:59:59Z", "T23:59:59-23:59")
TIME = st.sampled_from(["soon", "", *(year + clock for year in YEARS for clock in CLOCKS)])
ENDED = st.fixed_dictionaries(
    {"exitCode": st.sampled_from([0, 1, 137, 255, -1, 2**31 - 1, -(2**31)])},
    optional={"signal": st.integers(0, 64)}
    | dict.fromkeys(("reason", "message"), TEXT)
    | dict.fromkeys(("startedAt", "finishedAt"), TIME),
)
STATE = st.one_of(
    st.fixed_dictionaries({"terminated": ENDED}),
    st.fixed_dictionaries({"running": st.fixed_dictionaries({"startedAt": TIME})}),
    st.fixed_dictionaries({"waiting": st.fixed_dictionaries({"reason": TEXT, "message": TEXT})}),
)
CONDITION = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["PodScheduled", "DisruptionTarget", "Ready"]),
        "status": st.sampled_from(["True", "False"]),
    },
    optional={"reason": TEXT, "message": TEXT, "lastTransitionTime": TIME},
)
POD_STATUS = st.fixed_dictionaries(
    {
        "phase": st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown", "Odd"]),
        "containerStatuses": STATE.map(lambda state: [{"name": names.PROBE_CONTAINER, "state": state}]),
        "conditions": st.lists(CONDITION, max_size=2),
    },
    optional={"reason": TEXT, "message": TEXT},
)
ANNOTATIONS = st.dictionaries(
    st.sampled_from([names.POD_REQUEST, names.POD_BOOT, names.POD_IMAGE]), TEXT, max_size=3
)


@tried(150)
@given(status=POD_STATUS, annotations=ANNOTATIONS, on_node=st.booleans())
def test_an_odd_pod_ends_its_run_and_frees_its_slot(
    status: dict[str, Any], annotations: dict[str, str], on_node: bool
) -> None:
    """What is written of it is valid, so that nothing is tried for ever."""
    operator = one_node()
    operator.catch_up()
    [pod] = operator.cluster.pods()
    operator.cluster.objects[PODS][pod["metadata"]["name"]]["metadata"]["annotations"] |= annotations
    operator.cluster.pod_status(pod["metadata"]["name"], status, node="node-1" if on_node else "")
    operator.catch_up(granted=False)
    operator.cluster.pass_time(3600)
    operator.catch_up(granted=False)
    run = operator.probe["lastRun"]
    assert run["number"] == 1
    assert run["reason"] != "ReportRefused"
    assert all(char.isprintable() for char in run["reason"] + run["message"])
    assert not [p for p in operator.cluster.pods() if not p["metadata"].get("deletionTimestamp")]


@on_virtual_time
async def test_only_the_time_from_a_result_to_its_node_is_measured(operator: VirtualTimeOperator) -> None:
    """From the arrival of the event that ended the run; a label put back by hand is no result."""
    await operator.begin(2, after=RUN_SECONDS + 10, budget={"concurrentProbes": 2})
    parts = ("nodegauge_result_to_node_seconds_count", "nodegauge_result_to_node_seconds_sum")
    count, total = measured = [operator.sample(part) for part in parts]
    assert count == 2
    assert 0 < total < 2 * 0.2, "not from the first wake, a whole run ago"
    operator.cluster.change(NODES, "node-0", {"metadata": {"labels": {names.LABEL_HEALTH: None}}})
    await operator.after(30)
    assert len(operator.read()) == 2
    assert [operator.sample(part) for part in parts] == measured
