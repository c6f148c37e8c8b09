"""Where this pod's API server is, and who the pod is, by the claims of its own token.

The token is bound to the pod and names it and its node; the API server checks all of that whenever it is
used (kubernetes, pkg/serviceaccount/claims.go).  It is decoded here and not verified: a forged claim only
makes the API server refuse what this pod writes.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct, field

FOLDER = Path("/var/run/secrets/nodegauge")
MAX_TOKEN = 64 * 1024


class BadToken(Exception):
    """The token cannot be read, or is bound to no pod on a node; the message says what to do."""


class Server(Struct, frozen=True, kw_only=True):
    """Where the API server is, and the folder of the pod's token and of the authority that signed its
    certificate (`token`, `ca.crt`)."""

    host: str
    port: int
    folder: Path = FOLDER


def server_of(environment: Mapping[str, str]) -> Server | None:
    """The cluster that this pod runs in; None outside of one, and for pods without a token."""
    host, folder = (
        environment.get("KUBERNETES_SERVICE_HOST", ""),
        environment.get("NODEGAUGE_TOKEN_FOLDER", ""),
    )
    if not host or not folder:
        return None
    port = environment.get("KUBERNETES_SERVICE_PORT", "443")
    return Server(host=host, port=int(port) if port.isdecimal() else 443, folder=Path(folder))


class _Object(Struct):
    name: str
    uid: str


class _Kubernetes(Struct):
    pod: _Object
    node: _Object


class _Claims(Struct):
    kubernetes: _Kubernetes = field(name="kubernetes.io")


class Identity(Struct, frozen=True, kw_only=True):
    """The pod and its node, by name and UID."""

    pod: str
    pod_uid: str
    node: str
    node_uid: str


def read_token(path: Path) -> str:
    """The token as it is now: the kubelet replaces the file long before the token expires."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_TOKEN).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadToken(f"token {path}: {error}") from None


def identity_of(token: str) -> Identity:
    """The identity that a token claims.  Raises `BadToken`."""
    parts = token.split(".")
    try:
        payload = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        claims = msgspec.json.decode(payload, type=_Claims).kubernetes
    except (IndexError, binascii.Error, ValueError, msgspec.MsgspecError):
        raise BadToken(
            "the token names no pod and no node: it must be a projected service account token of "
            "Kubernetes 1.32 or newer"
        ) from None
    return Identity(
        pod=claims.pod.name, pod_uid=claims.pod.uid, node=claims.node.name, node_uid=claims.node.uid
    )
