"""/healthz, /readyz and /metrics on a small server of our own.

Not kopf's liveness endpoint, which cannot report a failure: here live means that the loop is running and
finished a pass recently, and ready means that the first full list is complete.

Every answer closes its connection.  Prometheus would keep it open, and at shutdown kopf waits 5 s for every
task that is not its own, including that of an idle connection.
"""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from nodegauge_operator.metrics import Metrics

LAST_ANSWER_SECONDS = 1.0


class HttpServer:
    """Serves until `stop`.  `live` and `ready` are asked at each request."""

    def __init__(
        self,
        *,
        host: str,
        port: int,
        metrics: Metrics,
        live: Callable[[], bool],
        ready: Callable[[], bool],
    ) -> None:
        self._host = host or None
        self._port = port
        self._metrics = metrics
        self._live = live
        self._ready = ready
        self._runner: web.AppRunner | None = None

    async def start(self) -> int:
        """Listen; returns the port (useful with port 0).  Raises `OSError` if the port is in use."""
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._show_metrics)
        app.on_response_prepare.append(_close_connection)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=LAST_ANSWER_SECONDS)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port)
        await site.start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _healthz(self, _: web.Request) -> web.Response:
        alive = self._live()
        text = "ok\n" if alive else "the operator's loop has not finished a pass recently\n"
        return web.Response(text=text, status=200 if alive else 503)

    async def _readyz(self, _: web.Request) -> web.Response:
        ready = self._ready()
        text = "ok\n" if ready else "the first full list is not complete (are the CRDs installed?)\n"
        return web.Response(text=text, status=200 if ready else 503)

    async def _show_metrics(self, _: web.Request) -> web.Response:
        body = self._metrics.render()
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


async def _close_connection(_: web.Request, response: web.StreamResponse) -> None:
    response.force_close()
    response.headers["Connection"] = "close"  # aiohttp has written its own headers before this hook
