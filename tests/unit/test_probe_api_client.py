"""How a probe writes its node's NodeReading, against a TLS server on loopback, and who it is by its token."""

import copy
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from nodegauge_contract.reading import Part
from nodegauge_probes.api_client import KEPT_S, ReadingClient, Refused
from nodegauge_probes.identity import (
    MAX_TOKEN,
    BadToken,
    Identity,
    Server,
    identity_of,
    read_token,
    server_of,
)
from support.readings_api import CLAIMS, Answer, ReadingsApi, serving, token_of
from testbed.loopback import reserve_port

PATH = "/apis/nodegauge.dev/v1alpha1/nodereadings"
QUERY = "?fieldManager=nodegauge-probe"
PART = Part(
    sequence=7,
    at="2026-11-27T00:00:00.000Z",
    reason="first",
    pod="watch-1",
    pod_uid="pod-uid",
    node_uid="node-uid",
    boot_id="boot-1",
    reading="{}",
)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def api(tmp_path: Path, authority: trustme.CA) -> Iterator[ReadingsApi]:
    with serving(tmp_path / "pod", authority) as api:
        yield api


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def client(api: ReadingsApi, clock: Clock) -> Iterator[ReadingClient]:
    client = ReadingClient(api.server, clock=clock)
    yield client
    client.close()


def refused(client: ReadingClient) -> Refused:
    with pytest.raises(Refused) as caught:
        client.write("health", PART)
    return caught.value


def test_a_part_is_patched_and_nothing_is_sent_back(api: ReadingsApi, client: ReadingClient) -> None:
    client.write("health", PART)
    [request] = api.requests
    assert (request.method, request.path) == ("PATCH", f"{PATH}/gpu-1{QUERY}")
    assert request.body == {
        "health": {
            "sequence": 7,
            "at": "2026-11-27T00:00:00.000Z",
            "reason": "first",
            "pod": "watch-1",
            "podUID": "pod-uid",
            "nodeUID": "node-uid",
            "bootID": "boot-1",
            "probeVersion": "",
            "reading": "{}",
        }
    }
    assert request.headers["content-type"] == "application/merge-patch+json"
    assert request.headers["authorization"] == f"Bearer {token_of(CLAIMS)}"
    assert "as=PartialObjectMetadata" in request.headers["accept"]


def test_an_object_that_is_missing_is_created(api: ReadingsApi, client: ReadingClient) -> None:
    api.refuses(404)
    client.write("load", PART)
    patch, create = api.requests
    assert (create.method, create.path) == ("POST", f"{PATH}{QUERY}")
    assert create.body["metadata"] == {"name": "gpu-1"}
    assert (create.body["kind"], create.body["apiVersion"]) == ("NodeReading", "nodegauge.dev/v1alpha1")
    assert create.body["load"] == patch.body["load"]


def test_an_object_that_another_probe_created_is_patched(api: ReadingsApi, client: ReadingClient) -> None:
    api.refuses(404)
    api.refuses(409, "already exists")
    client.write("health", PART)
    assert [one.method for one in api.requests] == ["PATCH", "POST", "PATCH"]


def test_the_connection_is_kept_for_a_minute(api: ReadingsApi, client: ReadingClient, clock: Clock) -> None:
    for later in (0.0, KEPT_S - 1, KEPT_S):
        clock.now += later
        client.write("health", PART)
    assert api.calls == [("PATCH", 1), ("PATCH", 1), ("PATCH", 2)]
    clock.now += KEPT_S - 1
    client.close_idle()
    assert client._connection is not None
    clock.now += 1
    client.close_idle()
    assert client._connection is None


@pytest.mark.parametrize("closes", ["says so", "silently"])
def test_a_closed_connection_costs_no_reading(api: ReadingsApi, client: ReadingClient, closes: str) -> None:
    api.answers = [Answer(closes=closes)]
    for _ in range(2):
        client.write("health", PART)
    assert api.calls == [("PATCH", 1), ("PATCH", 2)]


def test_a_token_that_the_kubelet_replaces_is_used_at_once(api: ReadingsApi, client: ReadingClient) -> None:
    """Also by a connection that is kept: a token is valid for an hour."""
    client.write("health", PART)
    new = token_of(CLAIMS | {"exp": 1})
    (api.server.folder / "token").write_text(f"{new}\n")
    client.write("health", PART)
    assert api.requests[1].headers["authorization"] == f"Bearer {new}"
    assert api.connections == 1


@pytest.mark.parametrize(
    ("status", "hint", "final"),
    [
        (400, "", True),
        (401, "the token is of a pod that is gone, or expired", False),
        (403, "upgrade the chart for RBAC", False),
        (409, "", False),
        (413, "", True),
        (422, "", True),
        (429, "", False),
        (500, "", False),
        (503, "", False),
    ],
)
def test_a_refusal_says_what_the_api_server_says_and_what_to_do(
    api: ReadingsApi, client: ReadingClient, status: int, hint: str, final: bool
) -> None:
    api.refuses(status, "because of this")
    why = refused(client)
    assert str(why).startswith(f"the API server answered {status}: because of this")
    assert (hint in str(why), "(" in str(why)) == (True, bool(hint))
    assert (why.final, why.retry_after) == (final, 0.0)
    api.refuses(status, "x" * 10_000)
    assert len(str(refused(client))) == 500, "it goes into a termination message and a log"


