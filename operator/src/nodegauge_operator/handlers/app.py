"""Run the operator: the watches, our sweep, our HTTP server, started and stopped together.

The HTTP server answers `/healthz`, `/readyz` and `/metrics`.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Mapping

from aiohttp import web

from nodegauge_operator.handlers.supervisor import Supervisor
from nodegauge_operator.kube.client import Client, Limiter, connect
from nodegauge_operator.metrics import Metrics
from nodegauge_operator.reconcile.cache import Cache
from nodegauge_operator.reconcile.sweep import Sweep
from nodegauge_operator.settings import Settings

log = logging.getLogger("nodegauge")

OUTAGE_SECONDS = 30.0
"""After so long without an answer of the API server the operator is not ready."""


class SweepDied(Exception):
    """The sweep's task ended with an error: the process must exit, so that Kubernetes restarts it."""


async def serve(settings: Settings, environ: Mapping[str, str]) -> None:
    """Run until SIGTERM.  Raises `KubeError` or `OSError` at the start, `SweepDied` if the sweep fails."""
    metrics = Metrics()
    limiter = Limiter(rate=settings.api_rate, burst=settings.api_burst)
    client = await connect(environ=environ, limiter=limiter, observer=metrics.observe_call)
    sweep = Sweep(client=client, cache=Cache(), metrics=metrics, settings=settings, clock=client.now)
    stop = asyncio.Event()
    watches = Supervisor(
        client=client, sweep=sweep, settings=settings, environ=environ, signals=lambda: _stop_at_signals(stop)
    )
    server = HttpServer(
        host=settings.http_host,
        port=settings.http_port,
        metrics=metrics,
        live=sweep.alive,
        unready=lambda: unready(client, sweep, watches),
    )
    try:
        port = await server.start()
        log.info("listening on port %d, probes in namespace %s", port, settings.probe.namespace)
        await _run(sweep, watches, stop=stop)
    finally:
        await server.stop()
        await client.close()
    log.info("stopped")


async def _run(sweep: Sweep, watches: Supervisor, *, stop: asyncio.Event) -> None:
    """Sweep and watch until `stop` is set, or one of them ends."""
    _stop_at_signals(stop)
    sweeping = asyncio.create_task(sweep.run(), name="sweep")
    watching = asyncio.create_task(watches.run(), name="watches")
    for task in (sweeping, watching):
        task.add_done_callback(lambda _: stop.set())
    await stop.wait()
    died = sweeping.done() and not sweeping.cancelled() and sweeping.exception()
    sweeping.cancel()  # first: create no pod after SIGTERM, and finish the writes in flight
    await asyncio.gather(sweeping, return_exceptions=True)
    watches.stop()
    await asyncio.gather(watching, return_exceptions=bool(died))
    if died:
        raise SweepDied(str(died)) from died


def _stop_at_signals(stop: asyncio.Event) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)


def unready(client: Client, sweep: Sweep, watches: Supervisor) -> str:
    """Why the operator cannot do its work; empty if it can."""
    if watches.down:
        return watches.down
    if client.outage.seconds > OUTAGE_SECONDS:
        return f"the API server has not answered for {client.outage.seconds:.0f} s"
    return sweep.not_ready()


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
        metrics: Metrics,
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
        text = "ok\n" if alive else "the operator's loop has not finished a pass recently\n"
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
