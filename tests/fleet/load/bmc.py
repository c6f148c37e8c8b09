"""`python -m fleet.load.bmc`: how long one BMC reader takes for a first round over many BMCs.

The reader is the real process with the chart's settings; the BMCs, of Redfish or (--ipmi) of IPMI, are in two
processes; the API server is a stub.  The clock runs from the reader's start to the last BMC's first reading.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import re
import signal
import ssl
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import trustme
import yaml
from aiohttp import web

from fleet.load.measured import cpu_of, memory_of
from testbed.hardware import ipmimachine
from testbed.hardware.bmc import TREES, recorded
from testbed.hardware.ipmibmc import Behaviour, IpmiBmc
from testbed.kubeconfig import write_kubeconfig

SERVERS = 2


def answer(body: bytes, *, status: str = "200 OK", more: str = "") -> bytes:
    """An answer with its head."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n{more}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


NOT_FOUND = answer(b"{}", status="404 Not Found")
SESSION = "X-Auth-Token: token\r\nLocation: /redfish/v1/SessionService/Sessions/1\r\n"
LOGIN = answer(b"{}", status="201 Created", more=SESSION)
LOGOUT = answer(b"", status="204 No Content")
LENGTH = re.compile(rb"^content-length: *(\d+)", re.MULTILINE | re.IGNORECASE)


def serve(ports: Connection, trees: Sequence[str], latency: float, certificate: str) -> None:
    """A BMC for each of these trees, in a process of their own; sends their ports."""
    known = {
        tree: {path.encode(): answer(json.dumps(body).encode()) for path, body in recorded(tree).items()}
        for tree in set(trees)
    }
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    async def bmc(tree: str) -> int:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    if length := LENGTH.search(head):
                        await reader.readexactly(int(length[1]))
                    await asyncio.sleep(latency)
                    method, path, _ = head.split(b" ", 2)
                    reply = known[tree].get(path.rstrip(b"/"), NOT_FOUND)
                    writer.write({b"GET": reply, b"POST": LOGIN}.get(method, LOGOUT))

        server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=context, backlog=64)
        port: int = server.sockets[0].getsockname()[1]
        return port

    async def all_of_them() -> None:
        ports.send([await bmc(tree) for tree in trees])
        await asyncio.Event().wait()

    asyncio.run(all_of_them())


class Late(IpmiBmc):
    latency = 0.0

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        asyncio.get_running_loop().call_later(self.latency, super().datagram_received, data, addr)


def serve_ipmi(ports: Connection, trees: Sequence[str], latency: float, _: str) -> None:
    """As many BMCs of one machine, whose records are encoded once for all."""
    machine, Late.latency = ipmimachine.server(), latency
    records = machine.records()
    vars(machine)["records"] = lambda: records
    loop = asyncio.new_event_loop()

    async def bmc() -> int:
        made = await loop.create_datagram_endpoint(
            lambda: Late(machine, Behaviour()), local_addr=("127.0.0.1", 0)
        )
        return int(made[0].get_extra_info("sockname")[1])

    ports.send([loop.run_until_complete(bmc()) for _ in trees])
    loop.run_forever()


@contextlib.contextmanager
def served(folder: Path, *, count: int, latency: float, ipmi: bool) -> Iterator[list[int]]:
    signer = trustme.CA()
    signer.cert_pem.write_to_path(str(folder / "inventory" / "ca.pem"))
    signer.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(folder / "bmc.pem"))
    names = sorted(path.stem for path in TREES.glob("*.json"))
    trees, spawn = (
        [names[number % len(names)] for number in range(count)],
        multiprocessing.get_context("spawn"),
    )
    pipes = [spawn.Pipe(duplex=False) for _ in range(SERVERS)]
    servers = [
        spawn.Process(
            target=serve_ipmi if ipmi else serve,
            args=(end, trees[n::SERVERS], latency, str(folder / "bmc.pem")),
            daemon=True,
        )
        for n, (_, end) in enumerate(pipes)
    ]
    for server in servers:
        server.start()
    try:
        yield [port for ports, _ in pipes for port in ports.recv()]
    finally:
        for server in servers:
            server.kill()
            server.join()


