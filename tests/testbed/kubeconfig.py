"""Writes kubeconfig files: one cluster, one user with a bearer token, one context.

Client certificates are not offered: they could not pass the fault proxy.
"""

from __future__ import annotations

import base64
import os
from pathlib import Path

import yaml


def write_kubeconfig(path: Path, *, server: str, ca_file: Path, token: str, user: str) -> Path:
    """Write `path` (mode 0600, replaced at once) and return it."""
    authority = base64.b64encode(ca_file.read_bytes()).decode("ascii")
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "testbed",
        "clusters": [
            {"name": "testbed", "cluster": {"server": server, "certificate-authority-data": authority}}
        ],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": user}}],
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
