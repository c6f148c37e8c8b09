"""A small day: mode Watch taints the same faults sooner, and makes hardly any pods."""

from __future__ import annotations

from itertools import chain
from statistics import median

from fleet.day import HOUR, MODES, lived, plans, table


def test_watched_nodes_are_tainted_sooner_and_without_pods() -> None:
    """Three nodes, four hours, each with a fault: none stays without its taint."""
    wanted = plans(3, 4, 3, seed=2)
    assert len({plan.node for plan in wanted}) == 3
    days = {mode: lived(mode, 3, 4, wanted, seed=2) for mode in MODES}
    periodic, watch = (days[mode] for mode in MODES)
    assert (periodic.missed, watch.missed) == (0, 0)
    assert median(chain(*watch.taints.values())) < 60 < median(chain(*periodic.taints.values()))
    assert periodic.counted.pods > 3 * 4 * HOUR / 900
    assert watch.counted.pods <= 2 * len(wanted)
    assert watch.counted.reports >= 3 * 4
    assert "faults without a taint before their repair | 0 | 0" in table(days, nodes=3)
