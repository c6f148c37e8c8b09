"""Lists of records as columns: each member is written once, with one value for each record.

A document names 150 readings of each GPU.  By column it is a quarter as long, and a person sees at once which
GPU differs:

    [{"c": 61, "w": 700}, {"c": 84, "w": 700}]      {"rows": 2, "c": [61, 84], "w": 700}

- a list in a column has one value for each record;
- any other value is that of all records: a number, a text, `null`, or `{"unavailable": REASON}`;
- a list that is the same in all records is `{"each": LIST}`;
- a member that is a record in all records is a table of the same length, without `rows` of its own;
- `null` in a column is a member that the record lacks, for nobody tried to read it (`NOT_READ`); one that no
  record has is absent;
- where values repeat and it takes less than half, each is written once: `{"of": ["a long text", "another"],
  "at": [0, 0, null, 1]}`, and `at` says which one a record has, or in other lists which one stands there.  So
  one lost GPU does not repeat in each column what all others share.

Works on the types of JSON.  Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

ROWS, EACH, UNAVAILABLE = "rows", "each", "unavailable"
OF, AT = "of", "at"
NOT_READ = {UNAVAILABLE: "not read"}
MAX_ROWS = 256
MAX_CELLS = 1 << 16
"""Values that all tables of one text may unfold to.  Chosen by this project: four times what 64 GPUs with
everything have."""


class BadColumns(ValueError):
    """A table that does not unfold: which member, and why."""


def fold(value: Any) -> Any:
    """The value with all lists of records as tables."""
    if isinstance(value, dict):
        return {name: fold(member) for name, member in value.items() if member != NOT_READ}
    if not isinstance(value, list):
        return value
    if value and len(value) <= MAX_ROWS and all(map(_is_record, value)) and _are_alike(value):
        return {ROWS: len(value)} | _table(value)
    return _once(value)


def unfold(value: Any) -> Any:
    """What `fold` was given.  Raises `BadColumns`."""
    return _Unfolding().value(value, "")


def _is_record(value: Any) -> bool:
    return isinstance(value, dict) and UNAVAILABLE not in value


def _are_alike(records: Sequence[dict[str, Any]]) -> bool:
    return all(record.keys() == records[0].keys() for record in records)


def _table(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    columns = {name: _column([record[name] for record in records]) for name in records[0]}
    return {name: column for name, column in columns.items() if column != NOT_READ}


def _column(values: list[Any]) -> Any:
    if all(map(_is_record, values)) and _are_alike(values):
        return _table(values)
    distinct = {repr(value): value for value in values}
    if len(distinct) == 1:
        return {EACH: fold(values[0])} if isinstance(values[0], list) else values[0]
    return _once([None if value == NOT_READ else value for value in values])


def _once(values: list[Any]) -> Any:
    """The values, each written once if that is much shorter."""
    whole, distinct = [fold(value) for value in values], {repr(value): value for value in values}
    if len(distinct) == len(values) and None not in values:
        return whole
    distinct.pop(repr(None), None)
    slot_of = {key: number for number, key in enumerate(distinct)}
    of = [*distinct.values()]
    are_records = bool(of) and all(map(_is_record, of)) and _are_alike(of)
    once = {OF: fold(of) if are_records else [fold(value) for value in of]}
    once[AT] = [slot_of.get(repr(value)) for value in values]
    return once if 2 * len(repr(once)) < len(repr(whole)) else whole


class _Unfolding:
    """Counts what tables unfold to: a short text could ask for billions of values."""

    def __init__(self) -> None:
        self._cells = 0

    def value(self, value: Any, path: str) -> Any:
        if isinstance(value, list):
            return [self.value(member, path) for member in value]
        if not isinstance(value, dict):
            return value
        if value.keys() == {OF, AT} and isinstance(value[AT], list):
            self._count(len(value[AT]), path)
            return self._shared(value, len(value[AT]), path)
        if ROWS not in value:
            return {name: self.value(member, f"{path}.{name}") for name, member in value.items()}
        rows = value[ROWS]
        if type(rows) is not int or not 0 <= rows <= MAX_ROWS:
            raise BadColumns(f"{path}: rows must be a whole number up to {MAX_ROWS}")
        members = {name: member for name, member in value.items() if name != ROWS}
        return list(self._records(members, rows, path))

    def _records(self, members: dict[str, Any], rows: int, path: str) -> Iterator[dict[str, Any]]:
        columns = {name: self._column(member, rows, f"{path}.{name}") for name, member in members.items()}
        return (
            {name: column[row] for name, column in columns.items() if column[row] is not None}
            for row in range(rows)
        )

    def _column(self, value: Any, rows: int, path: str) -> list[Any]:
        self._count(rows, path)
        if isinstance(value, list):
            if len(value) != rows:
                raise BadColumns(f"{path}: {len(value)} values for {rows} rows")
            return [self.value(member, path) for member in value]
        if isinstance(value, dict) and EACH in value:
            return [self.value(value[EACH], path)] * rows
        if isinstance(value, dict) and OF in value:
            return self._shared(value, rows, path)
        if isinstance(value, dict) and UNAVAILABLE not in value:
            return list(self._records(value, rows, path))
        return [value] * rows

    def _count(self, values: int, path: str) -> None:
        self._cells += values
        if self._cells > MAX_CELLS:
            raise BadColumns(f"{path}: the tables hold more than {MAX_CELLS} values")

    def _shared(self, value: dict[str, Any], rows: int, path: str) -> list[Any]:
        of, at = self.value(value[OF], path), value.get(AT)
        if not isinstance(of, list) or not isinstance(at, list) or len(at) != rows:
            raise BadColumns(f"{path}: of and at must be lists, at with {rows} numbers")
        slots = [index for index in at if index is not None]
        if any(type(index) is not int or not 0 <= index < len(of) for index in slots):
            raise BadColumns(f"{path}: at must be null or whole numbers below {len(of)}")
        return [None if index is None else of[index] for index in at]
