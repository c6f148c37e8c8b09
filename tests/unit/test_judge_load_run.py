"""Which load runs can be judged at all, and what links and rails say in those that can."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import (
    LoadEnd,
    LoadGpu,
    LoadResult,
    LoadSensor,
    LoadSkip,
    Problem,
    ProblemKind,
    Result,
    Unavailable,
)
from nodegauge_judge import Severity, Verdict
from nodegauge_judge.load_rules.judge import judge_load
from support.load_results import everywhere, gpu, loaded, spoilt
from support.properties import tried

UNREAD = Unavailable("NotSupported")


def codes_of(result: Result) -> list[tuple[str, Severity]]:
    """Codes and severities."""
    return [(f.code, f.severity) for f in judge_load(result).findings]


@pytest.mark.parametrize("watts", [419_000, 0, UNREAD])
def test_a_load_below_sixty_per_cent_is_never_a_pass(watts: Any) -> None:
    """Of one GPU or of all, or where the power cannot be read."""
    for result in (spoilt(steady_mw=watts), everywhere(steady_mw=watts)):
        judgement = judge_load(result)
        assert (judgement.verdict, judgement.readable, judgement.reason) == (
            Verdict.NO_LOAD,
            False,
            "TooLight",
        )
        assert {finding.code for finding in judgement.findings} == {"load-too-light"}
        assert judgement.answers == {}
        assert judgement.fingerprint == ""
    assert judge_load(everywhere(steady_mw=420_000, reasons=[])).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("end", "verdict", "reason"),
    [(LoadEnd.GAVE_WAY, Verdict.SKIPPED, "GaveWay"), (LoadEnd.CUT, Verdict.UNKNOWN, "Cut")],
)
def test_a_load_that_was_ended_has_no_verdict(end: LoadEnd, verdict: Verdict, reason: str) -> None:
    """Whatever it measured until then, and whoever noticed: the node's load or one GPU's."""
    for result in (
        replace(spoilt(mismatches=9), load=replace(spoilt(mismatches=9).load or LoadResult(), ended=end)),
        spoilt(ended=end, max_c=99),
    ):
        judgement = judge_load(result)
        assert (judgement.verdict, judgement.reason, judgement.findings) == (verdict, reason, [])


@pytest.mark.parametrize("end", [LoadEnd.FAILED, LoadEnd.HUNG])
def test_a_gpu_that_fails_leaves_the_node_unjudged(end: LoadEnd) -> None:
    """It is named with what CUDA said; the health probe says whether it still answers."""
    judgement = judge_load(spoilt(ended=end, message="CUDA_ERROR_LAUNCH_FAILED (719)", steady_mw=UNREAD))
    assert (judgement.verdict, judgement.reason) == (Verdict.UNKNOWN, "LoadIncomplete")
    assert judgement.findings[0].code == "load-incomplete"
    assert "GPU 3" in judgement.summary
    assert "719" in judgement.findings[0].message


def test_a_gpu_that_was_not_loaded_leaves_the_node_unjudged() -> None:
    """Seven of eight; a fault of the seven counts all the same."""
    assert judge_load(loaded(*(gpu(n) for n in range(7)), expected=8)).verdict is Verdict.UNKNOWN
    assert judge_load(loaded(gpu(0, mismatches=1), expected=8)).verdict is Verdict.FAIL


def test_a_run_that_ended_early_clears_nothing() -> None:
    """Its deadline came before all copies were made; what it found until then still fails."""
    late = Problem(kind=ProblemKind.DEADLINE, message="no time left")
    judgement = judge_load(replace(loaded(), problem=late))
    assert (judgement.verdict, judgement.reason) == (Verdict.UNKNOWN, "LoadIncomplete")
    assert "no time left" in judgement.findings[0].message
    assert judge_load(replace(spoilt(mismatches=1), problem=late)).verdict is Verdict.FAIL


@pytest.mark.parametrize("why", list(LoadSkip))
def test_skipped_runs_say_why(why: LoadSkip) -> None:
    """A busy or divided node is as it should be; no CUDA, no GPU and a hot GPU are worth a word."""
    judgement = judge_load(loaded(skipped=why, message="because"))
    heard = why in (LoadSkip.NO_CUDA, LoadSkip.NO_GPU, LoadSkip.HOT)
    assert judgement.verdict is (Verdict.UNKNOWN if heard else Verdict.SKIPPED)
    assert "because" in judgement.summary
    assert judgement.reason[0].isupper()


def test_documents_without_a_load_are_unknown() -> None:
    """A crash before the load, another probe's document, and a run without GPUs."""
    crashed = Problem(kind=ProblemKind.CRASHED, message="boom")
    for result in (
        replace(made.h100(), probe="load", problem=crashed),
        made.h100(),
        replace(loaded(), load=LoadResult(), gpus=[]),
    ):
        assert judge_load(result).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"width": 8}, "load-pcie-dropped"),
        ({"generation": 3}, "load-pcie-dropped"),
        ({"h2d_gbps": 20.0, "h2d_all_gbps": 20.0}, "load-copy-slow"),
        ({"d2h_gbps": 20.0, "d2h_all_gbps": 20.0}, "load-copy-slow"),
    ],
)
def test_a_link_that_is_slow_or_drops_warns(values: dict[str, Any], code: str) -> None:
    """The GPU is named; nothing is tainted for it."""
    judgement = judge_load(spoilt(**values))
    assert (judgement.verdict, judgement.findings[0].code) == (Verdict.WARN, code)
    assert judgement.findings[0].subject.startswith("GPU 3 ")


