"""GPU memory: new errors, repairs, a board's whole life against the vendor's rules, and full counters."""

from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Ecc, Pcie, Problem, Repair, Result, Unavailable
from nodegauge_judge import Answer, Judgement
from support.judge_results import GAP, Row, Table, check, judge, rows

GOOD, BAD, UNSURE = Answer.GOOD, Answer.BAD, Answer.UNSURE
DAY = 24 * 3600
NONE = Unavailable("NVML_ERROR_NOT_SUPPORTED")
NEITHER = Repair(rows_failed=NONE, pages_pending=NONE, unrepairable=NONE)
FINE = Repair(rows_pending=0, rows_failed=0, unrepairable=NONE, action=0)
CLEAN = Ecc(mode=1, volatile_corrected=0, volatile_uncorrected=0, aggregate_uncorrected=0, sram_threshold=0)
UNWORN: dict[str, Any] = dict.fromkeys(set(Ecc.__struct_fields__) - {"mode"}, 0) | {"mode": 1}
"""A board that counts and has counted nothing."""


def sound() -> Result:
    return made.every_gpu(made.phb(), ecc=CLEAN, repair=FINE)


def second(**changes: Any) -> Result:
    return made.with_gpu(sound(), 1, **changes)


def repairs(**changes: Any) -> Result:
    return second(repair=Repair(**changes))


def with_errors(uncorrected: int = 0, corrected: int = 0) -> Result:
    ecc = Ecc(mode=1, volatile_corrected=corrected, volatile_uncorrected=uncorrected)
    return made.with_gpu(sound(), 0, ecc=ecc)


def after(first: Result, last: Result, *, seconds: float = 900) -> tuple[Result, Result]:
    return first, made.later(last, seconds=int(seconds))


FIRST_ERRORS = with_errors(uncorrected=3)
SOON = after(sound(), with_errors(1), seconds=3)
ONCE = "row-remap/warn"
FAILED = "row-remap/fail"
SECOND = "GPU 1 (0000:10:00.0): "
TABLE: Table = {
    "uncorrectable errors since the last run fail at once": (
        after(with_errors(uncorrected=2), with_errors(uncorrected=3)),
        "ecc/fail",
        ": 1 uncorrectable memory error since the last run.",
        {"uncorrected_growth": 1, "ecc": BAD},
    ),
    "an error that came seconds after the last run counts at once, and again until a run counts it": [
        (SOON, "ecc/fail", {"ecc": BAD}),
        ((*SOON, made.later(with_errors(1), seconds=6)), "ecc/fail", {"ecc": BAD}),
    ],
    "without a reading before they may be old": [
        (FIRST_ERRORS, "ecc/warn", "some may be old", {"ecc": UNSURE})
    ],
    "so may errors after a reboot": (
        (FIRST_ERRORS, made.rebooted(FIRST_ERRORS)),
        "ecc/warn",
        "the node was rebooted since the last run",
        {"ecc": UNSURE},
    ),
    "old errors are information": [(after(with_errors(3), with_errors(3)), "ecc/info", {"ecc": GOOD})],
    "no errors on a first run": [(sound(), "", {"ecc": GOOD})],
    "a restart is no growth": [
        (after(with_errors(5), with_errors(2)), "ecc/warn", {"ecc": UNSURE}),
        (after(with_errors(5), with_errors(0)), "", {"ecc": GOOD}),
    ],
    "corrected errors warn when they grow": [
        (after(with_errors(0, 900), with_errors(0, 901)), "ecc/warn", {"ecc": GOOD}),
        (after(with_errors(0, 900), with_errors(0, 900)), "", {"ecc": GOOD}),
        (with_errors(0, 900), "", {"ecc": GOOD}),
        (after(with_errors(), with_errors(1, 4)), "ecc/fail ecc/warn", {"ecc": BAD}),
    ],
    "no ECC, or an unreadable count, is silence and no health": [
        (made.phb(), "", {"ecc": UNSURE}),
        (second(ecc=Ecc(mode=1, volatile_uncorrected=Unavailable("Unknown"))), "", {"ecc": UNSURE}),
    ],
    "a pending repair warns": [
        (repairs(rows_pending=1, rows_failed=0, action=0), ONCE, SECOND),
        (repairs(pages_pending=1, action=0), ONCE, SECOND),
        (repairs(rows_failed=0, channels_pending=1, action=0), ONCE, SECOND),
        (repairs(rows_failed=0, tpcs_pending=1, action=0), ONCE, SECOND),
    ],
    "a failed repair fails": [
        (repairs(rows_pending=0, rows_failed=1, action=0), FAILED, SECOND),
        (repairs(rows_failed=0, unrepairable=1, action=0), f"{FAILED} {GAP}", SECOND),
        (second(ecc=Ecc(mode=1, sram_threshold=1, volatile_uncorrected=0)), FAILED, SECOND),
        (repairs(rows_pending=1, rows_failed=1, action=0), f"{FAILED} {ONCE}", SECOND),
    ],
    "repairs that were done are nobody's business": [
        (repairs(rows_corrected=7, rows_uncorrected=2, rows_failed=0, action=0), "")
    ],
    "repairs are good if every GPU that supports them answered": [
        (sound(), "", {"row-remap": GOOD}),
        (second(repair=NEITHER), "", {"row-remap": GOOD}),
        (repairs(rows_failed=NONE, pages_pending=0, unrepairable=NONE), "", {"row-remap": GOOD}),
        (second(ecc=Ecc(mode=NONE, sram_threshold=NONE)), GAP, {"row-remap": GOOD}),
    ],
    "one that cannot be read holds the answer back, and so does MIG": [
        (repairs(), "", {"row-remap": UNSURE}),
        (
            repairs(rows_failed=Unavailable("NVML_ERROR_TIMEOUT"), unrepairable=NONE),
            "",
            {"row-remap": UNSURE},
        ),
        (second(repair=NEITHER, mig=1), "", {"row-remap": UNSURE}),
        (second(ecc=Ecc(mode=1, volatile_uncorrected=0)), "", {"row-remap": UNSURE}),
    ],
    "cards without such memory are neither good nor bad": [
        (made.every_gpu(sound(), repair=NEITHER), "", {"row-remap": UNSURE})
    ],
}


