"""Retired pages and errors of a board's whole life against the vendor's rules, and counters that are full."""

from __future__ import annotations

from typing import Any

import pytest

import support.results as made
from nodegauge_contract import Ecc, Pcie, Repair, Result, Unavailable
from nodegauge_judge import Answer, History, Judgement, Verdict, judge_health
from support.judge_results import codes, only

NONE = Unavailable("NVML_ERROR_NOT_SUPPORTED")
DAY = 24 * 3600
CLEAN = Ecc(
    mode=1,
    volatile_corrected=0,
    volatile_uncorrected=0,
    aggregate_corrected=0,
    aggregate_uncorrected=0,
    sram_threshold=0,
    aggregate_sram=0,
    aggregate_dram=0,
)
"""A board that counts and has counted nothing."""


def volta(*, single: int = 0, double: int = 0, pending: int = 0) -> Result:
    """DGX-1 whose first GPU has retired so many pages (NVIDIA, Dynamic Page Retirement)."""
    fine = Repair(
        rows_failed=NONE, pages_single_bit=0, pages_double_bit=0, pages_pending=0, unrepairable=NONE
    )
    retired = Repair(
        rows_failed=NONE,
        pages_single_bit=single,
        pages_double_bit=double,
        pages_pending=pending,
        unrepairable=NONE,
    )
    return made.with_gpu(made.every_gpu(made.dgx1(), repair=fine, ecc=CLEAN), 0, repair=retired)


def hopper(**counts: Any) -> Result:
    """An H100 node whose first GPU has these ECC counts."""
    fine = Repair(rows_pending=0, rows_failed=0, pages_double_bit=NONE, pages_pending=NONE, unrepairable=0)
    known = {name: getattr(CLEAN, name) for name in Ecc.__struct_fields__} | counts
    return made.with_gpu(made.every_gpu(made.h100(), repair=fine, ecc=CLEAN), 0, ecc=Ecc(**known))


@pytest.mark.parametrize(
    ("result", "expected", "answer"),
    [
        (volta(), [], Answer.GOOD),
        (volta(single=30), [], Answer.GOOD),
        (volta(double=1), [], Answer.GOOD),
        (volta(single=20, double=4), [], Answer.GOOD),
        (volta(double=5), ["memory-worn/warn"], Answer.GOOD),
        (volta(single=30, double=14), ["memory-worn/warn"], Answer.GOOD),
        (volta(double=15), ["memory-worn/fail"], Answer.BAD),
        (volta(single=60), ["memory-worn/fail"], Answer.BAD),
        (volta(single=56, double=4), ["memory-worn/fail"], Answer.BAD),
        (volta(single=59), [], Answer.GOOD),
        (volta(double=2, pending=1), ["row-remap/warn"], Answer.GOOD),
        (hopper(), [], Answer.UNSURE),
    ],
)
def test_retired_pages_are_judged_by_the_vendors_limits(
    result: Result, expected: list[str], answer: Answer
) -> None:
    """15 for double bit errors, 60 in all; 5 of them need their dates."""
    judgement = judge_health(result)
    assert (codes(judgement), judgement.answers["memory-worn"]) == (expected, answer)


REBOOT = (0, 5)
"""The reading after a reboot: five double bit pages, on a clock that starts again."""


def over(*readings: tuple[int, int]) -> Judgement:
    """The judgement of the last of these readings: seconds, and double bit pages then."""
    judgement = judge_health(volta())
    for reading in readings:
        seconds, pages = reading
        result = made.later(volta(double=pages), seconds=seconds)
        if reading is REBOOT:
            result = made.rebooted(result)
        judgement = judge_health(result, history=History.decode(judgement.history.encode()), interval=DAY)
    return judgement


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        (((900, 5),), ["memory-worn/fail"]),
        (((DAY, 2), (2 * DAY, 4)), []),
        (((DAY, 2), (2 * DAY, 4), (3 * DAY, 5)), ["memory-worn/fail"]),
        (((29 * DAY, 5),), ["memory-worn/fail"]),
        (((20 * DAY, 3), (40 * DAY, 6)), ["memory-worn/warn"]),
        (((900, 5), (1800, 5), (2700, 5)), ["memory-worn/fail"]),
        (((900, 5), REBOOT), ["memory-worn/fail"]),
        (((10, 6),), ["memory-worn/fail"]),
    ],
    ids=["at-once", "four", "one-by-one", "29-days", "over-40-days", "stays", "over-a-reboot", "early"],
)
def test_five_double_bit_pages_within_30_days_fail(
    readings: tuple[tuple[int, int], ...], expected: list[str]
) -> None:
    """However they came; further apart they warn."""
    assert codes(over(*readings)) == expected


