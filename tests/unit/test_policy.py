"""Policies as users write them: what is read, what is refused with which words."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodegauge_operator.api.policy import Mode, PolicyInvalid, parse, ranked, seconds
from nodegauge_operator.api.selector import Selector, match_expressions
from nodegauge_operator.core.budget import concurrent_probes, retry_slots
from support.api_server import NODES, POLICIES
from support.chart import CHART
from support.objects import make_policy
from support.properties import tried
from support.virtual_operator import VirtualTimeOperator, on_virtual_time


def body(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p", "uid": "u", "generation": 3}, "spec": {"nodeSelector": {}} | spec}


def expression(key: str, operator: str = "Exists", *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def test_a_selector_is_all_that_is_needed() -> None:
    policy = parse(body())
    assert (policy.name, policy.uid, policy.generation) == ("p", "u", 3)
    assert (policy.spec.mode, policy.spec.priority) == (Mode.ENFORCE, 0)
    assert policy.watches
    assert (policy.interval_of("health"), policy.run_interval_of("health")) == (7200.0, 900.0)
    assert policy.spec.budget.concurrent_probes == "10%"
    assert policy.spec.labels.interconnect_key == "interconnect"


UNREADABLE: dict[str, list[Any]] = {
    "mode": ["Force"],
    "priority": ["high", 10**9],
    "staleAfterIntervals": [1],
    "probes.health.interval": ["15", "1d"],
    "probes.health.enabled": ["yes"],
    "budget.concurrentProbes": [-1, "101%", "ten"],
    "thresholds.nvlinkSumRatio": [1.5],
    "labels.takeOver": [1],
    "nodeSelector": [None],
    "nodeSelector.matchLabels": [{"a": 1}],
    "podTemplate.image": ["probe"],
    "podTemplate.ncclImage": ["mirror/nodegauge/nccl:1"],
}
"""Values by field."""


@pytest.mark.parametrize(
    ("field", "value", "path"),
    [
        *((field, value, field) for field, values in UNREADABLE.items() for value in values),
        ("nodeSelector", expression("k", "Like"), "nodeSelector.matchExpressions[0].operator"),
        ("nodeSelector", {"matchExpressions": [{"operator": "In"}]}, "nodeSelector.matchExpressions[0]"),
    ],
)
def test_what_cannot_be_read_is_named(field: str, value: Any, path: str) -> None:
    """The field's path as a person would type it, and nothing of how it is checked inside."""
    for name in reversed(field.split(".")):
        value = {name: value}
    with pytest.raises(PolicyInvalid) as caught:
        parse(body(**value))
    assert f"`spec.{path}" in str(caught.value)
    assert "$." not in str(caught.value)
    assert "+spec" not in str(caught.value)


def test_fields_of_a_newer_version_are_ignored() -> None:
    newer = body(taints={"throttled": "NoSchedule"}, probes={"nccl": {"interval": "24h"}})
    assert parse(newer) == parse(body())


DURATIONS = {"15m": 900, "1h30m": 5400, "500ms": 0.5, "0s": 0, "90s": 90, "1m1m": 120, "1h2m3s4ms": 3723.004}


