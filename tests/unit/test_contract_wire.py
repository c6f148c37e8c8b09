"""The result document on the wire: round trips, golden files, readers of other versions, hostile input."""

from __future__ import annotations

import base64
import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct, inspect

import support.results as made
from nodegauge_contract import (
    MESSAGE_LIMIT,
    Gpu,
    Malformed,
    NotAResult,
    Result,
    TooLarge,
    Unavailable,
    UnknownVersion,
    decode,
    encode,
    encode_message,
)
from nodegauge_contract.model import MAJOR, MINOR
from nodegauge_contract.wire import codec
from nodegauge_contract.wire.cells import (
    ABSENT,
    MAX_CELLS,
    BitReader,
    BitWriter,
    Folding,
    Unfolding,
    fold,
    unfold,
)
from nodegauge_contract.wire.columns import NO_DEFAULT, plan_of

GOLDEN = Path(__file__).parent.parent / "golden"
GOLDEN_RESULTS = sorted(GOLDEN.glob("result-*.json"))
NOT_READ = {"unavailable": "not read"}
NO = {"unavailable": "NVML_ERROR_NOT_SUPPORTED"}
LARGE = 200_000
"""Bytes of a message in which everything has room."""


# -- whole documents


def kept(old: Any, new: Any) -> bool:
    """Whether everything in `old` is in `new`, with the same value."""
    if isinstance(old, dict):
        return isinstance(new, dict) and all(name in new and kept(old[name], new[name]) for name in old)
    if isinstance(old, list):
        return isinstance(new, list) and len(old) == len(new) and all(map(kept, old, new))
    return type(old) is type(new) and old == new


@pytest.mark.parametrize("path", GOLDEN_RESULTS, ids=lambda path: path.stem)
def test_golden_documents_are_read_and_written_as_they_were(path: Path) -> None:
    """Plain and as the message that was written then; today's build still writes every member of it."""
    text, message = path.read_text(), path.with_suffix(".message").read_text()
    result = decode(text)
    assert kept(json.loads(text), json.loads(encode(result)))
    assert decode(message) == decode(encode_message(result)) == result
    assert len(message) <= MESSAGE_LIMIT


@pytest.mark.parametrize("wire", sorted(GOLDEN.glob("wire-*.txt")), ids=lambda path: path.stem)
def test_members_of_earlier_versions_keep_their_places(wire: Path) -> None:
    """What is new stands behind the members that its struct had."""
    frozen, today = wire.read_text().split(), list(codec.PLAN.paths(""))
    assert [path for path in today if path in set(frozen)] == frozen
    for n, path in enumerate(today):
        struct = path.rpartition(".")[0]
        later = [other for other in today[n + 1 :] if other in frozen and other.rpartition(".")[0] == struct]
        assert path in frozen or not later, path


def test_the_wire_of_this_version_is_in_a_golden_file() -> None:
    """Both forms have golden documents, and the order of members is the one that was written down."""
    forms = {path.with_suffix(".message").read_text().startswith(codec.PREFIX) for path in GOLDEN_RESULTS}
    assert forms == {True, False}
    frozen = (GOLDEN / f"wire-{MAJOR}.{MINOR}.txt").read_text().split()
    assert frozen == list(codec.PLAN.paths(""))
    assert 64 * len(frozen) + 6 * 64 * 64 < MAX_CELLS, "no room for 64 GPUs with everything"


def filled(kind: inspect.Type, count: Iterator[int], *, null: bool) -> Any:
    """A value of this type, no two alike; with `null` None, wherever it may stand."""
    match kind:
        case inspect.UnionType(types=types):
            nulls = [each for each in types if isinstance(each, inspect.NoneType)]
            return None if null and nulls else filled(types[0], count, null=null)
        case inspect.IntType():
            return (kind.ge or 0) + next(count) % 50 + 1
        case inspect.FloatType():
            return next(count) + 0.5
        case inspect.BoolType():
            return True
        case inspect.StrType():
            return f"text {next(count)}"
        case inspect.EnumType(cls=cls):
            return list(cls)[-1]
        case inspect.DictType(value_type=value):
            return {f"key {next(count)}": filled(value, count, null=null)}
        case inspect.ListType(item_type=item):
            return [filled(item, count, null=null) for _ in range(min(kind.max_length or 5, 5))]
        case inspect.StructType(cls=cls, fields=fields):
            return cls(**{one.name: filled(one.type, count, null=null) for one in fields})
    raise AssertionError(kind)


