"""What the driver reports itself: Xid errors, and the recovery action that it asks for."""

from __future__ import annotations

import re

import pytest

import support.results as made
from nodegauge_contract import Repair, Result, Unavailable, Xids
from nodegauge_judge import CATALOGUE, Answer, Severity, judge_health
from nodegauge_judge.rules.driver_errors import FATAL, WARNING
from support.judge_results import codes, only


def sound() -> Result:
    """Two GPUs that need no recovery."""
    return made.every_gpu(made.phb(), repair=Repair(rows_failed=0, action=0))


@pytest.mark.parametrize(
    ("action", "expected"),
    [(0, [])]
    + [(action, ["recovery-action/fail"]) for action in (1, 2, 4, 6, 7)]
    + [(action, ["recovery-action/warn"]) for action in (3, 5, 8, 99)],
)
def test_a_recovery_action_fails_or_warns(action: int, expected: list[str]) -> None:
    """Draining P2P, recovering IMEX and actions of tomorrow warn; everything else fails."""
    judgement = judge_health(made.with_gpu(sound(), 1, repair=Repair(rows_failed=0, action=action)))
    assert codes(judgement) == expected
    if expected:
        assert f"recovery action {action}" in only(judgement).message


def test_a_missing_recovery_action_is_unsure() -> None:
    """Older drivers have no such field: then nothing is said, and nothing cleared."""
    assert judge_health(sound()).answers["recovery-action"] is Answer.GOOD
    mixed = made.with_gpu(sound(), 1, repair=Repair(action=Unavailable("NVML_ERROR_INVALID_ARGUMENT")))
    assert judge_health(mixed).answers["recovery-action"] is Answer.GOOD
    mute = made.with_gpu(sound(), 1, repair=Repair(action=Unavailable("NVML_ERROR_UNKNOWN")))
    assert judge_health(mute).answers["recovery-action"] is Answer.UNSURE
    assert judge_health(made.phb()).answers["recovery-action"] is Answer.UNSURE


def seen(*codes: int, gpu_index: int = 0) -> Result:
    """Two GPUs that were watched, one of which reported these."""
    watched = made.every_gpu(made.phb(), xids=Xids(registered=True))
    return made.with_gpu(watched, gpu_index, xids=Xids(registered=True, seen=list(codes)))


@pytest.mark.parametrize("code", [48, 74, 79, 94, 95, 119, 120, 140])
def test_fatal_xids_fail_at_once(code: int) -> None:
    """DCGM's fatal list."""
    judgement = judge_health(seen(code))
    assert codes(judgement) == ["xid/fail"]
    assert judgement.answers["xid"] is Answer.BAD
    assert f"Xid {code} (" in judgement.findings[0].message


@pytest.mark.parametrize(
    "code", [31, 32, 38, 39, 42, 43, 54, 56, 57, 58, 60, 61, 62, 63, 64, 67, 73, 78, 93, 121, 137]
)
def test_lesser_xids_warn(code: int) -> None:
    """DCGM's warning list; a program's own fault among them must not take a node away."""
    judgement = judge_health(seen(code))
    assert codes(judgement) == ["xid/warn"]
    assert judgement.answers["xid"] is Answer.GOOD


@pytest.mark.parametrize("code", [13, 45, 92, 154, 9999])
def test_unknown_xids_are_info(code: int) -> None:
    """New drivers bring new codes."""
    judgement = judge_health(seen(code))
    assert codes(judgement) == ["xid/info"]
    assert f"Xid {code}," in judgement.findings[0].message


def test_xids_of_one_gpu_make_one_finding_per_severity() -> None:
    """The fatal ones are not buried."""
    judgement = judge_health(seen(63, 79, 48, 13))
    assert codes(judgement) == ["xid/fail", "xid/warn", "xid/info"]
    assert judgement.findings[0].evidence["xids"] == "48, 79"


def test_no_xid_is_good_only_if_every_gpu_was_watched() -> None:
    """No registration, no opinion."""
    assert judge_health(seen()).answers["xid"] is Answer.GOOD
    unreadable = made.with_gpu(seen(), 1, xids=Xids(registered=False))
    assert judge_health(unreadable).answers["xid"] is Answer.UNSURE
    assert judge_health(made.phb()).answers["xid"] is Answer.UNSURE
    never = Xids(registered=Unavailable("NVML_ERROR_NOT_SUPPORTED"))
    assert judge_health(made.with_gpu(seen(), 1, xids=never)).answers["xid"] is Answer.GOOD


def test_the_reference_page_lists_the_codes_that_are_used() -> None:
    """The words of the catalogue and the lists of the check are one."""
    when = CATALOGUE["xid"].when
    for severity, known in ((Severity.FAIL, FATAL), (Severity.WARN, WARNING)):
        assert [int(number) for number in re.findall(r"\d+", when[severity])] == sorted(known)
