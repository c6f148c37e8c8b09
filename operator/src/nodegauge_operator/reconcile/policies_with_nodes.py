"""Which policies select any node at all, whether or not the node follows them.

Comparing 2,000 policies with 200 nodes took most of each look at the statuses, every second.  Only nodes that
changed are compared.
"""

from __future__ import annotations

from nodegauge_operator.api.policy import Policy
from nodegauge_operator.reconcile.cache import Cache


class PoliciesWithNodes:
    """Policies that select a node; brought up to date at each question."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._changed = cache.subscribe()
        self._epoch = -1
        self._node_of: dict[str, str] = {}
        """Policy to one node that it selects."""

    def has_node(self, policy: Policy) -> bool:
        """Whether the policy selects a node."""
        self._update()
        return policy.name in self._node_of

    def _update(self) -> None:
        nodes = self._cache.nodes
        if self._epoch != self._cache.epoch:
            self._epoch = self._cache.epoch
            self._node_of.clear()
            self._changed.update(nodes)
        if not self._changed:
            return
        changed = [nodes[name] for name in self._changed if name in nodes]
        for policy in self._cache.policies.values():
            known = self._node_of.pop(policy.name, "")
            candidates = nodes.values() if known in self._changed else changed
            matches = policy.spec.node_selector.matches
            match = known if known and known not in self._changed else ""
            match = match or next((node.name for node in candidates if matches(node.selected_by)), "")
            if match:
                self._node_of[policy.name] = match
        self._changed.clear()
