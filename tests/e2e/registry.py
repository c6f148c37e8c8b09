"""How steps are put together: stages that follow each other, each of lanes that run at the same time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from testbed.errors import TestbedError

if TYPE_CHECKING:
    from e2e.cluster import Cluster

Step = Callable[["Cluster"], None]
Lane = tuple[Step, ...]
"""Steps that follow each other."""
Stage = tuple[Lane, ...]
"""Lanes that run at the same time; the next stage begins when all have ended."""


def chosen(stages: Sequence[Stage], names: Collection[str]) -> list[Stage]:
    """The stages with the named steps alone; all of them where none is named.

    Raises TestbedError for a name that no step has, with those that there are.
    """
    known = [step.__name__ for stage in stages for lane in stage for step in lane]
    if unknown := sorted(set(names) - set(known)):
        raise TestbedError(f"no such step: {', '.join(unknown)}; there are {', '.join(known)}")
    result = []
    for stage in stages:
        lanes = [tuple(step for step in lane if not names or step.__name__ in names) for lane in stage]
        if left := tuple(lane for lane in lanes if lane):
            result.append(left)
    return result
