"""The status of policies: how many nodes, how they fare, and whether the policy is in force.

Written only when it differs from what stands there: counts drift for as long as runs end, and are written
every few seconds; what somebody has just changed in a policy is answered at once.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any

from nodegauge_judge import Verdict
from nodegauge_judge.nccl.model import Agreement
from nodegauge_operator.kube import policies
from nodegauge_operator.kube.client import Client
from nodegauge_operator.kube.errors import KubeError
from nodegauge_operator.metrics import Metrics
from nodegauge_operator.reconcile.backoff import Jitter, backoff
from nodegauge_operator.reconcile.cache import Store
from nodegauge_operator.reconcile.gate_budget import Places
from nodegauge_operator.reconcile.policy_conditions import conditions, conditions_by_type, observed

log = logging.getLogger("nodegauge.policy")

LOOK_SECONDS = 1.0
"""Statuses are compared so often at most."""
DRIFT_SECONDS = 5.0
"""A status whose counts alone differ is written so often at most."""
NEVER = float("inf")


class PolicyStatus:
    """Counts and conditions of every policy.  `dirty` asks for another look at them."""

    def __init__(
        self,
        *,
        client: Client,
        store: Store,
        places: Places,
        metrics: Metrics,
        clock: Callable[[], float],
        jitter: Jitter = random.random,
    ) -> None:
        self.dirty = True
        self._client = client
        self._store = store
        self._metrics = metrics
        self._clock = clock
        self._jitter = jitter
        self._places = places
        self._tally = places.tally
        self._looked_at = 0.0
        self._written: dict[str, float] = {}
        self._failed: dict[str, tuple[int, float]] = {}
        """Policies whose status the API server did not take: how often in a row, and when to try again."""

    def due_at(self) -> float:
        """When `write` has something to look at; infinity for not at all."""
        return self._looked_at + LOOK_SECONDS if self.dirty else NEVER

    async def write(self) -> None:
        """Write each status that differs and is due; what is not yet due, or failed, is looked at later."""
        now = self._clock()
        if not self.dirty or 0 <= now - self._looked_at < LOOK_SECONDS:
            return
        self.dirty, self._looked_at = False, now
        self._export()
        self._forget()
        for name in [
            *self._store.policies,
            *(self._store.policy_errors.keys() - self._store.policies.keys()),
        ]:
            if name not in self._store.policies and name not in self._store.policy_errors:
                continue  # deleted while another one was written
            wanted = self._wanted(name)
            if _same(self._store.policy_status.get(name, {}), wanted):
                self._failed.pop(name, None)
            elif self._due(name, wanted, now):
                await self._patch(name, wanted)
            else:
                self.dirty = True

    def _due(self, name: str, wanted: dict[str, Any], now: float) -> bool:
        if name in self._failed:
            return now >= self._failed[name][1]
        drifts = _standing(self._store.policy_status.get(name, {})) == _standing(wanted)
        return not (drifts and 0 <= now - self._written.get(name, 0.0) < DRIFT_SECONDS)

    async def _patch(self, name: str, wanted: dict[str, Any]) -> None:
        try:
            await policies.patch_status(self._client, name, wanted)
        except KubeError as error:
            tries = self._failed[name][0] if name in self._failed else 0
            self._failed[name] = tries + 1, self._clock() + backoff(tries, self._jitter)
            log.warning("status of policy %s not written: %s", name, error)
            self.dirty = True
            return
        self._failed.pop(name, None)
        self._written[name] = self._clock()
        if name in self._store.policy_versions:
            self._store.policy_status[name] = wanted

    def _export(self) -> None:
        metrics = self._metrics
        by_kind = (metrics.nodes, metrics.interconnect, metrics.measured, metrics.gated)
        for gauge in (*by_kind, metrics.held_back):
            gauge.clear()
        for name in self._store.policies:
            metrics.held_back.labels(name).set(len(self._tally.waiting(name)))
            for (taint, cause), count in self._tally.gates(name).items():
                metrics.gated.labels(name, taint, cause).set(count)
            for verdict, count in self._tally.verdicts(name).items():
                metrics.nodes.labels(name, verdict).set(count)
            for klass, count in self._tally.classes(name).items():
                metrics.interconnect.labels(name, klass).set(count)
            for agreement, count in self._tally.agreements(name).items():
                metrics.measured.labels(name, agreement).set(count)

    def _forget(self) -> None:
        """Let go of policies that were deleted."""
        for memory in (self._written, self._failed):
            for name in memory.keys() - self._store.policy_versions.keys():
                memory.pop(name, None)

    def _wanted(self, name: str) -> dict[str, Any]:
        tally = self._tally
        verdicts = tally.verdicts(name)
        good, selected = verdicts[Verdict.PASS] + verdicts[Verdict.WARN], sum(verdicts.values())
        return {
            "observedGeneration": observed(self._store, name),
            "nodes": {
                "selected": selected,
                "validated": good,
                "failing": verdicts[Verdict.FAIL],
                "unknown": selected - good - verdicts[Verdict.FAIL],
                "gated": len(tally.gated(name)),
                "heldBack": len(tally.waiting(name)),
                "measured": sum(tally.agreements(name).values()),
                "contradicted": tally.agreements(name)[Agreement.CONTRADICTED],
            },
            "conditions": conditions(self._store, self._places, name, now=self._clock()),
        }


def _same(current: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return all(current.get(key) == value for key, value in wanted.items())


def _standing(status: dict[str, Any]) -> tuple[object, ...]:
    """What a change of counts alone leaves as it is; conditions' messages name counts."""
    kinds = sorted(conditions_by_type(status).items())
    return status.get("observedGeneration"), [(k, c.get("status"), c.get("reason")) for k, c in kinds]
