"""The result document on the wire: round trips, golden files both ways, and hostile input."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodegauge_contract import (
    MESSAGE_LIMIT,
    ContractError,
    Gpu,
    Host,
    LinkGroup,
    Malformed,
    NotAResult,
    Problem,
    Result,
    TooLarge,
    Unavailable,
    UnknownVersion,
    decode,
    encode,
    encode_message,
)
from nodegauge_contract.wire import codec
from nodegauge_contract.wire.columns import DICTIONARY

DIGEST = "fc7f6553988acecc724693baae4acf930fa775014be71eaf4685af32e0578009"
GOLDEN = Path(__file__).parent.parent / "golden"


def document(**changes: Any) -> str:
    """A small valid document as text, with members changed."""
    plain = json.loads(encode(Result(probe="health", run="r1", node="n1", gpus=[Gpu(index=0)])))
    return json.dumps({**plain, **changes})


def packed(data: bytes) -> str:
    """A packet with this text, whatever it is."""
    return codec.wrap(data)


def test_a_small_document_travels_as_it_is() -> None:
    """Plain JSON that a person can read, and the same document at the other end."""
    result = Result(probe="health", run="r1", node="n1", host=Host(boot_id="b", boottime_ms=Unavailable("x")))
    message = encode_message(result)
    assert message.startswith("{")
    assert decode(message) == result


def test_a_larger_document_travels_packed() -> None:
    """Over the limit as JSON, under it packed, whole at the other end."""
    result = Result(probe="health", gpus=[Gpu(index=i, uuid=f"GPU-{i}") for i in range(8)])
    message = encode_message(result)
    assert len(encode(result)) > MESSAGE_LIMIT >= len(message)
    assert message.startswith(codec.PREFIX)
    assert decode(message) == result


def test_a_document_that_fits_nowhere_says_so() -> None:
    """Never half a document: the result names the problem and keeps run and node."""
    noise = [Gpu(index=i, name=base64.b64encode(os.urandom(90)).decode()) for i in range(64)]
    result = decode(encode_message(Result(probe="health", run="r1", node="n1", gpus=noise)))
    assert result.problem.kind == "result-too-large"
    assert (result.run, result.node, result.gpus) == ("r1", "n1", [])


def test_the_longest_node_name_of_kubernetes_fits() -> None:
    """A DNS subdomain has 253 characters."""
    result = Result(probe="health", node="n" * 253)
    assert decode(encode_message(result)) == result


GOLDEN_RESULTS = sorted(GOLDEN.glob("result-*.json"))


def kept(old: Any, new: Any) -> bool:
    """Whether everything in `old` is in `new`, with the same value."""
    if isinstance(old, dict):
        return isinstance(new, dict) and all(name in new and kept(old[name], new[name]) for name in old)
    if isinstance(old, list):
        return isinstance(new, list) and len(old) == len(new) and all(map(kept, old, new))
    return type(old) is type(new) and old == new


@pytest.mark.parametrize("path", GOLDEN_RESULTS, ids=lambda path: path.stem)
def test_golden_documents_are_read_and_nothing_of_them_is_lost(path: Path) -> None:
    """What an earlier build wrote is understood, and today's build still writes every member of it."""
    text = path.read_text()
    assert kept(json.loads(text), json.loads(encode(decode(text))))


@pytest.mark.parametrize("path", GOLDEN_RESULTS, ids=lambda path: path.stem)
def test_golden_messages_hold_the_golden_documents(path: Path) -> None:
    """As written then, and as today's build would write it; both fit a termination message."""
    result = decode(path.read_text())
    message = path.with_suffix(".message").read_text()
    assert decode(message) == decode(encode_message(result)) == result
    assert len(message) <= MESSAGE_LIMIT


def test_there_are_golden_documents() -> None:
    """The comparisons above must not run over nothing, nor without both forms and both versions."""
    assert len(GOLDEN_RESULTS) >= 8
    texts = [path.with_suffix(".message").read_text() for path in GOLDEN_RESULTS]
    assert {text.startswith(codec.PREFIX) for text in texts} == {True, False}
    versions = {path.stem[len("result-") :][:3] for path in GOLDEN_RESULTS}
    assert versions == {"1.0", "1.1", "1.2", "1.4", "1.5", "1.6"}


def test_the_dictionary_is_frozen() -> None:
    """With another text every message of older probes is lost."""
    assert hashlib.sha256(DICTIONARY).hexdigest() == DIGEST


