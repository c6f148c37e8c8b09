"""Who a probe is, by its own token."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from nodegauge_probes.identity import MAX_TOKEN, BadToken, Identity, identity_of, read_token
from support.readings_api import CLAIMS, token_of


def test_a_bound_token_names_pod_and_node() -> None:
    expected = Identity(pod="watch-1", pod_uid="pod-uid", node="gpu-1", node_uid="node-uid")
    assert identity_of(token_of(CLAIMS | {"exp": 1, "aud": ["a"]})) == expected


@pytest.mark.parametrize("length", range(4))
def test_a_token_of_any_length_is_decoded(length: int) -> None:
    """Base64 without padding."""
    assert identity_of(token_of(CLAIMS | {"jti": "x" * length})).node == "gpu-1"


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
