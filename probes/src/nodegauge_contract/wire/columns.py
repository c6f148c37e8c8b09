"""A document by column instead of by row, so that a result fits into its message.

Sixteen GPUs have each of two hundred members sixteen times.  Written by column and in the order in which the
schema declares them, members need no names, values that all GPUs share are written once, values that were not
read are not written, and numbers of one kind are adjacent (`cells`).  A column of objects is the list of its
members' columns, or `{"-": [that list, 3]}` where object 3 has the default in all of them (a lost GPU's
have); a column of lists is their lengths and then one column of all their items.

So the order of members is part of the wire: add new ones at the end of their struct, and never move or remove
one.  A reader skips columns after those that it knows, and uses its own default for missing ones.

Unfolding is bounded: depth by the schema, rows and cells by `cells.Unfolding`.  Pure functions over JSON's
own types; `codec` checks the schema itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import inspect

from nodegauge_contract.values import Unavailable
from nodegauge_contract.wire.cells import (
    ABSENT,
    EXCEPT,
    MAX_ROWS,
    BadColumns,
    Folding,
    Unfolding,
    fold,
    skip,
    unfold,
)

NO_DEFAULT: Final = object()
PRESENT = 1


class Leaf:
    """A number, a text, a flag, null, or the reason why there is none."""

    def fold(self, values: list[Any], into: Folding, *, default: Any) -> Any:
        return fold(values, into, default=default)

    def unfold(self, column: Any, rows: int, source: Unfolding) -> list[Any]:
        return unfold(column, rows, source)

    def paths(self, prefix: str) -> Iterator[str]:
        yield prefix


class Group:
    """An object: (name, plan, default) of its members in declaration order."""

    def __init__(self, members: list[tuple[str, Plan, Any]]) -> None:
        self._members = members
        self._blank = {name: usual for name, _, usual in members}

    def fold(self, values: list[Any], into: Folding, *, default: Any) -> Any:
        blank = [row for row, value in enumerate(values) if value == self._blank]
        if len(blank) == len(values):
            return None
        if not blank:
            return self._columns(values, into)
        return {EXCEPT: [self._columns([v for v in values if v != self._blank], into), *blank]}

    def _columns(self, values: list[Any], into: Folding) -> list[Any]:
        columns = [
            plan.fold([value[name] for value in values], into, default=usual)
            for name, plan, usual in self._members
        ]
        while columns and columns[-1] is None and self._members[len(columns) - 1][2] is not NO_DEFAULT:
            columns.pop()
        return columns

    def unfold(self, column: Any, rows: int, source: Unfolding) -> list[Any]:
        source.spend(rows)
        objects: list[dict[str, Any]] = [{} for _ in range(rows)]
        columns, blank = _without_blank(column, rows)
        filled = [each for row, each in enumerate(objects) if row not in blank]
        for (name, plan, _), members in zip(self._members, columns, strict=False):
            for each, value in zip(filled, plan.unfold(members, len(filled), source), strict=True):
                if value is not ABSENT:
                    each[name] = value
        for unknown in columns[len(self._members) :]:
            skip(unknown, source)
        return objects

    def paths(self, prefix: str) -> Iterator[str]:
        for name, plan, _ in self._members:
            yield from plan.paths(f"{prefix}.{name}" if prefix else name)


class Many:
    """A list."""

    def __init__(self, item: Plan) -> None:
        self._item = item

    def fold(self, values: list[Any], into: Folding, *, default: Any) -> Any:
        lengths = fold([len(value) for value in values], into, default=0)
        items = [item for value in values for item in value]
        return [lengths, self._item.fold(items, into, default=NO_DEFAULT)] if items else None

    def unfold(self, column: Any, rows: int, source: Unfolding) -> list[Any]:
        if column is None:
            return [[] for _ in range(rows)]
        lengths, items = _two(column)
        counts = [0 if count is ABSENT else count for count in unfold(lengths, rows, source)]
        if not all(type(count) is int and 0 <= count <= MAX_ROWS for count in counts):
            raise BadColumns("lengths that are no numbers, or too large")
        total = sum(counts)
        if total > MAX_ROWS:
            raise BadColumns(f"lists of more than {MAX_ROWS} items together")
        unfolded = self._item.unfold(items, total, source)
        if ABSENT in unfolded:
            raise BadColumns("a list with a missing item")
        left = iter(unfolded)
        return [[next(left) for _ in range(count)] for count in counts]

    def paths(self, prefix: str) -> Iterator[str]:
        yield from self._item.paths(f"{prefix}[]")


class Maybe:
    """A list or an object, or instead null or the reason why there is none."""

    def __init__(self, inner: Many | Group) -> None:
        self._inner = inner
        self._kind = list if isinstance(inner, Many) else dict

    def fold(self, values: list[Any], into: Folding, *, default: Any) -> Any:
        there = [type(value) is self._kind and not _is_reason(value) for value in values]
        flags = [PRESENT if is_there else value for is_there, value in zip(there, values, strict=True)]
        inner = [value for is_there, value in zip(there, values, strict=True) if is_there]
        column = [fold(flags, into, default=default), None]
        if inner:
            column[1] = self._inner.fold(inner, into, default=NO_DEFAULT)
        return None if column == [None, None] else column

    def unfold(self, column: Any, rows: int, source: Unfolding) -> list[Any]:
        if column is None:
            return unfold(None, rows, source)
        flags, inner = _two(column)
        cells = unfold(flags, rows, source)
        there = [type(cell) is int and cell == PRESENT for cell in cells]
        left = iter(self._inner.unfold(inner, sum(there), source))
        return [next(left) if is_there else cell for is_there, cell in zip(there, cells, strict=True)]

    def paths(self, prefix: str) -> Iterator[str]:
        yield from self._inner.paths(f"{prefix}?")


Plan = Leaf | Group | Many | Maybe


def plan_of(kind: type) -> Plan:
    """How documents of this msgspec type are folded."""
    return _plan(inspect.type_info(kind))


def _plan(kind: inspect.Type) -> Plan:
    if isinstance(kind, inspect.Metadata):
        return _plan(kind.type)
    if isinstance(kind, inspect.ListType):
        return Many(_plan(kind.item_type))
    if isinstance(kind, inspect.StructType) and kind.cls is not Unavailable:
        return Group([(field.encode_name, _plan(field.type), _default(field)) for field in kind.fields])
    if isinstance(kind, inspect.UnionType):
        for inner in map(_plan, kind.types):
            if isinstance(inner, Many | Group):
                return Maybe(inner)
    return Leaf()


def _default(field: inspect.Field) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return msgspec.to_builtins(field.default)
    if field.default_factory is not msgspec.NODEFAULT:
        return msgspec.to_builtins(field.default_factory())
    return NO_DEFAULT


def _is_reason(value: Any) -> bool:
    return type(value) is dict and value.keys() == {"unavailable"}


def _without_blank(column: Any, rows: int) -> tuple[list[Any], set[int]]:
    """An object's columns, and the rows with the default in all of them."""
    if column is None:
        return [], set()
    if type(column) is list:
        return column, set()
    form = column.get(EXCEPT) if type(column) is dict else None
    if type(form) is not list or not form or type(form[0]) is not list:
        raise BadColumns("an object that is no list of columns")
    if not all(type(row) is int and 0 <= row < rows for row in form[1:]):
        raise BadColumns("exceptions that are no rows")
    return form[0], set(form[1:])


def _two(column: Any) -> list[Any]:
    if type(column) is not list or len(column) != 2:
        raise BadColumns("a column that is no pair")
    return column
