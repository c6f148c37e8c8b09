"""Writes kubeconfig files: one cluster, one user with a bearer token, one context.

The token may be a file, which clients read again every minute or so; that is how a pod's token works.  Client
certificates are not offered: they could not pass the fault proxy.
"""

from __future__ import annotations

import base64
import os
from pathlib import Path

import yaml


def write_kubeconfig(
    path: Path,
    *,
    server: str,
    ca_file: Path,
    token: str | None = None,
    token_file: Path | None = None,
    user: str = "testbed",
    namespace: str = "default",
) -> Path:
    """Write `path` (mode 0600, replaced at once) and return it; exactly one of the tokens is given."""
    if (token is None) == (token_file is None):
        raise ValueError("give either token or token_file")
    credentials = {"token": token} if token_file is None else {"tokenFile": str(token_file.absolute())}
    authority = base64.b64encode(ca_file.read_bytes()).decode("ascii")
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "testbed",
        "clusters": [
            {"name": "testbed", "cluster": {"server": server, "certificate-authority-data": authority}}
        ],
        "users": [{"name": user, "user": credentials}],
        "contexts": [
            {"name": "testbed", "context": {"cluster": "testbed", "user": user, "namespace": namespace}}
        ],
    }
    write_private(path, yaml.safe_dump(document, sort_keys=False))
    return path


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    temporary.replace(path)
