"""The API server as a probe sees it, over TLS, and a pod's folder with its token."""

import base64
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import trustme

from nodegauge_probes.identity import Server
from testbed.loopback import LOOPBACK

CLAIMS: dict[str, Any] = {
    "kubernetes.io": {
        "namespace": "nodegauge",
        "node": {"name": "gpu-1", "uid": "node-uid"},
        "pod": {"name": "watch-1", "uid": "pod-uid"},
        "serviceaccount": {"name": "nodegauge-probe", "uid": "account-uid"},
    }
}


def token_of(claims: object) -> str:
    parts = [json.dumps(part).encode() for part in ({"alg": "RS256"}, claims)]
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in (*parts, b"signature"))


@dataclass
class Answer:
    """One answer.  `closes`: the connection ends with it, or without the server having said so."""

    status: int = 200
    body: Any = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    closes: str = ""


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: Any
    connection: int


class ReadingsApi:
    """`requests` so far; `answers` to the next ones, 200 once there is none left."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.requests: list[Request] = []
        self.answers: list[Answer] = []
        self.connections = 0

    @property
    def calls(self) -> list[tuple[str, int]]:
        return [(one.method, one.connection) for one in self.requests]

    def refuses(self, status: int, message: str = "", **headers: str) -> None:
        body = {"kind": "Status", "status": "Failure", "message": message, "code": status}
        self.answers.append(Answer(status, body, {k.replace("_", "-"): v for k, v in headers.items()}))


@contextmanager
def serving(folder: Path, authority: trustme.CA) -> Iterator[ReadingsApi]:
    folder.mkdir()
    authority.cert_pem.write_to_path(str(folder / "ca.crt"))
    (folder / "token").write_text(token_of(CLAIMS))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(LOOPBACK).configure_cert(context)
    server = ThreadingHTTPServer((LOOPBACK, 0), BaseHTTPRequestHandler, bind_and_activate=False)
    server.daemon_threads = True
    server.server_bind()
    server.server_activate()
    server.socket = context.wrap_socket(server.socket, server_side=True)
    api = ReadingsApi(Server(host=LOOPBACK, port=server.server_address[1], folder=folder))
    server.RequestHandlerClass = _handler(api)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _handler(api: ReadingsApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            api.connections += 1
            self.number = api.connections

        def do(self) -> None:
            sent = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {key.lower(): value for key, value in self.headers.items()}
            api.requests.append(Request(self.command, self.path, headers, json.loads(sent), self.number))
            answer = api.answers.pop(0) if api.answers else Answer()
            body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
            self.send_response(answer.status)
            for key, value in answer.headers.items():
                self.send_header(key, value)
            if answer.closes == "says so":
                self.send_header("Connection", "close")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            if answer.closes:
                self.close_connection = True

        do_PATCH = do_POST = do

        def log_message(self, *_: Any) -> None:
            pass

    return Handler
