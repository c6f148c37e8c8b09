"""While a node is drained no health run is made there, and every pod of ours has a controller."""

from __future__ import annotations

from typing import Any

import pytest

from nodegauge_operator.api.report import stamp
from nodegauge_operator.core.probes.health import DRAIN_SECONDS
from support.api_server import NODES, PODS, REPORTS
from support.objects import INTERVAL, MINUTE, NOW
from support.operator import SteppedOperator, one_node

TAINT = "node.kubernetes.io/unschedulable"


def cordon(operator: SteppedOperator, *, taint_at: float | None = None) -> None:
    """`kubectl cordon`, and the taint of the node controller if it has set one at that time."""
    taints = [{"key": TAINT, "effect": "NoSchedule"} | ({"timeAdded": stamp(taint_at)} if taint_at else {})]
    operator.cluster.change(NODES, "node-1", {"spec": {"unschedulable": True, "taints": taints}})
    operator.deliver()


def uncordon(operator: SteppedOperator) -> None:
    """`kubectl uncordon`."""
    operator.cluster.change(NODES, "node-1", {"spec": {"unschedulable": None, "taints": None}})
    operator.deliver()


def measured() -> SteppedOperator:
    """A node that was read once, an interval ago."""
    operator = one_node()
    operator.run()
    operator.cluster.pass_time(INTERVAL)
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
    operator = measured()
    cordon(operator, taint_at=taint_at)
    assert not runs(operator)
    assert operator.reconcile().wake_at == NOW + INTERVAL + DRAIN_SECONDS
    operator.cluster.pass_time(DRAIN_SECONDS - 1)
    assert not runs(operator)
    operator.cluster.pass_time(1)
    assert runs(operator)


def test_a_cordon_of_long_ago_stops_no_run_after_a_restart() -> None:
    """The taint says since when; this process need not have seen it."""
    operator = measured()
    cordon(operator, taint_at=NOW + INTERVAL - DRAIN_SECONDS)
    operator.restart()
    assert runs(operator)


def test_a_run_that_a_drain_evicted_is_not_made_again_at_once() -> None:
    """The retry after half a minute would be evicted as well, or keep the drain waiting."""
    operator = measured()
    operator.catch_up()
    cordon(operator)
    for pod in operator.cluster.pods():
        operator.cluster.remove(PODS, pod["metadata"]["name"])
    operator.catch_up()
    assert operator.probe["lastRun"]["reason"] == "PodDeleted"
    operator.cluster.pass_time(5 * MINUTE)
    assert not runs(operator)


def test_an_uncordoned_node_is_read_at_once_and_the_next_cordon_counts_anew() -> None:
    """Each cordon may begin a drain."""
    operator = measured()
    cordon(operator)
    assert not runs(operator)
    uncordon(operator)
    assert runs(operator)
    operator.end_run()
    operator.cluster.pass_time(INTERVAL)
    cordon(operator)
    assert not runs(operator)


@pytest.mark.parametrize("wanted", ["asked", "rebooted"])
def test_a_person_s_request_or_a_reboot_does_not_wait_for_the_drain(wanted: str) -> None:
    """Both say that somebody works on the node and wants to know how it is before it is uncordoned."""
    operator = measured()
    cordon(operator)
    assert not runs(operator)
    if wanted == "asked":
        operator.cluster.change(REPORTS, "node-1", {"spec": {"requestedAt": stamp(operator.cluster.now)}})
    else:
        operator.cluster.change(NODES, "node-1", {"status": {"nodeInfo": {"bootID": "boot-2"}}})
    assert runs(operator)


def test_a_report_that_exists_controls_every_pod() -> None:
    """`kubectl drain` evicts pods with a controller, and a pod is garbage once its owner is gone."""
    operator = one_node()
    operator.reconcile()
    [pod] = operator.cluster.pods()
    [owner] = pod["metadata"]["ownerReferences"]
    report: dict[str, Any] = operator.cluster.get(REPORTS, "node-1")
    assert (owner["kind"], owner["name"], owner["uid"]) == (
        "NodeReport",
        "node-1",
        report["metadata"]["uid"],
    )
    assert owner["controller"] is True
    assert owner["blockOwnerDeletion"] is False, "true would need a right on the report's finalizers"
