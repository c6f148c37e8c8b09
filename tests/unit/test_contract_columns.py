"""Documents by column and numbers as bits: there and back, across versions, and against hostile input."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct

from nodegauge_contract import MESSAGE_LIMIT, NotAResult, Result, Unavailable, decode, encode_message
from nodegauge_contract.wire import codec
from nodegauge_contract.wire.cells import (
    ABSENT,
    FEWEST,
    MAX_CELLS,
    BadColumns,
    BitReader,
    BitWriter,
    Folding,
    Unfolding,
    fold,
    unfold,
)
from nodegauge_contract.wire.columns import NO_DEFAULT, plan_of

GOLDEN = Path(__file__).parent.parent / "golden"
WIRE_FILES = sorted(GOLDEN.glob("wire-*.txt"))
WIRE = WIRE_FILES[-1]
NOT_READ = {"unavailable": "not read"}
NO = {"unavailable": "NVML_ERROR_NOT_SUPPORTED"}

CELLS = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 100),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.5, 1.5, 3.001, True, False, "", "x", "?", "0000:0f:00.0", "0000:2d:00.0"]),
    st.sampled_from([1e308, -1e308, 5e-324]),
    st.sampled_from([NOT_READ, NO]),
    st.text("0123456789abcdef-", min_size=4, max_size=4),
)


def there_and_back(values: list[Any], *, default: Any = NOT_READ) -> Any:
    """The column's JSON, once it was seen that it comes back as it was."""
    into = Folding()
    column = json.loads(json.dumps(fold(values, into, default=default)))
    source = Unfolding(reasons=list(into.reasons), bits=into.bits.to_bytes())
    back = [default if cell is ABSENT else cell for cell in unfold(column, len(values), source)]
    assert back == values
    return column


SPARSE = st.sampled_from(["GPU-1", "GPU-2", 5, 1.5, NOT_READ, NO])
"""So few different ones that a column of many rows is often one value with gaps."""


@given(
    st.lists(CELLS, min_size=1, max_size=20)
    | st.lists(st.integers(), min_size=1, max_size=20)
    | st.lists(SPARSE, min_size=4, max_size=9)
)
def test_a_column_comes_back_as_it_was(values: list[Any]) -> None:
    """Whatever is in it, and whatever form it takes."""
    try:
        there_and_back(values)
    except OverflowError:
        assert any(type(value) is int and abs(value) >= 2**63 for value in values)


@pytest.mark.parametrize(
    ("values", "column"),
    [
        ([NOT_READ] * 8, None),
        ([9] * 8, 9),
        ([NO] * 8, [0]),
        ([5, NOT_READ, NO], [5, None, [0]]),
        ([3, 4, 5, 6], {"": [3, 1]}),
        ([17, 4, 23, 9], []),
        ([1.5, 2, 7, 9.5], {"": 2}),
        ([3.001, 3.02, 3.5, 3.25], {"": 1000}),
        ([0.1234, 0.5, 7.25, 9.125], [0.1234, 0.5, 7.25, 9.125]),
        (["0000:0f:00.0", "0000:2d:00.0", "0000:44:00.0", "0000:5b:00.0"], {"0000:??:00.0": 16}),
        (["n11", "n12", "n23", "n31"], {"n??": 10}),
        (["a?", "b1", "c2", "d3"], ["a?", "b1", "c2", "d3"]),
        ([17, 4, NOT_READ, 9, 23, NO], {"-": [[], 2, None, 5, [0]]}),
        ([40, 40, 40, 50] * 8, [40, 40, 40, 50] * 8),
        (["PXB", "PXB", "PXB", "PXB", NO, NOT_READ], ["PXB", "PXB", "PXB", "PXB", [0], None]),
    ],
)
def test_a_column_takes_its_shortest_form(values: list[Any], column: Any) -> None:
    """What all share once, defaults not at all, different numbers and digits as bits, repeats as text."""
    assert there_and_back(values) == column


def test_true_one_and_one_point_zero_are_three_values() -> None:
    """They are equal in Python, and none of them may stand for another."""
    there_and_back([1, True, 1.0])
    into = Folding()
    assert fold([1, True, 1.0], into, default=1) == [None, True, 1.0]


@given(st.lists(st.lists(st.integers(-(2**64), 2**64), min_size=1, max_size=30), max_size=5))
def test_numbers_come_back_from_bits(columns: list[list[int]]) -> None:
    """Column after column, of any length, and one may be passed over."""
    writer = BitWriter()
    for numbers in columns:
        writer.column(numbers)
    source, again = BitReader(writer.to_bytes()), BitReader(writer.to_bytes())
    assert [source.column(len(numbers)) for numbers in columns] == columns
    for _ in columns[:-1]:
        again.skip()
    assert not columns or again.column(len(columns[-1])) == columns[-1]


