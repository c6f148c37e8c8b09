"""Whether one cause on many nodes is one incident, and which nodes it holds back (ADR 0030).

Pure: `Sick` is what a report says of one node, `sizes` how many nodes each group has.  An entry counts from
when its gate was first entered: a trial that ends with the same fault is nothing new.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from nodegauge_operator.api.incident import Incident
from nodegauge_operator.api.policy import Breaker, Policy, seconds
from nodegauge_operator.api.report import GateState, ReportStatus
from nodegauge_operator.api.times import SKEW_SECONDS, stamp, unstamp
from nodegauge_operator.core.gates import GATES
from nodegauge_operator.core.model import NodeView
from nodegauge_operator.core.probes.registry import KINDS

LEAST = 3
"""Fewer nodes are never an incident, however small their group: two of a rack of four may well be chance.
One that is open closes when fewer are left.  Chosen by this project."""
MOST_OF = 0.8
"""A group is that of an incident if at least this share of its nodes is in it: a single fault elsewhere at
the same time must not make it larger.  Chosen by this project."""
WHOLE = ""
"""The group of all nodes of a policy."""


class Sick(Struct, frozen=True, kw_only=True):
    """A node with the cause: since when (epoch seconds), and the groups that it is in."""

    since: float
    groups: frozenset[str]


def causes(status: ReportStatus) -> dict[str, float]:
    """By cause of each gate that is entered or on trial: since when the first is, epoch seconds."""
    since_by_cause: dict[str, float] = {}
    for gate in status.gates:
        if gate.code in GATES and (gate.state.entered or gate.state is GateState.PROBATION):
            cause, since = GATES[gate.code].cause.value, unstamp(gate.fault_at)
            since_by_cause[cause] = min(since, since_by_cause.get(cause, since))
    return since_by_cause


def groups(node: NodeView, status: ReportStatus | None, *, policy: Policy) -> frozenset[str]:
    """The groups that a node is in, each as `key=value`."""
    labels = {key: node.labels.get(key, "") for key in policy.spec.breaker.group_labels}
    if status is not None:
        images = (status.probe[kind.name].image for kind in KINDS.values() if kind.holds_gpus)
        image = next(filter(None, images), "")
        labels |= {"driver": status.gpus.driver, "gpu": status.gpus.product, "image": image}
    return frozenset({WHOLE, *(f"{key}={value}" for key, value in labels.items() if value)})


def opened(
    cause: str,
    sick: Mapping[str, Sick],
    *,
    breaker: Breaker,
    sizes: Mapping[str, int],
    after: float,
    now: float,
) -> Incident | None:
    """The incident that the nodes with this cause are; None if they are none.

    `after`: when the last incident of this cause closed, epoch seconds; what was entered before is no news.
    """
    begin = max(now - seconds(breaker.window), after)
    recent = [node for node in sick.values() if begin < node.since <= now + SKEW_SECONDS]
    if not recent or not _tripped(recent, breaker=breaker, sizes=sizes):
        return None
    since = stamp(min(node.since for node in recent))
    group = _group(recent, breaker=breaker, sizes=sizes)
    incident = Incident(id=f"{cause}-{since}", cause=cause, group=group, since=since)
    return counted(incident, sick)


def updated(
    incident: Incident, sick: Mapping[str, Sick], *, breaker: Breaker, sizes: Mapping[str, int], now: float
) -> Incident:
    """An open incident as it is now: wider if the nodes outside of it are one of their own; closed when too
    few are left."""
    begin, first = now - seconds(breaker.window), unstamp(incident.since)
    outside = [n for n in sick.values() if incident.group not in n.groups and n.since >= max(begin, first)]
    if _tripped(outside, breaker=breaker, sizes=sizes):
        every = [node for node in sick.values() if node.since >= first]
        group = _group(every, breaker=breaker, sizes=sizes)
        wider = sizes.get(group, 0) > sizes.get(incident.group, 0)
        incident = replace(incident, group=group if wider else WHOLE)
    incident = counted(incident, sick)
    return incident if incident.nodes >= LEAST else closed(incident, now=now)


def counted(incident: Incident, sick: Mapping[str, Sick]) -> Incident:
    """The incident with the number of its nodes."""
    first = unstamp(incident.since)
    mine = [node for node in sick.values() if incident.group in node.groups and node.since >= first]
    return replace(incident, nodes=len(mine))


def closed(incident: Incident, *, now: float) -> Incident:
    """The incident, ended now."""
    return replace(incident, closed_at=stamp(now))


def _tripped(sick: Iterable[Sick], *, breaker: Breaker, sizes: Mapping[str, int]) -> list[str]:
    """The groups in which more nodes have the cause than may."""
    share = int(breaker.share.removesuffix("%"))
    counts = Counter(group for node in sick for group in node.groups)
    return [
        group
        for group, count in counts.items()
        if count > breaker.nodes or (count >= LEAST and 100 * count > share * sizes.get(group, 0))
    ]


def _group(sick: list[Sick], *, breaker: Breaker, sizes: Mapping[str, int]) -> str:
    """The smallest group that explains the incident; all nodes of the policy if none does."""
    counts = Counter(group for node in sick for group in node.groups)
    explaining = [
        group
        for group in _tripped(sick, breaker=breaker, sizes=sizes)
        if counts[group] >= MOST_OF * len(sick)
    ]
    return min(explaining, key=lambda group: (sizes.get(group, 0), group), default=WHOLE)
