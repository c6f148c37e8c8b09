"""Events: each change is posted once, and only changes are."""

from __future__ import annotations

from collections import Counter

import pytest

import support.results as made
from nodegauge_contract import Power
from nodegauge_operator.core.probes.kind import shown_change
from support.api_server import EVENTS, NODES, POLICIES, REPORTS
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


def test_kubectl_describe_shows_events_in_their_order(operator: SteppedOperator) -> None:
    """It sorts by `lastTimestamp` alone, which events.k8s.io/v1 refuses."""
    run(operator)
    operator.cluster.pass_time(INTERVAL)
    label(operator, interconnect="infiniband")
    catch_up(operator)
    for _ in range(8):
        operator.cluster.pass_time(STALE / 4)
        run(operator, "garbage")
    posted = list(operator.cluster.objects[EVENTS].values())
    times = [body["lastTimestamp"] for body in posted]
    assert len(set(times)) == len(posted) == 4
    assert times == sorted(times)
    assert [body["firstTimestamp"] for body in posted] == times
    assert [body["eventTime"][:19] + "Z" for body in posted] == times
    assert {(body["apiVersion"], body["count"]) for body in posted} == {("v1", 1)}


def test_an_event_shows_only_what_changed(operator: SteppedOperator) -> None:
    """Another verdict with the same interconnect: "nvlink 50 GB/s -> nvlink 50 GB/s" is no news."""
    run(operator)
    operator.cluster.pass_time(INTERVAL)
    capped = Power(usage_mw=60_000, enforced_limit_mw=350_000, default_limit_mw=400_000)
    operator.cluster.results["node-1"] = made.with_gpu(made.titan(), 0, power=capped)
    run(operator)
    operator.cluster.pass_time(INTERVAL)
    operator.cluster.results["node-1"] = made.with_pair(made.titan(), 0, 1, read=1)
    run(operator)
    (_, warned, refused) = [message for _, message in operator.events]
    assert "->" not in warned
    assert "Interconnect: nvlink 50 GB/s -> none" in refused


def test_numbers_that_read_the_same_are_no_change() -> None:
    """For every kind of probe."""
    assert shown_change("Interconnect label", "nvlink (measured)", "nvlink (measured)") == ""
    assert shown_change("Interconnect", "nvlink 450 GB/s", "nvlink 425 GB/s") == (
        "Interconnect: nvlink 450 GB/s -> nvlink 425 GB/s"
    )


def observe(operator: SteppedOperator, mode: str, generation: int) -> None:
    """Somebody changes the policy's mode."""
    patch = {"metadata": {"generation": generation}, "spec": {"mode": mode}}
    operator.cluster.change(POLICIES, "default", patch)
    catch_up(operator)


def test_a_mode_that_strips_a_node_says_so_each_time(operator: SteppedOperator) -> None:
    """With what was removed; looking again says nothing."""
    run(operator)
    for generation in (2, 4):
        observe(operator, "Observe", generation)
        catch_up(operator)
        assert "nodegauge.dev/health" not in operator.labels
        observe(operator, "Enforce", generation + 1)
    released = [message for reason, message in operator.events if reason == "Released"]
    assert len(released) == 2
    assert "mode Observe" in released[0]
    assert "label nodegauge.dev/health=pass" in released[0]
    assert "condition GPUValidated" in released[0]


def exclude(operator: SteppedOperator) -> None:
    """The policy selects the node no longer, and the grace has passed."""
    selector = {"matchLabels": {"gpu": "none"}}
    operator.cluster.change(POLICIES, "default", {"spec": {"nodeSelector": selector}})
    catch_up(operator)
    operator.cluster.pass_time(700)
    catch_up(operator)
    assert not operator.cluster.objects[REPORTS]


def test_a_node_that_no_policy_selects_any_more_says_what_it_lost(operator: SteppedOperator) -> None:
    """Once, also if the operator restarts in the middle."""
    run(operator)
    exclude(operator)
    operator.restart()
    catch_up(operator)
    (message,) = [message for reason, message in operator.events if reason == "Released"]
    assert "no policy selects this node any more (it followed default)" in message
    assert "label interconnect=nvlink" in message


def test_a_node_that_carried_nothing_says_nothing(operator: SteppedOperator) -> None:
    """It was observed only."""
    run(operator)
    observe(operator, "Observe", 2)
    exclude(operator)
    assert Counter(reasons(operator))["Released"] == 1


def test_a_node_that_moves_to_a_policy_in_mode_observe_says_so(operator: SteppedOperator) -> None:
    """By the name of the policy that it follows now."""
    run(operator)
    operator.cluster.add_policy("watching", mode="Observe", priority=5)
    catch_up(operator)
    (message,) = [message for reason, message in operator.events if reason == "Released"]
    assert "policy watching is now in mode Observe" in message


def test_an_edited_reason_is_posted_once(operator: SteppedOperator) -> None:
    """No event has a reason with a space: the one that is posted has none, and is known to be posted."""
    run(operator)
    edited = operator.status["change"] | {"run": "edited", "reason": "two words"}
    operator.cluster.change(REPORTS, "node-1", {"status": {"change": edited}}, sub="status")
    operator.restart()
    for _ in range(3):
        catch_up(operator)
    assert [reason for reason, _ in operator.events].count("twowords") == 1