def test_bits_cost_what_the_numbers_need() -> None:
    """Sixteen numbers of 47 bits: 94 bytes and a header of four."""
    writer = BitWriter()
    writer.column([2**46 + 12345 * n**7 for n in range(16)])
    assert len(writer.to_bytes()) <= 16 * 47 // 8 + 4


class Inner(Struct):
    a: int | Unavailable = Unavailable("not read")
    b: str = ""


class Old(Struct):
    name: str
    rows: Annotated[list[Inner], Meta(max_length=64)] = []
    one: Inner | None = None
    either: list[int] | Unavailable = Unavailable("not read")


class NewInner(Struct):
    a: int | Unavailable = Unavailable("not read")
    b: str = ""
    c: int | Unavailable = Unavailable("not read")
    d: list[int] = []


class New(Struct):
    name: str
    rows: list[NewInner] = []
    one: Inner | None = None
    either: list[int] | Unavailable = Unavailable("not read")
    late: list[NewInner] = []
    last: str = ""


OLD_ROWS = st.builds(Inner, a=st.integers(0, 99) | st.just(Unavailable("x")), b=st.text(max_size=3))
NEW_ROWS = st.builds(
    NewInner, a=st.integers(0, 99), c=st.integers(0, 2**40), d=st.lists(st.integers(0, 2**20), max_size=5)
)
EITHER = st.lists(st.integers(0, 9), max_size=9) | st.just(Unavailable("hidden"))


def carried(value: Any, *, into: type) -> Any:
    """`value` folded by its own plan, and unfolded by a reader that expects `into`."""
    folded = Folding()
    column = plan_of(type(value)).fold([msgspec.to_builtins(value)], folded, default=NO_DEFAULT)
    source = Unfolding(reasons=list(folded.reasons), bits=folded.bits.to_bytes())
    [back] = plan_of(into).unfold(json.loads(json.dumps(column)), 1, source)
    return msgspec.convert(back, into)


OLD = st.builds(
    Old,
    name=st.text(max_size=3),
    rows=st.lists(OLD_ROWS, max_size=9),
    one=st.none() | OLD_ROWS,
    either=EITHER,
)
NEW = st.builds(
    New,
    name=st.text(max_size=3),
    rows=st.lists(NEW_ROWS, max_size=9),
    one=st.none() | OLD_ROWS,
    either=EITHER,
    late=st.lists(NEW_ROWS, max_size=9),
    last=st.text(max_size=2),
)


@given(OLD)
def test_a_newer_reader_takes_its_defaults(old: Old) -> None:
    """Members that did not exist yet read as their default; the rest is as it was."""
    assert carried(old, into=Old) == old
    assert msgspec.to_builtins(old).items() <= msgspec.to_builtins(carried(old, into=New)).items() or old.rows
    assert carried(old, into=New).either == old.either


@given(NEW)
def test_an_older_reader_passes_over_new_members(new: New) -> None:
    """Also where they stand in the bits, in the middle of the document."""
    old = carried(new, into=Old)
    assert [(row.a, row.b) for row in old.rows] == [(row.a, row.b) for row in new.rows]
    assert (old.name, old.one, old.either) == (new.name, new.one, new.either)


@pytest.mark.parametrize("wire", WIRE_FILES, ids=lambda path: path.stem)
def test_the_order_of_members_is_frozen(wire: Path) -> None:
    """What the wire knew stands where it stood; whatever is new stands behind the members of its struct."""
    frozen, today = wire.read_text().split(), list(codec.PLAN.paths(""))
    assert [path for path in today if path in set(frozen)] == frozen
    for path in set(today) - set(frozen):
        struct = path.rpartition(".")[0]
        later = today[today.index(path) + 1 :]
        assert not any(other in frozen and other.rpartition(".")[0] == struct for other in later), path


def test_the_newest_wire_is_today_s() -> None:
    """A member that was added stands in a golden file before anybody writes it."""
    assert [path.stem for path in WIRE_FILES] == [f"wire-1.{minor}" for minor in range(1, 7)]
    assert WIRE.read_text().split() == list(codec.PLAN.paths(""))


