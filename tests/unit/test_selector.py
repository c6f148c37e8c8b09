"""Label selectors: as policies write them, and as the chart's values do."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodegauge_operator.api.selector import match_expressions
from support.chart import CHART
from support.properties import tried

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
    """Every form that Kubernetes knows."""
    names = ("key", "operator", "values")
    assert match_expressions(text) == [dict(zip(names, each, strict=False)) for each in expressions]


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("pool in a,b", "pool in a,b"),
        ("a=b c=d", "a=b c=d"),
        ("a,=b", "=b"),
        ("a,,b", ",b"),
        ("a=b=c", "a=b=c"),
        ("a in (b", "a in (b"),
        ("!a=b", "!a=b"),
    ],
)
def test_what_is_no_selector_is_named(text: str, rest: str) -> None:
    """From where on it cannot be read."""
    with pytest.raises(ValueError, match=re.escape(f"from {rest!r} on")):
        match_expressions(text)


@tried(300)
@given(st.from_regex(DEFINITIONS["labelSelector"]["pattern"], fullmatch=True))
def test_what_the_chart_accepts_is_read(text: str) -> None:
    """The operator would not start otherwise."""
    match_expressions(text)
