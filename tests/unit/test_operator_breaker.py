"""Incidents: one cause on many nodes within minutes holds its new taints back, and nothing else does."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nodegauge_judge import Answer
from nodegauge_operator.api.incident import incidents_of
from nodegauge_operator.api.policy import Breaker as BreakerSpec
from nodegauge_operator.api.report import GateState, GateStatus
from nodegauge_operator.api.times import stamp
from nodegauge_operator.core import gates, hysteresis
from nodegauge_operator.metrics import Metrics
from nodegauge_operator.reconcile.breaker import Breaker
from nodegauge_operator.reconcile.cache import Cache
from support.objects import MINUTE, NOW, make_node, make_policy, make_report
from support.properties import tried

HOUR = 3600.0
RACK = "topology.kubernetes.io/rack"


class Racks:
    """Nodes of one policy, eight to a rack, half of them with a new driver; the breaker over them."""

    def __init__(self, count: int = 40, **breaker: Any) -> None:
        self.now, self._version = NOW, 100
        self.cache = Cache()
        self.cache.policies["default"] = make_policy().spec_with(breaker=BreakerSpec(**breaker))
        self.cache.policies_changed()
        for n in range(count):
            self.cache.put_node(make_node(f"node-{n}").bearing({RACK: f"r{n // 8}"}))
            self.report(n)
        self.restart()

    def restart(self, *, status: bool = True) -> None:
        """Another process, which knows the reports and what the policy's status keeps."""
        kept = self.breaker.shown("default") if status and hasattr(self, "breaker") else []
        self.cache.policy_status["default"] = {"incidents": msgspec.to_builtins(kept)}
        self.metrics = Metrics()
        self.breaker = Breaker(self.cache, now=lambda: self.now, metrics=self.metrics)

    def report(self, n: int, *gates: GateStatus) -> None:
        self._version += 1
        report = make_report(self.cache.nodes[f"node-{n}"], version=self._version)
        gpus = replace(report.status.gpus, product="H100", driver="new" if n % 2 else "old")
        self.cache.put_report(replace(report, status=replace(report.status, gates=list(gates), gpus=gpus)))

    def fails(self, *numbers: int, code: str = "hot", state: GateState = GateState.HELD_BACK) -> None:
        """The cause comes up on these nodes now."""
        at = stamp(self.now)
        for n in numbers:
            self.report(n, GateStatus(code=code, state=state, fault_at=at, since=at))
            self.breaker.holding(f"node-{n}")

    def groups(self) -> list[str]:
        return [incident.group for incident in self.breaker.open("default")]

    def blocked(self) -> set[int]:
        """Nodes on which new taints are held back."""
        return {n for n in range(len(self.cache.nodes)) if self.breaker.holding(f"node-{n}")}


def hot_rack() -> Racks:
    racks = Racks()
    racks.fails(*range(8))
    return racks


def hot(*nodes: int, code: str = "hot") -> list[tuple[int, str]]:
    return [(n, code) for n in nodes]


NEW_DRIVER = hot(1, 11, 21, 31, code="xid")
R0 = f"{RACK}=r0"
MANY = hot(*range(0, 180, 17))
"""Eleven nodes, each in a rack of its own."""
EACH_ITS_OWN = [*zip(range(6), ("hot", "xid", "gpu-lost") * 2, strict=True)]
OPENS: dict[str, tuple[int, list[tuple[int, str]], list[str], set[int]]] = {
    "two of a rack of eight": (40, hot(0, 1), [], set()),
    "three of a rack of eight": (40, hot(0, 1, 2), [R0], {*range(8)}),
    "one more elsewhere is chance": (40, hot(0, 1, 2, 33), [R0], {*range(8)}),
    "every second node by its driver": (40, NEW_DRIVER, ["driver=new"], {*range(1, 40, 2)}),
    "one node with each of many faults": (40, EACH_ITS_OWN, [], set()),
    "as many as the count in a large fleet": (200, MANY, [""], {*range(200)}),
    "one fewer than the count": (200, MANY[1:], [], set()),
    "two of four": (4, hot(0, 1), [], set()),
    "three of four": (4, hot(0, 1, 2), [""], {*range(4)}),
}
"""How many nodes, which cause comes up where, the groups of the incidents, where they hold taints back."""


@pytest.mark.parametrize(("count", "faults", "groups", "blocked"), OPENS.values(), ids=OPENS)
def test_one_cause_on_more_nodes_than_chance_explains_is_an_incident(
    count: int, faults: list[tuple[int, str]], groups: list[str], blocked: set[int]
) -> None:
    """Of the smallest group that explains it, whose nodes alone are held back; causes do not add up."""
    racks = Racks(count, nodes=10)
    for node, code in faults:
        racks.fails(node, code=code)
    assert (racks.groups(), racks.blocked()) == (groups, blocked)
    for node in blocked:
        [(cause, incident)] = racks.breaker.holding(f"node-{node}").items()
        assert incident == f"{cause}-{stamp(NOW)}"


