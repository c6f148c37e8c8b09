"""The operator's HTTP server."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from nodegauge_operator.http import HttpServer
from nodegauge_operator.metrics import Metrics

PATHS = ["/healthz", "/readyz", "/metrics", "/nothing"]


@pytest.mark.parametrize("path", PATHS)
async def test_a_client_that_wants_to_keep_its_connection_leaves_no_task_behind(path: str) -> None:
    """kopf waits 5 s at its end for tasks it does not know, as that of an idle connection would be."""
    server = HttpServer(host="127.0.0.1", port=0, metrics=Metrics(), live=lambda: True, ready=lambda: True)
    port = await server.start()
    try:
        before = asyncio.all_tasks()
        async with aiohttp.ClientSession() as patient:
            async with patient.get(f"http://127.0.0.1:{port}{path}") as answer:
                await answer.read()
                assert answer.headers["Connection"] == "close"
            while left := asyncio.all_tasks() - before:
                await asyncio.wait(left, timeout=1)
    finally:
        await server.stop()
