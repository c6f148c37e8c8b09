"""Links between GPUs: refused, missing, hidden, down, unclear, or with errors."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Fabric, LinkErrors, Result, Unavailable
from nodegauge_judge import CATALOGUE, Severity, judge_health
from support.judge_results import codes, only


def test_refused_p2p_fails_and_names_pair_status_and_next_step() -> None:
    """The message holds what a person needs at night: which pair, how many links, which status, what next."""
    finding = only(judge_health(made.with_pair(made.titan(), 0, 1, read=5, nvlink=4)))
    assert (finding.code, finding.severity) == ("p2p-refused", Severity.FAIL)
    assert finding.subject == "GPU 0 (0000:0f:00.0) - GPU 1 (0000:10:00.0)"
    assert "2 NVLinks up" in finding.message
    assert "READ (NS: not supported), NVLINK (DR: disabled by a registry key)" in finding.message
    assert finding.message.endswith(f"Next: {CATALOGUE['p2p-refused'].next_step}")
    assert "WRITE" not in finding.message


def test_many_refused_pairs_are_one_finding() -> None:
    """28 pairs of one cause make one finding that counts them, the worst pair first."""
    result = made.h100()
    for i in range(8):
        for j in range(i + 1, 8):
            result = made.with_pair(result, i, j, nvlink=5)
    result = made.with_pair(result, 2, 3, read=5, write=5)
    finding = only(judge_health(result))
    assert finding.subject == "GPU 2 (0000:11:00.0) - GPU 3 (0000:12:00.0) and 27 more"
    assert finding.evidence["pairs"] == 28
    assert str(finding.evidence["also"]).startswith("0-1, 0-2, ")


def test_a_fabric_that_is_not_ready_is_named_before_the_pairs_that_refuse() -> None:
    """The cause leads, the consequences are counted."""
    result = made.with_pair(made.with_gpu(made.h100(), 7, fabric=Fabric(state=2)), 0, 1, read=5)
    finding = only(judge_health(result))
    assert finding.code == "p2p-refused"
    assert finding.subject == "GPU 7 (0000:16:00.0) and 1 more"
    assert "still in progress" in finding.message
    assert finding.evidence["fabric_state"] == 2


def test_missing_links_warn_and_far_too_few_fail() -> None:
    """Behind switches siblings tell: 17 of 18 warns, 13 of 18 fails; the numbers are in the evidence."""
    warned = only(judge_health(made.without_links(made.h100(), 3, count=1)))
    failed = only(judge_health(made.without_links(made.h100(), 3, count=5)))
    assert (warned.severity, failed.severity) == (Severity.WARN, Severity.FAIL)
    assert failed.evidence == {"links": 13, "expected": 18, "against": "siblings", "limit": 0.75}
    assert "13 NVLinks active; its siblings have 18 (72%, below 75%" in failed.message


def test_siblings_are_compared_within_a_model_and_only_behind_switches() -> None:
    """Another model may have fewer links, and a direct mesh may be uneven."""
    result = made.with_gpu(made.without_links(made.h100(), 3, count=9), 3, name="NVIDIA H800")
    assert "nvlink-degraded/fail" not in codes(judge_health(result))
    assert codes(judge_health(made.dgx1([0, 1, 2, 3]))) == []


def test_links_are_compared_with_siblings_and_history() -> None:
    """All siblings degraded alike are seen against the past."""
    history = judge_health(made.h100()).history
    result = made.h100()
    for gpu_index in range(8):
        result = made.without_links(result, gpu_index, count=2)
    finding = only(judge_health(result, history=history))
    assert finding.evidence["against"] == "history"
    assert finding.subject.endswith("and 7 more")


def test_unresolved_links_warn_and_are_not_degraded() -> None:
    """A doubt is not a lost link, even with a past to compare with."""
    history = judge_health(made.titan()).history
    result = made.with_links(made.with_links(made.titan(), 0, state=3), 1, state=3)
    finding = only(judge_health(result, history=history))
    assert (finding.code, finding.severity) == ("nvlink-unresolved", Severity.WARN)
    assert "traffic is disabled" in finding.message


def test_a_gpu_with_all_links_down_is_degraded() -> None:
    """Zero of 18 is a fact, although the GPU still counts its wires to the switches."""
    finding = only(judge_health(made.with_links(made.h100(), 1, state=0)))
    assert (finding.code, finding.evidence["links"]) == ("nvlink-degraded", 0)


def test_a_pair_that_lost_all_links_is_degraded_but_not_unresolved() -> None:
    """All links of a pair gone while NVLINK P2P still reads OK: one finding, against the past."""
    gone = made.with_links(made.with_links(made.titan(), 0, state=0), 1, state=0)
    assert codes(judge_health(gone, history=judge_health(made.titan()).history)) == ["nvlink-degraded/fail"]
    assert codes(judge_health(gone)) == ["nvlink-unresolved/warn"]


def test_unreadable_p2p_warns() -> None:
    """What could not be told is neither refused nor fine."""
    finding = only(judge_health(made.with_pair(made.titan(), 0, 1, write=Unavailable("Unknown"))))
    assert (finding.code, finding.severity) == ("nvlink-unresolved", Severity.WARN)
    assert "WRITE (not readable: Unknown)" in finding.message
    absent = only(judge_health(replace(made.titan(), pairs=replace(made.titan().pairs, read=[]))))
    assert "READ (not in the document)" in absent.message


def test_mig_silences_findings_about_links() -> None:
    """With MIG on, refused P2P and a fabric in progress mean nothing."""
    result = made.with_gpu(made.with_pair(made.h100(), 1, 2, read=5), 0, mig=1, fabric=Fabric(state=2))
    assert codes(judge_health(result, history=judge_health(made.h100()).history)) == []


def test_a_single_gpu_of_a_bridged_pair_passes() -> None:
    """One GPU in a virtual machine whose links name itself is no riddle worth a warning."""
    whole = made.ncv4()
    assert judge_health(replace(whole, gpus=whole.gpus[:1], pairs=made.pairs([[0]]))).verdict == "pass"


OLDER = {"replay": 0, "recovery": 0, "crc_flit": 0, "crc_data": 0}


def with_errors(**errors: int) -> Result:
    """A mesh of four whose GPU 2 has counted these."""
    return made.with_gpu(made.hgx_a100_4(), 2, link_errors=LinkErrors(**errors))


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (OLDER | {"replay": 5}, OLDER | {"replay": 6}, ["nvlink-degraded/warn"]),
        (OLDER | {"crc_flit": 5}, OLDER | {"crc_flit": 6}, ["nvlink-degraded/warn"]),
        (OLDER | {"crc_data": 5}, OLDER | {"crc_data": 6}, ["nvlink-degraded/warn"]),
        (OLDER | {"replay": 5}, OLDER | {"replay": 5}, []),
        ({"recovery_failed": 0}, {"recovery_failed": 1}, ["nvlink-degraded/fail"]),
        ({"recovery_failed": 1}, {"recovery_failed": 1}, []),
        ({"effective": 1}, {"effective": 2}, ["nvlink-degraded/warn"]),
        ({"symbol": 9}, {"symbol": 9000}, []),
    ],
)
def test_nvlink_errors_are_judged_by_growth(
    before: dict[str, int], now: dict[str, int], expected: list[str]
) -> None:
    """Replays and CRC errors warn, a failed recovery fails; corrected bits are what links live with."""
    history = judge_health(with_errors(**before)).history
    judgement = judge_health(made.later(with_errors(**now)), history=history)
    assert codes(judgement) == expected
    if expected:
        assert only(judgement).subject == "GPU 2 (0000:11:00.0)"


def test_a_failed_recovery_without_a_past_warns() -> None:
    """Whether it is new is not known."""
    finding = only(judge_health(with_errors(recovery_failed=2)))
    assert (finding.code, finding.severity) == ("nvlink-degraded", "warn")
    assert "2 NVLink recoveries failed since the driver was loaded" in finding.message


def test_mig_silences_link_errors_too() -> None:
    """NVML reports links as down then, whatever they count."""
    history = judge_health(with_errors(recovery_failed=0)).history
    mig = made.with_gpu(made.later(with_errors(recovery_failed=3)), 0, mig=1)
    assert codes(judge_health(mig, history=history)) == []