def test_a_shared_uplink_is_how_a_node_is_built() -> None:
    """Pairs that halve each other: information, and the node passes."""
    judgement = judge_load(everywhere(h2d_all_gbps=27.0, d2h_all_gbps=26.5))
    assert [(f.code, f.severity) for f in judgement.findings] == [("load-uplink-shared", Severity.INFO)]
    assert judgement.verdict is Verdict.PASS
    assert "no fault" in judgement.summary


@pytest.mark.parametrize(
    ("label", "idle", "low", "droops"),
    [
        ("+12V", 12_150, 11_000, True),
        ("+12V", 12_150, 11_900, False),
        ("+12V", UNREAD, 11_000, True),
        ("VCore", 12_150, 9_500, False),
        ("+12V", 12_150, 1_100, False),
        ("+12V", 12_150, UNREAD, False),
    ],
)
def test_a_rail_that_sinks_under_load_warns(label: str, idle: Any, low: Any, droops: bool) -> None:
    """Only what a label calls 12 V, and only plausible volts."""
    rail = LoadSensor(chip="corsairpsu", name="in1", label=label, idle=idle, loaded=low, min=low, max=idle)
    codes = codes_of(loaded(sensors=[rail]))
    assert codes == ([("load-rail-droop", Severity.WARN)] if droops else [])


def _odd() -> st.SearchStrategy[Any]:
    return st.one_of(
        st.just(UNREAD), st.integers(-(2**60), 2**60), st.floats(allow_nan=False, allow_infinity=False)
    )


@given(st.dictionaries(st.sampled_from(LoadGpu.__struct_fields__), _odd(), max_size=8), st.integers(1, 3))
@tried(150)
def test_no_document_makes_the_judge_raise(values: dict[str, Any], of: int) -> None:
    """Numbers of any size, missing or absurd; what cannot be in a document is left out."""
    numbers = {}
    for key, value in values.items():
        try:
            numbers[key] = msgspec.convert({"index": 0, key: msgspec.to_builtins(value)}, LoadGpu)
        except msgspec.ValidationError:
            continue
    known = {key: getattr(one, key) for key, one in numbers.items() if key != "index"}
    judgement = judge_load(everywhere(of=of, **known))
    assert judgement.summary.endswith(".")
    assert len(judgement.summary) < 1_000


@pytest.mark.parametrize("absurd", [837512642974, 1.7e308, 1e-300, -1e9])
@pytest.mark.parametrize("key", ["max_c", "steady_c", "steady_mw", "limit_mw", "tflops"])
def test_a_number_that_no_gpu_has_reaches_no_report(key: str, absurd: float) -> None:
    """It ends in no error, and what the report keeps fits its schema."""
    judged = judge_load(everywhere(**{key: absurd}))
    assert judged.hottest is None or 0 <= judged.hottest <= 200
    assert judged.power_percent is None or 0 <= judged.power_percent <= 999
    assert judged.tflops is None or 0 <= judged.tflops <= 1e5