class Stub:
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
        name, status = request.path.rpartition("/")[2], body["status"]
        if "reading" in status:
            self.read[name] = status
        else:
            self.problems[name] = status["problem"]
        if len(self.read) >= len(self.nodes):
            self.done.set()
        return web.json_response(body)


async def main(arguments: argparse.Namespace) -> int:
    """Run and print the figures; 1 if the round takes longer than the limit or a BMC is not read."""
    stub, app = Stub(arguments.bmcs), web.Application(client_max_size=8 * 1024 * 1024)
    app.router.add_route("*", "/{path:.*}", stub.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "inventory").mkdir()
        with served(folder, count=arguments.bmcs, latency=arguments.latency, ipmi=arguments.ipmi) as ports:
            inventory(folder / "inventory", stub.nodes, ports, ipmi=arguments.ipmi)
            server = f"http://127.0.0.1:{runner.addresses[0][1]}"
            write_kubeconfig(folder / "kubeconfig", server=server, authority="", user={"token": "t"})
            took, cpu, peak, code = await measured(folder, arguments, stub)
    await runner.cleanup()
    readings = [status["reading"] for status in stub.read.values()]
    requests, seconds = sum(r["requests"] for r in readings), sorted(r["seconds"] for r in readings)
    print(f"{len(readings)} of {arguments.bmcs} BMCs read in {took:.1f} s, {len(stub.problems)} failed")
    print(f"{requests} requests of {arguments.latency * 1000:g} ms, {requests / took:.0f} a second")
    if seconds:
        print(f"one BMC: median {seconds[len(seconds) // 2]:.1f} s, slowest {seconds[-1]:.1f} s")
    print(f"reader: {cpu:.1f} CPU seconds, {peak:.0f} MiB at most")
    for name, problem in sorted(stub.problems.items())[:5]:
        print(f"  {name}: {problem}")
    return int(len(readings) < arguments.bmcs or took > arguments.limit or code != 0)


def inventory(folder: Path, nodes: list[str], ports: list[int], *, ipmi: bool) -> None:
    login = {"username": ipmimachine.USER, "password": ipmimachine.PASSWORD} | (
        {} if ipmi else {"ca": "ca.pem"}
    )
    scheme = "ipmi" if ipmi else "https"
    (folder / "_defaults").write_text(yaml.safe_dump(login))
    for node, port in zip(nodes, ports, strict=True):
        (folder / node).write_text(f"url: {scheme}://127.0.0.1:{port}\n")


async def measured(
    folder: Path, arguments: argparse.Namespace, stub: Stub
) -> tuple[float, float, float, int]:
    environ = os.environ | {
        "KUBECONFIG": str(folder / "kubeconfig"),
        "NODEGAUGE_BMC_INVENTORY": str(folder / "inventory"),
        "NODEGAUGE_BMC_INTERVAL": f"{arguments.interval:g}s",
        "NODEGAUGE_BMC_CONCURRENCY": str(arguments.concurrency),
        "NODEGAUGE_HTTP_HOST": "127.0.0.1",
        "NODEGAUGE_HTTP_PORT": "0",
        "NODEGAUGE_LOG_LEVEL": "error",
    }
    started = time.monotonic()
    command = (sys.executable, "-m", "nodegauge_operator.bmc_reader")
    reader = await asyncio.create_subprocess_exec(*command, env=environ)
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5 * arguments.limit):
                await stub.done.wait()
        seconds = time.monotonic() - started
        cpu, (_, peak) = cpu_of(reader.pid), memory_of(reader.pid)
        reader.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            return seconds, cpu, peak, await reader.wait()
    finally:
        if reader.returncode is None:
            reader.kill()
            await reader.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m fleet.load.bmc", description=__doc__)
    parser.add_argument("--bmcs", type=int, default=1000)
    parser.add_argument("--latency", type=float, default=0.03, help="seconds of a BMC for one answer")
    parser.add_argument("--concurrency", type=int, default=96, help="the chart's bmc.concurrency")
    parser.add_argument("--interval", type=float, default=60, help="seconds; first tries spread over a tenth")
    parser.add_argument("--limit", type=float, default=60, help="seconds that the round may take")
    parser.add_argument("--ipmi", action="store_true", help="BMCs that speak IPMI alone")
    raise SystemExit(asyncio.run(main(parser.parse_args())))
