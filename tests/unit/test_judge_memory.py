"""GPU memory: new errors, repairs, a board's whole life against the vendor's rules, and full counters."""

from __future__ import annotations

from typing import Any

import pytest

import support.results as made
from nodegauge_contract import Ecc, Pcie, Problem, Repair, Result, Unavailable
from nodegauge_judge import Answer, History, Judgement, Verdict, judge_health
from support.judge_results import codes, only

CLEAN = Ecc(mode=1, volatile_corrected=0, volatile_uncorrected=0, aggregate_uncorrected=0, sram_threshold=0)


NONE = Unavailable("NVML_ERROR_NOT_SUPPORTED")


NEITHER = Repair(rows_failed=NONE, pages_pending=NONE, unrepairable=NONE)


FINE = Repair(rows_pending=0, rows_failed=0, unrepairable=NONE, action=0)


def sound() -> Result:
    """Two GPUs with ECC on and nothing to report."""
    return made.every_gpu(made.phb(), ecc=CLEAN, repair=FINE)


def after(first: Result, second: Result) -> Judgement:
    """The judgement of the second document, an interval later."""
    return judge_health(made.later(second), history=judge_health(first).history)


def with_errors(uncorrected: int = 0, corrected: int = 0) -> Result:
    """`sound` with these volatile counts on GPU 0."""
    ecc = Ecc(mode=1, volatile_corrected=corrected, volatile_uncorrected=uncorrected)
    return made.with_gpu(sound(), 0, ecc=ecc)


def test_uncorrectable_errors_since_the_last_run_fail_at_once() -> None:
    """Growth is the evidence, and one run is enough."""
    judgement = after(with_errors(uncorrected=2), with_errors(uncorrected=3))
    finding = only(judgement)
    assert (finding.code, judgement.verdict) == ("ecc", Verdict.FAIL)
    assert finding.message.startswith("1 uncorrectable memory error since the last run.")
    assert finding.evidence["uncorrected_growth"] == 1
    assert judgement.answers["ecc"] is Answer.BAD


def test_an_uncorrectable_error_fails_even_seconds_after_the_last_run() -> None:
    """That it came is a fact at once; that none came is none so soon."""
    soon = made.later(with_errors(uncorrected=1), seconds=3)
    history = judge_health(sound()).history
    judgement = judge_health(soon, history=history)
    assert codes(judgement) == ["ecc/fail"]
    assert judgement.answers["ecc"] is Answer.BAD
    kept = judge_health(made.later(with_errors(uncorrected=1), seconds=6), history=judgement.history)
    assert kept.answers["ecc"] is not Answer.GOOD


def test_an_error_count_without_an_earlier_reading_warns_and_is_unsure() -> None:
    """Whether it is new is not known: neither good nor bad, on a first run and after a reboot."""
    first = judge_health(with_errors(uncorrected=3))
    again = judge_health(made.rebooted(with_errors(uncorrected=3)), history=first.history)
    for judgement in (first, again):
        assert codes(judgement) == ["ecc/warn"]
        assert judgement.answers["ecc"] is Answer.UNSURE
    assert "some may be old" in only(first).message
    assert "the node was rebooted since the last run" in only(again).message


GOOD, BAD, UNSURE = Answer.GOOD, Answer.BAD, Answer.UNSURE
MUTE = Ecc(mode=1, volatile_uncorrected=Unavailable("Unknown"))


