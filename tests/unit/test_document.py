"""The result document: golden files, round trips, layout by column, room in a NodeReading, hostile input."""

import contextlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import (
    ContractError,
    Gpu,
    Malformed,
    NotAResult,
    Result,
    TooLarge,
    Unavailable,
    UnknownVersion,
    columns,
    decode,
    encode,
    text,
)
from nodegauge_contract.document import MAX_BYTES
from nodegauge_contract.model import MAJOR, MAX_GPUS, MINOR
from nodegauge_contract.reading import PART_BYTES

GOLDEN = Path(__file__).parent.parent / "golden"
NOT_READ = {"unavailable": "not read"}
NO = {"unavailable": "NVML_ERROR_NOT_SUPPORTED"}


def golden(name: str) -> Result:
    return decode((GOLDEN / f"result-{name}.json").read_text())


def kept(old: Any, new: Any) -> bool:
    if isinstance(old, dict):
        return isinstance(new, dict) and all(name in new and kept(old[name], new[name]) for name in old)
    if isinstance(old, list):
        return isinstance(new, list) and len(old) == len(new) and all(map(kept, old, new))
    return type(old) is type(new) and old == new


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("result-*.json")), ids=lambda path: path.stem)
def test_golden_documents_are_read_and_written_as_they_were(path: Path) -> None:
    """In both forms; today's code still writes every member, and exactly these lines in its own version."""
    written = path.read_text()
    result = decode(written)
    for form in (encode(result).decode(), text(result)):
        assert kept(json.loads(written), json.loads(form))
        assert decode(form) == result
    assert result.version != f"{MAJOR}.{MINOR}" or text(result) == written


def test_every_member_of_this_version_is_in_a_golden_document() -> None:
    members = text(replace(Values(most=2).result(), probe="health"))
    assert (GOLDEN / f"result-{MAJOR}.{MINOR}-members.json").read_text() == members


class Values:
    """Values of a type, no two alike; of a union its first type."""

    def __init__(self, *, most: int = 5) -> None:
        self._most, self._count = most, itertools.count()

    def of(self, kind: inspect.Type) -> Any:
        match kind:
            case inspect.UnionType(types=types):
                return self.of(types[0])
            case inspect.IntType():
                return max(kind.ge or 0, 0) + next(self._count) % 50 + 1
            case inspect.FloatType():
                return next(self._count) + 0.5
            case inspect.BoolType():
                return next(self._count) % 2 == 0
            case inspect.StrType():
                return f"text {next(self._count)}"
            case inspect.EnumType(cls=cls):
                return list(cls)[-1]
            case inspect.ListType(item_type=item):
                return [self.of(item) for _ in range(min(kind.max_length or self._most, self._most))]
            case inspect.StructType(cls=cls, fields=fields):
                return cls(**{one.name: self.of(one.type) for one in fields})
        raise AssertionError(kind)

    def result(self) -> Result:
        result: Result = self.of(inspect.type_info(Result))
        return replace(result, schema=made.titan().schema, version=f"{MAJOR}.{MINOR}")


def test_a_member_that_is_absent_has_the_same_default() -> None:
    """Absent is "not read" for each member that may be unavailable: no other default may stand there."""
    seen = 0
    for struct in structs(inspect.type_info(Result)):
        for field in struct.fields:
            ways = field.type.types if isinstance(field.type, inspect.UnionType) else ()
            if any(isinstance(way, inspect.StructType) and way.cls is Unavailable for way in ways):
                seen += 1
                assert field.default == Unavailable("not read"), (struct.cls, field.name)
    assert seen > 100


def structs(kind: inspect.Type) -> Iterator[inspect.StructType]:
    match kind:
        case inspect.StructType(cls=cls, fields=fields) if cls is not Unavailable:
            yield kind
            for field in fields:
                yield from structs(field.type)
        case inspect.UnionType(types=types):
            for way in types:
                yield from structs(way)
        case inspect.ListType(item_type=item):
            yield from structs(item)


