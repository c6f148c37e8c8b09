"""After a bad run the next comes soon, and only then: by gate, by run, by load.

What people and time change is noticed too while the containers of mode Watch have nothing to report.
"""

import pytest

from nodegauge_contract import Xids
from nodegauge_operator.api.policy import seconds
from nodegauge_operator.api.probe_settings import Probes
from nodegauge_operator.api.report import GateState, GateStatus
from nodegauge_operator.api.times import NEVER, stamp
from nodegauge_operator.core.gates import due_at, recheck_after
from nodegauge_operator.core.override import DAY
from support.api_server import NODES
from support.calm_fleet import CalmFleet
from support.objects import INTERVAL, MINUTE, NOW, make_policy
from support.operator import SteppedOperator, some_nodes
from support.results import every_gpu, titan, with_gpu
from support.virtual_operator import VirtualTimeOperator, on_virtual_time

pytestmark = pytest.mark.usefixtures("stated_answers")

RECHECK = seconds(Probes().health.recheck)
SOON = 10.0
"""Two looks of the loop at what is due (`operator.sweepInterval`)."""
LOST = "gpu-lost=b"
FLOOR = 2 * MINUTE
"""What the judge needs to read counters: `intervalFloor`."""


def waits(operator: SteppedOperator, *answers: str) -> list[float]:
    result = []
    for answer in answers:
        operator.measure(answer, after=0.0)
        result.append(operator.wait())
    return result


SAME = INTERVAL
SLOWLY = ["hot=b", "hot={}", "hot={}", "hot=b", "hot={}", "", "hot={}"]
RUNS = {
    **{
        f"{code}: two bad, then three good": (
            ["", *[f"{code}=b"] * 3, *[""] * 4],
            [SAME, RECHECK, SAME, SAME, RECHECK, RECHECK, SAME, SAME],
        )
        for code in ("p2p-refused", "psu-fault")
    },
    **{
        f"{code}: counters or load decide": (
            [f"{code}=b", f"{code}=b", "", "", ""],
            [FLOOR, SAME, FLOOR, FLOOR, SAME],
        )
        for code in ("hot", "sw-thermal-slowdown", "pcie-narrow")
    },
    "one bad run suffices": ([LOST, LOST, "", "", ""], [SAME, SAME, RECHECK, RECHECK, SAME]),
    "no load": ([text.format("n") for text in SLOWLY], [FLOOR, *[SAME] * 4, FLOOR, SAME]),
    "not readable": ([text.format("u") for text in SLOWLY], [FLOOR, *[SAME] * 4, FLOOR, SAME]),
}
"""Answers, and the seconds from each run to the next; a run that cannot tell asks for no further one."""


@pytest.mark.parametrize(("answers", "seen"), RUNS.values(), ids=RUNS)
def test_a_run_that_could_change_a_taint_is_followed_soon(answers: list[str], seen: list[float]) -> None:
    """A minute of counters says nothing by `intervalFloor`; two do."""
    assert waits(some_nodes("node-1"), *answers) == seen


LEAVING = GateStatus(code="sw-thermal-slowdown", state=GateState.GATED, good=1, good_at=stamp(NOW))
OF_NCCL = GateStatus(code="busbw-low", state=GateState.GATED, good=1, good_at=stamp(NOW))
HELD_BACK = GateStatus(code="hot", state=GateState.HELD_BACK, incident="a", bad_at=stamp(NOW))


@pytest.mark.parametrize(
    ("gate", "floor", "read_after", "incidents", "wait"),
    [
        pytest.param(LEAVING, FLOOR, 70, {}, FLOOR, id="too early to tell"),
        pytest.param(LEAVING, 30.0, 70, {}, NEVER, id="it could not tell"),
        pytest.param(OF_NCCL, FLOOR, 0, {}, NEVER, id="an NCCL run decides"),
        pytest.param(HELD_BACK, FLOOR, 0, {}, FLOOR, id="its incident has ended"),
        pytest.param(HELD_BACK, FLOOR, 0, {"thermal": "a"}, NEVER, id="its incident is open"),
        pytest.param(HELD_BACK, FLOOR, FLOOR, {}, NEVER, id="a run since then could not tell"),
    ],
)
def test_the_next_run_comes_soon_where_it_could_decide(
    gate: GateStatus, floor: float, read_after: float, incidents: dict[str, str], wait: float
) -> None:
    """A container may confirm soon after a run that counted; within `intervalFloor` no counter is judged."""
    policy = make_policy().of({"thresholds": {"intervalFloor": floor}})
    read_at = stamp(NOW + read_after)
    assert recheck_after([gate], policy=policy, read_at=read_at, incidents=incidents) == wait


