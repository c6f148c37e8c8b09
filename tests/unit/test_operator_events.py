"""Events: each change is posted once, and only changes are."""

from __future__ import annotations

import pytest

import support.results as made
from nodegauge_contract import Power
from support.api_server import EVENTS, NODES
from support.client import unavailable
from support.objects import INTERVAL, STALE
from support.operator import SteppedOperator, one_node


@pytest.fixture
def operator() -> SteppedOperator:
    """Nothing run yet."""
    return one_node()


def label(operator: SteppedOperator, **labels: str | None) -> None:
    """Somebody else labels the node."""
    operator.cluster.change(NODES, "node-1", {"metadata": {"labels": labels}})


def run(operator: SteppedOperator, message: str | None = None) -> None:
    """One whole run of the node, also while no run is due."""
    operator.catch_up()
    for pod in operator.cluster.pods():
        operator.cluster.end(pod, operator.cluster.result(pod) if message is None else message)
    catch_up(operator)


def catch_up(operator: SteppedOperator) -> None:
    """See everything, write everything, begin no run."""
    for _ in range(2):
        operator.catch_up(granted=False)


def reasons(operator: SteppedOperator) -> list[str]:
    """The reasons of all events, in order."""
    return [reason for reason, _ in operator.events]


def test_a_conflict_is_told_once_with_the_way_out(operator: SteppedOperator) -> None:
    """However many runs find it there."""
    run(operator)
    label(operator, interconnect="infiniband")
    catch_up(operator)
    for _ in range(3):
        operator.cluster.pass_time(INTERVAL)
        run(operator)
    assert reasons(operator) == ["Validated", "LabelConflict"]
    assert "interconnect=infiniband" in operator.events[1][1]
    assert "takeOver" in operator.events[1][1]


def test_a_conflict_at_rest_writes_nothing(operator: SteppedOperator) -> None:
    """It is known: looking again is no change, and a quiet run costs its three writes."""
    label(operator, interconnect="infiniband")
    run(operator)
    operator.client.log.clear()
    operator.cluster.pass_time(60)
    catch_up(operator)
    assert operator.client.log == []
    operator.cluster.pass_time(INTERVAL)
    run(operator)
    assert operator.client.log == ["POST pods", "PATCH nodereports/status", "DELETE pods"]


def test_a_conflict_at_the_first_run_does_not_hide_what_the_run_found(operator: SteppedOperator) -> None:
    """A fault and somebody's label at once: both are told."""
    label(operator, interconnect="infiniband")
    run(operator)
    text = " ".join(f"{reason} {note}" for reason, note in operator.events)
    assert "Validated" in text
    assert "interconnect=infiniband" in text


def test_a_finding_whose_event_found_no_answer_is_not_lost_to_a_conflict(operator: SteppedOperator) -> None:
    """What is young and not yet posted goes first."""
    run(operator)
    operator.cluster.pass_time(INTERVAL)
    capped = Power(usage_mw=60_000, enforced_limit_mw=350_000, default_limit_mw=400_000)
    operator.cluster.results["node-1"] = made.with_gpu(made.titan(), 0, power=capped)
    operator.client.refuse = lambda verb, path: unavailable() if path == EVENTS else None
    run(operator)
    operator.client.refuse = lambda verb, path: None
    label(operator, interconnect="infiniband")
    catch_up(operator)
    assert reasons(operator) == ["Validated", "Warnings", "LabelConflict"]


def test_staleness_is_told_once(operator: SteppedOperator) -> None:
    """At the moment when the labels go, not at every failed run after it."""
    run(operator)
    for _ in range(12):
        operator.cluster.pass_time(STALE / 4)
        run(operator, "garbage")
    assert reasons(operator) == ["Validated", "ProbeFailed", "Stale"]


def test_a_restart_tells_nothing_twice(operator: SteppedOperator) -> None:
    """The name of an event is made of what it says."""
    run(operator)
    label(operator, interconnect="infiniband")
    catch_up(operator)
    before = operator.events
    operator.restart()
    operator.list()
    catch_up(operator)
    assert operator.events == before
