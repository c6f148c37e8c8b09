"""The NodeReading on a real API server: its bounds, and one managed field a part."""

import contextlib
from collections.abc import Callable, Iterator

import pytest
from msgspec import to_builtins

from nodegauge_contract import decode, text
from nodegauge_contract.reading import API_VERSION, KIND, PART_BYTES, Part
from support.guarded import Guarded, Writer
from support.results import h100
from testbed.errors import ApiError
from testbed.rest import Object
from testbed.scripted import create_node

pytestmark = pytest.mark.cluster

NODE = "gpu-4"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
APPLY = "application/apply-patch+yaml"
WORD = "x" * 253
MOST = Part(
    sequence=2**53,
    at=WORD,
    reason="x" * 512,
    pod=WORD,
    pod_uid=WORD,
    node_uid=WORD,
    boot_id=WORD,
    probe_version=WORD,
    reading="",
)
"""Each member but the document at its bound."""


@pytest.fixture(scope="module")
def placed(guarded: Guarded) -> Iterator[Writer]:
    """A probe pod on a node of its own."""
    create_node(guarded.admin, NODE)
    writer = Writer(guarded, NODE, at="now", reading="{}")
    yield writer
    writer.end()
    guarded.admin.delete(f"/api/v1/nodes/{NODE}")


@pytest.fixture
def probe(placed: Writer) -> Iterator[Writer]:
    """The same; nobody has written its node's object yet."""
    yield placed
    with contextlib.suppress(ApiError):
        placed.api.delete(placed.path)


def refused_with(probe: Writer, parts: Object) -> str:
    with pytest.raises(ApiError) as caught:
        probe.create(parts, "&dryRun=All")
    assert caught.value.status in (400, 422)
    return str(caught.value)


def filled(probe: Writer) -> Object:
    own = {"podUID": probe.pod["uid"], "nodeUID": probe.node["uid"]}
    most = to_builtins(MOST) | own
    return {name: most | {"reading": "é" * size} for name, size in PART_BYTES.items()}


def test_an_object_at_all_its_bounds_is_stored_as_it_was_written(probe: Writer) -> None:
    """All four documents at their longest, in one object; lines and characters beyond ASCII stay."""
    parts = filled(probe)
    probe.create(parts)
    stored = probe.api.get(probe.path)
    assert {name: stored[name] for name in parts} == parts
    document = text(h100())
    assert document.count("\n") > 10
    probe.rest.patch(probe.path, {"health": probe.part(reading=document)})
    stored = probe.api.get(probe.path)
    assert decode(stored["health"]["reading"]) == h100()
    assert stored["health"]["reading"] == document
    assert {name: stored[name] for name in parts if name != "health"} == {
        name: part for name, part in parts.items() if name != "health"
    }, "a patch of one part leaves the others"


@pytest.mark.parametrize("name", PART_BYTES)
def test_a_longer_document_is_refused(probe: Writer, name: str) -> None:
    """By one character, with part and bound in the message; a patch that is refused changes nothing."""
    probe.create({name: probe.part()})
    longer = {name: probe.part(sequence=2, reading="x" * (PART_BYTES[name] + 1))}
    with pytest.raises(ApiError) as caught:
        probe.rest.patch(probe.path, longer)
    assert caught.value.status == 422
    assert f"{name}.reading" in str(caught.value)
    assert str(PART_BYTES[name]) in str(caught.value)
    as_is = probe.rest.patch(f"{probe.path}?dryRun=All", {name: probe.part()})
    assert as_is[name]["sequence"] == 1
    assert as_is["metadata"]["generation"] == 1


MALFORMED: dict[str, tuple[Callable[[Object], Object], str]] = {
    "sequence 0": (lambda part: part | {"sequence": 0}, "health.sequence"),
    "a sequence beyond 2^53": (lambda part: part | {"sequence": 2**53 + 1}, "health.sequence"),
    "a sequence in words": (lambda part: part | {"sequence": "1"}, "health.sequence"),
    "a long reason": (lambda part: part | {"reason": "x" * 513}, "health.reason"),
    "a document that is no text": (lambda part: part | {"reading": {"gpus": []}}, "health.reading"),
    "a member that nobody knows": (lambda part: part | {"note": "x"}, 'unknown field "health.note"'),
    "no pod": (lambda part: {k: v for k, v in part.items() if k != "podUID"}, "health.podUID"),
}
"""Changes of a part that no probe writes, and what the refusal names."""


@pytest.mark.parametrize("what", MALFORMED)
def test_a_malformed_part_is_refused(probe: Writer, what: str) -> None:
    """With the name of the member; the same part without the change is taken."""
    change, field = MALFORMED[what]
    assert field in refused_with(probe, {"health": change(probe.part())})
    probe.create({"health": probe.part()}, "&dryRun=All")


def test_there_are_no_other_parts(probe: Writer) -> None:
    """What no probe of this version writes takes no space."""
    assert 'unknown field "bmc"' in refused_with(probe, {"health": probe.part(), "bmc": probe.part()})


def test_the_api_server_manages_one_field_a_part(probe: Writer) -> None:
    """After many writes there is one entry, of the parts' names; who applies a part owns all of it."""
    probe.create({"health": probe.part()})
    for number in range(2, 6):
        probe.rest.patch(probe.path, {"health": probe.part(sequence=number), "pull": probe.part()})
    answer = probe.rest.patch(probe.path, {"health": probe.part(sequence=6)})
    [entry] = answer["metadata"]["managedFields"]
    assert entry["fieldsV1"] == {"f:health": {}, "f:pull": {}}
    less = {key: value for key, value in probe.part(sequence=7).items() if key not in ("reason", "bootID")}
    applied = {"apiVersion": API_VERSION, "kind": KIND, "health": less}
    how = f"{probe.path}?fieldManager=other&force=true"
    answer = probe.rest.patch(how, applied, content_type=APPLY)
    assert answer["health"] == less, "no member of the part before is left"


def test_the_table_shows_when_and_why(probe: Writer) -> None:
    """`kubectl get nodereadings`: empty cells for parts that nobody has written."""
    probe.create({"health": probe.part(at="2026-01-31T12:00:00.250Z", reason="changed: xids", pod="p")})
    table = probe.api.call("GET", probe.path, headers={"Accept": TABLE})
    columns = [column["name"] for column in table["columnDefinitions"]]
    cells = dict(zip(columns, table["rows"][0]["cells"], strict=True))
    assert cells.pop("Health")[0].isdigit(), "an age"
    assert cells == {"Name": NODE, "Why": "changed: xids", "NCCL": None, "Load": None, "Pod": "p"}