@pytest.mark.parametrize(
    ("judgement", "expected", "answer"),
    [
        pytest.param(after(with_errors(3), with_errors(3)), ["ecc/info"], GOOD, id="old"),
        pytest.param(judge_health(sound()), [], GOOD, id="none-on-a-first-run"),
        pytest.param(after(with_errors(5), with_errors(2)), ["ecc/warn"], UNSURE, id="restarted"),
        pytest.param(after(with_errors(5), with_errors(0)), [], GOOD, id="restarted-at-zero"),
        pytest.param(after(with_errors(0, 900), with_errors(0, 901)), ["ecc/warn"], GOOD, id="corrected"),
        pytest.param(after(with_errors(0, 900), with_errors(0, 900)), [], GOOD, id="no-new-corrected"),
        pytest.param(judge_health(with_errors(0, 900)), [], GOOD, id="corrected-on-a-first-run"),
        pytest.param(after(with_errors(), with_errors(1, 4)), ["ecc/fail", "ecc/warn"], BAD, id="both-kinds"),
        pytest.param(judge_health(made.phb()), [], UNSURE, id="no-ecc"),
        pytest.param(judge_health(made.with_gpu(sound(), 1, ecc=MUTE)), [], UNSURE, id="unreadable"),
    ],
)
def test_memory_errors_are_judged_by_growth(
    judgement: Judgement, expected: list[str], answer: Answer
) -> None:
    """Old errors are INFO, corrected ones warn when they grow, a restart is no growth, silence no health."""
    assert (codes(judgement), judgement.answers["ecc"]) == (expected, answer)
    assert judgement.verdict == next(
        (code.partition("/")[2] for code in expected if "info" not in code), "pass"
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"repair": Repair(rows_pending=1, rows_failed=0, action=0)}, ["row-remap/warn"]),
        ({"repair": Repair(pages_pending=1, action=0)}, ["row-remap/warn"]),
        ({"repair": Repair(rows_failed=0, channels_pending=1, action=0)}, ["row-remap/warn"]),
        ({"repair": Repair(rows_failed=0, tpcs_pending=1, action=0)}, ["row-remap/warn"]),
        ({"repair": Repair(rows_pending=0, rows_failed=1, action=0)}, ["row-remap/fail"]),
        ({"repair": Repair(rows_failed=0, unrepairable=1, action=0)}, ["row-remap/fail"]),
        ({"ecc": Ecc(mode=1, sram_threshold=1, volatile_uncorrected=0)}, ["row-remap/fail"]),
        ({"repair": Repair(rows_pending=1, rows_failed=1, action=0)}, ["row-remap/fail", "row-remap/warn"]),
        ({"repair": Repair(rows_corrected=7, rows_uncorrected=2, rows_failed=0, action=0)}, []),
        ({"repair": Repair(pages_single_bit=12, pages_double_bit=1, pages_pending=0, action=0)}, []),
    ],
)
def test_pending_repairs_warn_and_failed_ones_fail(changes: dict[str, object], expected: list[str]) -> None:
    """Pending warns, failed fails, and repairs that were done are nobody's business."""
    judgement = judge_health(made.with_gpu(sound(), 1, **changes))
    assert codes(judgement) == expected
    if expected:
        assert judgement.findings[0].subject == "GPU 1 (0000:10:00.0)"


@pytest.mark.parametrize(
    ("changes", "answer"),
    [
        ({}, Answer.GOOD),
        ({"repair": Repair()}, Answer.UNSURE),
        ({"repair": Repair(rows_failed=Unavailable("NVML_ERROR_TIMEOUT"), unrepairable=NONE)}, Answer.UNSURE),
        ({"repair": NEITHER}, Answer.GOOD),
        ({"repair": Repair(rows_failed=NONE, pages_pending=0, unrepairable=NONE)}, Answer.GOOD),
        (
            {"repair": Repair(rows_failed=NONE, pages_pending=NONE, unrepairable=NONE), "mig": 1},
            Answer.UNSURE,
        ),
        ({"ecc": Ecc(mode=1, volatile_uncorrected=0)}, Answer.UNSURE),
        ({"ecc": Ecc(mode=NONE, sram_threshold=NONE)}, Answer.GOOD),
    ],
)
def test_repairs_are_good_if_every_gpu_that_supports_them_answered(
    changes: dict[str, object], answer: Answer
) -> None:
    """A card that never had rows or ECC holds nobody back; one that cannot be read does, and so does MIG."""
    assert judge_health(made.with_gpu(sound(), 1, **changes)).answers["row-remap"] is answer


def test_no_repair_on_any_gpu_answers_nothing() -> None:
    """Cards without such memory are neither good nor bad."""
    assert judge_health(made.every_gpu(sound(), repair=NEITHER)).answers["row-remap"] is Answer.UNSURE


@pytest.mark.parametrize("seconds", [10, 900])
@pytest.mark.parametrize("named", [{}, {"uuid": Unavailable("nvmlDeviceGetUUID: GPU_IS_LOST")}])
def test_errors_made_while_a_gpu_was_unreadable_are_new(seconds: int, named: dict[str, object]) -> None:
    """With its UUID or without, and in a run that came too early to count, it comes back with one more."""
    sound = made.every_gpu(made.phb(), ecc=Ecc(mode=1, volatile_uncorrected=3))
    away = made.with_gpu(
        made.later(sound, seconds=seconds), 1, error=Problem(kind="reset-required", call="x"), **named
    )
    back = made.later(made.with_gpu(sound, 1, ecc=Ecc(mode=1, volatile_uncorrected=4)), seconds=1800)
    history = judge_health(away, history=judge_health(sound).history).history
    judgement = judge_health(back, history=history)
    failed = [finding for finding in judgement.findings if finding.severity == "fail"]
    assert [(f.code, f.subject, f.evidence["uncorrected_growth"]) for f in failed] == [
        ("ecc", "GPU 1 (0000:10:00.0)", 1)
    ]


DAY = 24 * 3600
UNWORN = Ecc(
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
    return made.with_gpu(made.every_gpu(made.dgx1(), repair=fine, ecc=UNWORN), 0, repair=retired)


def hopper(**counts: Any) -> Result:
    """An H100 node whose first GPU has these ECC counts."""
    fine = Repair(rows_pending=0, rows_failed=0, pages_double_bit=NONE, pages_pending=NONE, unrepairable=0)
    known = {name: getattr(UNWORN, name) for name in Ecc.__struct_fields__} | counts
    return made.with_gpu(made.every_gpu(made.h100(), repair=fine, ecc=UNWORN), 0, ecc=Ecc(**known))


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
