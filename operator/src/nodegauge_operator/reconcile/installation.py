"""One installation writes to a cluster: any further one waits until the first is gone.

Two installations share policies, reports and nodes, and would undo each other's labels for ever.  A Lease in
the namespace `default` names the installation (namespace and release) that writes.  It is no leader election
between replicas: every process of the same installation holds it, so that a restart waits for nothing.

The holder is live while its Lease changes.  Clocks are not compared: the time since the last change is
measured here.  Which nodes an installation has written to stands in their reports (`status.installation`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from nodegauge_operator import names
from nodegauge_operator.kube import leases
from nodegauge_operator.kube.client import Client
from nodegauge_operator.kube.errors import AlreadyExists, Conflict, KubeError, NotFound, Unavailable
from nodegauge_operator.kube.leases import Lease
from nodegauge_operator.metrics import Metrics

log = logging.getLogger("nodegauge.installation")

RENEW_SECONDS = 20.0
RETRY_SECONDS = 5.0
TRIES = 3
LIVE_SECONDS = 60.0
"""Without a change for so long, the holder counts as gone.  Chosen by this project: two renewals may fail."""


class Installation:
    """Whether this installation may write.  `clock`: epoch seconds; `monotonic`: they never go back."""

    def __init__(
        self,
        *,
        client: Client,
        name: str,
        metrics: Metrics,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._client = client
        self._name = name
        self._metrics = metrics
        self._clock = clock
        self._monotonic = monotonic
        self._lease: Lease | None = None
        """As last seen."""
        self._changed_at = 0.0
        self._held_until = -LIVE_SECONDS
        self._due_at = monotonic()
        self.problem = f"the Lease default/{names.LEASE} has not been read yet"
        """Why nothing is written; empty if it may be."""
        self.blocked = ""
        """The same once it is known, and not for an API server that does not answer."""

    @property
    def may_write(self) -> bool:
        """This installation holds the Lease, and has renewed it in time."""
        return self._monotonic() < self._held_until

    def due_in(self) -> float:
        """Seconds until `renew` is due."""
        return self._due_at - self._monotonic()

    async def renew(self) -> None:
        """Take or renew the Lease, or see who has it."""
        asked_at, away = self._monotonic(), False
        try:
            problem, wait = await self._renew(), RENEW_SECONDS
        except KubeError as error:
            problem, wait = f"the Lease default/{names.LEASE} cannot be renewed: {error}", RETRY_SECONDS
            away = isinstance(error, Unavailable)
        if not problem:
            self._held_until = asked_at + LIVE_SECONDS
            if self.problem:
                log.info("installation %s holds the Lease default/%s", self._name, names.LEASE)
        elif not self.may_write:
            problem += "; nothing is written"
        if problem and problem != self.problem:
            log.warning(problem)
        self.problem = problem
        if not away:
            self.blocked = "" if self.may_write else problem
        self._due_at = self._monotonic() + wait
        self._metrics.standing_by.set(not self.may_write)

    async def _renew(self) -> str:
        """Renew what is known, or read it; the reason why it is not ours."""
        for _ in range(TRIES):
            try:
                if self._lease is None or self._lease.holder != self._name:
                    self._see(await self._read_or_create())
                lease = self._lease
                assert lease is not None
                if lease.holder not in ("", self._name) and not self._is_gone():
                    return (
                        f"another installation ({lease.holder}) is live on this cluster, and {self._name} "
                        "waits until it is gone: uninstall one of the two"
                    )
                self._see(await leases.renew(self._client, lease, holder=self._name, now=self._clock()))
                return ""
            except (AlreadyExists, Conflict, NotFound):
                self._lease = None
        return f"the Lease default/{names.LEASE} is written by others all the time"

    async def _read_or_create(self) -> Lease:
        try:
            return await leases.get(self._client)
        except NotFound:
            now = self._clock()
            return await leases.create(self._client, holder=self._name, now=now, seconds=LIVE_SECONDS)

    def _see(self, lease: Lease) -> None:
        if lease != self._lease:
            self._lease, self._changed_at = lease, self._monotonic()

    def _is_gone(self) -> bool:
        return self._monotonic() - self._changed_at >= LIVE_SECONDS
