"""What a load run says: of heat, slowdown, results, speed, links and rails; and which runs say nothing."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import (
    Growth,
    LoadEnd,
    LoadResult,
    LoadSensor,
    LoadSkip,
    Problem,
    ProblemKind,
    Result,
    Unavailable,
)
from nodegauge_judge import Answer, Severity, Verdict
from nodegauge_judge.load_rules.judge import judge_load
from support.load_results import SAMPLES, card, everywhere, gpu, loaded, reason, spoilt

UNREAD = Unavailable("NotSupported")
BAD, GOOD, NO_LOAD, UNSURE = Answer.BAD, Answer.GOOD, Answer.NO_LOAD, Answer.UNSURE
SW_HEAT, HW_HEAT, BRAKE, HW, CAP = 0x20, 0x40, 0x80, 0x8, 0x4


def codes(result: Result) -> list[str]:
    """Codes with severities."""
    return [f"{finding.code}/{finding.severity}" for finding in judge_load(result).findings]


def stopped(*more: int, **values: Any) -> Result:
    """A load that the probe ended for heat, on eight GPUs of which the fifth is as given."""
    ended = {"ended": LoadEnd.TEMPERATURE, "seconds": 9.0}
    gpus = [gpu(n, **ended | (values if n == 5 or not more else {})) for n in range(8)]
    return loaded(*gpus, ended=LoadEnd.TEMPERATURE)


WARM = {"steady_c": 78, "max_c": 79, "margin_c": 8}
SMALL = gpu(3, limit_mw=350_000, steady_mw=345_000, steady_c=79, max_c=80, margin_c=7, tflops=300.0)
NO_HEAT = dict.fromkeys(
    ("steady_c", "max_c", "memory_max_c", "margin_c", "slope_c_per_min", "stop_c"), UNREAD
)
NO_REASONS = {"reasons": [], "reasons_read": UNREAD}
HW_GROWTH = Growth(elapsed_ms=31_000, hw_thermal_ns=12 * 10**9)
SW_GROWTH = Growth(elapsed_ms=31_000, sw_thermal_ns=20 * 10**9)
LOW = {"steady_mw": 490_000}

Case = tuple[Result, list[str], dict[str, Answer], tuple[str, ...]]
CASES: dict[str, Case] = {
    # what: the run, its findings, some of its answers, and parts of the first finding's subject and message
    # -- heat
    "one hot GPU is blocked air": (
        spoilt(steady_c=80, max_c=81, margin_c=6), ["load-hotter-than-siblings/warn"], {}, ("GPU 3 ",),
    ),
    "eight hot GPUs are the room": (
        everywhere(steady_c=83, max_c=84, margin_c=3), ["load-hot/warn"], {},
        ("and 7 more", "All GPUs are as hot"),
    ),
    "14 °C above the median": (spoilt(steady_c=76, max_c=76, margin_c=10), [], {}, ()),
    "15 °C above the median": (
        spoilt(steady_c=77, max_c=77, margin_c=10), ["load-hotter-than-siblings/warn"], {}, (),
    ),
    "a card of another limit runs hotter by design": (loaded(gpu(0), gpu(1), gpu(2), SMALL), [], {}, ()),
    "a lone GPU has no siblings": (loaded(gpu(0, steady_c=79, max_c=80, margin_c=7)), [], {}, ()),
    "8 °C left and 5 °C a minute": (
        everywhere(**WARM, slope_c_per_min=5.0), ["load-hot/warn"], {}, ("still rises by 5 °C a minute",),
    ),
    "8 °C left and 2 °C a minute": (everywhere(**WARM, slope_c_per_min=2.0), [], {}, ()),
    "an unread slope": (everywhere(**WARM, slope_c_per_min=UNREAD), [], {}, ()),
    "the slope of the load's first moment": (everywhere(**WARM, slope_c_per_min=400.0), [], {}, ()),
    "a falling temperature": (everywhere(**WARM, slope_c_per_min=-3.0), [], {}, ()),
    "a stop at the vendor's limit": (
        stopped(5, steady_c=82, max_c=84, margin_c=3), ["load-hot/fail", "load-hotter-than-siblings/warn"],
        {"load-hot": BAD}, ("GPU 5 ",),
    ),
    "a stop by a careful policy": (
        stopped(margin_c=19, stop_margin_c=20), ["load-hot/warn"], {"load-hot": UNSURE}, (),
    ),
    "a stop before the power came": (
        stopped(seconds=1.0, steady_mw=300_000, reasons=[]), ["load-hot/warn"], {}, (),
    ),
    "memory at 91 of 95 °C": (spoilt(memory_max_c=91), ["load-hot/warn"], {}, ("memory 91 °C",)),
    "no temperature": (everywhere(**NO_HEAT), [], {"load-hot": UNSURE}, ()),
    "a margin of zero is not believed": (everywhere(margin_c=0), [], {}, ()),
    # -- slowdown: a third of the load, with the time of the first sample
    **{
        f"{name} for a third of the load": (
            spoilt(reasons=reason(bit, samples=40, first_ms=7_000)), [f"{code}/fail"], {code: BAD},
            ("GPU 3 ", "33% of the load, first after 7 s"),
        )
        for name, bit, code in (
            ("heat by software", SW_HEAT, "load-heat-slowdown"),
            ("heat by hardware", HW_HEAT, "load-heat-slowdown"),
            ("a brake", BRAKE, "load-power-brake"),
            ("the umbrella bit", HW, "load-hw-slowdown"),
        )
    },
    "heat in the last second goes on": (
        spoilt(reasons=reason(SW_HEAT, samples=4, first_ms=29_000)), ["load-heat-slowdown/fail"], {},
        ("until the end", "first after 29 s"),
    ),
    "a pulse at the load step": (
        spoilt(reasons=reason(BRAKE, samples=3, first_ms=500)), ["load-power-brake/warn"],
        {"load-power-brake": GOOD}, (),
    ),
    "one sample is a clock change": (spoilt(reasons=reason(HW, samples=1, longest=1)), [], {}, ()),
    "five single samples are clock changes": (spoilt(reasons=reason(HW, samples=5, longest=1)), [], {}, ()),
    "the umbrella bit of a brake": (
        spoilt(reasons=reason(BRAKE, samples=60) + reason(HW, samples=60)), ["load-power-brake/fail"], {}, (),
    ),
    "a counter where reasons cannot be read": (
        spoilt(growth=HW_GROWTH, **NO_REASONS), ["load-heat-slowdown/fail"], {"load-power-brake": UNSURE}, (),
    ),
    "neither counter nor reasons": (everywhere(**NO_REASONS), [], {"load-heat-slowdown": UNSURE}, ()),
    "a counter that no sample confirms": (
        spoilt(growth=SW_GROWTH), ["load-heat-slowdown/warn"], {}, ("no sample shows it",),
    ),
    "a cap below the limit": (
        everywhere(**LOW, reasons=reason(CAP, samples=SAMPLES)), ["load-power-capped/warn"], {}, (),
    ),
    "low power without a cap": (everywhere(**LOW, reasons=[]), [], {}, ()),
    "a brake that keeps the load light": (
        spoilt(steady_mw=280_000, reasons=reason(BRAKE, samples=100)),
        ["load-power-brake/fail", "load-too-light/warn"],
        {"load-power-brake": BAD, "load-heat-slowdown": NO_LOAD}, (),
    ),
    # -- results
    "wrong results": (
        spoilt(mismatches=2), ["load-corruption/fail"], {"load-corruption": BAD},
        ("GPU 3 ", "2 wrong results in 1000 checked launches"),
    ),
    "wrong memory": (
        spoilt(memory_mismatches=1), ["load-corruption/fail"], {},
        ("1 pieces of memory (16 bytes) read back differently",),
    ),
    "a wrong checksum": (
        spoilt(checksum="bad"), ["load-corruption/fail"], {},
        ("hecksum is not the one that the CPU computed",),
    ),
    "wrong data in a light load": (
        spoilt(mismatches=1, steady_mw=200_000),
        ["load-corruption/fail", "load-power-capped/warn", "load-too-light/warn"], {}, (),
    ),
    "one GPU alone accuses the probe": (
        loaded(gpu(0, checksum="bad")), ["load-checksum-unexpected/warn"], {}, (),
    ),
    "one GPU alone whose results differ": (
        loaded(gpu(0, checksum="bad", mismatches=1)), ["load-corruption/fail"], {}, (),
    ),
    "eight equal odd checksums accuse the probe": (
        everywhere(checksum="odd"), ["load-checksum-unexpected/warn"], {"load-corruption": UNSURE}, (),
    ),
    "one of eight odd checksums differs": (
        loaded(*(gpu(n, checksum="odd" if n else "odder") for n in range(8))), ["load-corruption/fail"], {},
        (),
    ),
    "no launch was checked": (spoilt(checks=0), [], {"load-corruption": UNSURE}, ()),
    "no count of mismatches": (spoilt(mismatches=UNREAD), [], {"load-corruption": UNSURE}, ()),
    # -- speed: 610 TFLOPS everywhere else; below 80 % fails, below 92 % warns
    "77 % of the siblings": (spoilt(tflops=470.0), ["load-slow-gpu/fail"], {"load-slow-gpu": BAD}, ()),
    "89 % of the siblings": (spoilt(tflops=540.0), ["load-slow-gpu/warn"], {"load-slow-gpu": GOOD}, ()),
    "93 % of the siblings": (spoilt(tflops=570.0), [], {}, ()),
    "faster than the siblings": (spoilt(tflops=900.0), [], {}, ()),
    "slow memory alone": (spoilt(memory_gbps=2_000.0), ["load-slow-memory/fail"], {}, ()),
    "a slowdown explains a slow GPU": (
        spoilt(tflops=300.0, reasons=reason(0x20, samples=90)), ["load-heat-slowdown/fail"],
        {"load-slow-gpu": UNSURE}, (),
    ),
    "one GPU has nothing to compare with": (everywhere(of=1), [], {"load-slow-gpu": UNSURE}, ()),
    "two GPUs have each other": (everywhere(of=2), [], {"load-slow-gpu": GOOD}, ()),
    **{
        f"{name} are not compared": (
            loaded(gpu(0), gpu(1), gpu(2, tflops=300.0, **other), gpu(3, tflops=300.0, **other)), [], {}, (),
        )
        for name, other in (
            ("other limits", {"limit_mw": 350_000, "steady_mw": 340_000}), ("kernels", {"kernel": "f32-fma"}),
        )
    },
    # -- links and rails
    **{
        name: (spoilt(**values), [f"{code}/warn"], {}, ("GPU 3 ",))
        for name, values, code in (
            ("a link lost half of its width", {"width": 8}, "load-pcie-dropped"),
            ("a link lost generations", {"generation": 3}, "load-pcie-dropped"),
            ("slow copies to the GPU", {"h2d_gbps": 20.0, "h2d_all_gbps": 20.0}, "load-copy-slow"),
            ("slow copies from the GPU", {"d2h_gbps": 20.0, "d2h_all_gbps": 20.0}, "load-copy-slow"),
        )
    },
    "pairs that share an uplink": (
        everywhere(h2d_all_gbps=27.0, d2h_all_gbps=26.5), ["load-uplink-shared/info"], {}, (),
    ),
    **{
        f"{label} falls from {idle} to {low}": (
            loaded(sensors=[LoadSensor(
                chip="psu", name="in1", label=label, idle=idle, loaded=low, min=low, max=idle,
            )]),
            ["load-rail-droop/warn"] * droops, {}, (),
        )
        for label, idle, low, droops in (
            ("+12V", 12_150, 11_000, True), ("+12V", 12_150, 11_900, False), ("+12V", UNREAD, 11_000, True),
            ("VCore", 12_150, 9_500, False), ("+12V", 12_150, 1_100, False), ("+12V", 12_150, UNREAD, False),
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_load_run_has_these_findings_and_no_other(name: str) -> None:
    """With the gates' answers that follow; a finding about one GPU has its identity."""
    result, expected, answers, parts = CASES[name]
    judgement = judge_load(result)
    assert codes(result) == expected
    assert judgement.answers.items() >= answers.items()
    bad = {code for code, answer in judgement.answers.items() if answer is BAD}
    assert bad == {code.removesuffix("/fail") for code in expected if code.endswith("/fail")}
    for part in parts:
        assert part in judgement.findings[0].subject + judgement.findings[0].message
    if "GPU 3 " in parts:
        named = judgement.findings[0].gpus[0]
        assert (named.index, named.pci, named.serial) == (3, "0000:12:00.0", "1654922000003")
        assert named.uuid.startswith("GPU-00000003")
    severity = expected[0].partition("/")[2].replace("info", "pass") if expected else "pass"
    assert judgement.verdict == severity