def test_unknown_members_are_passed_over() -> None:
    """A newer minor version adds members, at every level."""
    plain = json.loads(document(version="1.9", colour="green"))
    plain["gpus"][0]["smell"] = {"of": ["ozone"]}
    assert decode(json.dumps(plain)).gpus[0].index == 0


@pytest.mark.parametrize("version", ["2.0", "0.9", "1", "", "1.x", "99999.0", "-1.0"])
def test_another_major_version_is_refused(version: str) -> None:
    """Also what is no version at all."""
    with pytest.raises(UnknownVersion):
        decode(document(version=version))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   \n",
        "panic: runtime error",
        "{",
        "null",
        "[]",
        "12",
        "{}",
        '{"schema": "other/thing", "version": "1.0"}',
        codec.PREFIX,
        codec.PREFIX + "\u2603",
        codec.PREFIX + "!!!!!",
        codec.PREFIX + base64.b85encode(b"not deflated").decode(),
        packed(document().encode())[:-30],
        packed(document().encode())[:-5],
        codec.wrap(b"[]", bits=b"\1\2")[:-5],
        "\ud800",
        "[" * 60_000,
        '{"a":' * 10_000,
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
    bomb = packed(b" " * 4_000_000 + document().encode())
    assert len(bomb) < 2 * MESSAGE_LIMIT
    with pytest.raises(TooLarge):
        decode(bomb)
    with pytest.raises(TooLarge):
        decode(" " * (codec.MAX_ENCODED_BYTES + 1))


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"gpus": [{"index": "zero"}]}, "$.gpus[0].index"),
        ({"gpus": [{}]}, "$.gpus[0]"),
        ({"gpus": [{"index": i} for i in range(65)]}, "$.gpus"),
        ({"run": "r" * 129}, "$.run"),
        ({"node": 5}, "$.node"),
        ({"gpus": [{"index": 0, "power": {"usage_mw": "much"}}]}, "$.gpus[0].power.usage_mw"),
        ({"gpus": [{"index": 0, "power": {"usage_mw": 2**63}}]}, "$.gpus[0].power.usage_mw"),
        ({"gpus": [{"index": 0, "links": [{"links": list(range(73))}]}]}, "$.gpus[0].links[0].links"),
        ({"problem": {"call": "x"}}, "$.problem"),
        ({"pairs": {"read": [[0] * 65]}}, "$.pairs.read[0]"),
    ],
)
def test_wrong_types_and_lengths_are_named_with_their_path(changes: dict[str, Any], path: str) -> None:
    """The right schema with a wrong member."""
    with pytest.raises(Malformed) as error:
        decode(document(**changes))
    assert path in str(error.value)


@given(st.text() | st.binary().map(lambda data: packed(data)))
def test_no_text_does_worse_than_an_error(text: str) -> None:
    """Whatever arrives is a document or one `ContractError`."""
    with pytest.raises(ContractError):
        decode(text)


LEAVES = st.integers(-(2**63), 2**63 - 1) | st.builds(Unavailable, st.text(max_size=40))
LINKS = st.builds(
    LinkGroup, links=st.lists(st.integers(0, 35), max_size=36), state=LEAVES, remote=st.text(max_size=20)
)
GPUS = st.builds(Gpu, index=st.integers(0, 63), memory_mib=LEAVES, links=st.lists(LINKS, max_size=3))
PROBLEMS = st.none() | st.builds(Problem, kind=st.text(max_size=20), message=st.text(max_size=100))


@given(st.lists(GPUS, max_size=4), PROBLEMS)
def test_every_document_comes_back_as_it_was(gpus: list[Gpu], problem: Problem | None) -> None:
    """Plain, by column and packed by row, values and reasons alike."""
    result = Result(probe="health", gpus=gpus, problem=problem)
    assert decode(encode(result).decode()) == result
    assert decode(packed(encode(result))) == result
    assert decode(encode_message(result, limit=10_000)) == result


def test_every_value_that_may_be_refused_says_so_by_default() -> None:
    """A member that nobody wrote reads as "not read", never as zero."""
    bare = json.loads(encode(Gpu(index=0)))
    for part in ("temperature", "power", "clocks", "counters", "fabric", "pcie"):
        assert set(map(json.dumps, bare[part].values())) == {'{"unavailable": "not read"}'}
    assert msgspec.json.decode(encode(Result(probe="health")))["system"]["driver"] == {
        "unavailable": "not read"
    }
