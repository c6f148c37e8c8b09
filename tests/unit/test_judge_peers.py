"""Peers by statistics: stragglers are found after a second run, and a group that is odd as a whole is not."""

from __future__ import annotations

from math import nan

import pytest

from fleet import peers
from nodegauge_judge import Severity, Thresholds
from nodegauge_judge.peers import standing

SOUND = [720.0 + n % 7 for n in range(59)]
"""Their median is 723."""


@pytest.mark.parametrize(
    ("own", "others", "severities"),
    [
        (675.0, SOUND, ("info", "warn")),
        (671.0, SOUND, ("info", "fail")),
        (700.0, SOUND, (None, None)),
        (600.0, SOUND[:4], ("warn", "warn")),
        (675.0, SOUND[:4], (None, None)),
        (675.0, [720.0] * 59, ("info", "warn")),
        (675.0, [675.0] * 20 + [720.0] * 40, ("info", "info")),
        (675.0, [675.0] * 30 + [720.0] * 30, (None, None)),
        (675.0, [675.0] * 59, (None, None)),
        (675.0, [nan, 0.0, -720.0, *SOUND[:2]], (None, None)),
        (nan, SOUND, (None, None)),
    ],
)
def test_a_second_run_confirms(
    own: float, others: list[float], severities: tuple[str | None, str | None]
) -> None:
    limits = Thresholds(peers_warn=0.035, peers_fail=0.07, peers_spread=0.007)
    among = standing(lambda _: others, "b200", own=own, far_share=0.85, limits=limits)
    seen = [among and among.severity(confirmed=confirmed) for confirmed in (False, True)]
    assert tuple(severity and Severity(severity).value for severity in seen) == severities


@pytest.mark.parametrize("probe", ["nccl", "load"])
def test_eight_of_sixty_are_found_and_sound_fleets_are_not_accused(probe: str) -> None:
    assert peers.stragglers(1, spread=0.005, probe=probe) == (8, 0)
    assert sum(peers.false_findings(seed, probe) for seed in range(3)) == 0


def test_the_bars_are_in_order() -> None:
    with pytest.raises(ValueError, match="peersWarn"):
        Thresholds(peers_warn=0.08)
