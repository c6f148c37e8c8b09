"""Who can write a NodeReading: forgeries on a real API server (test_rights.py has the table of who may)."""

from collections.abc import Callable, Iterator

import pytest

from nodegauge_operator import names
from support.cluster_under_test import GROUP
from support.guarded import NODE, READINGS, Guarded, Writer, of_kind, refusal, token
from testbed.errors import ApiError
from testbed.rest import Object
from testbed.scripted import create_node
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster

OTHER = "gpu-2"
NOT_OWN, NOT_ITSELF = "only by a probe pod on its own node", "names the pod that writes it and its node"
BARE = "no finalizers and no owners"


@pytest.fixture(scope="module")
def writers(guarded: Guarded) -> Iterator[tuple[Writer, Writer]]:
    """A probe pod on each of two nodes; both have written their node's object."""
    create_node(guarded.admin, OTHER)
    pair = Writer(guarded, NODE), Writer(guarded, OTHER)
    for writer in pair:
        writer.create(writer.health())
    yield pair
    for writer in pair:
        writer.end()
    guarded.admin.delete(f"/api/v1/nodes/{OTHER}")


@pytest.fixture
def own(writers: tuple[Writer, Writer]) -> Writer:
    return writers[0]


@pytest.fixture
def other(writers: tuple[Writer, Writer]) -> Writer:
    return writers[1]


OWNERS = [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}]
FORGERIES: dict[str, tuple[Callable[[Writer, Writer], Object], str]] = {
    "another pod's UID": (lambda own, other: own.health(podUID=other.pod["uid"]), NOT_ITSELF),
    "another node's UID": (lambda own, other: own.health(nodeUID=other.node["uid"]), NOT_ITSELF),
    "a removed part": (lambda own, other: {"health": None}, NOT_ITSELF),
    "a finalizer": (lambda own, other: {"metadata": {"finalizers": ["example.com/x"]}} | own.health(), BARE),
    "an owner": (lambda own, other: {"metadata": {"ownerReferences": OWNERS}} | own.health(), BARE),
}
"""Changes of its own node's object that a probe may not make, with their refusal."""


@pytest.mark.parametrize("what", FORGERIES)
def test_a_probe_writes_only_what_it_is(own: Writer, other: Writer, what: str) -> None:
    """Each forgery in its own node's object is refused with what is wrong with it."""
    body, message = FORGERIES[what]
    assert message in refusal(own.rest.patch, f"{READINGS}/{NODE}", body(own, other))


def test_a_probe_writes_no_other_nodes_object(guarded: Guarded, own: Writer, other: Writer) -> None:
    """Neither one that is there nor a new one, not even in that node's name; what was there stays."""
    before = guarded.admin.get(f"{READINGS}/{OTHER}")
    for part in (own.health(sequence=7), other.health(sequence=7)):
        assert NOT_OWN in refusal(own.rest.patch, f"{READINGS}/{OTHER}", part)
        new = of_kind(names.READING_KIND) | {"metadata": {"name": "gpu-3"}} | part
        assert NOT_OWN in refusal(own.rest.create, READINGS, new)
    assert guarded.admin.get(f"{READINGS}/{OTHER}") == before


def test_nobody_else_writes_what_was_read(guarded: Guarded, own: Writer) -> None:
    """No token without a pod, no administrator and no clean-up; test_rights.py has the operator."""
    for rest in (guarded.plane.rest(token(guarded.admin)), guarded.admin, guarded.cleanup):
        assert NOT_OWN in refusal(rest.patch, f"{READINGS}/{NODE}", own.health(sequence=8))
        new = of_kind(names.READING_KIND) | {"metadata": {"name": "gpu-3"}} | own.health()
        assert NOT_OWN in refusal(rest.create, READINGS, new)


def test_people_label_an_object_and_migrations_write_it_as_it_is(guarded: Guarded) -> None:
    """Nothing that was read changes by that."""
    path = f"{READINGS}/{NODE}"
    before = guarded.admin.get(path)["health"]
    guarded.admin.patch(path, {"metadata": {"labels": {"example.com/a": "b"}}})
    guarded.admin.call("PUT", path, body=guarded.admin.get(path))
    assert guarded.admin.get(path)["health"] == before
    message = refusal(guarded.admin.patch, path, {"metadata": {"finalizers": ["example.com/x"]}})
    assert BARE in message


def test_only_the_bmc_reader_writes_what_a_bmc_said(guarded: Guarded) -> None:
    """Not the operator's account, and not the administrator."""
    made = of_kind(names.CHASSIS_KIND)
    collection = f"{GROUP}/chassisreadings"
    assert "BMC reader" in refusal(guarded.admin.create, collection, made)
    guarded.bmc.create(collection, made)
    guarded.bmc.delete(f"{collection}/{NODE}")


def test_a_token_ends_with_its_pod(guarded: Guarded, other: Writer) -> None:
    """Who has kept it writes nothing any more."""
    path = f"{READINGS}/{OTHER}"
    other.rest.patch(path, other.health(sequence=2))
    guarded.operator.delete(other.pod_path, {"gracePeriodSeconds": 0})

    def refused() -> bool:
        try:
            other.rest.patch(path, other.health(sequence=3))
        except ApiError as error:
            return error.status == 401
        return False

    wait_for(refused, what="a token that nobody takes")
