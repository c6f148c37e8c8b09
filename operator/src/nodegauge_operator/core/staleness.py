"""How long what was read counts: per probe, by the policy's intervals, and never past another boot.

Stale readings expire to absent labels and never to anything worse.  What a run that merely found no room
could have told does not age: a node that is full for weeks keeps its topology.
"""

from __future__ import annotations

from nodegauge_operator.api.policy import Policy
from nodegauge_operator.api.report import ProbeStatus, unstamp
from nodegauge_operator.core.model import NodeView


def stale_at(probe: ProbeStatus, *, policy: Policy, since: float = 0.0) -> float:
    """When the readings expire, epoch seconds; infinity before the first.

    `since`: when this process began to decide.  After a start there is one interval's time to read anew:
    an operator that was away must not strip the fleet that it finds.
    """
    if not probe.read_at:
        return float("inf")
    age = policy.stale_seconds_of(probe.name)
    return max(unstamp(probe.read_at) + age, since + policy.interval_of(probe.name))


def topology_stale_at(probe: ProbeStatus, *, policy: Policy, since: float = 0.0) -> float:
    """When topology readings expire: never by runs that merely found no room on a full or busy node.

    They age from the end of the last run that did not fail, or from the last try when none is made.
    """
    last = probe.last_run
    aging_from = probe.hard_since or (last.finished_at if last else probe.read_at)
    age = policy.stale_seconds_of(probe.name)
    own = max(unstamp(aging_from) + age, since + policy.interval_of(probe.name))
    return max(own, stale_at(probe, policy=policy, since=since))


def is_stale(probe: ProbeStatus, *, policy: Policy, now: float, since: float = 0.0) -> bool:
    """The last reading no longer counts."""
    return now > stale_at(probe, policy=policy, since=since)


def rebooted(probe: ProbeStatus, node: NodeView) -> bool:
    """The node runs under another boot id than when it was read."""
    return bool(probe.boot_id and node.boot_id) and probe.boot_id != node.boot_id
