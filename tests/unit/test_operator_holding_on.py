"""What must not stop the rest: refused writes, unreadable policies, flapping labels, lost reports, boots."""

from __future__ import annotations

import pytest

from nodegauge_operator import names
from nodegauge_operator.kube.errors import Conflict, Forbidden, KubeError, Refused, Unavailable, error_of
from support import INTERVAL, MINUTE
from support.client import unavailable
from support.cluster import EVENTS, NODES, POLICIES, REPORTS
from support.onenode import OneNode

pytestmark = pytest.mark.timeout(5)

NODE = f"{NODES}/node-1"


@pytest.fixture
def scene() -> OneNode:
    """Everything there, nothing run."""
    return OneNode()


@pytest.mark.parametrize("error", [Refused("denied by webhook x"), Forbidden("denied by policy x")])
def test_a_node_patch_that_is_refused_holds_no_pod_and_is_said_in_the_report(
    scene: OneNode, error: KubeError
) -> None:
    """An admission webhook that denies our label costs the label, not the policy's only place."""
    scene.refuse("PATCH", NODE, error)
    scene.run()
    assert not list(scene.cluster.pods())
    assert names.LABEL_INTERCONNECT not in scene.labels
    assert "denied by" in scene.status["desired"]["refusal"]
    scene.world.pass_time(INTERVAL)
    scene.run()
    assert scene.status["probes"][0]["lastRun"]["number"] == 2
    scene.heal()
    scene.world.pass_time(MINUTE)
    scene.settle()
    assert scene.labels[names.LABEL_INTERCONNECT] == "nvlink"
    assert not scene.status["desired"].get("refusal")


def test_a_refused_write_is_tried_again_within_a_minute(scene: OneNode) -> None:
    """Somebody mends the webhook: nobody has to restart the operator."""
    scene.refuse("PATCH", NODE, Refused("denied"))
    scene.run()
    settled = scene.operator.settle()
    now = scene.cluster.clock()
    assert now < settled.wake_at <= now + MINUTE


def test_a_store_of_events_that_is_down_holds_no_pod_up(scene: OneNode) -> None:
    """Events may live in an etcd of their own."""
    scene.refuse("POST", EVENTS, unavailable(503))
    scene.run()
    assert not list(scene.cluster.pods())
    assert scene.labels[names.LABEL_INTERCONNECT] == "nvlink"


def test_an_unreadable_policy_after_a_restart_strips_nothing(scene: OneNode) -> None:
    """The last good version lived in the process that is gone: until someone mends the policy, hands off."""
    scene.run()
    before = dict(scene.labels)
    name = next(iter(scene.cluster.objects[POLICIES]))
    scene.cluster.objects[POLICIES][name]["spec"]["probes"] = {"health": {"interval": "soon"}}
    scene.restart()
    scene.settle()
    assert scene.labels == before
    assert "node-1" in scene.cluster.objects[REPORTS]
    del scene.cluster.objects[POLICIES][name]["spec"]["probes"]
    scene.restart()
    scene.settle()
    assert scene.labels == before


def test_a_flapping_label_takes_the_labels_and_keeps_the_report() -> None:
    """GPU feature discovery restarts: what was measured comes back without a run; after a while it goes."""
    scene = OneNode(gpu="true")
    name = next(iter(scene.cluster.objects[POLICIES]))
    scene.cluster.change(POLICIES, name, {"spec": {"nodeSelector": {"matchLabels": {"gpu": "true"}}}})
    scene.restart()
    scene.run()
    scene.cluster.change(NODES, "node-1", {"metadata": {"labels": {"gpu": None}}})
    scene.settle()
    assert names.LABEL_INTERCONNECT not in scene.labels
    assert "node-1" in scene.cluster.objects[REPORTS]
    scene.cluster.change(NODES, "node-1", {"metadata": {"labels": {"gpu": "true"}}})
    scene.settle()
    assert scene.labels[names.LABEL_INTERCONNECT] == "nvlink"
    assert not list(scene.cluster.pods())
    scene.cluster.change(NODES, "node-1", {"metadata": {"labels": {"gpu": None}}})
    scene.settle()
    scene.world.pass_time(11 * MINUTE)
    scene.settle()
    assert "node-1" not in scene.cluster.objects[REPORTS]


def test_a_deleted_report_takes_its_labels_with_it(scene: OneNode) -> None:
    """A label that no reading justifies is absent; the next run brings it back."""
    scene.run()
    del scene.cluster.objects[REPORTS]["node-1"]
    scene.restart()
    scene.operator.settle()
    assert names.LABEL_INTERCONNECT not in scene.labels
    scene.run()
    assert scene.labels[names.LABEL_INTERCONNECT] == "nvlink"


def test_a_reboot_is_measured_at_once_also_after_failures(scene: OneNode) -> None:
    """The driver was broken and the reboot cured it: nobody waits for the backoff."""
    scene.run()
    for _ in range(6):
        scene.world.pass_time(INTERVAL)
        scene.run("garbage")
    scene.cluster.change(NODES, "node-1", {"status": {"nodeInfo": {"bootID": "boot-9"}}})
    scene.settle()
    assert len(list(scene.cluster.pods())) == 1
    scene.run("garbage")
    scene.settle()
    assert not list(scene.cluster.pods()), "a failure of the same boot backs off again"


@pytest.mark.parametrize(
    ("status", "kind"), [(401, Unavailable), (403, Forbidden), (422, Refused), (409, Conflict)]
)
def test_a_stale_token_is_no_refusal(status: int, kind: type[KubeError]) -> None:
    """401 passes when the token is read anew; it must not become a run without a result."""
    assert type(error_of(status, "", "")) is kind