def test_the_words_of_the_layout_are_no_members() -> None:
    message = {columns.ROWS, columns.EACH, columns.OF, columns.UNAVAILABLE}
    names = {field.encode_name for one in structs(inspect.type_info(Result)) for field in one.fields}
    assert not message & names


@pytest.mark.parametrize(
    ("records", "table"),
    [
        ([{"a": 1}, {"a": 2}], {"rows": 2, "a": [1, 2]}),
        ([{"a": 7}, {"a": 7}], {"rows": 2, "a": 7}),
        ([{"a": None}, {"a": None}], {"rows": 2, "a": None}),
        ([{"a": NO}, {"a": NO}], {"rows": 2, "a": NO}),
        ([{"a": 5}, {"a": NO}], {"rows": 2, "a": [5, NO]}),
        ([{"a": 5}, {"a": NOT_READ}], {"rows": 2, "a": [5, None]}),
        ([{"a": NOT_READ, "b": 1}] * 2, {"rows": 2, "b": 1}),
        ([{"a": [1, 2]}, {"a": [1, 2]}], {"rows": 2, "a": {"each": [1, 2]}}),
        ([{"a": [1]}, {"a": [2, 3]}], {"rows": 2, "a": [[1], [2, 3]]}),
        ([{"a": [n % 2]} for n in range(4)], {"rows": 4, "a": [[0], [1], [0], [1]]}),
        (
            [{"a": [[0, 4, 8], [1, n // 6]]} for n in range(9)],
            {"rows": 9, "a": {"of": [[[0, 4, 8], [1, 0]], [[0, 4, 8], [1, 1]]], "at": [0] * 6 + [1] * 3}},
        ),
        ([{"a": NO}] * 7 + [{"a": NOT_READ}], {"rows": 8, "a": {"of": [NO], "at": [0] * 7 + [None]}}),
        ([NO] * 7 + [5], {"of": [NO, 5], "at": [0] * 7 + [1]}),
        ([{"a": 75}] * 7 + [{"a": 9}], {"rows": 8, "a": [75] * 7 + [9]}),
        (
            [{"a": {"long member": n}} for n in (7, 8, 7, 8, 7, 8, 7, 8)] + [{"a": None}],
            {"rows": 9, "a": {"of": {"rows": 2, "long member": [7, 8]}, "at": [0, 1] * 4 + [None]}},
        ),
        ([{"a": {"b": 1}}, {"a": {"b": 2}}], {"rows": 2, "a": {"b": [1, 2]}}),
        ([{"a": {"b": NOT_READ}}] * 2, {"rows": 2, "a": {}}),
        ([{"a": {"b": 1}}, {"a": None}], {"rows": 2, "a": [{"b": 1}, None]}),
        ([{"a": [{"b": 1}, {"b": 2}]}] * 2, {"rows": 2, "a": {"each": {"rows": 2, "b": [1, 2]}}}),
        ([{"a": 1}, {"a": 1.0}, {"a": True}], {"rows": 3, "a": [1, 1.0, True]}),
        ([{"a": [1]}, {"a": [True]}], {"rows": 2, "a": [[1], [True]]}),
        ([{"a": 1}], {"rows": 1, "a": 1}),
        ([NO, NO], [NO, NO]),
        ([], []),
        ([1, 2], [1, 2]),
    ],
)
def test_a_list_of_records_is_a_table(records: Any, table: Any) -> None:
    folded = columns.fold(records)
    assert repr(folded) == repr(table)
    assert read(columns.unfold(json.loads(json.dumps(folded)))) == read(records)


def read(value: Any) -> str:
    """JSON without null and unread members, in which 1, 1.0 and true are three values."""

    def stripped(value: Any) -> Any:
        if isinstance(value, dict):
            members = {name: stripped(inner) for name, inner in value.items()}
            return {name: inner for name, inner in members.items() if inner not in (None, NOT_READ)}
        return [stripped(inner) for inner in value] if isinstance(value, list) else value

    return json.dumps(stripped(value), sort_keys=True)


CELLS = st.sampled_from([0, 1, 1.0, True, None, "", "x", "rows", NOT_READ, NO, [], [1], [True], [NO, 3]])
RECORDS = st.recursive(
    st.fixed_dictionaries({"a": CELLS, "b": CELLS}),
    lambda inner: st.fixed_dictionaries({"a": CELLS, "b": inner | st.lists(inner, max_size=3) | st.none()}),
    max_leaves=4,
)


@given(st.lists(RECORDS, max_size=9) | RECORDS)
def test_a_table_comes_back_as_it_was(records: Any) -> None:
    assert read(columns.unfold(json.loads(json.dumps(columns.fold(records))))) == read(records)


def test_a_list_that_is_too_long_for_a_table_stays_a_list() -> None:
    records = [{"a": n} for n in range(columns.MAX_ROWS + 1)]
    assert columns.fold(records) == records
    assert columns.unfold(columns.fold(records[1:])) == records[1:]


def test_the_most_gpus_with_everything_can_be_read() -> None:
    """The bound of values leaves room for 64 GPUs of which no two readings are alike."""
    gpu = inspect.type_info(Gpu)
    values = Values()
    gpus = [replace(values.of(gpu), index=n) for n in range(MAX_GPUS)]
    whole = replace(Values().result(), gpus=gpus)
    assert columns.unfold(json.loads(encode(whole))) == msgspec.to_builtins(whole)


@pytest.mark.parametrize(
    ("name", "most"), [("1.1-dgx2-busy", 0.6), ("1.2-dgx2-nccl", 0.8), ("1.4-h100-load-slow", 0.5)]
)
def test_the_largest_machines_have_room(name: str, most: float) -> None:
    """The rest is for other drivers' answers, Xids and long messages, and half of a load run's GPUs.  With
    parts of this size 5,000 nodes stay far below what etcd holds."""
    assert sum(PART_BYTES.values()) == 76 * 1024
    result = golden(name)
    assert len(text(result)) <= most * PART_BYTES[result.probe]
    assert decode(text(result)) == result


def document(**changes: Any) -> str:
    plain = msgspec.to_builtins(Result(probe="health", run="r1", node="n1", gpus=[Gpu(index=0)]))
    return json.dumps({**plain, **changes})


@pytest.mark.parametrize("version", ["2.0", "0.9", "1", "", "1.x", "99999.0", "-1.0"])
def test_another_major_version_is_refused(version: str) -> None:
    with pytest.raises(UnknownVersion):
        decode(document(version=version))
    plain = json.loads(document(version=f"{MAJOR}.99", colour="green"))
    plain["gpus"][0]["smell"] = {"of": ["ozone"]}
    assert decode(json.dumps(plain)).gpus[0].index == 0
    table = {"rows": 2, "index": [0, 1], "smell": {"each": ["ozone"]}, "taste": {"salt": [1, 2]}}
    assert [gpu.index for gpu in decode(json.dumps(plain | {"gpus": table})).gpus] == [0, 1]


@pytest.mark.parametrize(
    "garbage",
    [
        *("", "   \n", "panic: runtime error", "{", "null", "[]", "12", "{}", "\ud800"),
        '{"schema": "other/thing", "version": "1.0"}',
        *(document()[:-5], document()[5:]),
        *("[" * 60_000, '{"a":' * 10_000, '{"a":' * 10_000 + "1" + "}" * 10_000),
    ],
)
def test_what_is_no_result_is_refused_in_words(garbage: str) -> None:
    with pytest.raises(NotAResult) as error:
        decode(garbage)
    assert 0 < len(str(error.value)) < 300
    assert "\n" not in str(error.value)


def test_a_long_text_is_refused_before_it_is_parsed() -> None:
    at_most = document() + " " * (MAX_BYTES - len(document()))
    assert decode(at_most).run == "r1"
    with pytest.raises(TooLarge, match=f"at most {MAX_BYTES}"):
        decode(at_most + " ")


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"gpus": [{"index": "zero"}]}, "$.gpus[0].index"),
        ({"gpus": [{}]}, "$.gpus[0]"),
        ({"gpus": [{"index": i} for i in range(65)]}, "$.gpus"),
        ({"gpus": {"rows": 65, "index": 1}}, "$.gpus"),
        ({"gpus": {"rows": 2, "index": [0, "one"]}}, "$.gpus[1].index"),
        ({"run": "r" * 129}, "$.run"),
        ({"gpus": [{"index": 0, "power": {"usage_mw": "much"}}]}, "$.gpus[0].power.usage_mw"),
        ({"gpus": [{"index": 0, "power": {"usage_mw": 2**63}}]}, "$.gpus[0].power.usage_mw"),
        ({"gpus": [{"index": 0, "links": [{"links": list(range(73))}]}]}, "$.gpus[0].links[0].links"),
        ({"pairs": {"read": [[0] * 65]}}, "$.pairs.read[0]"),
        ({"host": {"rows": 1}}, "$.host"),
        ({"run": {"rows": 0}}, "$.run"),
    ],
)
def test_wrong_types_and_lengths_are_named_with_their_path(changes: dict[str, Any], path: str) -> None:
    with pytest.raises(Malformed) as error:
        decode(document(**changes))
    assert path in str(error.value)


