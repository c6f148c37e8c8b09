"""Every kind of reading, in order of precedence: where two are due on a node, the first one starts.

A pod of a probe that is not listed was made by another version: it is deleted, and never judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from nodegauge_judge import CATALOGUE
from nodegauge_operator.core import gates
from nodegauge_operator.core.label import Label
from nodegauge_operator.core.probes.bmc import BmcKind
from nodegauge_operator.core.probes.feed import FeedKind
from nodegauge_operator.core.probes.health import HealthKind
from nodegauge_operator.core.probes.image_pull import PullKind
from nodegauge_operator.core.probes.kind import Kind, Pool, ProbeKind
from nodegauge_operator.core.probes.load import LoadKind
from nodegauge_operator.core.probes.nccl import NcclKind

EVERY: dict[str, Kind] = {}
"""All kinds by name, health first."""
KINDS: dict[str, ProbeKind] = {}
"""Those whose runs are pods."""


def register(kind: Kind) -> None:
    """Add a kind, with its rules."""
    EVERY[kind.name] = kind
    for rule in kind.rules:
        CATALOGUE.setdefault(rule.code, rule)
        gates.add(rule)
    if isinstance(kind, ProbeKind):
        KINDS[kind.name] = kind


for _kind in (HealthKind(), PullKind(), NcclKind(), LoadKind(), BmcKind(), FeedKind()):
    register(_kind)


def pools() -> tuple[Pool, ...]:
    """Concurrency budgets, in the same order: a node gets no slot of one while an earlier one wants it."""
    return tuple(dict.fromkeys(kind.pool for kind in KINDS.values()))


def kinds_of(pool: Pool) -> tuple[str, ...]:
    """Names of the kinds whose pods count against the pool."""
    return tuple(kind.name for kind in KINDS.values() if kind.pool is pool)


def labels() -> Iterator[Label]:
    """Every label on nodes, but for the short key that a policy chooses."""
    for kind in EVERY.values():
        yield from kind.labels


def label_keys() -> frozenset[str]:
    """Keys of the labels that are ours on every node."""
    return _label_keys(tuple(EVERY.values()))


@lru_cache(maxsize=4)
def _label_keys(kinds: tuple[Kind, ...]) -> frozenset[str]:
    return frozenset(label.key for kind in kinds for label in kind.labels)
