"""Peer groups: nodes of the same hardware, with which the judge compares a node.

They are updated node by node, as the cache names those whose report changed: judging one node must not read
the reports of thousands of peers.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from nodegauge_judge.model import Versions
from nodegauge_judge.peers import picked
from nodegauge_operator.api.report import ReportStatus
from nodegauge_operator.reconcile.cache import Cache

V = TypeVar("V", float, Versions)


def versions_of(status: ReportStatus) -> tuple[str, Versions] | None:
    """A report's class of node, and what it runs."""
    return (status.versions.klass, status.versions.as_read) if status.versions.since else None


class Peers(Generic[V]):
    """By fingerprint of the hardware: a value of each of its nodes, sorted."""

    def __init__(self, cache: Cache, value: Callable[[ReportStatus], tuple[str, V] | None]) -> None:
        """`value`: a report's fingerprint and the value to compare; None for a node without one."""
        self._cache = cache
        self._value: Callable[[ReportStatus], tuple[str, V] | None] = value
        self._changed = cache.subscribe()
        self._changed.update(cache.reports)
        self._measured: dict[str, tuple[str, V]] = {}
        """Fingerprint and value of each node."""
        self._ranks: dict[str, list[tuple[V, str]]] = {}

    def other_values(self, fingerprint: str, *, but: str) -> Sequence[V]:
        """Values of the other nodes with this fingerprint, sorted; of many, some that have their median
        and spread (`picked`)."""
        if not fingerprint:
            return ()
        self._update()
        ranks = self._ranks.get(fingerprint, [])
        own = self._measured.get(but)
        is_among = own is not None and own[0] == fingerprint
        at = bisect_left(ranks, (own[1], but)) if own is not None and is_among else len(ranks)
        return [ranks[i + (i >= at)][0] for i in picked(len(ranks) - is_among)]

    def _update(self) -> None:
        while self._changed:
            name = self._changed.pop()
            before, after = self._measured.pop(name, None), self._of_report(name)
            if before is not None:
                ranks = self._ranks[before[0]]
                del ranks[bisect_left(ranks, (before[1], name))]
                if not ranks:
                    del self._ranks[before[0]]
            if after is not None:
                self._measured[name] = after
                insort(self._ranks.setdefault(after[0], []), (after[1], name))

    def _of_report(self, name: str) -> tuple[str, V] | None:
        node, report = self._cache.nodes.get(name), self._cache.reports.get(name)
        if node is None or report is None or report.node_uid != node.uid:
            return None
        value = self._value(report.status)
        return value if value is not None and value[0] else None
