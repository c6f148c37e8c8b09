"""After a bad run the next comes soon, and only then: by gate, by run, by load."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nodegauge_operator.api.policy import seconds
from nodegauge_operator.api.probe_settings import Probes
from nodegauge_operator.api.report import NEVER, GateState, GateStatus, stamp
from nodegauge_operator.core.gates import due_at, recheck_after
from support.api_server import NODES
from support.cluster import FakeCluster
from support.judging import listening, saying
from support.objects import INTERVAL, MINUTE, NOW, make_policy
from support.operator import SteppedOperator
from support.virtual_operator import VirtualTimeOperator, on_virtual_time

RECHECK = seconds(Probes().health.recheck)
FLOOR = 2 * MINUTE
"""What the judge needs to read counters: `intervalFloor`."""


@pytest.fixture(autouse=True)
def stated_answers() -> Iterator[None]:
    with listening():
        yield


class Clocked(SteppedOperator):
    """One node; each run is made when the operator asks for it."""

    def __init__(self, **spec: object) -> None:
        super().__init__(FakeCluster())
        self.cluster.add_node()
        self.cluster.add_policy(**spec)
        self.list()

    def run(self, message: str | None = "", *, load: bool = True) -> None:
        """One whole run with these answers, now."""
        self.cluster.results["node-1"] = saying(message or "", load=load)
        self.catch_up()
        self.cluster.kubelets()
        self.catch_up(granted=False)

    def wait(self) -> float:
        """Let time pass until the next run is due; the seconds."""
        began = self.cluster.now
        while True:
            reconciled = self.reconcile(granted=False)
            if reconciled.waits:
                return self.cluster.now - began
            self.cluster.pass_time(max(1.0, reconciled.wake_at - self.cluster.now))


def waits(operator: Clocked, *answers: str, load: bool = True) -> list[float]:
    """Seconds from each run to the next."""
    result = []
    for answer in answers:
        operator.run(answer, load=load)
        result.append(operator.wait())
    return result


@pytest.mark.parametrize("code", ["p2p-refused", "nvlink-degraded", "row-remap", "psu-fault"])
def test_a_bad_run_is_confirmed_soon_and_a_good_one_too(code: str) -> None:
    """Two bad, then three good; before, between and after them the interval."""
    bad = f"{code}=b"
    seen = waits(Clocked(), "", bad, bad, bad, "", "", "", "")
    assert seen == [INTERVAL, RECHECK, INTERVAL, INTERVAL, RECHECK, RECHECK, INTERVAL, INTERVAL]


@pytest.mark.parametrize("code", ["hot", "sw-thermal-slowdown", "power-brake", "pcie-narrow"])
def test_what_counters_or_load_decide_waits_for_an_interval_that_can_be_judged(code: str) -> None:
    """A minute of counters says nothing by `intervalFloor`; two do."""
    seen = waits(Clocked(), f"{code}=b", f"{code}=b", "", "", "")
    assert seen == [FLOOR, INTERVAL, FLOOR, FLOOR, INTERVAL]


def test_one_bad_run_that_suffices_needs_no_other() -> None:
    """A lost GPU is tainted at once; its return is confirmed soon."""
    assert waits(Clocked(), "gpu-lost=b", "gpu-lost=b", "", "", "") == [
        INTERVAL,
        INTERVAL,
        RECHECK,
        RECHECK,
        INTERVAL,
    ]


@pytest.mark.parametrize("answer", ["u", "n"])
def test_a_run_that_cannot_tell_asks_for_no_further_one(answer: str) -> None:
    """A gate that waits for load, or for a GPU that can be read, would ask every minute for weeks."""
    seen = waits(
        Clocked(), "hot=b", f"hot={answer}", f"hot={answer}", "hot=b", f"hot={answer}", "", f"hot={answer}"
    )
    assert seen == [FLOOR, INTERVAL, INTERVAL, INTERVAL, INTERVAL, FLOOR, INTERVAL]


def test_a_run_without_a_result_backs_off_as_ever() -> None:
    """Also between two bad runs: a node that hangs is not asked every minute."""
    operator = Clocked()
    operator.run("p2p-refused=b")
    assert operator.wait() == RECHECK
    seen = []
    for _ in range(6):
        operator.reconcile()
        for pod in operator.cluster.pods():
            operator.cluster.end(pod, "garbage")
        operator.catch_up(granted=False)
        operator.catch_up(granted=False)
        seen.append(operator.wait())
    assert seen == [30, 60, 120, 240, 480, INTERVAL]


@pytest.mark.parametrize(("floor", "wait"), [(FLOOR, FLOOR), (30.0, NEVER)])
def test_a_reading_that_comes_too_early_to_tell_keeps_the_recheck(floor: float, wait: float) -> None:
    """A container may confirm soon after a run that counted; within `intervalFloor` no counter is judged."""
    policy = make_policy().of({"thresholds": {"intervalFloor": floor}})
    gate = GateStatus(code="sw-thermal-slowdown", state=GateState.GATED, good=1, good_at=stamp(NOW))
    assert recheck_after([gate], policy=policy, read_at=stamp(NOW + 70)) == wait


@pytest.mark.parametrize(
    ("interval", "recheck", "wait"), [("30s", "1m", 30), ("15m", "15m", 900), ("15m", "10s", 10)]
)
def test_the_recheck_is_the_policy_s_and_never_later_than_the_interval(
    interval: str, recheck: str, wait: int
) -> None:
    """A policy that wants no recheck makes it as long as the interval."""
    operator = Clocked(probes={"health": {"interval": interval, "recheck": recheck, "deadline": "10s"}})
    assert waits(operator, "p2p-refused=b") == [wait]


@on_virtual_time
async def test_a_cause_that_all_nodes_share_costs_no_more_slots(operator: VirtualTimeOperator) -> None:
    """Every node is confirmed once, in the slots that there are; then all return to the interval."""
    with listening():
        for n in range(16):
            operator.cluster.results[f"node-{n}"] = saying("p2p-refused=b")
        await operator.begin(16, after=INTERVAL, budget={"concurrentProbes": 4})
        assert operator.most_pods == 4
        assert len(operator.begun) == 2 * 16
        await operator.after(INTERVAL)
        assert len(operator.begun) == 3 * 16


DAY = 86_400.0


def gates_without_runs(operator: Clocked, *, days: float) -> list[str]:
    """Codes of the gates after so many days without a run, looked at when the operator wants to."""
    down = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
    operator.cluster.change(NODES, "node-1", down)
    operator.deliver()
    end = operator.cluster.now + days * DAY
    while (at := operator.reconcile(granted=False).wake_at) <= end:
        operator.cluster.now = max(at, operator.cluster.now + 1)
    operator.cluster.now = end
    return [gate["code"] for gate in operator.status["gates"]]


@pytest.mark.parametrize("answers", [("p2p-refused=b", "p2p-refused=b", "", "", ""), ("p2p-refused=b",)])
def test_what_healed_or_was_never_confirmed_ends_by_itself(answers: tuple[str, ...]) -> None:
    """Not only at the next run: the node may be away for good."""
    operator = Clocked(hysteresis={"relapseWindow": "24h"})
    waits(operator, *answers)
    assert gates_without_runs(operator, days=0.9) == ["p2p-refused"]
    assert gates_without_runs(operator, days=0.2) == []


def test_a_taint_never_ends_by_itself() -> None:
    """Missing data changes no verdict, for however long."""
    operator = Clocked(hysteresis={"relapseWindow": "24h"})
    waits(operator, "p2p-refused=b", "p2p-refused=b")
    assert gates_without_runs(operator, days=30) == ["p2p-refused"]


def evidence(operator: Clocked) -> str:
    """What the only entry says of the fault."""
    (gate,) = operator.status["gates"]
    return str(gate.get("subject", "")) + str(gate.get("message", ""))


def test_what_healed_does_not_read_as_a_fault() -> None:
    """Its entry stays for a relapse, without the evidence; a relapse brings its own."""
    operator = Clocked()
    waits(operator, "p2p-refused=b", "p2p-refused=b", "", "")
    assert evidence(operator)
    waits(operator, "")
    assert evidence(operator) == ""
    waits(operator, "p2p-refused=b")
    assert evidence(operator)


def test_a_gate_that_waits_for_a_reading_hides_the_timer_of_no_other() -> None:
    """Its own time is over: it waits for a BMC, and the node is looked at for the others all the same."""
    waiting = GateStatus(code="supplies-short", state=GateState.GATED, good=3, entered_at=stamp(NOW))
    on_trial = GateStatus(code="hot", state=GateState.GATED, readable_since=1, entered_at=stamp(NOW))
    assert due_at([waiting, on_trial], policy=make_policy(), now=NOW) == NOW + 10 * MINUTE
    assert due_at([waiting, on_trial], policy=make_policy(), now=NOW + 15 * MINUTE) == NOW + 60 * MINUTE
