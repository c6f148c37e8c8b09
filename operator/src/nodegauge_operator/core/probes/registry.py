"""Every kind of probe, in order of precedence: where two are due on a node, the first one starts.

A pod of a probe that is not listed was made by another version: it is deleted, and never judged.
"""

from __future__ import annotations

from nodegauge_operator.core.probes.bmc import BmcKind
from nodegauge_operator.core.probes.health import HealthKind
from nodegauge_operator.core.probes.image_pull import PullKind
from nodegauge_operator.core.probes.kind import Pool, ProbeKind
from nodegauge_operator.core.probes.load import LoadKind
from nodegauge_operator.core.probes.nccl import NcclKind

KINDS: dict[str, ProbeKind] = {kind.name: kind for kind in (HealthKind(), PullKind(), NcclKind(), LoadKind())}
READINGS = (BmcKind(),)
"""Kinds without pods."""
POOLS: tuple[Pool, ...] = tuple(dict.fromkeys(kind.pool for kind in KINDS.values()))
"""Concurrency budgets, in the same order: a node gets no slot of one while an earlier one wants it."""


def kinds_of(pool: Pool) -> tuple[str, ...]:
    """Names of the kinds whose pods count against the pool."""
    return tuple(kind.name for kind in KINDS.values() if kind.pool is pool)
