"""What must not stop the rest: refused writes, unreadable policies, flapping labels, lost reports, boots."""

from __future__ import annotations

import pytest

from nodegauge_operator import names
from nodegauge_operator.kube.errors import Forbidden, KubeError, Refused
from support.api_server import NODES, POLICIES, REPORTS
from support.objects import INTERVAL, MINUTE
from support.operator import SteppedOperator, one_node

NODE = f"{NODES}/node-1"


@pytest.fixture
def operator() -> SteppedOperator:
    """Everything there, nothing run."""
    return one_node()


@pytest.mark.parametrize("error", [Refused("denied by webhook x"), Forbidden("denied by policy x")])
def test_a_refused_node_patch_is_in_the_report(operator: SteppedOperator, error: KubeError) -> None:
    """An admission webhook that denies our label costs the label, not the policy's only slot."""
    operator.refuse("PATCH", NODE, error)
    operator.run()
    assert not list(operator.cluster.pods())
    assert names.LABEL_INTERCONNECT not in operator.labels
    assert "denied by" in operator.status["desired"]["refusal"]
    operator.cluster.pass_time(INTERVAL)
    operator.run()
    assert operator.status["probes"][0]["lastRun"]["number"] == 2
    operator.heal()
    operator.cluster.pass_time(MINUTE)
    operator.catch_up()
    assert operator.labels[names.LABEL_INTERCONNECT] == "nvlink"
    assert not operator.status["desired"].get("refusal")


def test_a_refused_write_is_tried_again_within_a_minute(operator: SteppedOperator) -> None:
    """Somebody mends the webhook: nobody has to restart the operator."""
    operator.refuse("PATCH", NODE, Refused("denied"))
    operator.run()
    result = operator.reconcile()
    now = operator.cluster.clock()
    assert now < result.wake_at <= now + MINUTE


def test_an_unreadable_policy_after_a_restart_strips_nothing(operator: SteppedOperator) -> None:
    """The last good version lived in the process that is gone: until someone mends the policy, hands off."""
    operator.run()
    before = dict(operator.labels)
    name = next(iter(operator.cluster.objects[POLICIES]))
    operator.cluster.objects[POLICIES][name]["spec"]["probes"] = {"health": {"interval": "soon"}}
    operator.restart()
    operator.catch_up()
    assert operator.labels == before
    assert "node-1" in operator.cluster.objects[REPORTS]
    del operator.cluster.objects[POLICIES][name]["spec"]["probes"]
    operator.restart()
    operator.catch_up()
    assert operator.labels == before


def test_a_reboot_is_measured_at_once_also_after_failures(operator: SteppedOperator) -> None:
    """The driver was broken and the reboot cured it: nobody waits for the backoff."""
    operator.run()
    for _ in range(6):
        operator.cluster.pass_time(INTERVAL)
        operator.run("garbage")
    operator.cluster.change(NODES, "node-1", {"status": {"nodeInfo": {"bootID": "boot-9"}}})
    operator.catch_up()
    assert len(list(operator.cluster.pods())) == 1
    operator.run("garbage")
    operator.catch_up()
    assert not list(operator.cluster.pods()), "a failure of the same boot backs off again"
