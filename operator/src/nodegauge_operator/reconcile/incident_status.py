"""What a policy shows of its incidents: `status.incidents`, condition `BreakerOpen`, one event, metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from nodegauge_operator import names
from nodegauge_operator.api.history import Change
from nodegauge_operator.api.incident import Incident, incidents_of
from nodegauge_operator.api.times import stamp
from nodegauge_operator.core.events import bounded
from nodegauge_operator.core.incidents import LEAST
from nodegauge_operator.kube import events
from nodegauge_operator.kube.client import Client
from nodegauge_operator.kube.errors import KubeError
from nodegauge_operator.metrics import Metrics
from nodegauge_operator.names import BreakerReason
from nodegauge_operator.reconcile.breaker import Breaker
from nodegauge_operator.reconcile.cache import Cache

log = logging.getLogger("nodegauge.breaker")


class IncidentStatus:
    """Shows the incidents of the breaker; `clock`: epoch seconds."""

    def __init__(
        self,
        *,
        client: Client,
        cache: Cache,
        breaker: Breaker,
        metrics: Metrics,
        instance: str,
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._cache = cache
        self._breaker = breaker
        self._metrics = metrics
        self._instance = instance
        self._clock = clock
        self._announced: set[str] = set()

    def export(self) -> None:
        """The gauge of open incidents."""
        self._metrics.incidents_open.clear()
        for name in self._cache.policies:
            for incident in self._breaker.open(name):
                self._metrics.incidents_open.labels(name, incident.cause).set(1)

    def wanted(self, name: str) -> list[dict[str, Any]]:
        """`status.incidents` of the policy."""
        return [msgspec.to_builtins(incident) for incident in self._breaker.shown(name)]

    def condition(self, name: str) -> tuple[str, str, str]:
        """Status, reason and message of the condition `BreakerOpen`."""
        incidents = self._breaker.open(name)
        if not incidents:
            return "False", BreakerReason.NO_INCIDENT, "no cause came up on many nodes at once"
        text = "; ".join(_sentence(incident, policy=name) for incident in incidents)
        return "True", BreakerReason.INCIDENT_OPEN, bounded(text)

    async def announce(self, name: str) -> None:
        """Post the event of each open incident that the policy's status does not keep yet.

        An event that cannot be posted holds up nothing: condition, metric and log line say the same.
        """
        kept = {incident.id for incident in incidents_of(self._cache.policy_status.get(name, {}))}
        for incident in self._breaker.open(name):
            policy, run = self._cache.policies.get(name), f"{name}/{incident.id}"
            if policy is None or incident.id in kept or run in self._announced:
                continue
            now, text = self._clock(), bounded(_sentence(incident, policy=name))
            change = Change(
                run=run, type="Warning", reason=BreakerReason.INCIDENT_OPEN, message=text, at=stamp(now)
            )
            try:
                await events.post_of_policy(self._client, policy, change, instance=self._instance, now=now)
            except KubeError as error:
                log.log(error.log_level, "event of incident %s not posted: %s", incident.id, error)
            else:
                self._announced.add(run)


def _sentence(incident: Incident, *, policy: str) -> str:
    where = f" of {incident.group}" if incident.group else ""
    close = f"kubectl annotate gpuvalidationpolicy {policy} {names.CLOSE_INCIDENT}={incident.id} --overwrite"
    since = f"{incident.cause} on {incident.nodes} nodes{where} since {incident.since}"
    return (
        f"{since}: no other node takes a taint for it, and tainted ones keep theirs. "
        f"It ends when fewer than {LEAST} nodes have it; `{close}` ends it now"
    )
