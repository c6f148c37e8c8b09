"""Nodes that are made alike, and what their GPUs reach: the judge compares a node with the median of them.

Kept up node by node, as the store names those whose report changed; grading one node out of thousands alike
must not read thousands of reports.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from nodegauge_operator.reconcile.cache import Store

MOST = 64
"""Values that are handed out at most: the middle ones, whose median is that of all."""


class Peers:
    """By fingerprint, the all_reduce bus bandwidth of each node that has it, sorted."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changed = store.listen()
        self._changed.update(store.reports)
        self._found: dict[str, tuple[str, float]] = {}
        """Fingerprint and value of each node."""
        self._ranks: dict[str, list[tuple[float, str]]] = {}

    def of(self, fingerprint: str, *, but: str) -> Sequence[float]:
        """GB/s of the other nodes with this fingerprint; of more than 64, the middle ones."""
        if not fingerprint:
            return ()
        self._keep_up()
        ranks = self._ranks.get(fingerprint, [])
        own, value = self._found.get(but, ("", 0.0))
        at = bisect_left(ranks, (value, but)) if own == fingerprint else len(ranks)
        others = len(ranks) - (own == fingerprint)
        size = min(others, MOST - (others - MOST) % 2)
        first = (others - size) // 2
        return [ranks[i + (i >= at)][0] for i in range(first, first + size)]

    def _keep_up(self) -> None:
        while self._changed:
            name = self._changed.pop()
            before, after = self._found.pop(name, None), self._of_report(name)
            if before is not None:
                ranks = self._ranks[before[0]]
                del ranks[bisect_left(ranks, (before[1], name))]
                if not ranks:
                    del self._ranks[before[0]]
            if after is not None:
                self._found[name] = after
                insort(self._ranks.setdefault(after[0], []), (after[1], name))

    def _of_report(self, name: str) -> tuple[str, float] | None:
        node, report = self._store.nodes.get(name), self._store.reports.get(name)
        if node is None or report is None or report.node_uid != node.uid:
            return None
        bandwidth = report.status.bandwidth
        if not bandwidth.fingerprint or bandwidth.all_reduce is None:
            return None
        return bandwidth.fingerprint, float(bandwidth.all_reduce)
