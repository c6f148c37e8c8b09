"""Conditions of a policy: whether it is in force, and whether its budget has room for every gate.

Pure over what the store and the ledger hold; when to write is decided in `policystatus`.
"""

from __future__ import annotations

from typing import Any

from nodegauge_operator.api.report import stamp
from nodegauge_operator.core.selection import matches
from nodegauge_operator.reasons import BudgetReason, PolicyReason
from nodegauge_operator.reconcile.cache import Store
from nodegauge_operator.reconcile.gate_budget import Places

READY = "Ready"
WITHIN_BUDGET = "GatesWithinBudget"
MAX_CAUSES = 6
"""Causes that a message counts one by one; there are more kinds of faults than a table has room for."""

Condition = dict[str, Any]
Found = tuple[str, PolicyReason | BudgetReason, str]
"""Status, reason, message."""


def conditions(store: Store, places: Places, name: str, *, now: float) -> list[Condition]:
    """The conditions of one policy, with the times at which their status last changed."""
    found: dict[str, Found] = {READY: _ready(store, places, name)}
    if name in store.policies:
        found[WITHIN_BUDGET] = _within_budget(store, places, name)
    before = conditions_by_type(store.policy_status.get(name, {}))
    generation = observed(store, name)
    return [
        {
            "type": kind,
            "status": status,
            "reason": reason.value,
            "message": message,
            "observedGeneration": generation,
            "lastTransitionTime": _since(before.get(kind, {}), status, now),
        }
        for kind, (status, reason, message) in found.items()
    ]


def observed(store: Store, name: str) -> int:
    """The generation of the policy that was last looked at, readable or not."""
    error, policy = store.policy_errors.get(name), store.policies.get(name)
    return error.generation if error else (policy.generation if policy else 0)


def conditions_by_type(status: dict[str, Any]) -> dict[str, Condition]:
    """The conditions that stand in a status."""
    return {str(condition.get("type")): condition for condition in status.get("conditions") or ()}


def _since(before: Condition, status: str, now: float) -> str:
    at = before.get("lastTransitionTime") if before.get("status") == status else None
    return str(at or stamp(now))


def _ready(store: Store, places: Places, name: str) -> Found:
    policy, error = store.policies.get(name), store.policy_errors.get(name)
    if error is not None:
        kept = " The last good version stays in force." if policy else " Nothing is in force."
        return "False", PolicyReason.INVALID, error.message[:800] + "." + kept
    selected = places.tally.selected(name)
    if selected:
        return "True", PolicyReason.ACTIVE, f"in force on {selected} nodes"
    if policy and any(matches(policy.spec.node_selector, node.labels) for node in store.nodes.values()):
        return "True", PolicyReason.OVERRIDDEN, "every node it selects follows another policy"
    return "True", PolicyReason.NO_NODES, "spec.nodeSelector selects no node"


def _within_budget(store: Store, places: Places, name: str) -> Found:
    setting = store.policies[name].spec.budget.gated_nodes
    taken, allowed, waiting = places.taken(name), places.of(name), len(places.tally.waiting(name))
    used = f"{taken} of {allowed} places used"
    if isinstance(setting, str):
        used += f" ({setting} of {places.tally.selected(name)} nodes)"
    held_back = f", {_nodes(waiting)} held back: {_counted(places, name)}" if waiting else ""
    if taken > allowed:
        words = f"{used}{held_back}. No taint is lifted for that; none is added until there is room."
        return "False", BudgetReason.BUDGET_EXCEEDED, words
    if waiting:
        words = f"{used}{held_back}. They are tainted as places fall free; see spec.budget.gatedNodes."
        return "False", BudgetReason.BUDGET_EXHAUSTED, words
    return "True", BudgetReason.WITHIN_BUDGET, used


def _counted(places: Places, name: str) -> str:
    causes = places.tally.causes(name).most_common()
    more = [f"{len(causes) - MAX_CAUSES} more causes"] if len(causes) > MAX_CAUSES else []
    return ", ".join([f"{cause} {count}" for cause, count in causes[:MAX_CAUSES]] + more)


def _nodes(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"
