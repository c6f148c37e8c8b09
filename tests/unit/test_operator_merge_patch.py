"""RFC 7386: the difference of two documents, applied to the first, is the second."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nodegauge_operator.kube.reports import difference, without_nulls
from support.api_server import merged
from support.properties import tried

LEAVES = st.sampled_from(["", "a", "b", 7, 8, 2.5])
KEYS = st.sampled_from("xyz")
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)
DOCUMENTS = st.dictionaries(KEYS, VALUES, max_size=3)


@given(old=DOCUMENTS, new=DOCUMENTS)
@tried(200)
def test_a_difference_leads_from_one_to_the_other(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Whatever is added, changed, emptied or removed, at any depth."""
    assert merged(old, difference(old, new)) == new


@given(document=DOCUMENTS)
@tried(100)
def test_nothing_changed_is_an_empty_patch(document: dict[str, Any]) -> None:
    """So that nothing is written."""
    assert difference(document, document) == {}


def test_only_what_differs_is_in_it() -> None:
    """Removed keys are null, lists come whole, equal parts stay out."""
    old = {"a": {"b": 1, "c": 2}, "l": [1, 2], "same": {"x": 1}}
    assert difference(old, {"a": {"b": 1, "c": 3}, "l": [1], "same": {"x": 1}}) == {"a": {"c": 3}, "l": [1]}
    assert difference(old, {"a": {}, "l": [1, 2]}) == {"a": {"b": None, "c": None}, "same": None}


NULLED = st.recursive(
    LEAVES | st.none(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(value=st.dictionaries(KEYS, NULLED, max_size=3))
@tried(200)
def test_null_is_no_value_in_a_patched_document(value: dict[str, Any]) -> None:
    """A merge patch cannot say null: such keys are left out, at any depth."""

    def nulls(part: Any) -> bool:
        if isinstance(part, dict):
            return any(v is None or nulls(v) for v in part.values())
        return isinstance(part, list) and any(nulls(v) for v in part)

    clean = without_nulls(value)
    assert not nulls(clean)
    assert merged({}, difference({}, clean)) == clean