@given(st.permutations(range(40)), st.floats(min_value=901, max_value=6 * HOUR))
@tried(12)
def test_a_slow_trickle_of_faults_never_opens_it(order: list[int], pause: float) -> None:
    racks = Racks(share="10%", window="30m")
    for n in order:
        racks.fails(n)
        racks.now += pause
    assert racks.breaker.shown("default") == []
    for n, report in enumerate(list(racks.cache.reports.values())):
        trial = replace(report.status.gates[0], state=GateState.PROBATION)
        racks.report(n, trial)
        racks.report(n, replace(trial, state=GateState.HELD_BACK, since=stamp(racks.now)))
    assert racks.breaker.shown("default") == []


def test_it_closes_by_itself_and_two_that_are_left_are_tainted_alone() -> None:
    """Trials count as the cause; what was entered before it closed opens no other."""
    racks = hot_rack()
    assert racks.breaker.take_to_wake() == {"node-0", "node-1", "node-2"}
    racks.now += HOUR
    for n in range(8):
        racks.fails(n, state=GateState.PROBATION)
    assert racks.blocked()
    for n in range(6):
        assert racks.blocked()
        racks.report(n)
    assert racks.blocked() == set()
    assert racks.breaker.take_to_wake() == {"node-6", "node-7"}
    (incident,) = racks.breaker.shown("default")
    assert incident.closed_at == stamp(racks.now)
    racks.now += 1
    racks.fails(0)
    assert racks.blocked() == set()
    racks.fails(1, 2)
    assert racks.blocked() == set(range(8)), "three new ones are another incident"
    assert len({i.id for i in [incident, *racks.breaker.shown("default")]}) == 2


def test_an_annotation_closes_one_incident_and_no_later_one() -> None:
    racks = hot_rack()
    (incident,) = racks.breaker.open("default")
    for closed in ("another", incident.id):
        assert racks.blocked()
        racks.now += MINUTE
        policy = racks.cache.policies["default"]
        racks.cache.policies["default"] = replace(policy, close_incident=closed)
        racks.cache.policies_changed()
    assert racks.blocked() == set()
    racks.restart()
    assert racks.blocked() == set()
    racks.now += MINUTE
    racks.fails(8, 9, 10)
    assert racks.groups() == [f"{RACK}=r1"]


def test_a_restart_knows_what_is_open() -> None:
    racks = hot_rack()
    (before,) = racks.breaker.open("default")
    racks.restart(status=False)
    assert racks.breaker.open("default") == [before]
    racks.now += 5 * HOUR
    racks.restart()
    assert racks.breaker.open("default") == [before]
    assert "nodegauge_incidents_total{" not in racks.metrics.render().decode()
    racks.restart(status=False)
    assert racks.breaker.open("default") == []


def test_a_policy_made_anew_has_no_incident() -> None:
    racks = hot_rack()
    assert racks.blocked()
    racks.cache.policies["default"] = replace(racks.cache.policies["default"], uid="another")
    racks.now += HOUR
    racks.cache.policies_changed()
    assert racks.blocked() == set()
    racks = hot_rack()
    for n in range(8):
        racks.cache.drop_node(f"node-{n}")
    assert racks.groups() == []


@pytest.mark.parametrize("text", [None, "odd", [1], [{"id": 1, "cause": "x"}], [{"cause": "thermal"}]])
def test_a_status_that_somebody_broke_keeps_nothing(text: Any) -> None:
    good = {"id": "thermal-1", "cause": "thermal", "odd": True}
    assert incidents_of({"incidents": text}) == []
    mixed = [*text, good] if isinstance(text, list) else [good]
    assert [incident.id for incident in incidents_of({"incidents": mixed})] == ["thermal-1"]


def gate_after(*steps: tuple[str, str], before: GateStatus, **how: Any) -> GateStatus:
    """A gate of `gpu-lost` after looks with this answer (or none) and this open incident."""
    for answer, incident in steps:
        if answer:
            known = {"code": "gpu-lost", "answer": Answer(answer), "finding": None, "now": NOW}
            before = hysteresis.answered(before, **known)
        looked = {"policy": make_policy(), "now": NOW, "slot": True, "incidents": {"gpu-lost": incident}}
        (before,) = gates.current([before], **(looked | how))
    return before


BLOCKED = GateStatus(
    code="gpu-lost", state=GateState.HELD_BACK, since=stamp(NOW), entered_at=stamp(NOW), bad=1
)


def test_what_an_incident_held_back_needs_a_bad_run_after_it() -> None:
    blocked = gate_after(("", "a"), before=BLOCKED)
    assert (blocked.state, blocked.incident) == (GateState.HELD_BACK, "a")
    assert gate_after(("", ""), (Answer.UNSURE, ""), before=blocked).state is GateState.HELD_BACK
    assert gate_after((Answer.BAD, "b"), ("", ""), before=blocked).incident == "b"
    free = gate_after((Answer.BAD, ""), before=blocked)
    assert (free.state, free.incident) == (GateState.GATED, "")


def test_an_incident_leaves_tainted_nodes_as_they_are() -> None:
    """A bad run and a look change nothing there; a gate without a taint (mode Observe) takes none."""
    tainted = replace(BLOCKED, state=GateState.GATED)
    after = gate_after(("", "a"), (Answer.BAD, "a"), before=tainted, reserved=True)
    assert (after.state, after.incident) == (GateState.GATED, "")
    assert gate_after(("", "a"), before=tainted).state is GateState.HELD_BACK
    observing = gate_after(("", "a"), before=tainted, policy=make_policy().observing())
    assert (observing.state, observing.incident) == (GateState.GATED, "")
