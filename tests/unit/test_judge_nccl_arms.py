"""How the benchmark's processes ended, what one arm says of another, and which verdict that makes."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import support.nccl_results as nccl
from nodegauge_contract import NOT_READ, Arm, ArmName, ArmOutcome, Phase, Problem, Result
from nodegauge_judge import Answer, Severity, Verdict
from nodegauge_judge.nccl.judge import judge_nccl
from nodegauge_judge.nccl.model import Agreement
from support.nccl_results import GIB, MIB, SHM, codes, finding

DEFAULT, NVLS_OFF, P2P_OFF = ArmName.DEFAULT, ArmName.NVLS_OFF, ArmName.P2P_OFF
BAD, GOOD, UNSURE = Answer.BAD, Answer.GOOD, Answer.UNSURE
EVERY_PHASE = [phase.value for phase in Phase]


def ended(result: Result, name: ArmName, outcome: str, *, phase: str = Phase.INIT, **more: Any) -> Result:
    """The benchmark in which that arm ended otherwise, without having measured anything."""
    return nccl.swapped(result, name, outcome=outcome, phase=phase, **({"cells": []} | more))


def arm_of(result: Result, name: ArmName) -> Arm:
    """The arm of that name."""
    assert result.nccl is not None
    return next(arm for arm in result.nccl.arms if arm.name == name)


def wrong(result: Result, *names: ArmName) -> Result:
    """The benchmark in which the 64 MiB of those arms came back wrong."""
    for name in names:
        cells = [
            replace(cell, wrong=3)
            if cell.bytes in (64 * MIB, GIB) and cell.collective == "all_reduce"
            else cell
            for cell in arm_of(result, name).cells
        ]
        result = nccl.with_cells(result, name, *cells)
    return result


def without(result: Result, name: ArmName) -> Result:
    """The benchmark without that arm."""
    assert result.nccl is not None
    return nccl.changed(result, arms=[arm for arm in result.nccl.arms if arm.name != name])


# -- hangs


@pytest.mark.parametrize("phase", EVERY_PHASE)
@pytest.mark.parametrize("name", [DEFAULT, P2P_OFF])
def test_a_hang_in_any_phase_fails_and_names_arm_and_phase(name: ArmName, phase: str) -> None:
    """Two TITAN, of which both arms that there are hang: nothing explains it."""
    both = ended(ended(nccl.titan(), DEFAULT, "hung", phase=phase), P2P_OFF, "hung", phase=phase)
    said = judge_nccl(both)
    assert (said.verdict, said.again) == (Verdict.FAIL, True)
    assert said.answers["nccl-hang"] is BAD
    assert codes(said) == {"nccl-hang/fail"}
    assert finding(said, "nccl-hang").evidence["phase"] == phase
    one = judge_nccl(ended(nccl.titan(), name, "hung", phase=phase))
    assert (one.verdict, one.answers["nccl-hang"]) == (Verdict.FAIL, BAD)


@pytest.mark.parametrize("phase", EVERY_PHASE)
def test_a_hang_that_the_arm_without_peer_access_does_not_share_is_peer_access(phase: str) -> None:
    """The text names what does that: ACS and the IOMMU."""
    said = judge_nccl(ended(nccl.titan(), DEFAULT, "hung", phase=phase))
    assert codes(said) == {"p2p-broken/fail"}
    assert (said.answers["p2p-broken"], said.answers["nccl-hang"]) == (BAD, BAD)
    assert (said.again, said.agreement, said.busbw) == (True, Agreement.UNSURE, {})
    message = finding(said, "p2p-broken").message
    assert "ACS" in message
    assert "IOMMU" in message


def test_a_hang_without_any_peer_access_is_a_plain_hang() -> None:
    """NCCL said that it joins the ranks through host memory."""
    said = judge_nccl(ended(nccl.phb(), DEFAULT, "hung", phase=Phase.MEASURE, transport=SHM))
    assert codes(said) == {"nccl-hang/fail"}
    assert said.answers["p2p-broken"] is UNSURE


def test_what_a_hung_arm_had_measured_still_counts() -> None:
    """A hang while pairs were copied comes after the sizes that labels are made of."""
    said = judge_nccl(nccl.swapped(nccl.h100(), DEFAULT, outcome="hung", phase=Phase.PAIRS))
    assert said.busbw["all_reduce"] == 462
    assert codes(said) == {"nccl-hang/fail"}


def test_the_second_hang_asks_for_no_third() -> None:
    """Two runs are what the row needs."""
    hung = ended(nccl.titan(), DEFAULT, "hung")
    assert judge_nccl(hung, previous=judge_nccl(hung).record).again is False


# -- NVLS


@pytest.mark.parametrize("outcome", ["failed", "hung", "out-of-memory", "crashed"])
@pytest.mark.parametrize("phase", [Phase.INIT, Phase.LOAD])
def test_what_works_with_nvls_off_is_broken_nvls(outcome: str, phase: str) -> None:
    """It only warns, and all_reduce comes from the arm that works."""
    said = judge_nccl(ended(nccl.h100(), DEFAULT, outcome, phase=phase, message="out of memory"))
    assert (codes(said), said.verdict) == ({"nvls-broken/warn"}, Verdict.WARN)
    assert said.busbw == {"all_reduce": 352}
    assert said.agreement is Agreement.CONFIRMED
    assert said.answers["busbw-low"] is said.answers["p2p-broken"] is GOOD
    assert said.answers["nccl-hang"] is (UNSURE if outcome == "hung" else GOOD)


def test_nvls_is_not_blamed_where_nothing_works() -> None:
    """All three arms hang in their start."""
    result = nccl.h100()
    for name in (DEFAULT, NVLS_OFF, P2P_OFF):
        result = ended(result, name, "hung")
    assert codes(judge_nccl(result)) == {"nccl-hang/fail"}


def test_nvls_is_not_blamed_where_nccl_made_none() -> None:
    """It said that it had no NVLS channels before it failed."""
    failed = ended(nccl.h100(), DEFAULT, "failed", phase=Phase.LOAD, nvls=False)
    assert codes(judge_nccl(failed)) == {"nccl-failed/warn"}


def test_a_hang_while_measuring_with_nvls_stays_a_hang_and_says_what_was_fine() -> None:
    """Nothing is proven then, but the other arms are worth a word."""
    said = judge_nccl(ended(nccl.h100(), DEFAULT, "hung", phase=Phase.MEASURE))
    assert codes(said) == {"nccl-hang/fail"}
    assert "NVLS disabled" in finding(said, "nccl-hang").message


# -- wrong data


def test_wrong_data_in_every_arm_fails_at_once_and_makes_no_label() -> None:
    """However fast garbage was made: no label, no agreement, no other run to wait for."""
    said = judge_nccl(wrong(nccl.titan(), DEFAULT, P2P_OFF))
    assert (codes(said), said.verdict) == ({"nccl-wrong-data/fail"}, Verdict.FAIL)
    assert (said.busbw, said.p2p_off, said.agreement) == ({}, None, Agreement.UNSURE)
    assert (said.answers["nccl-wrong-data"], said.answers["p2p-broken"]) == (BAD, UNSURE)
    assert said.again is False


def test_places_of_wrong_data_are_told_apart() -> None:
    """By collective, size and arm, each once: a list of nine times all_reduce says nothing."""
    evidence = finding(judge_nccl(wrong(nccl.titan(), DEFAULT, P2P_OFF)), "nccl-wrong-data").evidence
    places = str(evidence["also"]).split("), ")
    assert len(places) == len(set(places)) > 1
    assert any("all_reduce at 64 MiB (P2P disabled" in place for place in places)


def test_wrong_data_with_peer_access_alone_is_both() -> None:
    """One run suffices for the data, and peer access is what to look at."""
    said = judge_nccl(wrong(nccl.titan(), DEFAULT))
    assert codes(said) == {"nccl-wrong-data/fail", "p2p-broken/fail"}
    assert "P2P disabled" in finding(said, "nccl-wrong-data").message


def test_wrong_data_that_nvls_alone_makes_is_not_laid_to_peer_access() -> None:
    """With NVLS off and peer access on all was well."""
    said = judge_nccl(wrong(nccl.h100(), DEFAULT))
    assert codes(said) == {"nccl-wrong-data/fail"}
    assert "NVLS disabled" in finding(said, "nccl-wrong-data").message


def test_an_arm_whose_data_nobody_checked_clears_nobody() -> None:
    """Wrong with peer access, unchecked without it: peer access is not proven to be why."""
    unchecked = [replace(cell, wrong=NOT_READ) for cell in arm_of(nccl.titan(), P2P_OFF).cells]
    said = judge_nccl(nccl.with_cells(wrong(nccl.titan(), DEFAULT), P2P_OFF, *unchecked))
    assert codes(said) == {"nccl-wrong-data/fail"}


def test_data_that_nobody_checked_is_neither_good_nor_bad() -> None:
    """No data, no decision."""
    bare = [replace(cell, wrong=NOT_READ) for cell in arm_of(nccl.titan(), DEFAULT).cells]
    said = judge_nccl(nccl.with_cells(nccl.titan(), DEFAULT, *bare))
    assert (said.answers["nccl-wrong-data"], said.answers["p2p-broken"]) == (UNSURE, UNSURE)
    assert said.verdict is Verdict.PASS


# -- failures that prove nothing


@pytest.mark.parametrize("outcome", ["failed", "crashed", "garbage", "partial", "out-of-memory", "tomorrow"])
def test_a_tool_that_failed_is_no_node_that_failed(outcome: str) -> None:
    """Image, driver and limits are as likely: a warning, and no decision where nothing was read."""
    said = judge_nccl(ended(ended(nccl.titan(), DEFAULT, outcome), P2P_OFF, outcome))
    assert (codes(said), said.verdict) == ({"nccl-failed/warn"}, Verdict.UNKNOWN)
    assert (said.readable, said.reason, said.answers) == (False, "NothingMeasured", {})
    assert said.again is True


@pytest.mark.parametrize("outcome", ["crashed", "partial", "garbage", "out-of-memory"])
def test_what_an_arm_measured_before_it_failed_counts(outcome: str) -> None:
    """Labels and floors are made of the cells that are there."""
    said = judge_nccl(nccl.swapped(nccl.h100(), DEFAULT, outcome=outcome, phase=Phase.PAIRS))
    assert (codes(said), said.verdict) == ({"nccl-failed/warn"}, Verdict.WARN)
    assert said.busbw["all_reduce"] == 462
    assert (said.answers["busbw-low"], said.answers["nccl-hang"]) == (GOOD, UNSURE)


def test_the_other_arm_that_failed_leaves_the_node_judged() -> None:
    """A says what the node reaches; B's failure only warns."""
    said = judge_nccl(ended(nccl.h100(), P2P_OFF, "crashed", message="SIGSEGV"))
    assert (codes(said), said.p2p_off) == ({"nccl-failed/warn"}, None)
    assert "SIGSEGV" in finding(said, "nccl-failed").message
    assert said.answers["busbw-low"] is GOOD