@pytest.mark.parametrize(
    ("interval", "recheck", "wait"), [("30s", "1m", 30), ("15m", "15m", 900), ("15m", "10s", 10)]
)
def test_the_recheck_is_the_policy_s_and_within_the_interval(interval: str, recheck: str, wait: int) -> None:
    health = {"interval": interval, "recheck": recheck, "deadline": "10s"}
    operator = some_nodes("node-1", probes={"health": health})
    assert waits(operator, "p2p-refused=b") == [wait]


def gates_without_runs(operator: SteppedOperator, *, days: float) -> list[str]:
    """Codes of the gates after so many days without a run, looked at when the operator wants to."""
    down = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
    operator.cluster.change(NODES, "node-1", down)
    operator.deliver()
    end = operator.cluster.now + days * DAY
    while (at := operator.reconcile(granted=False).wake_at) <= end:
        operator.cluster.now = max(at, operator.cluster.now + 1)
    operator.cluster.now = end
    return [gate["code"] for gate in operator.status["gates"]]


@pytest.mark.parametrize(
    ("answers", "ends"),
    [
        pytest.param(["p2p-refused=b"] * 2 + [""] * 3, True, id="what healed"),
        pytest.param(["p2p-refused=b"], True, id="what was never confirmed"),
        pytest.param(["p2p-refused=b"] * 2, False, id="no taint: missing data changes no verdict"),
    ],
)
def test_what_ends_by_itself(answers: list[str], ends: bool) -> None:
    operator = some_nodes("node-1", hysteresis={"relapseWindow": "24h"})
    waits(operator, *answers)
    assert gates_without_runs(operator, days=0.9) == ["p2p-refused"]
    assert gates_without_runs(operator, days=0.2 if ends else 30) == ([] if ends else ["p2p-refused"])


def test_what_healed_does_not_read_as_a_fault() -> None:
    operator = some_nodes("node-1")
    waits(operator, "p2p-refused=b", "p2p-refused=b", "")
    for answer, shown in (("", True), ("", False), ("p2p-refused=b", True)):
        waits(operator, answer)
        (gate,) = operator.status["gates"]
        assert [bool(gate.get(field)) for field in ("subject", "message")] == [shown, shown]


def test_a_gate_that_waits_for_a_reading_hides_the_timer_of_no_other() -> None:
    """Its own time is over: it waits for a BMC, and the node is looked at for the others all the same."""
    waiting = GateStatus(code="supplies-short", state=GateState.GATED, good=3, entered_at=stamp(NOW))
    on_trial = GateStatus(code="hot", state=GateState.GATED, readable_since=1, entered_at=stamp(NOW))
    assert due_at([waiting, on_trial], policy=make_policy(), now=NOW) == NOW + 10 * MINUTE
    assert due_at([waiting, on_trial], policy=make_policy(), now=NOW + 15 * MINUTE) == NOW + 60 * MINUTE


@on_virtual_time
async def test_a_node_that_waits_for_the_hour_is_tainted_as_it_passes(operator: VirtualTimeOperator) -> None:
    fleet = CalmFleet(operator)
    await fleet.begin(3, budget={"gatedNodes": 3, "gatedNodesPerHour": 1})
    began = operator.loop.time()
    await fleet.becomes("node-0", LOST)
    await fleet.becomes("node-1", LOST)
    await fleet.until(lambda: fleet.tainted("node-1"))
    assert 3600 <= operator.loop.time() - began <= 3600 + SOON


@on_virtual_time
async def test_a_policy_that_is_corrected_is_followed_soon(operator: VirtualTimeOperator) -> None:
    fleet = CalmFleet(operator)
    await fleet.begin(1, expectedGpus=4)
    await fleet.becomes("node-0", titan())
    assert fleet.tainted("node-0")
    await operator.after(1000)
    fleet.edit({"spec": {"expectedGpus": 2}})
    assert await fleet.until(lambda: not fleet.tainted("node-0")) <= 2 * RECHECK


@pytest.mark.parametrize(("severity", "more"), [("Warn", 0.0), ("Fail", 2 * RECHECK)])
@on_virtual_time
async def test_xids_of_a_rule_clear_once_fewer_are_left_in_its_window(
    operator: VirtualTimeOperator, severity: str, more: float
) -> None:
    fleet = CalmFleet(operator)
    rule = {"codes": [94], "count": 2, "window": "30m", "severity": severity}
    await fleet.begin(1, xids=[rule])
    calm = every_gpu(titan(), xids=Xids(registered=True))
    for _ in range(2):
        await fleet.becomes("node-0", with_gpu(calm, 0, xids=Xids(registered=True, seen=[94])))
    at = operator.loop.time()
    await fleet.becomes("node-0", calm)
    assert fleet.tainted("node-0") == (severity == "Fail")
    operator.begun.clear()
    await fleet.until(lambda: fleet.status()["verdict"] == "pass" and not fleet.tainted("node-0"))
    assert operator.loop.time() - at <= 1800 + RECHECK + SOON + more
    assert len(operator.begun) == (3 if severity == "Fail" else 1)