def test_null_is_the_default_wherever_it_is_allowed() -> None:
    """A column writes defaults as null, so a member that may be null must have null for its default."""

    def check(cls: Any) -> None:
        for field in msgspec.structs.fields(cls):
            kind = msgspec.inspect.type_info(field.type)
            types = kind.types if isinstance(kind, msgspec.inspect.UnionType) else [kind]
            if any(isinstance(each, msgspec.inspect.NoneType) for each in types):
                assert field.default is None, f"{cls.__name__}.{field.name}"
            for each in types:
                inner = each.item_type if isinstance(each, msgspec.inspect.ListType) else each
                if isinstance(inner, msgspec.inspect.StructType):
                    check(inner.cls)

    check(Result)


def hostile(columns: Any, *, reasons: list[str] | None = None, bits: bytes = b"") -> str:
    """A packet with these columns."""
    return codec.wrap(json.dumps(["1.1", reasons or [], columns]).encode(), bits=bits)


def gpus(count: Any, members: Any) -> Any:
    """Columns of a document whose GPUs have these columns."""
    return [None, None, "health", None, None, None, None, None, [count, members]]


@pytest.mark.parametrize(
    "columns",
    [
        5,
        {"a": 1},
        gpus(64, [5] * 200) + [[5, [5, [5, 1]]]] * 9,
        gpus(10**9, []),
        gpus("8", []),
        gpus(-1, []),
        gpus(True, []),
        gpus([1, 2], []),
        gpus(8, [[1, 2, 3]]),
        gpus(8, [[7]]),
        gpus(8, [["x"]]),
        gpus(8, [[]]),
        gpus(8, [{"": 7}]),
        gpus(8, [{"": [1, "x"]}]),
        gpus(8, [{"": 2, "x": 3}]),
        gpus(8, [{}]),
        gpus(8, [{"x": 16}]),
        gpus(8, [{"?": 64}]),
        gpus(8, [{"-": []}]),
        gpus(8, [{"-": [1, 9, 5]}]),
        gpus(8, [{"-": [1, "x", 5]}]),
        gpus(8, [{"-": [1, 2]}]),
        gpus(8, [{"-": [{"-": [1, 2, 3]}, 2, 3]}]),
        gpus(8, {"-": [5, 1]}),
        gpus(8, {"-": [[], 9]}),
        gpus(8, {"-": [[], "x"]}),
        gpus(8, {"+": [[], 1]}),
        [*gpus(8, []), [], [], [], [], [], None, [[]] * 3],
    ],
)
def test_columns_that_are_no_table_are_refused(columns: Any) -> None:
    """Wrong shapes, wrong numbers of rows, reasons and bits that are not there: one error in words."""
    with pytest.raises(NotAResult):
        decode(hostile(columns))


@pytest.mark.parametrize(
    "columns",
    [
        gpus(8191, [1] * 20),
        gpus(64, [1] * 18 + [None] + [[72, [[255, 1]]]]),
        gpus(64, [1] * 18 + [None] + [[127, [[64, 1]]]]),
        gpus(64, [{"" + "x" * 100_000 + "?": 16}]),
        gpus(4, [{"-": [[], *[part for row in range(5000) for part in (row, None)]]}]),
        gpus(1, [[[[[[[[[[[[[[]]]]]]]]]]]]]]),
    ],
)
def test_a_short_text_does_not_unfold_into_a_large_object(columns: Any) -> None:
    """Rows and cells are counted before they exist."""
    text = hostile(columns, bits=b"\xff" * 200)
    assert len(text) < 4 * MESSAGE_LIMIT
    with pytest.raises(NotAResult):
        decode(text)


def test_the_bound_leaves_room_for_the_largest_document() -> None:
    """64 GPUs with everything, and as many network cards, are below it."""
    leaves = len(WIRE.read_text().split())
    assert 64 * leaves + 6 * 64 * 64 < MAX_CELLS


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.sampled_from(["", "-", "?", "x?"]), inner, max_size=2)
        ),
        max_leaves=40,
    ),
    st.binary(max_size=40),
)
def test_no_columns_do_worse_than_an_error(columns: Any, bits: bytes) -> None:
    """Whatever the columns are: a document or a `ContractError`."""
    with contextlib.suppress(codec.ContractError):
        decode(hostile(columns, bits=bits))


def test_few_rows_are_not_worth_a_header() -> None:
    """Two GPUs are written out, and a reader sees the numbers."""
    assert FEWEST > 2
    assert there_and_back([71_000, 64_500]) == [71_000, 64_500]
    assert encode_message(Result(probe="health")).startswith("{")


def test_bad_columns_say_what_is_wrong() -> None:
    """In words, with the numbers that do not fit."""
    with pytest.raises(BadColumns, match="3 rows among those of 8"):
        unfold([1, 2, 3], 8, Unfolding(reasons=[], bits=b""))
