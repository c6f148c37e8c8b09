"""Taint keys of a policy: one write changes them, no earlier one stays, and foreign keys are refused."""

from typing import Any

import pytest

from nodegauge_operator import names
from nodegauge_operator.api.policy import PolicyInvalid, parse
from nodegauge_operator.core.outlets import taint_patch
from nodegauge_operator.core.probes.whole_node import tolerations
from support.api_server import NODES, POLICIES
from support.objects import MINUTE, make_node, make_policy, make_report, taint
from support.operator import SteppedOperator, some_nodes

NAMES = [key.removeprefix(names.PREFIX) for key in names.NODE_TAINTS]
CA, OTHER = "status-taint.cluster-autoscaler.kubernetes.io/nodegauge-", "gpu.example.com/nodegauge-"

pytestmark = pytest.mark.usefixtures("stated_answers")


def keys(prefix: str) -> dict[str, str]:
    return {name: f"{prefix}{name}" for name in NAMES}


def ask_for(operator: SteppedOperator, prefix: str, **taints: Any) -> None:
    operator.cluster.change(POLICIES, "default", {"spec": {"taints": {"keys": keys(prefix)} | taints}})
    operator.deliver()


def on_node(operator: SteppedOperator) -> list[str]:
    taints = operator.cluster.get(NODES, "node-1")["spec"].get("taints") or ()
    return [f"{t['key']}={t.get('value', '')}".rstrip("=") for t in taints]


def test_a_changed_key_comes_in_the_write_that_removes_the_earlier_one() -> None:
    """Back to the default too; without a new slot, event or run, and with healing as ever."""
    operator = some_nodes("node-1", taints=("team",))
    operator.measure("gpu-lost=b")
    tainted_at = operator.status["taintedAt"]
    for prefix in (CA, OTHER, names.PREFIX, CA):
        operator.cluster.pass_time(61 * MINUTE)
        operator.client.log.clear()
        ask_for(operator, prefix)
        operator.catch_up(granted=False)
        assert on_node(operator) == ["team", f"{prefix}unhealthy=gpu-lost"]
        assert operator.client.log.count("PATCH nodes") == 1
        assert [t["key"] for t in operator.status["desired"]["taints"]] == [f"{prefix}unhealthy"]
    assert operator.status["taintedAt"] == tainted_at
    for _ in range(3):
        operator.measure("")
    assert on_node(operator) == ["team"]


def test_a_clean_up_finds_keys_that_no_policy_names_any_more() -> None:
    """The report that knew them may be gone too."""
    node = make_node().tainted("team", f"{OTHER}throttled=thermal", f"{CA}unhealthy=xid", "x/unhealthy")
    assert taint_patch(node, ()) == (taint("team"), taint("x/unhealthy"))


@pytest.mark.parametrize("closing", ["Lift", "Set"])
def test_a_kubelets_unvalidated_stays_until_the_first_pass_whatever_its_key(closing: str) -> None:
    operator = some_nodes("node-1", taints=(names.TAINT_UNVALIDATED,))
    ask_for(operator, CA, unvalidated=closing)
    operator.catch_up(granted=False)
    assert on_node(operator) == [f"{CA}unvalidated" if closing == "Set" else names.TAINT_UNVALIDATED]
    operator.measure("")
    assert on_node(operator) == []


def test_probe_pods_tolerate_the_keys_in_force_and_those_on_the_node() -> None:
    """Else a gated node would never be measured again."""
    policy = make_policy().of(
        {"taints": {"keys": keys(CA)}, "podTemplate": {"tolerations": [{"key": "team"}]}}
    )
    node = make_node().tainted(f"{OTHER}unhealthy=xid")
    context = make_report().context(node=node, policy=policy)
    made = {t["key"] for t in tolerations(context)}
    assert made == {"team", *names.NODE_TAINTS, *keys(CA).values(), f"{OTHER}unhealthy"}


REFUSED = [
    "nodegauge.dev/nodegauge-",
    "node.kubernetes.io/nodegauge-",
    "karpenter.sh/nodegauge-",
    "a..b/nodegauge-",
]
REFUSED += [
    "example.com/",
    "nodegauge-",
    "status-taint.cluster-autoscaler.kubernetes.io/",
    "Example.com/nodegauge-",
]


@pytest.mark.parametrize("prefix", REFUSED)
@pytest.mark.parametrize("name", NAMES)
def test_a_foreign_key_is_refused_by_field_and_way_out(prefix: str, name: str) -> None:
    spec = {"nodeSelector": {}, "taints": {"keys": {name: prefix + name}}}
    with pytest.raises(PolicyInvalid, match=f"/nodegauge-{name} - at `spec.taints.keys.{name}`"):
        parse({"metadata": {"name": "p"}, "spec": spec})


@pytest.mark.parametrize("prefix", [CA, OTHER, "readiness.k8s.io/nodegauge-", names.PREFIX])
def test_an_allowed_key_is_known_as_ours_without_its_policy(prefix: str) -> None:
    assert parse({"metadata": {"name": "p"}, "spec": {"nodeSelector": {}, "taints": {"keys": keys(prefix)}}})
    assert [names.own_taint(key) for key in keys(prefix).values()] == [*names.NODE_TAINTS]


@pytest.mark.parametrize(
    "key", ["team", "nodegauge.dev/else", "x/unhealthy", "x/nodegauge-unhealthy-2", "nodegauge-xid"]
)
def test_other_taints_are_not_ours(key: str) -> None:
    assert taint(key).own == ""