@pytest.mark.parametrize("row", rows(TABLE))
def test_errors_and_repairs_are_judged(row: Row) -> None:
    check(*row)


@pytest.mark.parametrize("seconds", [10, 900])
@pytest.mark.parametrize("named", [{}, {"uuid": Unavailable("nvmlDeviceGetUUID: GPU_IS_LOST")}])
def test_errors_made_while_a_gpu_was_unreadable_are_new(seconds: int, named: dict[str, object]) -> None:
    sound = made.every_gpu(made.phb(), ecc=Ecc(mode=1, volatile_uncorrected=3))
    error = Problem(kind="reset-required", call="x")
    away = made.with_gpu(made.later(sound, seconds=seconds), 1, error=error, **named)
    back = made.later(made.with_gpu(sound, 1, ecc=Ecc(mode=1, volatile_uncorrected=4)), seconds=1800)
    failed = [finding for finding in judge(sound, away, back).findings if finding.severity == "fail"]
    assert [(f.code, f.subject, f.evidence["uncorrected_growth"]) for f in failed] == [
        ("ecc", "GPU 1 (0000:10:00.0)", 1)
    ]


NO_ROWS = Repair(rows_failed=NONE, unrepairable=NONE)


def volta(*, single: int = 0, double: int = 0, pending: int = 0, at: int = 0) -> Result:
    """DGX-1 whose first GPU has retired so many pages (NVIDIA, Dynamic Page Retirement), `at` seconds on."""
    fine, retired = (
        replace(NO_ROWS, pages_single_bit=one, pages_double_bit=two, pages_pending=left)
        for one, two, left in ((0, 0, 0), (single, double, pending))
    )
    result = made.with_gpu(made.every_gpu(made.dgx1(), repair=fine, ecc=Ecc(**UNWORN)), 0, repair=retired)
    return made.later(result, seconds=at)


def hopper(**counts: Any) -> Result:
    fine = Repair(rows_pending=0, rows_failed=0, pages_double_bit=NONE, pages_pending=NONE, unrepairable=0)
    machine = made.every_gpu(made.h100(), repair=fine, ecc=Ecc(**UNWORN))
    return made.with_gpu(machine, 0, ecc=Ecc(**UNWORN | counts))


def over(*readings: tuple[int, int], reboot: bool = False) -> Judgement:
    """The judgement of the last of these readings (seconds, double bit pages), or of a run after a reboot."""
    runs = [volta(double=pages, at=seconds) for seconds, pages in ((0, 0), *readings)]
    if reboot:
        runs.append(made.rebooted(volta(double=readings[-1][1])))
    return judge(*runs, interval=DAY)


