"""Events: each change is posted once, and only changes are."""

from __future__ import annotations

import pytest

import support.results as made
from nodegauge_contract import Power
from support.api_server import EVENTS, NODES, PODS, POLICIES, READINGS, REPORTS, Body
from support.client import unavailable
from support.objects import INTERVAL, STALE
from support.operator import SteppedOperator, one_node


@pytest.fixture
def operator() -> SteppedOperator:
    return one_node()


def label(operator: SteppedOperator, **labels: str | None) -> None:
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
    return [reason for reason, _ in operator.events]


def test_a_conflict_is_told_once_with_the_way_out(operator: SteppedOperator) -> None:
    run(operator)
    label(operator, interconnect="infiniband")
    catch_up(operator)
    for _ in range(3):
        operator.cluster.pass_time(INTERVAL)
        run(operator)
    assert reasons(operator) == ["Validated", "LabelConflict"]
    assert "interconnect=infiniband" in operator.events[1][1]
    assert "takeOver" in operator.events[1][1]


CAPPED = Power(usage_mw=60_000, enforced_limit_mw=350_000, default_limit_mw=400_000)


def test_a_finding_whose_event_found_no_answer_is_not_lost_to_a_conflict(operator: SteppedOperator) -> None:
    """What is young and not yet posted goes first."""
    run(operator)
    operator.cluster.pass_time(INTERVAL)
    operator.cluster.results["node-1"] = made.with_gpu(made.titan(), 0, power=CAPPED)
    operator.refuse("POST", EVENTS, unavailable())
    run(operator)
    assert not operator.cluster.objects[PODS], "an event that waits holds no pod up"
    operator.heal()
    label(operator, interconnect="infiniband")
    catch_up(operator)
    assert reasons(operator) == ["Validated", "Warnings", "LabelConflict"]


def test_staleness_is_told_once_and_kubectl_describe_shows_events_in_their_order(
    operator: SteppedOperator,
) -> None:
    """kubectl sorts by `lastTimestamp` alone, which events.k8s.io/v1 refuses."""
    run(operator)
    operator.cluster.pass_time(INTERVAL)
    label(operator, interconnect="infiniband")
    catch_up(operator)
    for _ in range(12):
        operator.cluster.pass_time(STALE / 4)
        run(operator, "garbage")
    assert reasons(operator) == ["Validated", "LabelConflict", "ProbeFailed", "Stale"]
    posted = list(operator.cluster.objects[EVENTS].values())
    times = [body["lastTimestamp"] for body in posted]
    assert times == sorted(set(times))
    assert [body["firstTimestamp"] for body in posted] == times
    assert [body["eventTime"][:19] + "Z" for body in posted] == times
    assert {(body["apiVersion"], body["count"]) for body in posted} == {("v1", 1)}


def test_an_event_shows_only_what_changed(operator: SteppedOperator) -> None:
    """Another verdict with the same interconnect: "nvlink 50 GB/s -> nvlink 50 GB/s" is no news."""
    run(operator)
    for changed in (made.with_gpu(made.titan(), 0, power=CAPPED), made.with_pair(made.titan(), 0, 1, read=1)):
        operator.cluster.pass_time(INTERVAL)
        operator.cluster.results["node-1"] = changed
        run(operator)
    (_, warned, refused) = [message for _, message in operator.events]
    assert "->" not in warned
    assert "Interconnect: nvlink 50 GB/s -> none" in refused


def change_policy(operator: SteppedOperator, spec: Body) -> None:
    generation = operator.cluster.objects[POLICIES]["default"]["metadata"]["generation"] + 1
    operator.cluster.change(POLICIES, "default", {"metadata": {"generation": generation}, "spec": spec})
    catch_up(operator)


def released(operator: SteppedOperator) -> list[str]:
    return [message for reason, message in operator.events if reason == "Released"]


def test_a_mode_that_strips_a_node_says_so_each_time(operator: SteppedOperator) -> None:
    run(operator)
    for _ in range(2):
        change_policy(operator, {"mode": "Observe"})
        catch_up(operator)
        assert "nodegauge.dev/health" not in operator.labels
        change_policy(operator, {"mode": "Enforce"})
    first, _ = released(operator)
    for part in ("mode Observe", "label nodegauge.dev/health=pass", "condition GPUValidated"):
        assert part in first


def test_a_node_that_no_policy_selects_any_more_says_what_it_lost(operator: SteppedOperator) -> None:
    run(operator)
    change_policy(operator, {"nodeSelector": {"matchLabels": {"gpu": "none"}}})
    operator.cluster.pass_time(700)
    catch_up(operator)
    assert not operator.cluster.objects[REPORTS]
    operator.restart()
    catch_up(operator)
    (message,) = released(operator)
    assert "no policy selects this node any more (it followed default)" in message
    assert "label interconnect=nvlink" in message


def test_a_new_report_owes_nothing_to_the_reading_of_the_one_before(operator: SteppedOperator) -> None:
    """Somebody deleted the report: its next one starts with a run of its own, and judges that."""
    run(operator)
    operator.cluster.remove(REPORTS, "node-1")
    catch_up(operator)
    assert "node-1" in operator.cluster.objects[READINGS]
    operator.cluster.results["node-1"] = made.with_pair(made.titan(), 0, 1, read=1)
    run(operator)
    assert (operator.probe["lastRun"]["number"], operator.probe["verdict"]) == (1, "fail")
