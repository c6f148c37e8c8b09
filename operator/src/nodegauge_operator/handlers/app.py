"""Run the operator: kopf's watches, our sweep, our HTTP server, started and stopped together.

The storages for kopf keep nothing: each watch event is handled by itself.  kopf builds the "essence" of an
object at every event, by copying it deeply several times, even if nothing asks for a difference: for nodes
of 20 KB that was a third of the operator's CPU time.  Storages that keep nothing also cannot write
annotations.

The HTTP server answers `/healthz`, `/readyz` and `/metrics`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import kopf
from aiohttp import web

from nodegauge_operator import names
from nodegauge_operator.handlers import app, watches
from nodegauge_operator.kube.client import Limiter, access, connect
from nodegauge_operator.kube.workloads import Scanning, check_access
from nodegauge_operator.metrics import Metrics
from nodegauge_operator.reconcile.cache import Cache
from nodegauge_operator.reconcile.sweep import Sweep
from nodegauge_operator.settings import Settings

log = logging.getLogger("nodegauge")


class SweepDied(Exception):
    """The sweep's task ended with an error: the process must exit, so that Kubernetes restarts it."""


async def serve(settings: Settings, environ: Mapping[str, str]) -> None:
    """Run until SIGTERM.  Raises `KubeError` or `OSError` at the start, `SweepDied` if the sweep fails."""
    metrics = Metrics()
    limiter = Limiter(rate=settings.api_rate, burst=settings.api_burst)
    client = await connect(environ=environ, limiter=limiter, observer=metrics.observe_call)
    sweep = Sweep(client=client, cache=Cache(), metrics=metrics, settings=settings, clock=client.now)
    try:
        scanning = await check_access(client)
        await _run(settings, environ=environ, sweep=sweep, metrics=metrics, scanning=scanning)
    finally:
        await client.close()


async def _run(
    settings: Settings, *, environ: Mapping[str, str], sweep: Sweep, metrics: Metrics, scanning: Scanning
) -> None:
    stop = asyncio.Event()
    task = asyncio.create_task(sweep.run(), name="sweep")
    task.add_done_callback(lambda _: stop.set())
    server = HttpServer(
        host=settings.http_host,
        port=settings.http_port,
        metrics=metrics,
        live=lambda: not task.done() and sweep.alive(),
        ready=lambda: sweep.listed,
    )
    port = await server.start()
    log.info("listening on port %d, probes in namespace %s", port, settings.probe.namespace)
    try:
        await kopf.operator(
            registry=registry_of(sweep, environ=environ, task=task),
            settings=kopf_settings(settings, scanning),
            standalone=True,
            namespaces=[settings.probe.namespace],
            stop_flag=stop,
            memo=_NoMemo(),
        )
    finally:
        died = task.done() and not task.cancelled() and task.exception()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await server.stop()
    if died:
        raise SweepDied(str(died)) from died
    log.info("stopped")


def registry_of(
    sweep: Sweep, *, environ: Mapping[str, str], task: asyncio.Task[None]
) -> kopf.OperatorRegistry:
    """All handlers, bound to one sweep and its task."""
    registry = kopf.OperatorRegistry()
    watches.register(registry, sweep)

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        """The same access as our own client's; asked again when the token has expired."""
        how = await access(environ=environ)
        return kopf.ConnectionInfo(
            server=how.server,
            ca_path=how.ca_path,
            insecure=how.insecure,
            token=how.token,
            certificate_path=how.certificate_path,
            private_key_path=how.private_key_path,
        )

    @kopf.on.cleanup(registry=registry)
    async def cleanup(**_: Any) -> None:
        """Create no pod after SIGTERM, and finish the writes in flight before anything closes."""
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    return registry


def kopf_settings(settings: Settings, scanning: Scanning) -> kopf.OperatorSettings:
    """Settings measured at 5,000 nodes of 20 KB: small pages and short-lived workers save memory."""
    options = kopf.OperatorSettings()
    options.posting.enabled = False
    options.persistence.diffbase_storage = app.NoDiffBase()
    options.persistence.progress_storage = app.NoProgress()
    options.watching.server_timeout = 300
    options.watching.chunk_size = 100
    # An idle worker of kopf keeps its object's last body, and the next objects wait for a free worker: with
    # 0.1 s the first list of 5,000 nodes took two minutes, with 0.01 s under twenty seconds.
    options.queueing.idle_timeout = 0.01
    options.queueing.worker_limit = 50
    options.scanning.disabled = scanning is Scanning.REFUSED
    if settings.node_label_selector:
        options.watching.label_selectors["v1", "nodes"] = settings.node_label_selector
    options.watching.label_selectors["v1", "pods"] = names.POD_PROBE
    return options


class _NoMemo:
    """kopf copies the memo for each object that it sees; this one is empty, so the copies cost nothing."""

    def __copy__(self) -> _NoMemo:
        return self


class NoDiffBase(kopf.DiffBaseStorage):
    """Every object looks the same as before: like nothing."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        """The essence of any object."""
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:
        """Never seen before."""
        return None

    def store(self, **_: Any) -> None:
        """Nothing is kept."""


class NoProgress(kopf.ProgressStorage):
    """No handler ever needs a second try."""

    def fetch(self, **_: Any) -> None:
        """No progress is known."""

    def store(self, **_: Any) -> None:
        """Nothing is kept."""

    def purge(self, **_: Any) -> None:
        """Nothing is there."""

    def touch(self, **_: Any) -> None:
        """Nothing is written."""

    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        """Nothing of ours is in it."""
        return essence


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
