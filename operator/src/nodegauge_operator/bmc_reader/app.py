"""Run the BMC reader: keep the polled BMCs in step with inventory and nodes, serve health and metrics, stop.

An API server that does not answer stops no reading: what is known of nodes stays until it answers again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Mapping

from nodegauge_bmc.connection import Access
from nodegauge_bmc.inventory import Inventory, Plan
from nodegauge_bmc.protocols import read
from nodegauge_contract.chassis import ChassisReading
from nodegauge_operator.bmc_reader.metrics import Metrics
from nodegauge_operator.bmc_reader.objects import Objects
from nodegauge_operator.bmc_reader.outcome import Reason, failure
from nodegauge_operator.bmc_reader.poller import Pace, Poller
from nodegauge_operator.bmc_reader.settings import Settings
from nodegauge_operator.http_server import HttpServer
from nodegauge_operator.kube.client import Client, connect
from nodegauge_operator.kube.errors import KubeError, NotFound

log = logging.getLogger("nodegauge.bmc")

PASS_SECONDS = 5.0
"""Between two looks at the files."""
LIST_SECONDS = 60.0
"""Between two lists of nodes and objects."""
ALIVE_SECONDS = 180.0
"""The loop is dead if no pass ended for so long; a pass waits at most for lists and for BMCs to log out."""


class Loop:
    """One pass after another: files, nodes, who is read, whose object goes."""

    def __init__(
        self,
        *,
        objects: Objects,
        poller: Poller,
        inventory: Inventory,
        metrics: Metrics,
        settings: Settings,
        client: Client,
    ) -> None:
        self._objects, self._poller, self._client = objects, poller, client
        self._inventory, self._metrics, self._settings = inventory, metrics, settings
        self._listed_at = -LIST_SECONDS
        self._passed_at = time.monotonic()
        self._nodes: dict[str, str] | None = None
        self._said: frozenset[str] = frozenset()
        self._noted: dict[str, str] = {}
        self._broken = "the inventory is not read yet"

    def alive(self) -> bool:
        """Whether passes end."""
        return time.monotonic() - self._passed_at < ALIVE_SECONDS

    def unready(self) -> str:
        """Why nothing useful happens; empty if it does."""
        unlisted = "the nodes are not listed yet" if self._nodes is None else ""
        return self._broken or self._client.outage.problem() or unlisted

    async def run(self) -> None:
        """Pass after pass, until cancelled."""
        while True:
            try:
                await self.one_pass()
            except NotFound:
                log.error("the CRD of ChassisReading is missing: install the chart's CRDs (crds.enabled)")
            except KubeError as error:
                log.log(error.log_level, "this pass failed: %s", error)
            self._passed_at = time.monotonic()
            await asyncio.sleep(PASS_SECONDS)

    async def one_pass(self) -> None:
        """Look at the files and, if they changed or it is time, at nodes and objects.  Raises `KubeError`."""
        if self._files():
            self._listed_at = -LIST_SECONDS
        if self._broken or time.monotonic() - self._listed_at < LIST_SECONDS:
            return
        self._nodes = await self._objects.nodes()
        selector = self._settings.node_selector
        selected = await self._objects.nodes(selector) if selector else self._nodes
        timeout = self._settings.timeout
        plan = self._inventory.plan(self._nodes, selected=frozenset(selected), timeout=timeout)
        self._say(plan)
        await self._poller.follow(plan.targets)
        await self._tidy(plan)
        self._listed_at = time.monotonic()

    def _files(self) -> bool:
        """Whether the inventory changed.  One that is unreadable or empty changes nothing: a Secret that
        somebody emptied must not delete every reading."""
        broken, changed = "", False
        try:
            changed = self._inventory.changed()
        except OSError as error:
            broken = f"the inventory is not readable ({error.strerror}); mount the Secret there"
        if not broken and self._inventory.empty:
            broken = "the inventory is empty; write a file for each node, or a pattern, into the Secret"
        if broken and broken != self._broken:
            log.error("%s: %s", self._settings.inventory, broken)
        recovered, self._broken = bool(self._broken) and not broken, broken
        return changed or recovered

    async def _tidy(self, plan: Plan) -> None:
        """Delete our objects of nodes that left, and write on the others why their BMC is not read."""
        assert self._nodes is not None
        ours = await self._objects.ours()
        for node in ours.keys() - plan.targets.keys() - plan.problems.keys():
            log.info("the BMC of %s is read no more, its object goes", node, extra={"node": node})
            await self._objects.delete(node, ours[node])
        self._metrics.keep({*plan.targets, *plan.problems})
        self._noted = {node: text for node, text in self._noted.items() if node in plan.problems}
        for node, problem in plan.problems.items():
            self._metrics.state(node, Reason.INVENTORY)
            if self._noted.get(node) != problem:
                status = failure(problem, address="", now=self._client.now())
                await self._objects.failed(node, self._nodes[node], status)
                self._noted[node] = problem

    def _say(self, plan: Plan) -> None:
        """One line for each change in what is wrong with the inventory."""
        wrong = frozenset([*plan.unused, *plan.problems.values()])
        for text in sorted(wrong - self._said):
            log.warning("inventory: %s", text)
        for text in sorted(self._said - wrong):
            log.info("inventory: mended: %s", text)
        self._said = wrong
        self._metrics.unused.set(len(plan.unused))


async def serve(settings: Settings, environ: Mapping[str, str]) -> None:
    """Run until SIGTERM.  Raises `KubeError` or `OSError` at the start."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    client = await connect(environ=environ)
    metrics = Metrics(client.now)
    objects = Objects(client, instance=settings.instance)
    pace = Pace(interval=settings.interval, deadline=settings.deadline, concurrency=settings.concurrency)
    poller = Poller(read=by_protocol, objects=objects, metrics=metrics, pace=pace, clock=client.now)
    loop = Loop(
        objects=objects,
        poller=poller,
        inventory=Inventory(settings.inventory),
        metrics=metrics,
        settings=settings,
        client=client,
    )
    server = HttpServer(
        host=settings.http_host,
        port=settings.http_port,
        metrics=metrics,
        live=loop.alive,
        unready=loop.unready,
    )
    try:
        port = await server.start()
        log.info("listening on port %d, inventory in %s", port, settings.inventory)
        await _until(stop, loop)
    finally:
        await poller.stop()
        await server.stop()
        await client.close()
    log.info("stopped")


async def _until(stop: asyncio.Event, loop: Loop) -> None:
    """Pass after pass until `stop` is set.  Raises what ended the passes before that."""
    passes = asyncio.create_task(loop.run(), name="passes")
    passes.add_done_callback(lambda _: stop.set())
    await stop.wait()
    passes.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await passes


async def by_protocol(access: Access, deadline: float) -> ChassisReading:
    """Read one BMC by the protocol that its address names."""
    return await read(access, deadline=deadline)
