"""/healthz, /readyz and /metrics as a kubelet and Prometheus ask for them."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import sys
from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest
import pytest_asyncio

from nodegauge_operator import http_server
from nodegauge_operator.http_server import HttpServer
from nodegauge_operator.metrics import Metrics


class Served:
    """A server on a free port, and what it is told to say."""

    def __init__(self) -> None:
        self.live, self.unready = True, ""
        self.metrics = Metrics()
        self.server = HttpServer(
            host="127.0.0.1",
            port=0,
            metrics=self.metrics,
            live=lambda: self.live,
            unready=lambda: self.unready,
        )
        self.port = 0

    async def get(self, path: str) -> tuple[int, str]:
        """Status and text."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{self.port}{path}") as answer,
        ):
            return answer.status, await answer.text()


@pytest_asyncio.fixture
async def served() -> AsyncIterator[Served]:
    """Started, and stopped."""
    served = Served()
    served.port = await served.server.start()
    yield served
    await served.server.stop()


async def test_live_and_ready_are_asked_at_each_request(served: Served) -> None:
    """200 while it is so, 503 with the reason once it is not."""
    for path, name, bad, good in (
        ("/healthz", "live", False, True),
        ("/readyz", "unready", "the reason why", ""),
    ):
        assert await served.get(path) == (200, "ok\n")
        setattr(served, name, bad)
        status, text = await served.get(path)
        assert status == 503
        assert len(text) > 10
        setattr(served, name, good)
        assert (await served.get(path))[0] == 200


async def test_metrics_are_in_prometheus_words(served: Served) -> None:
    """Counters end in _total, units stand in names, calls are counted by verb, resource and status."""
    served.metrics.observe_call(verb="PATCH", resource="nodes", status=409, seconds=0.003)
    status, text = await served.get("/metrics")
    assert status == 200
    assert 'nodegauge_api_calls_total{resource="nodes",status="409",verb="PATCH"} 1.0' in text
    assert 'nodegauge_api_call_seconds_bucket{le="0.005",verb="PATCH"} 1.0' in text
    assert "nodegauge_pods_refused_total 0.0" in text
    assert "process_resident_memory_bytes" in text


async def test_a_taken_port_is_an_error_and_unknown_paths_are_404(served: Served) -> None:
    """The process must say so and end, not run deaf."""
    assert (await served.get("/"))[0] == 404
    second = HttpServer(
        host="127.0.0.1", port=served.port, metrics=Metrics(), live=lambda: True, unready=lambda: ""
    )
    with pytest.raises(OSError, match="address already in use"):
        await second.start()
    await second.stop()


async def test_stopping_before_starting_is_fine() -> None:
    """Cleanup runs whatever came before."""
    await HttpServer(host="", port=0, metrics=Metrics(), live=lambda: True, unready=lambda: "").stop()


SENT = {
    "nothing": b"",
    "half a request": b"GET /metrics HTTP/1.1\r\nHost: x\r\n",
    "a body that never comes": b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n",
    "many requests at once": b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 200,
    "no HTTP": b"\x16\x03\x01\x02\x00" * 100,
}


@contextlib.contextmanager
def few_descriptors(count: int) -> Iterator[None]:
    """This process may open no more than so many files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


HOLD = """
import resource, socket, sys
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
held = []
for _ in range(int(sys.argv[2])):
    held.append(socket.create_connection(("127.0.0.1", int(sys.argv[1]))))
    try:
        held[-1].sendall(eval(sys.argv[3]))
    except OSError:
        pass
print("held", flush=True)
sys.stdin.read()
"""
"""A client that keeps connections, in a process of its own: ours may open few files."""


@pytest.mark.parametrize("sent", SENT)
async def test_a_client_that_keeps_connections_shuts_nobody_out(
    served: Served, sent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many it opens, and whatever it sends: the kubelet gets its answer, and not by their age."""
    monkeypatch.setattr(http_server, "CONNECTION_SECONDS", 3600.0)
    command = [sys.executable, "-c", HOLD, str(served.port), "1100", repr(SENT[sent])]
    with few_descriptors(1024):
        client = await asyncio.create_subprocess_exec(*command, stdin=-1, stdout=-1)
        assert client.stdin
        assert client.stdout
        async with asyncio.timeout(60):
            assert await client.stdout.readline() == b"held\n"
        for _ in range(3):
            async with asyncio.timeout(60):
                assert await served.get("/healthz") == (200, "ok\n")
        client.stdin.close()
        await client.wait()


@pytest.mark.parametrize("sent", SENT)
async def test_a_connection_has_an_end(served: Served, sent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that sends nothing, or reads nothing of its answer."""
    monkeypatch.setattr(http_server, "CONNECTION_SECONDS", 0.2)
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(SENT[sent])
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(60):
            await reader.read()
    writer.close()
    assert not served.server._runner.server.connections  # type: ignore[union-attr]


async def test_other_methods_are_refused(served: Served) -> None:
    """They would change nothing."""
    url = f"http://127.0.0.1:{served.port}/healthz"
    async with aiohttp.ClientSession() as session:
        async with session.head(url) as answer:
            assert answer.status == 200
        async with session.post(url, data=b"x") as answer:
            assert (answer.status, answer.headers["Connection"]) == (405, "close")
