"""Peers by statistics: stragglers are found after a second run, and a group that is odd as a whole is not."""

from __future__ import annotations

from math import nan

import pytest
from msgspec.structs import replace

from fleet import peers
from nodegauge_judge import Answer, Severity, Thresholds
from nodegauge_judge.loadtest_rules.judge import LoadJudgement, judge_load
from nodegauge_judge.nccl.judge import judge_nccl
from nodegauge_judge.nccl.measurement import NcclJudgement
from nodegauge_judge.peers import standing
from support.load_results import everywhere
from support.nccl_results import h100

SOUND = [720.0 + n % 7 for n in range(59)]
"""Their median is 723."""


@pytest.mark.parametrize(
    ("own", "others", "severities"),
    [
        (675.0, SOUND, ("info", "warn")),
        (671.0, SOUND, ("info", "fail")),
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


def of_nccl(*shares: float) -> tuple[str, Answer, bool]:
    """Runs at these shares of 480 GB/s, the peers' median; the CPU limit slows down a negative one."""
    record = ""
    for share in shares:
        result = h100(480 * abs(share))
        if share < 0 and result.nccl is not None:
            result = replace(result, nccl=replace(result.nccl, throttled_periods=1000))
        judgement = judge_nccl(result, previous=record, peers=lambda _: [479.0 + n % 3 for n in range(59)])
        record = judgement.record
    return severity(judgement, "busbw-below-peers"), judgement.answers["busbw-below-peers"], judgement.again


def of_load(*shares: float) -> tuple[str, Answer]:
    """The same of load runs, at 700 TFLOPS."""
    previous = None
    for share in shares:
        result = everywhere(tflops=700 * share)
        judgement = judge_load(result, previous=previous, peers=lambda _: [699.0 + n % 3 for n in range(59)])
        previous = (judgement.fingerprint, judgement.tflops or 0.0)
    return severity(judgement, "load-below-peers"), judgement.answers["load-below-peers"]


def severity(judgement: NcclJudgement | LoadJudgement, code: str) -> str:
    return next((finding.severity.value for finding in judgement.findings if finding.code == code), "")


USUAL, WARNS, ACTS = 0.97, 0.95, 0.925


@pytest.mark.parametrize(
    ("runs", "expected", "again"),
    [
        ((USUAL,), ("", Answer.GOOD), False),
        ((WARNS,), ("info", Answer.UNSURE), True),
        ((ACTS,), ("info", Answer.BAD), True),
        ((WARNS, WARNS), ("warn", Answer.UNSURE), False),
        ((WARNS, ACTS), ("fail", Answer.BAD), False),
        ((ACTS, ACTS), ("fail", Answer.BAD), False),
        ((ACTS, WARNS), ("warn", Answer.UNSURE), False),
        ((ACTS, USUAL), ("", Answer.GOOD), False),
        ((ACTS, USUAL, ACTS), ("info", Answer.BAD), True),
    ],
)
def test_information_then_a_failure_that_a_gate_counts(
    runs: tuple[float, ...], expected: tuple[str, Answer], again: bool
) -> None:
    assert of_nccl(*runs) == (*expected, again)
    assert of_load(*runs) == expected


def test_a_throttled_or_another_run_confirms_nothing() -> None:
    """A CPU limit slows NCCL down; TFLOPS at another power limit are another kind of run."""
    assert of_nccl(ACTS, -ACTS) == ("info", Answer.UNSURE, False)
    assert of_nccl(-ACTS, ACTS) == ("info", Answer.BAD, True)
    before = judge_load(everywhere(tflops=650.0, limit_mw=500_000))
    peers = [699.0 + n % 3 for n in range(59)]
    last = judge_load(everywhere(tflops=650.0), previous=(before.fingerprint, 650.0), peers=lambda _: peers)
    assert severity(last, "load-below-peers") == "info"


@pytest.mark.parametrize("probe", ["nccl", "load"])
def test_eight_of_sixty_are_found_and_sound_fleets_are_not_accused(probe: str) -> None:
    assert peers.stragglers(1, spread=0.005, probe=probe) == (8, 0)
    assert [peers.false_findings(seed, probe) for seed in range(3)] == [(0, 0)] * 3


def test_the_bars_are_in_order() -> None:
    with pytest.raises(ValueError, match="peersWarn"):
        Thresholds(peers_warn=0.08)