@pytest.mark.parametrize("null", [False, True])
def test_every_member_comes_back(null: bool) -> None:
    """Every leaf of the contract, with a value of its own and, where it may be null, without one."""
    known = {"schema": codec.SCHEMA, "version": f"{MAJOR}.{MINOR}"}
    whole = filled(inspect.type_info(Result), itertools.count(), null=null)
    whole = msgspec.structs.replace(whole, **known)
    assert decode(encode(whole).decode()) == whole
    message = encode_message(whole, limit=30_000)
    assert message.startswith(codec.PREFIX)
    assert decode(message) == whole


def test_a_document_takes_the_plain_form_if_it_fits_and_is_never_cut() -> None:
    """JSON that a person can read, else a packet; what fits nowhere is a problem with run and node."""
    small = Result(probe="health", node="n" * 253)
    packed = Result(probe="health", gpus=[Gpu(index=i, uuid=f"GPU-{i}") for i in range(8)])
    assert encode_message(small).startswith("{")
    assert decode(encode_message(small)) == small
    assert len(encode(packed)) > MESSAGE_LIMIT >= len(encode_message(packed))
    assert decode(encode_message(packed)) == packed
    noise = [Gpu(index=i, name=base64.b64encode(os.urandom(90)).decode()) for i in range(64)]
    result = decode(encode_message(Result(probe="health", run="r1", node="n1", gpus=noise)))
    assert (result.problem and result.problem.kind) == "result-too-large"
    assert (result.run, result.node, result.gpus) == ("r1", "n1", [])


def test_every_value_that_may_be_refused_says_so_by_default() -> None:
    """A member that nobody wrote reads as "not read", never as zero."""
    bare = json.loads(encode(Gpu(index=0)))
    for part in ("temperature", "power", "clocks", "counters", "fabric", "pcie"):
        assert set(map(json.dumps, bare[part].values())) == {'{"unavailable": "not read"}'}
    assert json.loads(encode(Result(probe="health")))["system"]["driver"] == NOT_READ


# -- what is refused


def document(**changes: Any) -> str:
    """A small valid document as text, with members changed."""
    plain = json.loads(encode(Result(probe="health", run="r1", node="n1", gpus=[Gpu(index=0)])))
    return json.dumps({**plain, **changes})


@pytest.mark.parametrize("version", ["2.0", "0.9", "1", "", "1.x", "99999.0", "-1.0"])
def test_another_major_version_is_refused(version: str) -> None:
    """Also what is no version at all; a newer minor version adds members at every level."""
    with pytest.raises(UnknownVersion):
        decode(document(version=version))
    plain = json.loads(document(version=f"{MAJOR}.99", colour="green"))
    plain["gpus"][0]["smell"] = {"of": ["ozone"]}
    assert decode(json.dumps(plain)).gpus[0].index == 0


@pytest.mark.parametrize(
    "text",
    [
        *("", "   \n", "panic: runtime error", "{", "null", "[]", "12", "{}", "\ud800"),
        '{"schema": "other/thing", "version": "1.0"}',
        *(codec.PREFIX, codec.PREFIX + "\u2603", codec.PREFIX + "!!!!!"),
        codec.PREFIX + base64.b85encode(b"not deflated").decode(),
        *(codec.wrap(document().encode())[:-30], codec.wrap(document().encode())[:-5]),
        codec.wrap(b"[]", bits=b"\1\2")[:-5],
        *("[" * 60_000, '{"a":' * 10_000),
    ],
)
def test_what_is_no_result_is_refused_in_words(text: str) -> None:
    """Empty, garbage, another schema, cut off, deeply nested: one error with a reason of one short line."""
    with pytest.raises(NotAResult) as error:
        decode(text)
    assert 0 < len(str(error.value)) < 300
    assert "\n" not in str(error.value)