@pytest.mark.parametrize(("text", "expected"), DURATIONS.items())
def test_durations(text: str, expected: float) -> None:
    """As Go writes them, without fractions and signs."""
    assert seconds(text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", "15", "m", "1.5h", "-1s", "1 s", "1d", "s1", "5m ", "5m\n", "\u0661s"])
def test_what_is_no_duration_says_so(text: str) -> None:
    with pytest.raises(ValueError, match="30s, 15m or 1h30m"):
        seconds(text)


@pytest.mark.parametrize(
    ("operator", "values", "holds"),
    [
        ("In", ["a", "b"], {"a"}),
        ("In", [""], {""}),
        ("NotIn", ["a"], {"", "c", None}),
        ("Exists", [], {"", "a", "c"}),
        ("DoesNotExist", [], {None}),
    ],
)
@pytest.mark.parametrize("value", ["", "a", "c", None])
def test_expressions(operator: str, values: list[str], holds: set[str | None], value: str | None) -> None:
    """As apimachinery's labels.Selector, for each value of the label and for a node without it."""
    selector = make_policy().of({"nodeSelector": expression("k", operator, *values)}).spec.node_selector
    assert selector.matches({} if value is None else {"k": value}) is (value in holds)


def test_all_parts_must_hold_and_no_part_selects_everything() -> None:
    parts = expression("gpu") | {"matchLabels": {"tier": "gold", "zone": "a"}}
    both = make_policy().of({"nodeSelector": parts}).spec.node_selector
    labels = {"tier": "gold", "zone": "a", "gpu": "x"}
    assert both.matches(labels)
    for lost in labels:
        assert not both.matches({key: value for key, value in labels.items() if key != lost})
    assert Selector().matches({})


@given(order=st.permutations([("a", 0), ("b", 0), ("c", 7), ("d", -3)]))
@tried(24)
def test_the_higher_priority_wins_and_then_the_name(order: list[tuple[str, int]]) -> None:
    policies = [make_policy(name).ranked(priority) for name, priority in order]
    assert [p.name for p in ranked(policies, {})] == ["c", "a", "b", "d"]


DEFINITIONS = json.loads((CHART / "values.schema.json").read_text())["definitions"]


@pytest.mark.parametrize(
    ("text", "expressions"),
    [
        ("", []),
        ("nvidia.com/gpu.present=true", [("nvidia.com/gpu.present", "In", ["true"])]),
        ("a==b, c != d", [("a", "In", ["b"]), ("c", "NotIn", ["d"])]),
        ("a, !b,! c", [("a", "Exists"), ("b", "DoesNotExist"), ("c", "DoesNotExist")]),
        ("pool in (x, y),tier notin(z)", [("pool", "In", ["x", "y"]), ("tier", "NotIn", ["z"])]),
        ("a=,b in ()", [("a", "In", [""]), ("b", "In", [""])]),
        ("count > 3,count<9", [("count", "Gt", ["3"]), ("count", "Lt", ["9"])]),
        ("in in (in),notin", [("in", "In", ["in"]), ("notin", "Exists")]),
    ],
)
def test_a_selector_of_lists_becomes_match_expressions(text: str, expressions: list[tuple[Any, ...]]) -> None:
    names = ("key", "operator", "values")
    assert match_expressions(text) == [dict(zip(names, each, strict=False)) for each in expressions]


@pytest.mark.parametrize("text", ["pool in a,b", "a=b c=d", "a,=b", "a,,b", "a=b=c", "a in (b", "!a=b"])
def test_what_is_no_selector_is_named(text: str) -> None:
    rest = text.removeprefix("a,")
    with pytest.raises(ValueError, match=re.escape(f"from {rest!r} on")):
        match_expressions(text)


@tried(100)
@given(st.from_regex(DEFINITIONS["labelSelector"]["pattern"], fullmatch=True))
def test_what_the_chart_accepts_is_read(text: str) -> None:
    """The operator would not start otherwise."""
    match_expressions(text)


@pytest.mark.parametrize(
    ("setting", "slots"),
    [
        ("10%", {100: 10, 109: 10, 9: 1, 1: 1, 0: 1}),
        ("99%", {3: 2}),
        ("29%", {100: 29}),
        ("100%", {40: 40, 5000: 200}),
        ("1%", {5000: 50}),
        ("0%", {5000: 0}),
        (0, {5000: 0}),
        (1, {5000: 1}),
        (7, {3: 7}),
        (100_000, {5000: 200}),
    ],
)
def test_places(setting: int | str, slots: dict[int, int]) -> None:
    """By number of nodes: a count as it is; per cent rounded down, at least 1; never over the installation's
    limit; 0 pauses."""
    assert {nodes: concurrent_probes(setting, nodes, most=200) for nodes in slots} == slots


@given(slots=st.integers(0, 300), nodes=st.integers(1, 5000), data=st.data())
@tried(100)
def test_nodes_that_fail_leave_the_others_their_share(slots: int, nodes: int, data: st.DataObject) -> None:
    """A fifth of the slots at least, all of them if every node fails, and never a slot that there is not."""
    unread = data.draw(st.integers(0, nodes))
    retry = retry_slots(slots, unread=unread, nodes=nodes)
    assert min(slots, max(1, slots // 5)) <= retry <= slots
    assert retry == 1 or slots - retry >= min(slots * 4 // 5, slots * (nodes - unread) // nodes)
    assert unread < nodes or retry == slots


OTHERS = ("nvidia.com/gpu.product", "feature.nvidia.com/link", "node-role.kubernetes.io/gpu")
OTHERS += ("topology.k8s.io/link", "node.cluster.x-k8s.io/link", "nodegauge.dev/interconnect")
KEY, SELECTOR = "spec.labels.interconnectKey", "spec.nodeSelector"


@pytest.mark.parametrize(
    ("key", "selector", "field", "way_out"),
    [
        *((key, {}, KEY, "write a key of your own") for key in OTHERS),
        ("fabric", {"matchLabels": {"fabric": "nvlink"}}, KEY, "write another key"),
        ("fabric", expression("fabric", "NotIn", "pcie"), KEY, "write another key"),
        ("fabric", expression("fabric", "DoesNotExist"), KEY, "write another key"),
        (None, expression("interconnect"), KEY, "write another key"),
        (None, {"matchLabels": {"nodegauge.dev/health": "pass"}}, SELECTOR, "write another label key"),
        (None, expression("nodegauge.dev/x"), SELECTOR, "write another label key"),
    ],
)
@pytest.mark.parametrize("take_over", [True, False])
def test_a_policy_that_would_not_come_to_rest_is_refused(
    key: str | None, selector: dict[str, Any], field: str, way_out: str, take_over: bool
) -> None:
    """Two controllers would write the key for ever; the policy's own label would take its nodes away; labels
    of ours come and go with readings, which only nodes of a policy have.  The message names field and way
    out."""
    labels = {"takeOver": take_over} | ({"interconnectKey": key} if key else {})
    with pytest.raises(PolicyInvalid, match=way_out) as caught:
        parse(body(nodeSelector=selector, labels=labels))
    assert f"`{field}`" in str(caught.value)


@on_virtual_time
async def test_of_two_policies_that_would_pass_a_node_to_and_fro_neither_gets_it(
    operator: VirtualTimeOperator,
) -> None:
    """`fast` selects by the key that `default` writes, and writes none: the label came and went for ever.  It
    comes once the other policy is gone, and goes again with another one, whatever their order."""
    none = {"interconnectKey": ""}
    operator.nodes(1)
    operator.cluster.add_policy(labels={"interconnectKey": "fabric"})
    operator.cluster.add_policy("fast", priority=5, nodeSelector=expression("fabric"), labels=none)
    operator.start()
    await operator.after(3600)
    changes: list[bool] = []
    operator.cluster.subscribers.append(
        lambda path, _, seen: changes.append(path == NODES and "fabric" in seen["metadata"]["labels"])
    )
    await operator.after(3600)
    assert not any(changes)
    labels = operator.cluster.objects[NODES]["node-0"]["metadata"]["labels"]
    assert "nodegauge.dev/interconnect" in labels
    ready = operator.cluster.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", "Invalid")
    assert ready["message"].startswith(f"{KEY}: policy fast selects nodes by the label fabric")
    assert "write another key" in ready["message"]
    operator.cluster.remove(POLICIES, "fast")
    await operator.after(3600)
    assert "fabric" in operator.cluster.objects[NODES]["node-0"]["metadata"]["labels"]
    operator.cluster.add_policy("slow", nodeSelector={"matchLabels": {"fabric": "pcie"}}, labels=none)
    await operator.after(3600)
    assert "fabric" not in operator.cluster.objects[NODES]["node-0"]["metadata"]["labels"]


@pytest.mark.parametrize("key", ["interconnect", "example.com/nvidia.com", "mynvidia.com/link", ""])
def test_any_other_key_is_accepted(key: str) -> None:
    assert parse(body(labels={"interconnectKey": key})).spec.labels.interconnect_key == key
