"""What the driver reports itself: Xid errors, and the recovery action that it asks for."""

from __future__ import annotations

import re

import pytest

import support.results as made
from nodegauge_contract import Repair, Result, Unavailable, Xids
from nodegauge_judge import CATALOGUE, Answer, Severity, judge_health
from nodegauge_judge.rules.xid_catalogue import BUCKETS, numbers
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


@pytest.mark.parametrize(
    ("xid", "bucket"),
    [(xid, "RESET_GPU") for xid in (46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158)]
    + [(149, "WORKFLOW_NVLINK5_ERR"), (150, "WORKFLOW_NVLINK5_ERR"), (74, "WORKFLOW_NVLINK_ERR")]
    + [(48, "WORKFLOW_XID_48"), (171, "WORKFLOW_XID_48"), (172, "WORKFLOW_XID_48")]
    + [(79, "RESTART_BM"), (151, "RESTART_VM"), (54, "CHECK_MECHANICALS"), (94, "RESTART_APP")],
)
def test_xids_that_take_a_gpu_out_of_service_fail_at_once(xid: int, bucket: str) -> None:
    """By the resolution bucket of NVIDIA's catalogue (docs.nvidia.com/deploy/xid-errors); 94 by DCGM's fatal
    list."""
    judgement = judge_health(seen(xid))
    assert codes(judgement) == ["xid/fail"]
    assert judgement.answers["xid"] is Answer.BAD
    finding = judgement.findings[0]
    assert f"Xid {xid} (" in finding.message
    assert finding.evidence["resolution"] == bucket


@pytest.mark.parametrize(
    ("xid", "bucket"),
    [(xid, "WORKFLOW_NVLINK5_ERR") for xid in (144, 145, 146, 147, 148)]
    + [(xid, "RESTART_APP") for xid in (8, 13, 31, 32, 39, 41, 60, 69, 72, 80, 85, 98, 105, 126, 135, 139)]
    + [(xid, "IGNORE") for xid in (14, 37, 38, 43, 44, 63, 67, 92, 93, 107, 121, 137, 141, 157, 160, 161)]
    + [(45, "WORKFLOW_XID_45"), (78, "UPDATE_SWFW"), (159, "CHECK_UVM"), (142, "CONTACT_SUPPORT")]
    + [(154, "XID_154"), (165, "none in the catalogue"), (57, "none for newer GPUs")]
    + [(xid, "not in the catalogue") for xid in (1, 153, 173, 9999, 2**62)],
)
def test_every_other_xid_warns(xid: int, bucket: str) -> None:
    """A program's own fault takes no node away, and a number of tomorrow is not silent."""
    judgement = judge_health(seen(xid))
    assert codes(judgement) == ["xid/warn"]
    assert judgement.answers["xid"] is Answer.GOOD
    assert f"Xid {xid} (" in judgement.findings[0].message
    assert judgement.findings[0].evidence["resolution"] == bucket


def test_xids_of_one_gpu_make_one_finding_per_severity() -> None:
    """The fatal ones are not buried, and the advice is that of each."""
    judgement = judge_health(seen(63, 79, 48, 13))
    assert codes(judgement) == ["xid/fail", "xid/warn"]
    failed, warned = judgement.findings
    assert (failed.evidence["xids"], warned.evidence["xids"]) == ("48, 79", "13, 63")
    assert "NVIDIA's advice: reset the GPU, and replace it" in failed.message
    assert "; reboot the node." in failed.message


def test_a_flood_of_xids_stays_a_short_message() -> None:
    """Thirty-two different ones of one GPU: the first eight by name, all of them in the evidence."""
    finding = only(judge_health(seen(*range(1000, 1032))))
    assert "1007 (not in the catalogue) and 24 more," in finding.message
    assert str(finding.evidence["xids"]).endswith("1031")


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
    for severity in (Severity.FAIL, Severity.WARN):
        assert [int(xid) for xid in re.findall(r"\d+", when[severity])] == numbers(severity)
    assert sum(len(bucket.xids) for bucket in BUCKETS) == sum(map(len, map(numbers, Severity)))
