"""Containers of the built images run only their own files, read-only, as uid 65532."""

from __future__ import annotations

import http.server
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.image_tools import Built, contained, run

WHERE = """\
import json, sys, importlib
for name in sys.argv[1:]:
    importlib.import_module(name)
files = [m.__file__ for m in list(sys.modules.values()) if getattr(m, "__file__", None)]
print(json.dumps({"path": sys.path, "files": files, "version": sys.version_info[:2]}))
"""
ASK = """\
import asyncio, json, os
from nodegauge_operator.kube.client import connect

async def ask():
    client = await connect(environ=os.environ)
    try:
        return await client.call("POST", "/api/v1/namespaces", body={"kind": "Namespace"})
    finally:
        await client.close()

print(json.dumps(asyncio.run(ask())))
"""
USER = "import os; print(os.getuid(), os.getgid(), os.access('/opt', os.W_OK)); open('/tmp/x', 'w')"


class Echo(http.server.BaseHTTPRequestHandler):
    """Sends the request back."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = json.dumps({"path": self.path, "body": json.loads(body)}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """No log."""


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    """A kubeconfig for an echo server on loopback."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        path = tmp_path / "kubeconfig"
        address = f"http://127.0.0.1:{server.server_port}"
        config = {"apiVersion": "v1", "kind": "Config", "current-context": "c"} | {
            "clusters": [{"name": "c", "cluster": {"server": address}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        }
        path.write_text(json.dumps(config), encoding="utf-8")
        yield path
        server.shutdown()
        thread.join()


def test_modules_come_only_from_the_image(image: Built) -> None:
    """Every module of the entry point is in the image, and so is everything on Python's path."""
    (module,) = image.config["config"]["Entrypoint"][2:]
    done = run(image, "-c", WHERE, f"{module}.__main__")
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    paths = [*seen["files"], *filter(None, seen["path"])]
    assert [path for path in paths if not path.startswith(f"{image.root}/")] == []
    assert any("/opt/nodegauge/lib/nodegauge_" in path for path in seen["files"])


def test_the_trimmed_client_talks_to_a_server(images: dict[str, Built], kubeconfig: Path) -> None:
    """The operator's client works without the generated API modules."""
    done = run(images["operator"], "-c", ASK, env={"KUBECONFIG": str(kubeconfig)})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"path": "/api/v1/namespaces", "body": {"kind": "Namespace"}}


def test_contained_commands_work(images: dict[str, Built]) -> None:
    """In a read-only root of its own, `nodegauge` and `python` are in PATH."""
    version = contained(images["operator"], "nodegauge", "--version")
    assert version.returncode == 0, version.stderr
    assert version.stdout.startswith("nodegauge, version ")
    cleanup = contained(images["operator"], "python", "-m", "nodegauge_cli", "cleanup", "--help")
    assert cleanup.returncode == 0, cleanup.stderr


def test_a_contained_probe_writes_its_result(images: dict[str, Built]) -> None:
    """Without a driver, /proc or /sys, and with a read-only root, the probe still writes a result."""
    done = contained(images["probe"], "python", "-m", "nodegauge_probes", "health", "--window", "0.2")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["probe"] == "health"


def test_a_container_is_uid_65532_and_writes_nothing(image: Built) -> None:
    """The image's user owns no file and cannot write to a read-only root."""
    done = contained(image, "python", "-c", USER)
    assert "Read-only file system: '/tmp/x'" in done.stderr
    if os.geteuid() == 0:
        assert done.stdout.split() == ["65532", "65532", "False"]
