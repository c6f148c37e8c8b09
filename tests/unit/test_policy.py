"""Policies as users write them: what is read, what is refused with which words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nodegauge_operator.api.policy import Mode, PolicyInvalid, parse, ranked, seconds
from nodegauge_operator.api.selector import Selector
from support.objects import make_policy
from support.properties import tried


def body(**spec: Any) -> dict[str, Any]:
    """A policy object."""
    return {"metadata": {"name": "p", "uid": "u", "generation": 3}, "spec": {"nodeSelector": {}} | spec}


def test_a_selector_is_all_that_is_needed() -> None:
    """The defaults are those of the documentation."""
    policy = parse(body())
    assert (policy.name, policy.uid, policy.generation) == ("p", "u", 3)
    assert (policy.spec.mode, policy.spec.priority) == (Mode.ENFORCE, 0)
    assert policy.watches
    assert (policy.interval_of("health"), policy.run_interval_of("health")) == (7200.0, 900.0)
    assert policy.spec.budget.concurrent_probes == "10%"
    assert policy.spec.labels.interconnect_key == "interconnect"


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"mode": "Force"}, "spec.mode"),
        ({"priority": "high"}, "spec.priority"),
        ({"priority": 10**9}, "spec.priority"),
        ({"staleAfterIntervals": 1}, "spec.staleAfterIntervals"),
        ({"probes": {"health": {"interval": "15"}}}, "spec.probes.health.interval"),
        ({"probes": {"health": {"interval": "1d"}}}, "spec.probes.health.interval"),
        ({"probes": {"health": {"enabled": "yes"}}}, "spec.probes.health.enabled"),
        ({"budget": {"concurrentProbes": -1}}, "spec.budget.concurrentProbes"),
        ({"budget": {"concurrentProbes": "101%"}}, "spec.budget.concurrentProbes"),
        ({"budget": {"concurrentProbes": "ten"}}, "spec.budget.concurrentProbes"),
        ({"thresholds": {"nvlinkSumRatio": 1.5}}, "spec.thresholds.nvlinkSumRatio"),
        ({"labels": {"takeOver": 1}}, "spec.labels.takeOver"),
        (
            {"nodeSelector": {"matchExpressions": [{"key": "k", "operator": "Like"}]}},
            "spec.nodeSelector.matchExpressions[0].operator",
        ),
        ({"nodeSelector": {"matchLabels": {"a": 1}}}, "spec.nodeSelector.matchLabels"),
        (
            {"nodeSelector": {"matchExpressions": [{"operator": "Exists"}]}},
            "spec.nodeSelector.matchExpressions[0]",
        ),
        ({"nodeSelector": None}, "spec.nodeSelector"),
        ({"podTemplate": {"image": "probe"}}, "spec.podTemplate.image"),
        ({"podTemplate": {"ncclImage": "mirror/nodegauge/nccl:1"}}, "spec.podTemplate.ncclImage"),
    ],
)
def test_what_cannot_be_read_is_named(spec: dict[str, Any], path: str) -> None:
    """The field's path as a person would type it, and nothing of how it is checked inside."""
    with pytest.raises(PolicyInvalid) as caught:
        parse(body() | {"spec": {"nodeSelector": {}} | spec})
    assert f"`{path}" in str(caught.value)
    assert "$." not in str(caught.value)
    assert "+spec" not in str(caught.value)


def test_a_policy_without_a_spec_is_refused() -> None:
    """With the field that it needs."""
    with pytest.raises(PolicyInvalid, match="nodeSelector"):
        parse({"metadata": {"name": "p"}})


def test_fields_of_a_newer_version_are_ignored() -> None:
    """A newer CRD must not stop an older operator."""
    assert parse(body(taints={"throttled": "NoSchedule"}, probes={"nccl": {"interval": "24h"}})) == parse(
        body()
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("15m", 900),
        ("1h30m", 5400),
        ("500ms", 0.5),
        ("0s", 0),
        ("90s", 90),
        ("1m1m", 120),
        ("1h2m3s4ms", 3723.004),
    ],
)
def test_durations(text: str, expected: float) -> None:
    """As Go writes them, without fractions and signs."""
    assert seconds(text) == pytest.approx(expected)


@pytest.mark.parametrize(
    "text", ["", "15", "m", "1.5h", "-1s", "1 s", "1d", "s1", "15m ", "15m\n", "\u0661s"]
)
def test_what_is_no_duration_says_so(text: str) -> None:
    """With examples."""
    with pytest.raises(ValueError, match="30s, 15m or 1h30m"):
        seconds(text)


@given(text=st.text(alphabet="0123456789hms. -\n", max_size=8))
@tried(300)
def test_no_text_is_read_half(text: str) -> None:
    """Every character counts, or it is refused."""
    try:
        result = seconds(text)
    except ValueError:
        return
    assert result >= 0
    assert all(c in "0123456789hms" for c in text)


# -- which policy a node follows --------------------------------------------------------------------------


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
    ],
)
def test_expressions(operator: str, values: tuple[str, ...], labels: dict[str, str], holds: bool) -> None:
    """As apimachinery's labels.Selector; what is not known matches nothing."""
    selector = make_policy().where("k", operator, *values).spec.node_selector
    assert selector.matches(labels) is holds


def test_all_parts_must_hold_and_no_part_selects_everything() -> None:
    """An empty selector is every node, as everywhere in Kubernetes."""
    both = replace(
        make_policy().where("gpu", "Exists").spec.node_selector, match_labels={"tier": "gold", "zone": "a"}
    )
    assert both.matches({"tier": "gold", "zone": "a", "gpu": "x"})
    for lost in ("tier", "zone", "gpu"):
        labels = {"tier": "gold", "zone": "a", "gpu": "x"}
        del labels[lost]
        assert not both.matches(labels)
    assert Selector().matches({})


@given(order=st.permutations([("a", 0), ("b", 0), ("c", 7), ("d", -3)]))
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
