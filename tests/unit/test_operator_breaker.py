"""Incidents: one cause on many nodes within minutes holds its new taints back, and nothing else does."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nodegauge_judge import Answer
from nodegauge_operator.api.incident import incidents_of
from nodegauge_operator.api.policy import Breaker as BreakerSpec
from nodegauge_operator.api.report import GateState, GateStatus, stamp
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
        """The report of a node holds these gates."""
        self._version += 1
        report = make_report(self.cache.nodes[f"node-{n}"], version=self._version)
        gpus = replace(report.status.gpus, product="H100", driver="new" if n % 2 else "old")
        self.cache.put_report(replace(report, status=replace(report.status, gates=list(gates), gpus=gpus)))

    def fails(self, *numbers: int, code: str = "hot", state: GateState = GateState.HELD_BACK) -> None:
        """The cause comes up on these nodes now."""
        for n in numbers:
            self.report(
                n, GateStatus(code=code, state=state, fault_at=stamp(self.now), since=stamp(self.now))
            )
            self.breaker.holding(f"node-{n}")

    def heals(self, *numbers: int) -> None:
        """These nodes are well again."""
        for n in numbers:
            self.report(n)

    def groups(self) -> list[str]:
        """Groups of the open incidents."""
        return [incident.group for incident in self.breaker.open("default")]

    def blocked(self) -> set[int]:
        """Nodes on which new taints for heat are held back."""
        return {n for n in range(len(self.cache.nodes)) if "thermal" in self.breaker.holding(f"node-{n}")}

    def closing(self, incident: str) -> None:
        """Somebody annotates the policy."""
        policy = self.cache.policies["default"]
        self.cache.policies["default"] = replace(policy, close_incident=incident)
        self.cache.policies_changed()


def test_a_rack_that_gets_hot_is_one_incident_of_that_rack() -> None:
    """Three of eight; the other racks are tainted as ever."""
    racks = Racks()
    racks.fails(0, 1)
    assert racks.groups() == []
    racks.fails(2)
    assert racks.groups() == [f"{RACK}=r0"]
    assert racks.blocked() == set(range(8))
    racks.fails(33)
    assert racks.groups() == [f"{RACK}=r0"], "one node elsewhere is chance"


def test_a_new_driver_that_fails_is_an_incident_of_that_driver() -> None:
    """On every second node, whatever the rack."""
    racks = Racks()
    racks.fails(1, 11, 21, 31, code="xid")
    assert racks.groups() == ["driver=new"]
    assert racks.breaker.holding("node-3") == {"xid": f"xid-{stamp(NOW)}"}
    assert racks.breaker.holding("node-2") == {}


def test_two_causes_do_not_add_up() -> None:
    """One node with each of many faults is bad luck."""
    racks = Racks()
    for n, code in enumerate(("hot", "xid", "gpu-lost", "hot", "xid", "gpu-lost")):
        racks.fails(n, code=code)
    assert racks.groups() == []


def test_a_count_is_an_incident_in_a_fleet_of_any_size() -> None:
    """Eleven of two hundred are less than the share."""
    racks = Racks(200, nodes=10)
    racks.fails(*range(0, 180, 17))
    assert racks.groups() == [""]
    racks = Racks(200, nodes=11)
    racks.fails(*range(0, 180, 17))
    assert racks.groups() == []


@given(st.permutations(range(40)), st.floats(min_value=901, max_value=6 * HOUR))
@tried(12)
def test_a_slow_trickle_of_faults_never_opens_it(order: list[int], pause: float) -> None:
    """Not if every node fails in the end, nor if all their trials end together."""
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
    racks = Racks()
    racks.fails(*range(8))
    racks.now += HOUR
    for n in range(8):
        racks.fails(n, state=GateState.PROBATION)
    assert racks.blocked()
    racks.heals(*range(5))
    assert racks.blocked()
    racks.heals(5)
    assert racks.blocked() == set()
    (incident,) = racks.breaker.shown("default")
    assert incident.closed_at == stamp(racks.now)
    racks.now += 1
    racks.fails(0)
    assert racks.blocked() == set()
    racks.fails(1, 2)
    assert racks.blocked() == set(range(8)), "three new ones are another incident"
    assert len({i.id for i in [incident, *racks.breaker.shown("default")]}) == 2


def test_an_annotation_closes_one_incident_and_no_later_one() -> None:
    """By its id: it stays on the policy, and the nodes that have the cause stay bad."""
    racks = Racks()
    racks.fails(*range(8))
    (incident,) = racks.breaker.open("default")
    racks.closing("another")
    assert racks.blocked()
    racks.now += MINUTE
    racks.closing(incident.id)
    assert racks.blocked() == set()
    racks.restart()
    assert racks.blocked() == set()
    racks.now += MINUTE
    racks.fails(8, 9, 10)
    assert racks.groups() == [f"{RACK}=r1"]


def test_a_restart_knows_what_is_open() -> None:
    """From the policy's status, long after the window; a status that was never written is found again in the
    reports, under the same id."""
    racks = Racks()
    racks.fails(*range(8))
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
    """Nor has one whose nodes are gone."""
    racks = Racks()
    racks.fails(*range(8))
    assert racks.blocked()
    racks.cache.policies["default"] = replace(racks.cache.policies["default"], uid="another")
    racks.now += HOUR
    racks.cache.policies_changed()
    assert racks.blocked() == set()
    racks = Racks()
    racks.fails(*range(8))
    for n in range(8):
        racks.cache.drop_node(f"node-{n}")
    assert racks.groups() == []


@pytest.mark.parametrize("text", [None, "odd", [1], [{"id": 1, "cause": "x"}], [{"cause": "thermal"}]])
def test_a_status_that_somebody_broke_keeps_nothing(text: Any) -> None:
    """What can be read of it counts."""
    good = {"id": "thermal-1", "cause": "thermal", "odd": True}
    assert incidents_of({"incidents": text}) == []
    mixed = [*text, good] if isinstance(text, list) else [good]
    assert [incident.id for incident in incidents_of({"incidents": mixed})] == ["thermal-1"]


def gate_after(*steps: tuple[str, str], before: GateStatus, **how: Any) -> GateStatus:
    """A gate of `gpu-lost` after looks with this answer (or none) and this open incident."""
    for answer, incident in steps:
        if answer:
            judged = hysteresis.answered(
                before, code="gpu-lost", answer=Answer(answer), finding=None, now=NOW
            )
            assert judged is not None
            before = judged
        looked = {"policy": make_policy(), "now": NOW, "slot": True, "incidents": {"gpu-lost": incident}}
        (before,) = gates.current([before], **(looked | how))
    return before


BLOCKED = GateStatus(
    code="gpu-lost", state=GateState.HELD_BACK, since=stamp(NOW), entered_at=stamp(NOW), bad=1
)


def test_what_an_incident_held_back_needs_a_bad_run_after_it() -> None:
    """Neither a look nor a run that could not tell is one; nor is one while another incident is open."""
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


def test_two_of_four_hot_nodes_are_no_incident() -> None:
    """A small cluster works by its budget; three of four are more than chance."""
    racks = Racks(4)
    racks.fails(0, 1)
    assert racks.blocked() == set()
    racks.fails(2)
    assert racks.blocked() == {0, 1, 2, 3}
