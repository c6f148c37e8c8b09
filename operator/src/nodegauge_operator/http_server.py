"""Serves `/healthz`, `/readyz` and `/metrics` of the operator and of the BMC reader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from aiohttp import web


class Rendered(Protocol):
    """Metrics that can be shown."""

    def render(self) -> bytes:
        """The exposition text."""
        ...


LAST_ANSWER_SECONDS = 1.0
MAX_CONNECTIONS = 200
"""Far fewer than a process may have open, and far more than kubelets and Prometheus make."""
CONNECTION_SECONDS = 30.0
"""A connection is cut after so long: each is for one request, which takes milliseconds."""


class HttpServer:
    """Serves until `stop`.  `live` and `unready` (why, in words) are asked at each request."""

    def __init__(
        self,
        *,
        host: str,
        port: int,
        metrics: Rendered,
        live: Callable[[], bool],
        unready: Callable[[], str],
    ) -> None:
        self._host = host or None
        self._port = port
        self._metrics = metrics
        self._live = live
        self._unready = unready
        self._runner: web.ServerRunner | None = None

    async def start(self) -> int:
        """Listen; returns the port (useful with port 0).  Raises `OSError` if the port is in use."""
        server = _BoundedServer(self._answer, access_log=None, lingering_time=0.0)
        self._runner = web.ServerRunner(server, shutdown_timeout=LAST_ANSWER_SECONDS)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port)
        await site.start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        pages = {"/healthz": self._healthz, "/readyz": self._readyz, "/metrics": self._show_metrics}
        if request.path not in pages:
            response = web.Response(text="404: Not Found\n", status=404)
        elif request.method not in ("GET", "HEAD"):
            response = web.Response(
                text="405: Method Not Allowed\n", status=405, headers={"Allow": "GET, HEAD"}
            )
        else:
            response = pages[request.path]()
        response.force_close()
        return response

    def _healthz(self) -> web.Response:
        alive = self._live()
        text = "ok\n" if alive else "the loop has not finished a pass recently\n"
        return web.Response(text=text, status=200 if alive else 503)

    def _readyz(self) -> web.Response:
        why = self._unready()
        return web.Response(text=f"{why or 'ok'}\n", status=503 if why else 200)

    def _show_metrics(self) -> web.Response:
        body = self._metrics.render()
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


class _BoundedServer(web.Server):
    """Cuts connections that are old, and the oldest of too many: aiohttp would keep those of a client that
    sends nothing, or reads nothing, until no descriptor is left for the kubelet."""

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Bound the number of connections, and this one's life."""
        super().connection_made(handler, transport)
        asyncio.get_running_loop().call_later(CONNECTION_SECONDS, transport.abort)
        for oldest in self.connections[:-MAX_CONNECTIONS]:
            if oldest.transport is not None:
                oldest.transport.abort()
