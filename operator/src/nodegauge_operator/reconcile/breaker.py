"""The circuit breaker: one cause on many nodes is one incident, and holds new taints for it back.

The reports say which nodes have a cause, and since when; the policy's status keeps what is open, so a restart
neither announces an incident again nor forgets it.  An incident holds as soon as the report that makes it one
is known here, before anything is written.  What to do is decided in `core.incidents`; lifting never asks.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from nodegauge_operator.api.incident import MAX_INCIDENTS, Incident, incidents_of
from nodegauge_operator.api.policy import Policy
from nodegauge_operator.api.times import unstamp
from nodegauge_operator.core import incidents
from nodegauge_operator.core.incidents import Sick
from nodegauge_operator.metrics import Metrics
from nodegauge_operator.reconcile.cache import Cache

log = logging.getLogger("nodegauge.breaker")

SHOWN_SECONDS = 86_400.0
"""For so long a closed incident stays in the policy's status."""


class Known(Struct, frozen=True, kw_only=True):
    """What counts of one node."""

    policy: str
    groups: frozenset[str]
    causes: dict[str, float]


class Breaker:
    """The incidents of every policy; brought up to date at each question.  `now`: epoch seconds."""

    def __init__(self, cache: Cache, *, now: Callable[[], float], metrics: Metrics) -> None:
        self._cache = cache
        self._now = now
        self._metrics = metrics
        self._changed = cache.subscribe()
        self._epoch = -1
        self._nodes: dict[str, Known] = {}
        self._sizes: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """By policy: how many nodes each group has."""
        self._sick: defaultdict[tuple[str, str], dict[str, Sick]] = defaultdict(dict)
        """By policy and cause: the nodes with it."""
        self._incidents: dict[str, dict[str, Incident]] = {}
        """By policy and cause: the last one, open or closed."""
        self._to_wake: set[str] = set()

    def holding(self, name: str) -> dict[str, str]:
        """By cause: the open incident that holds new taints back on this node."""
        self._update()
        known = self._nodes.get(name)
        policy = self._cache.policies.get(known.policy) if known else None
        if known is None or policy is None:
            return {}
        mine = self._incidents.get(_key(policy), {}).values()
        return {i.cause: i.id for i in mine if not i.closed_at and i.group in known.groups}

    def shown(self, name: str) -> list[Incident]:
        """The policy's incidents for its status: those that are open, then those that closed lately."""
        self._update()
        policy = self._cache.policies.get(name)
        now, mine = self._now(), self._incidents.get(_key(policy), {}).values() if policy else ()
        lately = [i for i in mine if not i.closed_at or now - unstamp(i.closed_at) < SHOWN_SECONDS]
        return sorted(lately, key=lambda i: (bool(i.closed_at), i.since, i.cause))[:MAX_INCIDENTS]

    def open(self, name: str) -> list[Incident]:
        """The policy's open incidents."""
        return [incident for incident in self.shown(name) if not incident.closed_at]

    def take_to_wake(self) -> set[str]:
        """Nodes with the cause of an incident that opened, widened or closed since the last call."""
        self._update()
        woken, self._to_wake = self._to_wake, set()
        return woken

    def _update(self) -> None:
        cache, check = self._cache, set[tuple[str, str]]()
        if self._epoch != cache.epoch:
            self._epoch = cache.epoch
            self._nodes.clear()
            self._sizes.clear()
            self._sick.clear()
            self._changed.update(cache.nodes)
            check |= self._take_policies()
        while self._changed:
            check |= self._read(self._changed.pop())
        for policy, cause in sorted(check):
            if policy in cache.policies:
                self._check(cache.policies[policy], cause)

    def _take_policies(self) -> set[tuple[str, str]]:
        """Read what the status of a policy that is new here keeps, and forget policies that are gone."""
        check = set()
        policies = self._cache.policies
        for name, policy in policies.items():
            if _key(policy) not in self._incidents:
                kept = incidents_of(self._cache.policy_status.get(name, {}))
                by_age = sorted(kept, key=lambda incident: (not incident.closed_at, incident.since))
                self._incidents[_key(policy)] = {incident.cause: incident for incident in by_age}
            check |= {(name, cause) for cause in self._incidents[_key(policy)]}
        for key in self._incidents.keys() - {_key(policy) for policy in policies.values()}:
            del self._incidents[key]
        return check

    def _read(self, name: str) -> set[tuple[str, str]]:
        """Take a changed node; the policies and causes that it changes."""
        before, after = self._nodes.pop(name, None), self._known(name)
        check = set()
        if before is not None:
            self._sizes[before.policy].subtract(before.groups)
            for cause in before.causes:
                self._sick[before.policy, cause].pop(name, None)
                check.add((before.policy, cause))
        if after is not None:
            self._nodes[name] = after
            self._sizes[after.policy].update(after.groups)
            for cause, since in after.causes.items():
                self._sick[after.policy, cause][name] = Sick(since=since, groups=after.groups)
                check.add((after.policy, cause))
        return set() if before == after else check

    def _known(self, name: str) -> Known | None:
        node, report = self._cache.nodes.get(name), self._cache.reports.get(name)
        policy = self._cache.policy_of(node) if node else None
        if node is None or policy is None:
            return None
        status = report.status if report is not None and report.node_uid == node.uid else None
        return Known(
            policy=policy.name,
            groups=incidents.groups(node, status, policy=policy),
            causes=incidents.causes(status) if status else {},
        )

    def _check(self, policy: Policy, cause: str) -> None:
        """Open, widen or close the incident of one cause."""
        sick, sizes, now = self._sick[policy.name, cause], self._sizes[policy.name], self._now()
        before, breaker = self._incidents[_key(policy)].get(cause), policy.spec.breaker
        if before is None or before.closed_at:
            closed_at = unstamp(before.closed_at) if before else 0.0
            after = incidents.opened(cause, sick, breaker=breaker, sizes=sizes, after=closed_at, now=now)
        elif before.id == policy.close_incident:
            after = incidents.closed(before, now=now)
        else:
            after = incidents.updated(before, sick, breaker=breaker, sizes=sizes, now=now)
        if after is None or after == before:
            return
        self._incidents[_key(policy)][cause] = after
        if before is not None and replace(before, nodes=after.nodes) == after:
            return
        self._to_wake |= sick.keys()
        self._note(policy, after, new=before is None or before.id != after.id)

    def _note(self, policy: Policy, incident: Incident, *, new: bool) -> None:
        where = incident.group or "the whole policy"
        if new:
            self._metrics.incidents.labels(incident.cause).inc()
            text = "policy %s: incident %s: %s on %d nodes of %s: no node newly takes a taint for it"
            log.error(text, policy.name, incident.id, incident.cause, incident.nodes, where)
        elif incident.closed_at:
            log.warning("policy %s: incident %s is closed", policy.name, incident.id)
        else:
            log.warning("policy %s: incident %s has spread to %s", policy.name, incident.id, where)


def _key(policy: Policy) -> str:
    """A policy that is made anew under its name has no incident."""
    return f"{policy.name}/{policy.uid}"