def test_a_cluster_without_the_crd_is_told_as_such(api: ReadingsApi, client: ReadingClient) -> None:
    """Neither patch nor creation finds the kind; it may still be installed."""
    for _ in range(2):
        api.refuses(404, "the server could not find the requested resource")
    why = refused(client)
    assert "answered 404" in str(why)
    assert "kubectl apply -f crds/nodereadings.yaml" in str(why)
    assert not why.final


@pytest.mark.parametrize(("text", "seconds"), [("17", 17.0), ("", 0.0), ("soon", 0.0), ("-3", 0.0)])
def test_retry_after_is_told(api: ReadingsApi, client: ReadingClient, text: str, seconds: float) -> None:
    api.refuses(429, "too many requests", Retry_After=text)
    assert refused(client).retry_after == seconds


@pytest.mark.parametrize("body", [b"\xff<html>", b"[]", b'{"message": 3}', b""])
def test_an_answer_of_something_else_is_quoted(api: ReadingsApi, client: ReadingClient, body: bytes) -> None:
    api.answers = [Answer(status=502, body=body)]
    assert str(refused(client)).startswith("the API server answered 502: ")


def test_a_huge_answer_is_not_read_to_its_end(api: ReadingsApi, client: ReadingClient) -> None:
    api.answers = [Answer(body=b'{"message": "' + b"x" * 300_000 + b'"}')]
    client.write("health", PART)
    client.write("health", PART)
    assert api.calls == [("PATCH", 1), ("PATCH", 2)]


def test_an_api_server_that_is_not_there_is_told_with_its_address(api: ReadingsApi) -> None:
    port = reserve_port()
    nowhere = Server(host="127.0.0.1", port=port, folder=api.server.folder)
    why = refused(ReadingClient(nowhere))
    assert str(why).startswith(f"no answer from the API server at 127.0.0.1:{port}: ")
    assert not why.final


def test_a_server_with_another_authority_gets_no_token(api: ReadingsApi, client: ReadingClient) -> None:
    trustme.CA().cert_pem.write_to_path(str(api.server.folder / "ca.crt"))
    assert "CERTIFICATE_VERIFY_FAILED" in str(refused(client))
    assert api.requests == []


@pytest.mark.parametrize("token", [None, "no-token"], ids=["missing", "of nobody"])
def test_a_useless_token_is_refused_here(api: ReadingsApi, client: ReadingClient, token: str | None) -> None:
    path = api.server.folder / "token"
    path.unlink() if token is None else path.write_text(token)
    assert re.search("token", str(refused(client)))
    assert api.requests == []


def test_outside_of_a_cluster_there_is_nowhere_to_write() -> None:
    where = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}
    folder = {"NODEGAUGE_TOKEN_FOLDER": "/t"}
    assert server_of({}) is server_of(where) is server_of(folder) is None
    assert server_of(where | folder) == Server(host="10.0.0.1", port=6443, folder=Path("/t"))
    assert server_of(where | folder | {"KUBERNETES_SERVICE_PORT": "tcp://1"}) == Server(
        host="10.0.0.1", port=443, folder=Path("/t")
    )


def test_a_bound_token_names_pod_and_node() -> None:
    expected = Identity(pod="watch-1", pod_uid="pod-uid", node="gpu-1", node_uid="node-uid")
    assert identity_of(token_of(CLAIMS | {"exp": 1, "aud": ["a"]})) == expected
    for length in range(4):  # base64 without padding
        assert identity_of(token_of(CLAIMS | {"jti": "x" * length})) == expected


def without(*path: str) -> object:
    claims = copy.deepcopy(CLAIMS)
    inner = claims
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return claims


@pytest.mark.parametrize(
    "token",
    [
        "",
        "no-token",
        "a.!!!.c",
        "a.\u00e9.c",
        token_of([]),
        token_of({"kubernetes.io": None}),
        token_of(without("kubernetes.io", "node")),
        token_of(without("kubernetes.io", "pod")),
        token_of(without("kubernetes.io", "node", "uid")),
    ],
)
def test_a_token_of_no_pod_on_a_node_is_refused_with_what_to_do(token: str) -> None:
    with pytest.raises(BadToken, match=r"Kubernetes 1\.32 or newer"):
        identity_of(token)


def test_a_file_that_is_no_token_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_bytes(b"x" * (MAX_TOKEN + 1))
    assert len(read_token(path)) == MAX_TOKEN
    path.write_bytes(b"\xff")
    with pytest.raises(BadToken, match=str(path)):
        read_token(path)
    path.unlink()
    with pytest.raises(BadToken, match="No such file"):
        read_token(path)