def test_the_message_says_how_many_pages_came_in_how_many_days() -> None:
    """And whose limit it is."""
    finding = only(over((DAY, 2), (3 * DAY, 7)))
    assert finding.message.startswith(
        "7 pages retired for double bit errors within 3 days (the vendor's limit is 5"
    )
    assert finding.evidence["pages_double_bit"] == 7


@pytest.mark.parametrize(
    ("counts", "expected", "message"),
    [
        ({"aggregate_sram": 1}, ["memory-worn/info"], "1 uncorrectable error in SRAM"),
        ({"aggregate_sram": 9}, ["memory-worn/info"], "9 uncorrectable errors in SRAM"),
        ({"aggregate_sram": 9, "sram_threshold": 1}, ["row-remap/fail", "memory-worn/info"], "SRAM"),
        ({"aggregate_sram": 2, "sram_threshold": NONE}, ["memory-worn/info"], "2 uncorrectable"),
        ({"aggregate_sram": 3, "sram_threshold": NONE}, ["memory-worn/warn"], "the driver does not judge it"),
        ({"aggregate_dram": 7}, ["memory-worn/info"], "7 uncorrectable errors in DRAM over the board's life"),
        ({"aggregate_dram": 512}, ["memory-worn/info"], "512"),
        ({"aggregate_dram": 513}, ["memory-worn/warn"], "room for 512 repairs"),
        (
            {"aggregate_sram": 1, "aggregate_dram": 600},
            ["memory-worn/warn"],
            "; 1 uncorrectable error in SRAM",
        ),
        (
            {"aggregate_uncorrected": 3, "aggregate_sram": NONE, "aggregate_dram": NONE},
            ["memory-worn/info"],
            "3 un",
        ),
        ({"aggregate_corrected": 40_000}, [], ""),
    ],
)
def test_errors_of_a_boards_life_are_judged(
    counts: dict[str, Any], expected: list[str], message: str
) -> None:
    """Old errors inform; more of them than the memory can repair, or than the driver judges, warn."""
    judgement = judge_health(hopper(**counts))
    assert codes(judgement) == expected
    assert judgement.verdict is not Verdict.UNKNOWN
    assert not message or message in judgement.findings[-1].message


def test_older_boards_have_room_for_fewer_repairs() -> None:
    """64 pages instead of 512 rows."""
    worn = made.with_gpu(
        volta(), 2, ecc=Ecc(mode=1, volatile_uncorrected=0, sram_threshold=NONE, aggregate_dram=65)
    )
    assert codes(judge_health(worn)) == ["memory-worn/warn"]


@pytest.mark.parametrize(
    ("counts", "named"),
    [
        ({"volatile_corrected": 65_535}, "corrected memory errors (65535)"),
        ({"aggregate_corrected": 2**32 - 1}, "corrected memory errors of the board's life (4294967295)"),
        ({"aggregate_dram": 2**63 - 1}, "uncorrectable DRAM errors of the board's life"),
        ({"aggregate_sram": 65_535}, "uncorrectable SRAM errors of the board's life"),
        ({"aggregate_uncorrected": 65_535}, "uncorrectable memory errors of the board's life"),
    ],
)
def test_a_full_counter_is_said_to_be_full(counts: dict[str, Any], named: str) -> None:
    """65535, or all ones of its width; its number is judged no further."""
    finding = only(judge_health(hopper(**counts)))
    assert (finding.code, finding.severity) == ("counter-saturated", "warn")
    assert named in finding.message


@pytest.mark.parametrize("full", [2**16 - 1, 2**32 - 1, 2**63 - 1])
def test_a_full_counter_clears_nothing(full: int) -> None:
    """It did not grow because it cannot; up to its end it counts."""
    before, after = hopper(volatile_uncorrected=full), made.later(hopper(volatile_uncorrected=full))
    judgement = judge_health(after, history=judge_health(before).history)
    assert codes(judgement) == ["ecc/warn", "counter-saturated/warn"]
    assert f"is at its maximum, {full}: it cannot grow" in judgement.findings[0].message
    assert judgement.answers["ecc"] is Answer.UNSURE
    first = judge_health(hopper(volatile_uncorrected=full - 1)).history
    assert codes(judge_health(after, history=first))[0] == "ecc/fail"


def test_full_pcie_counters_are_said_too() -> None:
    """Replays are counted by the same kind of register."""
    full = made.with_gpu(hopper(), 1, pcie=Pcie(replays=65_535, correctable=3))
    assert only(judge_health(full)).evidence["saturated"] == "PCIe replays"