ONE: dict[str, Any] = {"of": [[]], "at": [0, 0]}


@pytest.mark.parametrize(
    ("table", "part"),
    [
        *(({"rows": rows}, ".gpus: rows") for rows in (10**9, 257, "8", -1, True, None, 1.0, [1, 2])),
        *(({"rows": 2, "index": column}, ".gpus.index: ") for column in ([], [1], [1, 2, 3])),
        ({"rows": 2, "pcie": {"width": [1]}}, ".gpus.pcie.width: 1 values for 2 rows"),
        ({"rows": 2, "links": {"each": {"rows": 3, "state": [1]}}}, ".gpus.links.state: 1 values for 3"),
        *(
            ({"rows": 2, "fans": ONE | {"at": at}}, ".gpus.fans: ")
            for at in ([0], [0, 1], [0, -1], [0, True])
        ),
        *(({"rows": 2, "fans": {"of": of, "at": [0, 0]}}, ".gpus.fans: ") for of in ((), 5, None, {"0": 1})),
        ({"rows": 2, "fans": {"of": [[]]}}, ".gpus.fans: "),
        ({"rows": 256} | {f"m{n}": 1 for n in range(300)}, "hold more than"),
        ({"rows": 256, "a": {"b": {f"m{n}": 1 for n in range(300)}}}, "hold more than"),
        ({"rows": 1, "a": {"each": [{"rows": 256, "b": 1}] * 300}}, "hold more than"),
    ],
)
def test_a_table_that_does_not_unfold_is_refused_with_its_member(table: Any, part: str) -> None:
    with pytest.raises(Malformed) as error:
        decode(document(gpus=table))
    assert part in str(error.value)
    assert len(str(error.value)) <= 200


def test_a_short_text_does_not_unfold_into_a_large_object() -> None:
    """What many rows share is there once; a list of lists of them is stopped by the lengths of the schema."""
    inner: Any = [0] * 72
    for _ in range(6):
        inner = {"rows": 72, "links": {"each": inner}}
    with pytest.raises(Malformed):
        decode(document(gpus={"rows": 64, "index": 0, "links": {"each": inner}}))


@pytest.mark.parametrize("depth", [100, 500, 1_000, 5_000])
@pytest.mark.parametrize(
    ("opened", "closed"),
    [("[", "]"), ('{"a":', "}"), ('{"rows":1,"a":[', "]}"), ('{"rows":1,"a":{"each":[', "]}}")],
)
def test_deep_nesting_is_refused_or_passed_over(opened: str, closed: str, depth: int) -> None:
    """Where a member is not known, its value does not matter; however deep, nothing but a ContractError."""
    nested = opened * depth + "1" + closed * depth
    with contextlib.suppress(ContractError):
        assert decode(document()[:-1] + f', "smell": {nested}' + "}").run == "r1"
