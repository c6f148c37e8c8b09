"""/healthz, /readyz and /metrics as a kubelet and Prometheus ask for them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio

from nodegauge_operator.handlers.app import HttpServer
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