def test_eight_gpus_at_their_power_limit_pass() -> None:
    """The software power cap at the limit is what full load looks like."""
    judgement = judge_load(loaded())
    assert (judgement.verdict, judgement.findings) == (Verdict.PASS, [])
    assert set(judgement.answers.values()) == {GOOD}
    assert (judgement.tflops, judgement.power_percent, judgement.hottest) == (610.0, 99, 63)


def test_other_models_are_not_compared() -> None:
    """Two cards of each kind; a node of two kinds has no peers."""
    mixed = loaded(gpu(0), gpu(1), gpu(2, tflops=300.0), gpu(3, tflops=300.0))
    cards = [card(n, "NVIDIA H100 80GB HBM3" if n < 2 else "NVIDIA L40S") for n in range(4)]
    judgement = judge_load(replace(mixed, gpus=cards))
    assert (judgement.findings, judgement.tflops, judgement.fingerprint) == ([], None, "")


def test_a_node_is_compared_with_nodes_of_its_fingerprint() -> None:
    """Three nodes at least, this one included; 90 % of their median is the floor."""
    fast = [680.0, 690.0, 700.0]
    judgement = judge_load(loaded(), peers=lambda fingerprint: fast if "700 W" in fingerprint else ())
    assert [(f.code, f.severity) for f in judgement.findings] == [("load-below-peers", Severity.WARN)]
    assert judge_load(loaded(), peers=lambda _: [700.0]).verdict is Verdict.PASS
    assert judge_load(everywhere(tflops=650.0), peers=lambda _: fast).verdict is Verdict.PASS


