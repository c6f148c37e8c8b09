"""kubeconfig files of one cluster, one user with a bearer token, one context."""

import base64
import os
from pathlib import Path

import yaml


def write_kubeconfig(
    path: Path, *, server: str, authority: str, user: dict[str, str], namespace: str = "default"
) -> Path:
    """`authority`: PEM that verifies the server.  `user`: its `token` or `tokenFile`."""
    data = base64.b64encode(authority.encode()).decode("ascii")
    cluster = {"server": server, "certificate-authority-data": data}
    context = {"cluster": "testbed", "user": "testbed", "namespace": namespace}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "testbed",
        "clusters": [{"name": "testbed", "cluster": cluster}],
        "users": [{"name": "testbed", "user": user}],
        "contexts": [{"name": "testbed", "context": context}],
    }
    write_private(path, yaml.safe_dump(document, sort_keys=False))
    return path


def read_kubeconfig(path: Path) -> dict[str, str]:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    return {"server": cluster["server"], "authority": authority, "token": user["token"]}


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    temporary.replace(path)
