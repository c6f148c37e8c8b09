"""Many BMCs in one process: a port of loopback for each, TLS, recorded trees, a latency.

As little as a BMC can be, so that the reader takes the time; `testbed.hardware.bmc` is the one with faults.
`python -m fleet.load.bmcs COUNT SKIP LATENCY KEY CERTIFICATE` prints its ports and serves until stdin ends.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys

from testbed.hardware.bmc import TREES, recorded

TOKEN = "token"
HEAD = "HTTP/1.1 {status}\r\nContent-Type: application/json\r\n{more}Content-Length: {length}\r\n\r\n"


def answers(tree: str) -> dict[bytes, bytes]:
    """The whole answer to a GET, by path."""
    given = {path.encode(): answer(json.dumps(body).encode()) for path, body in recorded(tree).items()}
    return given | {b"": answer(b"{}", status="404 Not Found")}


def answer(body: bytes, *, status: str = "200 OK", more: str = "") -> bytes:
    """An answer with its head."""
    return HEAD.format(status=status, more=more, length=len(body)).encode() + body


LOGIN = answer(
    b"{}",
    status="201 Created",
    more=f"X-Auth-Token: {TOKEN}\r\nLocation: /redfish/v1/SessionService/Sessions/1\r\n",
)
LOGOUT = answer(b"", status="204 No Content")


class Connection(asyncio.Protocol):
    """One connection of a client that sends one request at a time."""

    def __init__(self, known: dict[bytes, bytes], latency: float) -> None:
        self._known, self._latency = known, latency
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep it for the answers."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer a request once all of it is here."""
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.split(b"\r\n") if line[:15].lower() == b"content-length:"), 0
        )
        if not end or len(body) < length:
            return
        self._received = b""
        method, path, _ = head.split(b" ", 2)
        if method == b"GET":
            reply = self._known.get(path.rstrip(b"/")) or self._known[b""]
        else:
            reply = LOGIN if method == b"POST" else LOGOUT
        asyncio.get_running_loop().call_later(self._latency, self._reply, reply)

    def _reply(self, reply: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(reply)


async def serve(*, count: int, skip: int, latency: float, key: str, certificate: str) -> None:
    """`count` BMCs; their trees take turns, from the one after `skip` others on."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    names = sorted(path.stem for path in TREES.glob("*.json"))
    known = {name: answers(name) for name in names}
    loop = asyncio.get_running_loop()
    ports = []
    for number in range(skip, skip + count):
        tree = known[names[number % len(names)]]

        def connection(tree: dict[bytes, bytes] = tree) -> Connection:
            return Connection(tree, latency)

        server = await loop.create_server(connection, "127.0.0.1", 0, ssl=context, backlog=64)
        ports.append(server.sockets[0].getsockname()[1])
    print(json.dumps(ports), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(
        serve(
            count=int(sys.argv[1]),
            skip=int(sys.argv[2]),
            latency=float(sys.argv[3]),
            key=sys.argv[4],
            certificate=sys.argv[5],
        )
    )
