"""`python -m fleet.load.bmc`: how long one BMC reader takes for a first round over many BMCs.

The reader is the real process with the chart's settings; the BMCs are in two processes, each as little as one
can be (`testbed.hardware.bmc` has faults); the API server is a stub that counts what is written.  The clock
runs from the reader's start to the last BMC's first reading.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import ssl
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import trustme
import yaml
from aiohttp import web

from fleet.load.measured import cpu_of, memory_of
from testbed.hardware.bmc import TREES, recorded

TESTS = Path(__file__).resolve().parents[2]
SERVERS = 2


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


class Stub:
    """As much of an API server as the reader asks for."""

    def __init__(self, count: int) -> None:
        self.nodes = [f"gpu-{number:04}" for number in range(count)]
        self.read: dict[str, dict[str, Any]] = {}
        self.problems: dict[str, str] = {}
        self.done = asyncio.Event()

    async def answer(self, request: web.Request) -> web.Response:
        """One call."""
        if request.path.endswith("/nodes"):
            items = [{"metadata": {"name": name, "uid": f"uid-{name}"}} for name in self.nodes]
            return web.json_response({"kind": "NodeList", "metadata": {}, "items": items})
        if request.path.endswith("/chassisreadings") and request.method == "GET":
            return web.json_response({"kind": "List", "metadata": {}, "items": []})
        if request.method == "GET":
            return web.json_response({"kind": "Status", "reason": "NotFound"}, status=404)
        body = await request.json()
        name = request.path.rpartition("/")[2]
        status = body["status"]
        if "reading" in status:
            self.read[name] = status
        else:
            self.problems[name] = status["problem"]
        if len(self.read) >= len(self.nodes):
            self.done.set()
        return web.json_response(body)


async def main(arguments: argparse.Namespace) -> int:
    """Run and print the figures; 1 if the round takes longer than the limit or a BMC is not read."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        stub = Stub(arguments.bmcs)
        runner = await served(stub)
        servers = [await bmcs(folder, arguments, number) for number in range(SERVERS)]
        try:
            ports = [port for server in servers for port in await ports_of(server)]
            inventory(folder / "inventory", stub.nodes, ports)
            figures = await measured(folder, arguments, stub, port=runner.addresses[0][1])
        finally:
            for server in servers:
                server.kill()
                await server.wait()
            await runner.cleanup()
    requests = sum(status["reading"]["requests"] for status in stub.read.values())
    seconds = sorted(status["reading"]["seconds"] for status in stub.read.values())
    took = figures["seconds"]
    print(f"{len(stub.read)} of {arguments.bmcs} BMCs read in {took:.1f} s, {len(stub.problems)} failed")
    print(f"{requests} requests of {arguments.latency * 1000:g} ms, {requests / took:.0f} a second")
    if seconds:
        print(f"one BMC: median {seconds[len(seconds) // 2]:.1f} s, slowest {seconds[-1]:.1f} s")
    print(f"reader: {figures['cpu']:.1f} CPU seconds, {figures['rss']:.0f} MiB at most")
    for name, problem in sorted(stub.problems.items())[:5]:
        print(f"  {name}: {problem}")
    return int(len(stub.read) < arguments.bmcs or took > arguments.limit or figures["exit"] != 0)


async def served(stub: Stub) -> web.AppRunner:
    """The stub on a free port."""
    app = web.Application(client_max_size=8 * 1024 * 1024)
    app.router.add_route("*", "/{path:.*}", stub.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner


async def bmcs(folder: Path, arguments: argparse.Namespace, number: int) -> asyncio.subprocess.Process:
    """One of the processes that are BMCs."""
    authority = folder / "inventory" / "ca.pem"
    if not authority.exists():
        authority.parent.mkdir()
        signer = trustme.CA()
        signer.cert_pem.write_to_path(str(authority))
        certificate = signer.issue_cert("127.0.0.1")
        certificate.private_key_pem.write_to_path(str(folder / "key.pem"))
        certificate.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
    share = arguments.bmcs // SERVERS + (arguments.bmcs % SERVERS if number == 0 else 0)
    options = (share, number, arguments.latency, folder / "key.pem", folder / "cert.pem")
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "fleet.load.bmc",
        "--serve",
        *map(str, options),
        cwd=TESTS,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 20,
    )


async def ports_of(server: asyncio.subprocess.Process) -> list[int]:
    """The ports that it prints once it listens."""
    assert server.stdout is not None
    ports: list[int] = json.loads(await server.stdout.readline())
    return ports


def inventory(folder: Path, nodes: list[str], ports: list[int]) -> None:
    """A file for each node, and the login in the defaults."""
    login = {"username": "reader", "password": "of the load test", "ca": "ca.pem"}
    (folder / "_defaults").write_text(yaml.safe_dump(login))
    for node, port in zip(nodes, ports, strict=True):
        (folder / node).write_text(f"url: https://127.0.0.1:{port}\n")


async def measured(folder: Path, arguments: argparse.Namespace, stub: Stub, *, port: int) -> dict[str, float]:
    """Seconds of the round, the reader's CPU seconds, and its peak memory in MiB."""
    kubeconfig = folder / "kubeconfig"
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    users = [{"name": "u", "user": {"token": "t"}}]
    whole = {"clusters": [cluster], "contexts": [context], "users": users, "current-context": "c"}
    kubeconfig.write_text(yaml.safe_dump(whole))
    environ = os.environ | {
        "KUBECONFIG": str(kubeconfig),
        "NODEGAUGE_BMC_INVENTORY": str(folder / "inventory"),
        "NODEGAUGE_BMC_INTERVAL": f"{arguments.interval:g}s",
        "NODEGAUGE_BMC_CONCURRENCY": str(arguments.concurrency),
        "NODEGAUGE_HTTP_HOST": "127.0.0.1",
        "NODEGAUGE_HTTP_PORT": "0",
        "NODEGAUGE_LOG_LEVEL": "error",
    }
    started = time.monotonic()
    command = (sys.executable, "-m", "nodegauge_operator.reader")
    reader = await asyncio.create_subprocess_exec(*command, env=environ)
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5 * arguments.limit):
                await stub.done.wait()
        seconds = time.monotonic() - started
        cpu, (_, peak) = cpu_of(reader.pid), memory_of(reader.pid)
        reader.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            return {"seconds": seconds, "cpu": cpu, "rss": peak, "exit": await reader.wait()}
    finally:
        if reader.returncode is None:
            reader.kill()
            await reader.wait()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        count, skip, latency, key, certificate = sys.argv[2:]
        numbers = {"count": int(count), "skip": int(skip), "latency": float(latency)}
        asyncio.run(serve(**numbers, key=key, certificate=certificate))  # type: ignore[arg-type]
        sys.exit()
    parser = argparse.ArgumentParser(prog="python -m fleet.load.bmc", description=__doc__)
    parser.add_argument("--bmcs", type=int, default=1000)
    parser.add_argument("--latency", type=float, default=0.03, help="seconds of a BMC for one answer")
    parser.add_argument("--concurrency", type=int, default=64, help="the chart's bmc.concurrency")
    parser.add_argument(
        "--interval", type=float, default=60, help="seconds; the first tries spread over a tenth"
    )
    parser.add_argument("--limit", type=float, default=60, help="seconds that the round may take")
    raise SystemExit(asyncio.run(main(parser.parse_args())))