def test_a_decompression_bomb_is_stopped() -> None:
    """4 KB of zlib that hold megabytes are refused by their size, not unpacked."""
    bomb = codec.wrap(b" " * 4_000_000 + document().encode())
    assert len(bomb) < 2 * MESSAGE_LIMIT
    for text in (bomb, " " * (codec.MAX_ENCODED_BYTES + 1)):
        with pytest.raises(TooLarge):
            decode(text)


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"gpus": [{"index": "zero"}]}, "$.gpus[0].index"),
        ({"gpus": [{}]}, "$.gpus[0]"),
        ({"gpus": [{"index": i} for i in range(65)]}, "$.gpus"),
        ({"run": "r" * 129}, "$.run"),
        ({"gpus": [{"index": 0, "power": {"usage_mw": "much"}}]}, "$.gpus[0].power.usage_mw"),
        ({"gpus": [{"index": 0, "power": {"usage_mw": 2**63}}]}, "$.gpus[0].power.usage_mw"),
        ({"gpus": [{"index": 0, "links": [{"links": list(range(73))}]}]}, "$.gpus[0].links[0].links"),
        ({"pairs": {"read": [[0] * 65]}}, "$.pairs.read[0]"),
    ],
)
def test_wrong_types_and_lengths_are_named_with_their_path(changes: dict[str, Any], path: str) -> None:
    """The right schema with a wrong member."""
    with pytest.raises(Malformed) as error:
        decode(document(**changes))
    assert path in str(error.value)


# -- columns and bits


def there_and_back(values: list[Any], *, default: Any = NOT_READ) -> Any:
    """The column's JSON, once it was seen that it comes back as it was."""
    into = Folding()
    column = json.loads(json.dumps(fold(values, into, default=default)))
    source = Unfolding(reasons=list(into.reasons), bits=into.bits.to_bytes())
    back = [default if cell is ABSENT else cell for cell in unfold(column, len(values), source)]
    assert back == values
    return column


CELLS = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 100),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(
        [0.5, 3.001, True, False, "", "x", "?", "0000:0f:00.0", 1e308, -1e308, 5e-324, NOT_READ, NO]
    ),
    st.text("0123456789abcdef-", min_size=4, max_size=4),
)
SPARSE = st.sampled_from(["GPU-1", "GPU-2", 5, 1.5, NOT_READ, NO])
"""So few different ones that a column of many rows is often one value with gaps."""


@given(st.lists(CELLS, min_size=1, max_size=20) | st.lists(SPARSE, min_size=4, max_size=9))
def test_a_column_comes_back_as_it_was(values: list[Any]) -> None:
    """Whatever is in it, and whatever form it takes; 1, 1.0 and true are three values."""
    there_and_back(values)


@pytest.mark.parametrize(
    ("values", "column"),
    [
        ([NOT_READ] * 8, None),
        ([9] * 8, 9),
        ([5, NOT_READ, NO], [5, None, [0]]),
        ([71_000, 64_500], [71_000, 64_500]),
        ([3, 4, 5, 6], {"": [3, 1]}),
        ([17, 4, 23, 9], []),
        ([3.001, 3.02, 3.5, 3.25], {"": 1000}),
        ([0.1234, 0.5, 7.25, 9.125], [0.1234, 0.5, 7.25, 9.125]),
        (["0000:0f:00.0", "0000:2d:00.0", "0000:44:00.0", "0000:5b:00.0"], {"0000:??:00.0": 16}),
        (["a?", "b1", "c2", "d3"], ["a?", "b1", "c2", "d3"]),
        ([17, 4, NOT_READ, 9, 23, NO], {"-": [[], 2, None, 5, [0]]}),
        ([40, 40, 40, 50] * 8, [40, 40, 40, 50] * 8),
        ([1, True, 1.0], [1, True, 1.0]),
    ],
)
def test_a_column_takes_its_shortest_form(values: list[Any], column: Any) -> None:
    """What all share once, defaults not at all, different numbers and digits as bits, repeats as text."""
    assert repr(there_and_back(values)) == repr(column)


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


