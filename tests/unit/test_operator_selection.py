"""Which policy a node follows: Kubernetes' selector rules, priority, then the name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nodegauge_operator import names
from nodegauge_operator.api.policy import Selector, ranked
from support import make_node, make_policy, tried
from support.objects import ANode

pytestmark = pytest.mark.timeout(10)


@pytest.mark.parametrize(
    ("operator", "values", "labels", "holds"),
    [
        ("In", ("a", "b"), {"k": "a"}, True),
        ("In", ("a", "b"), {"k": "c"}, False),
        ("In", ("a", "b"), {}, False),
        ("In", ("",), {}, False),
        ("In", ("",), {"k": ""}, True),
        ("NotIn", ("a",), {"k": "a"}, False),
        ("NotIn", ("a",), {"k": "b"}, True),
        ("NotIn", ("a",), {}, True),
        ("Exists", (), {"k": ""}, True),
        ("Exists", (), {}, False),
        ("DoesNotExist", (), {}, True),
        ("DoesNotExist", (), {"k": ""}, False),
        ("Like", ("a",), {"k": "a"}, False),
    ],
)
def test_expressions(operator: str, values: tuple[str, ...], labels: dict[str, str], holds: bool) -> None:
    """As apimachinery's labels.Selector; what is not known matches nothing."""
    selector = make_policy().where("k", operator, *values).spec.node_selector
    assert selector.matches(labels) is holds


def test_all_parts_must_hold_and_no_part_selects_everything() -> None:
    """An empty selector is every node, as everywhere in Kubernetes."""
    both = replace(
        make_policy().where("gpu", "Exists").spec.node_selector,
        match_labels={"tier": "gold", "zone": "a"},
    )
    assert both.matches({"tier": "gold", "zone": "a", "gpu": "x"})
    for lost in ("tier", "zone", "gpu"):
        labels = {"tier": "gold", "zone": "a", "gpu": "x"}
        del labels[lost]
        assert not both.matches(labels)
    assert Selector().matches({})


@given(
    order=st.permutations([("a", 0), ("b", 0), ("c", 7), ("d", -3)]),
)
@tried(24)
def test_the_higher_priority_wins_and_then_the_name(order: list[tuple[str, int]]) -> None:
    """Whatever order they arrive in."""
    policies = [make_policy(name).ranked(priority) for name, priority in order]
    assert [p.name for p in ranked(policies, {})] == ["c", "a", "b", "d"]


def test_a_policy_that_does_not_select_the_node_does_not_count() -> None:
    """Priority is among those that do."""
    gold = make_policy("gold").ranked(9).selecting(tier="gold")
    assert [p.name for p in ranked([gold, make_policy()], {"tier": "tin"})] == ["default"]
    assert ranked([gold], {}) == []


@pytest.mark.parametrize(
    ("node", "may"),
    [
        (make_node(), True),
        (make_node().not_ready(), False),
        (replace(make_node(), deleting=True), False),
        (make_node().tainted("node.kubernetes.io/unschedulable"), True),
        (make_node().tainted("nvidia.com/gpu", "whatever"), True),
        *[(make_node().tainted("x", taint), False) for taint in names.TAINTS_OF_NODES_BEING_REMOVED],
    ],
)
def test_where_a_run_may_be_planned(node: ANode, may: bool) -> None:
    """Ready and not on its way out; cordoned nodes are health-checked (promise 7)."""
    assert node.may_run is may
