"""The condition `GatesWithinBudget` of a policy: nodes that are tainted and held back, why, and devices."""

from __future__ import annotations

from nodegauge_operator.api.times import NEVER
from nodegauge_operator.names import BudgetReason
from nodegauge_operator.reconcile.cache import Cache
from nodegauge_operator.reconcile.device_budget import DeviceBudget
from nodegauge_operator.reconcile.gate_budget import GateBudget
from nodegauge_operator.reconcile.node_counts import CLUSTER

PER_HOUR, PER_HOUR_IN_CLUSTER = "spec.budget.gatedNodesPerHour", "operator.maxGatedNodesPerHour"
"""The settings that limit new taints."""
MAX_CAUSES = 6
"""A condition's message lists at most so many causes."""

State = tuple[str, str, str]
"""Status, reason and message of a condition."""


def within_budget(cache: Cache, budget: GateBudget, devices: DeviceBudget, name: str) -> State:
    """Its state.  What only incidents hold back waits for no slot."""
    status, reason, message = _of_nodes(cache, budget, name)
    if not (held_back := _devices_held_back(cache, budget, devices, name)):
        return status, reason, message
    if status == "True":
        reason = BudgetReason.DEVICE_BUDGET_EXHAUSTED
    return "False", reason, f"{message.removesuffix('.')}. {held_back}"


def _devices_held_back(cache: Cache, budget: GateBudget, devices: DeviceBudget, name: str) -> str:
    """Why devices wait for their rule, in words; empty if none does."""
    counted, nodes = budget.counters.devices(name), budget.counters.waiting_devices(name)
    if not counted.waiting:
        return ""
    scope, where = name, f"spec.budget.gatedDevices ({cache.policies[name].spec.budget.gated_devices})"
    if devices.used(name) < devices.slots(name):
        scope, where = (
            CLUSTER,
            f"operator.maxGatedNodes ({budget.cluster}), which counts all policies' devices",
        )
    return (
        f"Devices: {devices.used(scope)} of {devices.slots(scope)} slots used, {counted.waiting} more held "
        f"back on {n_nodes(len(nodes))}. They are gated as slots become free; see {where}."
    )


def _of_nodes(cache: Cache, budget: GateBudget, name: str) -> State:
    setting = cache.policies[name].spec.budget.gated_nodes
    used, slots = budget.used(name), budget.slots(name)
    waiting = sum(1 for since in budget.counters.waiting(name).values() if since < NEVER)
    usage = f"{used} of {slots} slots used"
    if isinstance(setting, str):
        usage += f" ({setting} of {budget.counters.selected(name)} nodes)"
    held_back = f", {n_nodes(waiting)} held back: {_cause_counts(budget, name)}" if waiting else ""
    if used > slots:
        message = f"{usage}{held_back}. Existing taints stay; no taint is added until a slot is free."
        return "False", BudgetReason.BUDGET_EXCEEDED, message
    in_cluster, slots_in_cluster = budget.used(CLUSTER), budget.slots(CLUSTER)
    if waiting and used < slots and in_cluster >= slots_in_cluster:
        cap = f"{in_cluster} of {slots_in_cluster} slots of all policies together ({budget.cluster})"
        message = f"{usage}{held_back}. The cap of the cluster is used up: {cap}; see operator.maxGatedNodes."
        return "False", BudgetReason.CLUSTER_BUDGET_EXHAUSTED, message
    for scope, setting in ((name, PER_HOUR), (CLUSTER, PER_HOUR_IN_CLUSTER)):
        rate, limit = budget.rate.count(scope), budget.rate.limit(scope)
        if waiting and used < slots and rate >= limit:
            new = f"{rate} of {limit} new ones within an hour"
            message = f"{usage}, {new}{held_back}. They are tainted as the hour passes; see {setting}."
            return "False", BudgetReason.RATE_EXHAUSTED, message
    if waiting:
        message = f"{usage}{held_back}. They are tainted as slots become free; see spec.budget.gatedNodes."
        return "False", BudgetReason.BUDGET_EXHAUSTED, message
    return "True", BudgetReason.WITHIN_BUDGET, usage


def _cause_counts(budget: GateBudget, name: str) -> str:
    causes = budget.counters.causes(name).most_common()
    more = [f"{len(causes) - MAX_CAUSES} more causes"] if len(causes) > MAX_CAUSES else []
    return ", ".join([f"{cause} {count}" for cause, count in causes[:MAX_CAUSES]] + more)


def n_nodes(count: int) -> str:
    """`1 node`, `2 nodes`."""
    return f"{count} node" if count == 1 else f"{count} nodes"
