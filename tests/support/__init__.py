"""What the operator's tests are made of: views, a cluster in memory, a process, virtual time.

Nothing here is a mock of the operator: the code under test is always the operator's own.
"""

from hypothesis import HealthCheck, Phase, settings

from support.objects import (
    DEFAULTS,
    INTERVAL,
    MINUTE,
    NOW,
    STALE,
    addressed,
    make_context,
    make_node,
    make_pod,
    make_policy,
    make_report,
    make_snapshot,
)


def tried(examples: int) -> settings:
    """How many examples a property is tried with: always the same ones, so that a red build is about the
    change that it tests."""
    return settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


__all__ = [
    "DEFAULTS",
    "INTERVAL",
    "MINUTE",
    "NOW",
    "STALE",
    "addressed",
    "make_context",
    "make_node",
    "make_pod",
    "make_policy",
    "make_report",
    "make_snapshot",
    "tried",
]