WORN, GONE, GAP_AND_WORN = "memory-worn/warn", "memory-worn/fail", f"{GAP} memory-worn/info"
OLDER = Ecc(mode=1, volatile_uncorrected=0, sram_threshold=NONE, aggregate_dram=65)
FULL = "counter-saturated/warn"
LIVES: Table = {
    "4 double bit errors and 59 pages in all are within the vendor's limits": [
        (volta(single=single, double=double), "", {"memory-worn": GOOD})
        for single, double in ((0, 0), (30, 0), (0, 1), (20, 4), (59, 0))
    ],
    "5 double bit errors need their dates": [
        (volta(double=5), WORN, {"memory-worn": GOOD}),
        (volta(single=30, double=14), WORN, {"memory-worn": GOOD}),
    ],
    "15 double bit errors, or 60 pages in all, fail": [
        (volta(single=single, double=double), GONE, {"memory-worn": BAD})
        for single, double in ((0, 15), (60, 0), (56, 4))
    ],
    "a pending page is a repair": [(volta(double=2, pending=1), ONCE, {"memory-worn": GOOD})],
    "newer boards retire no pages": [(hopper(), "", {"memory-worn": UNSURE})],
    "5 double bit pages within 30 days fail, however they came": [
        (over((900, 5)), GONE),
        (over((DAY, 2), (2 * DAY, 4), (3 * DAY, 5)), GONE),
        (over((29 * DAY, 5)), GONE),
        (over((900, 5), reboot=True), GONE),
        (over((10, 6)), GONE),
    ],
    "further apart they warn, and 4 are fine": [
        (over((20 * DAY, 3), (40 * DAY, 6)), WORN),
        (over((DAY, 2), (2 * DAY, 4)), ""),
    ],
    "the message says how many pages came in how many days, and whose limit it is": (
        over((DAY, 2), (3 * DAY, 7)),
        GONE,
        ": 7 pages retired for double bit errors within 3 days (the vendor's limit is 5",
        {"pages_double_bit": 7},
    ),
    "errors of a board's life inform": [
        (hopper(aggregate_sram=1), "memory-worn/info", "1 uncorrectable error in SRAM"),
        (hopper(aggregate_sram=2, sram_threshold=NONE), f"{GAP} memory-worn/info", "2 uncorrectable"),
        (
            hopper(aggregate_dram=7),
            "memory-worn/info",
            "7 uncorrectable errors in DRAM over the board's life",
        ),
        (hopper(aggregate_uncorrected=3, aggregate_sram=NONE, aggregate_dram=NONE), GAP_AND_WORN, "3 un"),
        (hopper(aggregate_corrected=40_000), ""),
    ],
    "the driver's own limit of SRAM errors fails": [
        (hopper(aggregate_sram=9, sram_threshold=1), f"{FAILED} memory-worn/info", "errors in SRAM")
    ],
    "more errors than the driver judges, or than the memory can repair, warn": [
        (hopper(aggregate_sram=3, sram_threshold=NONE), f"{WORN} {GAP}", "the driver does not judge it"),
        (hopper(aggregate_dram=513), WORN, "room for 512 repairs"),
        (hopper(aggregate_sram=1, aggregate_dram=600), WORN, "; 1 uncorrectable error in SRAM"),
    ],
    "older boards have room for 64 pages instead of 512 rows": [(made.with_gpu(volta(), 2, ecc=OLDER), WORN)],
    "a full counter is said to be full, and judged no further": [
        (hopper(volatile_corrected=65_535), FULL, "corrected memory errors (65535)"),
        (hopper(aggregate_dram=2**63 - 1), FULL, "uncorrectable DRAM errors of the board's life"),
        (
            made.with_gpu(hopper(), 1, pcie=Pcie(replays=65_535, correctable=3)),
            FULL,
            {"saturated": "PCIe replays"},
        ),
    ],
    "a full counter did not grow because it cannot, so it clears nothing": [
        (
            after(hopper(volatile_uncorrected=full), hopper(volatile_uncorrected=full)),
            f"ecc/warn {FULL}",
            f"is at its maximum, {full}: it cannot grow",
            {"ecc": UNSURE},
        )
        for full in (2**16 - 1, 2**32 - 1, 2**63 - 1)
    ],
    "up to its end it counts": [
        (after(hopper(volatile_uncorrected=full - 1), hopper(volatile_uncorrected=full)), f"ecc/fail {FULL}")
        for full in (2**16 - 1, 2**32 - 1, 2**63 - 1)
    ],
}


@pytest.mark.parametrize("row", rows(LIVES))
def test_a_boards_life_is_judged_by_the_vendors_limits(row: Row) -> None:
    check(*row)
