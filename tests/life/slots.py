"""How many nodes may be tainted, at a time and newly within an hour, by the budgets of that time."""

from __future__ import annotations

from typing import Any

from life.cluster import LivingCluster
from life.record import NodeRecord, Record
from nodegauge_operator.api.incident import incidents_of
from support.api_server import POLICIES

CLUSTER_BUDGET = "20%"
"""Of all nodes, whatever the policies say (`operator.maxGatedNodes`)."""
HOUR, SLACK = 3600.0, 5.0


class Slots:
    """Knows which nodes are tainted, and when each was newly tainted."""

    def __init__(self, cluster: LivingCluster, record: Record) -> None:
        self.tainted: dict[str, str] = {}
        """Nodes with a taint for a fault, and their pool."""
        self._cluster = cluster
        self._record = record
        self._new: dict[str, tuple[float, str]] = {}
        """By name: when a node last took a taint that it had not, and its pool."""

    def note(self, name: str, pool: str, *, tainted: bool, now: float) -> None:
        """The node carries a taint for a fault, or none."""
        if not tainted:
            self.tainted.pop(name, None)
            return
        if name not in self.tainted:
            self._new[name] = (now, pool)
        self.tainted[name] = pool

    def has_free(self, pool: str, now: float) -> bool:
        """Whether one more node of a pool could be tainted now; nodes that are away count for no budget."""
        spec = self._record.spec(pool)
        away = sum(1 for node in self._record.nodes.values() if not node.machine.there or node.machine.busy)
        total = _count(CLUSTER_BUDGET, len(self._record.nodes) - away)
        own = self._most(pool, now, now) - (away if isinstance(spec and spec.budget.gated_nodes, str) else 0)
        mine = sum(1 for other in self.tainted.values() if other == pool)
        hourly = self._newly(pool, now - HOUR - SLACK) < self._most_newly(pool, now, now, away=away)
        return mine < own and len(self.tainted) < total and hourly and not self._has_incident(pool)

    def _has_incident(self, pool: str) -> bool:
        """Whether one cause on many nodes holds taints back; the policy of a pool has its name."""
        status = self._cluster.objects[POLICIES].get(pool, {}).get("status", {})
        return any(not incident.closed_at for incident in incidents_of(status))

    def excess(self, name: str, node: NodeRecord, *, now: float) -> str:
        """What is wrong with a taint that the node has just taken; empty for nothing."""
        pool = node.machine.pool
        since = self._record.known_since(name, now)
        mine = sum(1 for other in self.tainted.values() if other == pool)
        total = _count(CLUSTER_BUDGET, len(self._record.nodes))
        if mine > self._most(pool, since, now) or len(self.tainted) > total:
            return "more nodes are tainted than the budget allows"
        if self._record.clock_gain(now - HOUR, now):
            return ""  # a process that started since then believes the clock
        newly = self._newly(pool, now - HOUR + SLACK)
        return (
            "more nodes are tainted within an hour than may be"
            if newly > self._most_newly(pool, since, now)
            else ""
        )

    def _newly(self, pool: str, since: float) -> int:
        return sum(1 for at, other in self._new.values() if at > since and other == pool)

    def _most(self, pool: str, since: float, now: float) -> int:
        """How many nodes of a pool may be tainted, by the largest budget of that time."""
        specs = [spec for spec in self._record.specs(pool, since, now) if spec is not None]
        settings: list[Any] = [spec.budget.gated_nodes for spec in specs]
        return max((_count(setting, self._nodes(pool)) for setting in settings), default=0)

    def _most_newly(self, pool: str, since: float, now: float, *, away: int = 0) -> int:
        """The same of those that are newly tainted within an hour."""
        specs = [spec for spec in self._record.specs(pool, since, now) if spec is not None]
        settings: list[Any] = [spec.budget.gated_nodes_per_hour for spec in specs]
        return max((_count(setting, self._nodes(pool) - away) for setting in settings), default=0)

    def _nodes(self, pool: str) -> int:
        return sum(1 for node in self._record.nodes.values() if node.machine.pool == pool)


def _count(setting: int | str, nodes: int) -> int:
    """A count, or per cent of the nodes rounded down, at least 1; 0 for none."""
    if isinstance(setting, int):
        return setting
    percent = int(setting.rstrip("%"))
    return max(1, nodes * percent // 100) if percent else 0