class Old(Struct):
    name: str
    a: list[int | Unavailable] = []
    either: list[int] | Unavailable = Unavailable("not read")


class New(Old):
    late: list[Old] = []
    last: str = ""


OLD = st.builds(
    Old,
    name=st.text(max_size=3),
    a=st.lists(st.integers(0, 2**40) | st.just(Unavailable("x")), max_size=9),
    either=st.lists(st.integers(0, 9), max_size=9) | st.just(Unavailable("hidden")),
)


class OldRows(Struct):
    rows: list[Old] = []
    after: int = 0


class NewRows(Struct):
    rows: list[New] = []
    after: int = 0


@given(
    st.lists(st.tuples(OLD, st.lists(OLD, max_size=3), st.text(max_size=2)), max_size=9), st.integers(0, 9)
)
def test_readers_of_other_versions_see_what_they_know(rows: list[Any], after: int) -> None:
    """An older reader passes over members that are new, also in the bits and in the middle of the document; a
    newer one takes its defaults."""

    def carried(value: Any, into: type) -> Any:
        folded = Folding()
        column = plan_of(type(value)).fold([msgspec.to_builtins(value)], folded, default=NO_DEFAULT)
        source = Unfolding(reasons=list(folded.reasons), bits=folded.bits.to_bytes())
        [back] = plan_of(into).unfold(json.loads(json.dumps(column)), 1, source)
        return msgspec.convert(back, into)

    old = OldRows(rows=[one for one, _, _ in rows], after=after)
    new = NewRows(
        rows=[New(one.name, one.a, one.either, late=late, last=last) for one, late, last in rows], after=after
    )
    bare = NewRows(rows=[New(one.name, one.a, one.either) for one, _, _ in rows], after=after)
    assert carried(new, NewRows) == new
    assert carried(new, OldRows) == old
    assert carried(old, NewRows) == bare


def hostile(columns: Any, *, bits: bytes = b"") -> str:
    """A packet with these columns."""
    return codec.wrap(json.dumps(["1.1", [], columns]).encode(), bits=bits)


def gpus(count: Any, members: Any) -> Any:
    """Columns of a document whose GPUs have these columns."""
    return [None, None, "health", None, None, None, None, None, [count, members]]


@pytest.mark.parametrize(
    "columns",
    [
        *(5, {"a": 1}),
        *(gpus(count, []) for count in (10**9, "8", -1, True, [1, 2])),
        *(gpus(8, [cell]) for cell in ([1, 2, 3], [7], ["x"], [], {"": 7}, {"": [1, "x"]}, {"": 2, "x": 3})),
        *(gpus(8, [cell]) for cell in ({}, {"x": 16}, {"?": 64}, {"-": []}, {"-": [1, 9, 5]}, {"-": [1, 2]})),
        gpus(8, [{"-": [{"-": [1, 2, 3]}, 2, 3]}]),
        *(gpus(8, cell) for cell in ({"-": [5, 1]}, {"-": [[], 9]}, {"-": [[], "x"]}, {"+": [[], 1]})),
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


@pytest.mark.parametrize("position", [0, -1], ids=["checksum", "numbers"])
def test_one_changed_byte_is_found(position: int) -> None:
    """In the checksum, and in the numbers behind the deflated text, whose every value would decode."""
    message = encode_message(made.instrumented(made.h100()))
    assert message.startswith(codec.PREFIX)
    packet = bytearray(base64.b85decode(message.removeprefix(codec.PREFIX)))
    packet[position] ^= 1
    with pytest.raises(NotAResult, match="checksum does not match"):
        decode(codec.PREFIX + base64.b85encode(packet).decode())


def test_a_message_without_its_end_says_that_it_is_cut_off() -> None:
    """So people look for what shortened it."""
    packet = base64.b85decode(
        codec.wrap(b'{"schema": "a text that is long enough"}').removeprefix(codec.PREFIX)
    )
    with pytest.raises(NotAResult, match="cut off"):
        decode(codec.PREFIX + base64.b85encode(packet[:-6]).decode())