def test_a_run_that_was_told_to_go_is_graded_by_what_it_has() -> None:
    """The arm that was cut is named, and what its process had said counts."""
    cut = nccl.swapped(nccl.h100(), P2P_OFF, outcome=ArmOutcome.CUT, cells=[])
    said = judge_nccl(replace(cut, problem=Problem(kind="terminated", message="told to go")))
    assert codes(said) == {"nccl-failed/warn", "nccl-incomplete/info"}
    assert said.busbw["all_reduce"] == 462
    assert said.answers["nccl-hang"] is UNSURE


def test_a_run_that_ended_early_does_not_clear_hangs() -> None:
    """Arms that were still to come might have hung."""
    early = replace(without(nccl.titan(), P2P_OFF), problem=Problem(kind="deadline"))
    assert judge_nccl(early).answers["nccl-hang"] is UNSURE
    assert judge_nccl(replace(early, problem=None)).answers["nccl-hang"] is GOOD


def test_arms_that_did_not_run_say_nothing() -> None:
    """Without B there is no peer access to compare, without C no NVLS."""
    hung = ended(nccl.h100(), DEFAULT, "hung")
    assert codes(judge_nccl(without(without(hung, P2P_OFF), NVLS_OFF))) == {"nccl-hang/fail"}
    assert judge_nccl(without(nccl.h100(), P2P_OFF)).agreement is Agreement.CONFIRMED


