"""No label that nodegauge writes decides which policy a node follows, or belongs to another controller."""

from __future__ import annotations

from typing import Any

import pytest

from nodegauge_operator.api.policy import PolicyInvalid, parse
from support.api_server import NODES, POLICIES
from support.cluster import FakeCluster
from support.operator import SteppedOperator
from support.virtual_operator import VirtualTimeOperator, on_virtual_time


def body(**spec: Any) -> dict[str, Any]:
    """A policy object."""
    return {"metadata": {"name": "p"}, "spec": {"nodeSelector": {}} | spec}


def expression(key: str, operator: str = "Exists", *values: str) -> dict[str, Any]:
    """A selector of one expression."""
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    "key",
    [
        "nvidia.com/gpu.product",
        "feature.nvidia.com/link",
        "node-role.kubernetes.io/gpu",
        "topology.k8s.io/link",
        "node.cluster.x-k8s.io/link",
        "nodegauge.dev/interconnect",
    ],
)
@pytest.mark.parametrize("take_over", [True, False])
def test_a_key_of_another_controller_is_refused(key: str, take_over: bool) -> None:
    """Both would write it for ever; the message names the field and the way out."""
    with pytest.raises(PolicyInvalid) as caught:
        parse(body(labels={"interconnectKey": key, "takeOver": take_over}))
    assert "`spec.labels.interconnectKey`" in str(caught.value)
    assert "write a key of your own" in str(caught.value)


@pytest.mark.parametrize("key", ["interconnect", "example.com/nvidia.com", "mynvidia.com/link", ""])
def test_any_other_key_is_accepted(key: str) -> None:
    """A name that only resembles one."""
    assert parse(body(labels={"interconnectKey": key})).spec.labels.interconnect_key == key


@pytest.mark.parametrize(
    "selector",
    [
        {"matchLabels": {"fabric": "nvlink"}},
        expression("fabric", "NotIn", "pcie"),
        expression("fabric", "DoesNotExist"),
    ],
)
@pytest.mark.parametrize("take_over", [True, False])
def test_a_policy_that_selects_by_the_key_that_it_writes_is_refused(
    selector: dict[str, Any], take_over: bool
) -> None:
    """Its own label would take the node away from it."""
    with pytest.raises(PolicyInvalid) as caught:
        parse(body(nodeSelector=selector, labels={"interconnectKey": "fabric", "takeOver": take_over}))
    assert "`spec.labels.interconnectKey`" in str(caught.value)
    assert "write another key" in str(caught.value)


def test_the_default_key_counts_too() -> None:
    """Nobody has to write it."""
    with pytest.raises(PolicyInvalid, match="write another key"):
        parse(body(nodeSelector=expression("interconnect")))


@pytest.mark.parametrize(
    "selector", [{"matchLabels": {"nodegauge.dev/health": "pass"}}, expression("nodegauge.dev/x")]
)
def test_a_selector_by_labels_of_ours_is_refused(selector: dict[str, Any]) -> None:
    """They come and go with readings, which only nodes of a policy have."""
    with pytest.raises(PolicyInvalid, match="write another label key") as caught:
        parse(body(nodeSelector=selector))
    assert "`spec.nodeSelector`" in str(caught.value)


def test_of_two_policies_that_would_pass_a_node_to_and_fro_neither_gets_it() -> None:
    """`fast` selects by the key that `default` writes, and writes none: the label came and went for ever."""

    async def story(operator: VirtualTimeOperator) -> None:
        operator.nodes(1)
        operator.cluster.add_policy(labels={"interconnectKey": "fabric"})
        operator.cluster.add_policy(
            "fast", priority=5, nodeSelector=expression("fabric"), labels={"interconnectKey": ""}
        )
        operator.start()
        await operator.after(3600)
        changes: list[bool] = []
        operator.cluster.subscribers.append(
            lambda path, _, seen: (
                changes.append("fabric" in seen["metadata"]["labels"]) if path == NODES else None
            )
        )
        await operator.after(3600)
        assert not any(changes)
        labels = operator.cluster.objects[NODES]["node-0"]["metadata"]["labels"]
        assert "nodegauge.dev/interconnect" in labels
        ready = _ready(operator.cluster, "default")
        assert (ready["status"], ready["reason"]) == ("False", "Invalid")
        assert ready["message"].startswith(
            "spec.labels.interconnectKey: policy fast selects nodes by the label fabric"
        )
        assert "write another key" in ready["message"]

    on_virtual_time(story)()


def test_the_label_comes_once_the_other_policy_is_gone() -> None:
    """And goes again with another one, whatever their order."""
    cluster = FakeCluster()
    cluster.add_node()
    cluster.add_policy("fast", nodeSelector=expression("fabric"), labels={"interconnectKey": ""})
    cluster.add_policy(labels={"interconnectKey": "fabric"})
    operator = SteppedOperator(cluster)
    operator.list()
    operator.run()
    assert "fabric" not in operator.labels
    cluster.remove(POLICIES, "fast")
    operator.catch_up()
    assert "fabric" in operator.labels
    cluster.add_policy(
        "slow", nodeSelector={"matchLabels": {"fabric": "pcie"}}, labels={"interconnectKey": ""}
    )
    operator.catch_up()
    assert "fabric" not in operator.labels


def test_two_policies_may_write_the_same_key() -> None:
    """Neither selects by it."""
    cluster = FakeCluster()
    cluster.add_node()
    cluster.add_policy()
    cluster.add_policy("other", nodeSelector={"matchLabels": {"tier": "gold"}})
    operator = SteppedOperator(cluster)
    operator.list()
    operator.run()
    assert "interconnect" in operator.labels


def _ready(cluster: FakeCluster, name: str) -> dict[str, Any]:
    status = cluster.objects[POLICIES][name]["status"]
    (condition,) = [c for c in status["conditions"] if c["type"] == "Ready"]
    return dict(condition)
