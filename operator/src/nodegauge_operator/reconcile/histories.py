"""What becomes of NodeHistories whose node is gone: they are noted as such, kept for a while, and deleted.

Looked at once an hour, by their names alone; nothing of them is kept in memory in between.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from nodegauge_operator.api.times import stamp
from nodegauge_operator.core import node_history
from nodegauge_operator.kube import histories, nodes
from nodegauge_operator.kube.client import Client
from nodegauge_operator.kube.errors import KubeError, NotFound
from nodegauge_operator.reconcile.cache import Cache

log = logging.getLogger("nodegauge.histories")

FIRST_SECONDS, LOOK_SECONDS = 600.0, 3600.0
"""Chosen by this project: a list of names, and one read for each node that is gone, are nothing in an hour;
the first look leaves a start alone."""


class Histories:
    """Looks after the histories of nodes that are gone."""

    def __init__(
        self,
        *,
        client: Client,
        cache: Cache,
        installation: str,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._client = client
        self._installation = installation
        self._cache = cache
        self._clock = clock
        self._monotonic = monotonic
        self._due_at = monotonic() + FIRST_SECONDS

    def due_in(self) -> float:
        """Seconds until the next look."""
        return self._due_at - self._monotonic()

    async def look(self) -> None:
        """Note which nodes are gone, and delete what was kept long enough or never told of a fault."""
        self._due_at = self._monotonic() + LOOK_SECONDS
        try:
            async for name in histories.each_name(self._client):
                if name not in self._cache.nodes and await self._is_gone(name):
                    await self._look_at(name)
        except KubeError as error:
            log.log(error.log_level, "histories of nodes that are gone stay for another hour: %s", error)

    async def _is_gone(self, name: str) -> bool:
        """Only a 404 makes a node gone: what the cache lacks may be out of its selection."""
        try:
            await nodes.get(self._client, name)
        except NotFound:
            return True
        return False

    async def _look_at(self, name: str) -> None:
        history, now = await histories.get(self._client, name), self._clock()
        if history is None or history.installation not in ("", self._installation):
            return  # gone, or another installation's, as its reports are
        if node_history.is_over(history, now=now):
            await histories.delete(self._client, history)
            log.info("history of node %s deleted", name, extra={"node": name})
        elif node_history.is_unmarked(history, now=now):
            await histories.note_gone(self._client, history, stamp(now))
