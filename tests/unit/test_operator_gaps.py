"""Waiting is not staleness: after a gap of any kind a reading can be renewed before it counts as stale."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import support.results as made
from nodegauge_contract import Result
from nodegauge_operator import names
from nodegauge_operator.api.report import stamp
from nodegauge_operator.kube.client import Client
from nodegauge_operator.kube.errors import KubeError
from support.api_server import NODES, POLICIES, REPORTS
from support.client import unavailable
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


@pytest.mark.parametrize("ahead", [8 * DAY, 400 * DAY])
def test_a_clock_far_ahead_strips_no_healthy_node(ahead: float) -> None:
    """Whether for a moment or for good: nodes are read again before a reading is too old."""
    operator = one_node()
    operator.run()
    labels = ours(operator)
    operator.cluster.clock_error = ahead
    operator.catch_up(granted=False)
    assert ours(operator) == labels
    operator.run()
    operator.cluster.clock_error = 0
    operator.catch_up(granted=False)
    assert ours(operator).keys() == labels.keys()


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
        client._compare_clocks("Fri, 15 Jan 2027 08:00:00 GMT")
        assert client.now() == NOW


def test_a_node_that_is_gone_leaves_nothing() -> None:
    """Autoscaled nodes come under new names for ever, and each is not ready at first."""
    operator = one_node()
    not_ready(operator)
    known = operator.reconciler.gaps._ended_at
    assert ("node", "node-1") in known
    operator.cluster.remove(NODES, "node-1")
    operator.catch_up()
    assert ("node", "node-1") not in known