@pytest.mark.parametrize("key", ["tflops", "memory_gbps", "limit_mw", "kernel"])
def test_missing_values_accuse_nobody(key: str) -> None:
    """Of one GPU and of all: no finding about speed, and no gate cleared."""
    value = "" if key == "kernel" else UNREAD
    for result in (spoilt(**{key: value}), everywhere(**{key: value})):
        judgement = judge_load(result)
        assert not {"load-slow-gpu", "load-slow-memory"} & {f.code for f in judgement.findings}
        answers = {judgement.answers.get("load-slow-gpu"), judgement.answers.get("load-slow-memory")}
        assert answers != {GOOD}


# -- runs without a verdict

WRONG = spoilt(mismatches=9)
LATE = Problem(kind=ProblemKind.DEADLINE, message="no time left")
DEAD = {"message": "CUDA_ERROR_LAUNCH_FAILED (719)", "steady_mw": UNREAD}
SILENT: dict[str, tuple[Result, Verdict, str, str]] = {
    # what: the run, its verdict and reason, and a part of the summary
    **{
        f"{where} at {watts} mW": (how(steady_mw=watts), Verdict.NO_LOAD, "TooLight", "")
        for watts in (419_000, 0, UNREAD)
        for where, how in (("one GPU", spoilt), ("all GPUs", everywhere))
    },
    "the node's load gave way": (
        replace(WRONG, load=replace(WRONG.load or LoadResult(), ended=LoadEnd.GAVE_WAY)), Verdict.SKIPPED,
        "GaveWay", "",
    ),
    "the node's load was cut": (
        replace(WRONG, load=replace(WRONG.load or LoadResult(), ended=LoadEnd.CUT)), Verdict.UNKNOWN, "Cut",
        "",
    ),
    "one GPU's load gave way": (spoilt(ended=LoadEnd.GAVE_WAY, max_c=99), Verdict.SKIPPED, "GaveWay", ""),
    "one GPU's load was cut": (spoilt(ended=LoadEnd.CUT, max_c=99), Verdict.UNKNOWN, "Cut", ""),
    "a GPU failed": (spoilt(ended=LoadEnd.FAILED, **DEAD), Verdict.UNKNOWN, "LoadIncomplete", "GPU 3"),
    "a GPU hung": (spoilt(ended=LoadEnd.HUNG, **DEAD), Verdict.UNKNOWN, "LoadIncomplete", "719"),
    "seven of eight were loaded": (
        loaded(*(gpu(n) for n in range(7)), expected=8), Verdict.UNKNOWN, "LoadIncomplete", "",
    ),
    "the deadline came first": (
        replace(loaded(), problem=LATE), Verdict.UNKNOWN, "LoadIncomplete", "no time left",
    ),
    "a crash before the load": (
        replace(made.h100(), probe="load", problem=Problem(kind=ProblemKind.CRASHED)), Verdict.UNKNOWN, "",
        "",
    ),
    "another probe's document": (made.h100(), Verdict.UNKNOWN, "", ""),
    "a run without GPUs": (replace(loaded(), load=LoadResult(), gpus=[]), Verdict.UNKNOWN, "", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", SILENT)
def test_a_load_that_was_not_whole_has_no_verdict(name: str) -> None:
    """Whatever it measured until then; it clears nothing, and no peer compares with it."""
    result, verdict, reason_, part = SILENT[name]
    judgement = judge_load(result)
    assert (judgement.verdict, judgement.readable, judgement.answers) == (verdict, False, {})
    assert judgement.reason.startswith(reason_)
    assert reason_ not in ("GaveWay", "Cut") or judgement.findings == []
    assert ("load-incomplete" in {f.code for f in judgement.findings}) is (reason_ == "LoadIncomplete")
    text = judgement.summary + "".join(finding.message for finding in judgement.findings)
    assert (judgement.fingerprint, part in text) == ("", True)


def test_a_fault_of_the_others_counts_all_the_same() -> None:
    """Of the GPUs that were loaded, and before the deadline; 60 % of the limit are enough for a pass."""
    assert judge_load(loaded(gpu(0, mismatches=1), expected=8)).verdict is Verdict.FAIL
    assert judge_load(replace(spoilt(mismatches=1), problem=LATE)).verdict is Verdict.FAIL
    assert judge_load(everywhere(steady_mw=420_000, reasons=[])).verdict is Verdict.PASS


@pytest.mark.parametrize("why", list(LoadSkip))
def test_skipped_runs_say_why(why: LoadSkip) -> None:
    """A busy or divided node is as it should be; no CUDA, no GPU and a hot GPU are worth a word."""
    judgement = judge_load(loaded(skipped=why, message="because"))
    heard = why in (LoadSkip.NO_CUDA, LoadSkip.NO_GPU, LoadSkip.HOT)
    assert judgement.verdict is (Verdict.UNKNOWN if heard else Verdict.SKIPPED)
    assert "because" in judgement.summary
    assert judgement.reason[0].isupper()


# -- absurd numbers


@pytest.mark.parametrize("absurd", [837512642974, 1.7e308, 1e-300, -1e9])
@pytest.mark.parametrize("key", ["max_c", "steady_c", "steady_mw", "limit_mw", "tflops"])
def test_a_number_that_no_gpu_has_reaches_no_report(key: str, absurd: float) -> None:
    """It ends in no error, and what the report keeps fits its schema."""
    judged = judge_load(everywhere(**{key: absurd}))
    assert judged.hottest is None or 0 <= judged.hottest <= 200
    assert judged.power_percent is None or 0 <= judged.power_percent <= 999
    assert judged.tflops is None or 0 <= judged.tflops <= 1e5