# -- slow starts, stalled launches


@pytest.mark.parametrize(("first", "later", "found"), [(15, 3, set()), (52, 3, {"info"}), (52, 40, {"warn"})])
def test_a_slow_start_warns_unless_only_the_first_was_cold(first: int, later: int, found: set[str]) -> None:
    """52 s of cold kernel loading have been reported; a second arm that starts fast excuses the first."""
    slow = nccl.swapped(nccl.titan(), DEFAULT, init_ms=1000, load_ms=first * 1000 - 1000)
    said = judge_nccl(nccl.swapped(slow, P2P_OFF, init_ms=later * 1000, load_ms=0))
    assert codes(said) == {f"slow-init/{severity}" for severity in found}
    assert said.verdict is (Verdict.WARN if "warn" in found else Verdict.PASS)


def test_latencies_are_not_kept_where_the_cpu_limit_stalled_launches() -> None:
    """Bandwidths of large messages are, and the finding says so."""
    said = judge_nccl(nccl.changed(nccl.h100(), throttled_periods=7))
    assert codes(said) == {"nccl-incomplete/info"}
    assert said.busbw["all_reduce"] == 462
    assert "4096" not in said.record


@pytest.mark.parametrize(("periods", "answer"), [(44, BAD), (45, UNSURE)])
def test_a_low_number_is_not_held_against_a_node_that_was_stalled_half_of_the_time(
    periods: int, answer: Answer
) -> None:
    """The median of 9 s of batches may then be the CPU limit's: 45 periods of 100 ms are half of them."""
    said = judge_nccl(nccl.changed(nccl.h100(100), throttled_periods=periods))
    assert said.answers["busbw-low"] is answer
    low = finding(said, "busbw-low")
    assert low.severity is Severity.WARN
    again = judge_nccl(
        nccl.changed(nccl.h100(100), throttled_periods=periods), previous=judge_nccl(nccl.h100(100)).record
    )
    assert finding(again, "busbw-low").severity is (Severity.WARN if answer is UNSURE else Severity.FAIL)
    assert ("CPU limit" in low.message) is (answer is UNSURE)
