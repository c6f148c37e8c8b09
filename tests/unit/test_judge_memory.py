"""GPU memory: new errors fail, a count without an earlier reading warns, repairs are judged as they are."""

from __future__ import annotations

import pytest

import support.results as made
from nodegauge_contract import Ecc, Problem, Repair, Result, Unavailable
from nodegauge_judge import Answer, Judgement, Verdict, judge_health
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
    ],
)
def test_memory_errors_are_judged_by_growth(
    judgement: Judgement, expected: list[str], answer: Answer
) -> None:
    """Old errors are INFO, corrected ones warn when they grow, and a restarted counter is not growth."""
    assert (codes(judgement), judgement.answers["ecc"]) == (expected, answer)
    assert judgement.verdict == next(
        (code.partition("/")[2] for code in expected if "info" not in code), "pass"
    )


def test_a_gpu_that_stops_counting_is_not_good() -> None:
    """ECC is on, but its count could not be read: silence is no health."""
    unreadable = Ecc(mode=1, volatile_uncorrected=Unavailable("Unknown"))
    judgement = judge_health(made.with_gpu(sound(), 1, ecc=unreadable))
    assert (codes(judgement), judgement.answers["ecc"]) == ([], Answer.UNSURE)


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
