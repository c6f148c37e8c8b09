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
from nodegauge_operator.reconcile.cache import Cache, Restored
from nodegauge_operator.reconcile.sweep import Sweep
from nodegauge_operator.settings import Settings

log = logging.getLogger("nodegauge")


class SweepDied(Exception):
    """The sweep's task ended with an error: the process must exit, so that Kubernetes restarts it."""


class Life:
    """What is known of the cluster, and who acts on it: it ends as a whole, as with the process."""

    def __init__(
        self, client: Client, *, metrics: Metrics, settings: Settings, environ: Mapping[str, str]
    ) -> None:
        self._client = client
        self.stop = asyncio.Event()
        """The process is to end."""
        self.sweep = Sweep(client=client, cache=Cache(), metrics=metrics, settings=settings, clock=client.now)
        self.watches = Supervisor(
            client=client,
            sweep=self.sweep,
            settings=settings,
            environ=environ,
            signals=lambda: _stop_at_signals(self.stop),
        )
        metrics.ready.set_function(lambda: not self.unready())

    def unready(self) -> str:
        """Why the operator cannot do its work; empty if it can."""
        return unready(self._client, self.sweep, self.watches)

    async def run(self) -> Restored | None:
        """Sweep and watch until `stop` is set, or one of them ends; why all is to begin anew, if it is."""
        _stop_at_signals(self.stop)
        sweeping = asyncio.create_task(self.sweep.run(), name="sweep")
        watching = asyncio.create_task(self.watches.run(), name="watches")
        stopping = asyncio.create_task(self.stop.wait(), name="stop")
        await asyncio.wait({sweeping, watching, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        died = sweeping.done() and not sweeping.cancelled() and sweeping.exception()
        sweeping.cancel()  # first: create no pod after SIGTERM, and finish the writes in flight
        await asyncio.gather(sweeping, return_exceptions=True)
        self.watches.stop()
        await asyncio.gather(watching, return_exceptions=bool(died))
        if isinstance(died, Restored):
            return None if self.stop.is_set() else died
        if died:
            raise SweepDied(str(died)) from died
        return None


async def serve(settings: Settings, environ: Mapping[str, str]) -> None:
    """Run until SIGTERM.  Raises `KubeError` or `OSError` at the start, `SweepDied` if the sweep fails."""
    metrics = Metrics()
    limiter = Limiter(rate=settings.api_rate, burst=settings.api_burst)
    client = await connect(environ=environ, limiter=limiter, observer=metrics.observe_call)

    def begin() -> Life:
        return Life(client, metrics=metrics, settings=settings, environ=environ)

    life = begin()
    server = HttpServer(
        host=settings.http_host,
        port=settings.http_port,
        metrics=metrics,
        live=lambda: life.sweep.alive(),
        unready=lambda: life.unready(),
    )
    try:
        port = await server.start()
        log.info("listening on port %d, probes in namespace %s", port, settings.probe.namespace)
        while why := await life.run():
            log.warning("etcd was restored from a backup: %s; all that was known is read anew", why)
            life = begin()
    finally:
        await server.stop()
        await client.close()
    log.info("stopped")


def _stop_at_signals(stop: asyncio.Event) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)


def unready(client: Client, sweep: Sweep, watches: Supervisor) -> str:
    """Why the operator cannot do its work; empty if it can."""
    return watches.down or client.outage.problem() or sweep.not_ready()
