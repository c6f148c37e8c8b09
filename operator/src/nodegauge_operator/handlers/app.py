"""Run the operator: the watches, our sweep, our HTTP server, started and stopped together."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Mapping

from nodegauge_operator.handlers.supervisor import Supervisor
from nodegauge_operator.http_server import HttpServer
from nodegauge_operator.kube.client import Client, Limiter, connect
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
    stop = asyncio.Event()
    watches = Supervisor(
        client=client, sweep=sweep, settings=settings, environ=environ, signals=lambda: _stop_at_signals(stop)
    )
    metrics.ready.set_function(lambda: not unready(client, sweep, watches))
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
    return watches.down or client.outage.problem() or sweep.not_ready()
