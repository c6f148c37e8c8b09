"""Lists of alike objects written by column instead of by row, which is how a result fits its message.

Eight GPUs repeat every member name eight times, and numbers of one kind stand far apart; by column a name
stands once and its numbers side by side, and compression has far less to do.
`[{"a": 1, "b": 2}, {"a": 3, "b": 4}]` becomes `{"~": {"a": [1, 3], "b": [2, 4]}}`, at every level.

`restore` reads what strangers wrote: depth and lengths are bounded, so that a short text cannot unfold into a
large object.  Pure functions over JSON's own types.
"""

from __future__ import annotations

from typing import Any

MARK = "~"
MAX_DEPTH = 16
MAX_ROWS = 128
_NESTED = frozenset({list, dict})


class BadColumns(ValueError):
    """Columns that are no table: the message says what is wrong."""


def transpose(value: Any) -> Any:
    """`value` with every list of two or more objects of the same members written by column."""
    if isinstance(value, dict):
        return {name: transpose(member) for name, member in value.items()}
    if not isinstance(value, list):
        return value
    if len(value) < 2 or not all(isinstance(row, dict) and row.keys() == value[0].keys() for row in value):
        return [transpose(row) for row in value]
    if not value[0]:
        return value
    return {MARK: {name: transpose([row[name] for row in value]) for name in value[0]}}


def restore(value: Any, *, depth: int = 0) -> Any:
    """The inverse of `transpose`; raises `BadColumns`."""
    if depth > MAX_DEPTH:
        raise BadColumns(f"nested deeper than {MAX_DEPTH}")
    if type(value) is list:
        return [restore(row, depth=depth + 1) if type(row) in _NESTED else row for row in value]
    if type(value) is not dict:
        return value
    table = value.get(MARK)
    if table is not None and len(value) == 1:
        return _rows(table, depth=depth + 1)
    return _members(value, depth=depth + 1)


def _members(value: dict[str, Any], *, depth: int) -> dict[str, Any]:
    return {
        name: restore(member, depth=depth) if type(member) in _NESTED else member
        for name, member in value.items()
    }


def _rows(table: Any, *, depth: int) -> list[dict[str, Any]]:
    if type(table) is not dict or not table:
        raise BadColumns("columns without names")
    columns = _members(table, depth=depth)
    lengths = {len(column) if type(column) is list else -1 for column in columns.values()}
    rows = lengths.pop()
    if lengths or not 0 <= rows <= MAX_ROWS:
        raise BadColumns(f"columns of different lengths, or longer than {MAX_ROWS}")
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
