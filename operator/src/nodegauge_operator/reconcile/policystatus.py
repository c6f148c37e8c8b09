"""The status of policies: how many nodes, how they fare, and whether the policy is in force.

Counted from the store at most once a second, written only when it differs from what stands there.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

from nodegauge_judge import Verdict
from nodegauge_operator.api.report import stamp
from nodegauge_operator.core.selection import matches
from nodegauge_operator.kube import policies
from nodegauge_operator.kube.client import Client
from nodegauge_operator.kube.errors import KubeError
from nodegauge_operator.metrics import Metrics
from nodegauge_operator.reasons import PolicyReason
from nodegauge_operator.reconcile.store import Store

log = logging.getLogger("nodegauge.policy")

COUNT_SECONDS = 1.0


class PolicyStatus:
    """Counts and conditions of every policy.  `dirty` asks for a new count."""

    def __init__(self, *, client: Client, store: Store, metrics: Metrics, clock: Callable[[], float]) -> None:
        self.dirty = True
        self._client = client
        self._store = store
        self._metrics = metrics
        self._clock = clock
        self._counted_at = 0.0
        self._verdicts: dict[str, Counter[str]] = {}
        self._classes: dict[str, Counter[str]] = {}

    def selected(self, policy: str) -> int:
        """Nodes that follow the policy, as of the last count."""
        if policy not in self._verdicts:
            self._count()
        return sum(self._verdicts.get(policy, Counter()).values())

    async def write(self) -> None:
        """Count anew where needed, and write each status that differs; an API error is tried again later."""
        now = self._clock()
        if not self.dirty or 0 <= now - self._counted_at < COUNT_SECONDS:
            return
        self._count()
        self.dirty, self._counted_at = False, now
        for name in [
            *self._store.policies,
            *(self._store.policy_errors.keys() - self._store.policies.keys()),
        ]:
            if name not in self._store.policies and name not in self._store.policy_errors:
                continue  # deleted while another one was written
            wanted = self._wanted(name)
            if _same(self._store.policy_status.get(name, {}), wanted):
                continue
            try:
                await policies.patch_status(self._client, name, wanted)
                self._store.policy_status[name] = wanted
            except KubeError as error:
                log.warning("status of policy %s not written: %s", name, error)
                self.dirty = True

    def _count(self) -> None:
        self._verdicts = {name: Counter() for name in self._store.policies}
        self._classes = {name: Counter() for name in self._store.policies}
        for node in self._store.nodes.values():
            policy = self._store.policy_of(node)
            if policy is None:
                continue
            report = self._store.reports.get(node.name)
            known = report is not None and report.node_uid == node.uid
            verdict = report.status.verdict if report and known else Verdict.UNKNOWN
            klass = report.status.interconnect.klass if report and known else ""
            self._verdicts[policy.name][verdict.value] += 1
            self._classes[policy.name][klass or "none"] += 1
        self._export()

    def _export(self) -> None:
        self._metrics.nodes.clear()
        self._metrics.interconnect.clear()
        for name, verdicts in self._verdicts.items():
            for verdict, count in verdicts.items():
                self._metrics.nodes.labels(name, verdict).set(count)
            for klass, count in self._classes[name].items():
                self._metrics.interconnect.labels(name, klass).set(count)

    def _wanted(self, name: str) -> dict[str, Any]:
        verdicts = self._verdicts.get(name, Counter())
        good = verdicts[Verdict.PASS] + verdicts[Verdict.WARN]
        selected = sum(verdicts.values())
        generation, condition = self._condition(name, selected)
        return {
            "observedGeneration": generation,
            "nodes": {
                "selected": selected,
                "validated": good,
                "failing": verdicts[Verdict.FAIL],
                "unknown": selected - good - verdicts[Verdict.FAIL],
            },
            "conditions": [self._with_transition(name, condition)],
        }

    def _condition(self, name: str, selected: int) -> tuple[int, dict[str, Any]]:
        policy, error = self._store.policies.get(name), self._store.policy_errors.get(name)
        if error is not None:
            kept = " The last good version stays in force." if policy else " Nothing is in force."
            found = ("False", PolicyReason.INVALID, error.message[:800] + "." + kept)
        elif selected:
            found = ("True", PolicyReason.ACTIVE, f"in force on {selected} nodes")
        elif self._overridden(name):
            found = ("True", PolicyReason.OVERRIDDEN, "every node it selects follows another policy")
        else:
            found = ("True", PolicyReason.NO_NODES, "spec.nodeSelector selects no node")
        generation = error.generation if error else (policy.generation if policy else 0)
        status, reason, message = found
        return generation, {
            "type": "Ready",
            "status": status,
            "reason": reason.value,
            "message": message,
            "observedGeneration": generation,
        }

    def _overridden(self, name: str) -> bool:
        selector = self._store.policies[name].spec.node_selector
        return any(matches(selector, node.labels) for node in self._store.nodes.values())

    def _with_transition(self, name: str, condition: dict[str, Any]) -> dict[str, Any]:
        before: Any = self._store.policy_status.get(name, {}).get("conditions") or [{}]
        same = before[0].get("status") == condition["status"]
        at = before[0].get("lastTransitionTime") if same else None
        return condition | {"lastTransitionTime": at or stamp(self._clock())}


def _same(current: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return all(current.get(key) == value for key, value in wanted.items())
