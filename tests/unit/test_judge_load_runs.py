"""What a load run says: of heat, slowdown, results, speed, links and rails; and which runs say nothing."""

from typing import Any

import pytest
from msgspec.structs import replace

import nodegauge_contract as contract
import support.results as made
from nodegauge_contract import LoadEnd, Result, Unavailable
from nodegauge_judge import Answer, Severity, Thresholds, Verdict
from nodegauge_judge.loadtest_rules.judge import judge_load
from support.judge_results import Row, Table, rows
from support.load_results import SAMPLES, card, everywhere, gpu, loaded, reason, spoilt

UNREAD = Unavailable("NotSupported")
GAP = "load-values-unread/warn"
BAD, GOOD, NO_LOAD, UNSURE = Answer.BAD, Answer.GOOD, Answer.NO_LOAD, Answer.UNSURE
SW_HEAT, HW_HEAT, BRAKE, HW, CAP = 0x20, 0x40, 0x80, 0x8, 0x4


def stopped(*more: int, **values: Any) -> Result:
    ended = {"ended": LoadEnd.TEMPERATURE, "seconds": 9.0}
    gpus = [gpu(n, **ended | (values if n == 5 or not more else {})) for n in range(8)]
    return loaded(*gpus, ended=LoadEnd.TEMPERATURE)


def throttled(*reasons: tuple[int, int, int], **values: Any) -> Result:
    """One of eight GPUs with these reasons: bit, samples, milliseconds before the first of them."""
    seen = [one for bit, samples, first in reasons for one in reason(bit, samples=samples, first_ms=first)]
    return spoilt(reasons=seen, **values)


def rail(label: str, idle: Any, loaded_at: Any) -> Result:
    volts = {"idle": idle, "loaded": loaded_at, "min": loaded_at, "max": idle}
    return loaded(sensors=[contract.LoadSensor(chip="psu", name="in1", label=label, **volts)])


def warm(**values: Any) -> Result:
    return everywhere(**{"steady_c": 78, "max_c": 79, "margin_c": 8} | values)


SMALL = gpu(3, limit_mw=350_000, steady_mw=345_000, steady_c=79, max_c=80, margin_c=7, tflops=300.0)
NO_HEAT = dict.fromkeys(
    ("steady_c", "max_c", "memory_max_c", "margin_c", "slope_c_per_min", "stop_c"), UNREAD
)
NO_REASONS = {"reasons": [], "reasons_read": UNREAD}
HW_GROWTH = contract.Growth(elapsed_ms=31_000, hw_thermal_ns=12 * 10**9)
SW_GROWTH = contract.Growth(elapsed_ms=31_000, sw_thermal_ns=20 * 10**9)
LOW = {"steady_mw": 490_000}
HEAT, SLOW = "load-heat-slowdown/fail", "load-slow-gpu/fail"
WRONG, CHECKSUM = "load-corruption/fail", "load-checksum-unexpected/warn"
BLOCKED, PCIE, COPY = "load-hotter-than-siblings/warn", "load-pcie-dropped/warn", "load-copy-slow/warn"
UNSURE_OF_DATA = {"load-corruption": UNSURE}
TABLE: Table = {
    # what: the run, its findings, parts of the first one's subject and message, some of the answers
    # -- heat
    "one hot GPU is blocked air": (spoilt(steady_c=80, max_c=81, margin_c=6), BLOCKED, "GPU 3 "),
    "eight hot GPUs are the room": (
        everywhere(steady_c=83, max_c=84, margin_c=3), "load-hot/warn", "and 7 more", "All GPUs are as hot",
    ),
    "15 °C above the median is the limit": [
        (spoilt(steady_c=76, max_c=76, margin_c=10), ""),
        (spoilt(steady_c=77, max_c=77, margin_c=10), BLOCKED),
    ],
    "a card of another limit runs hotter by design": (loaded(gpu(0), gpu(1), gpu(2), SMALL), ""),
    "a lone GPU has no siblings": (loaded(gpu(0, steady_c=79, max_c=80, margin_c=7)), ""),
    "8 °C left and 5 °C a minute": (
        warm(slope_c_per_min=5.0), "load-hot/warn", "still rises by 5 °C a minute",
    ),
    "a flat, falling or unread slope, and that of the load's first moment": [
        (warm(slope_c_per_min=slope), "") for slope in (2.0, UNREAD, 400.0, -3.0)
    ],
    "a vendor's stop": (
        stopped(5, steady_c=82, max_c=84, margin_c=3), f"load-hot/fail {BLOCKED}", "GPU 5 ",
    ),
    "a careful policy": (
        stopped(margin_c=19, stop_margin_c=20), "load-hot/warn", {"load-hot": UNSURE},
    ),
    "a stop before the power came": (
        stopped(seconds=1.0, steady_mw=300_000, reasons=[]), "load-hot/warn",
    ),
    "memory at 91 of 95 °C": (spoilt(memory_max_c=91), "load-hot/warn", "memory 91 °C"),
    "no temperature": (everywhere(**NO_HEAT), GAP, {"load-hot": UNSURE}),
    "a margin of zero is not believed": (everywhere(margin_c=0), ""),
    # -- slowdown: a third of the load, with the time of the first sample
    "heat, brake and the umbrella bit for a third of the load": [
        (throttled((bit, 40, 7_000)), f"{code}/fail", "GPU 3 ", "33% of the load, first after 7 s")
        for bit, code in (
            (SW_HEAT, "load-heat-slowdown"), (HW_HEAT, "load-heat-slowdown"),
            (BRAKE, "load-power-brake"), (HW, "load-hw-slowdown"),
        )
    ],
    "heat at the end goes on": (
        throttled((SW_HEAT, 4, 29_000)), HEAT, "until the end", "first after 29 s",
    ),
    "a pulse at first": (
        throttled((BRAKE, 3, 500)), "load-power-brake/warn", {"load-power-brake": GOOD},
    ),
    "single samples are clock changes": (spoilt(reasons=reason(HW, samples=5, longest=1)), ""),
    "the umbrella bit of a brake": (throttled((BRAKE, 60, 1_000), (HW, 60, 1_000)), "load-power-brake/fail"),
    "a counter without reasons": (
        spoilt(growth=HW_GROWTH, **NO_REASONS), HEAT, {"load-power-brake": UNSURE},
    ),
    "neither counter nor reasons": (everywhere(**NO_REASONS), GAP, {"load-heat-slowdown": UNSURE}),
    "an unconfirmed counter": (
        spoilt(growth=SW_GROWTH), "load-heat-slowdown/warn", "no sample shows it",
    ),
    "a lower cap": (
        everywhere(**LOW, reasons=reason(CAP, samples=SAMPLES)), "load-power-capped/warn",
    ),
    "low power without a cap": (everywhere(**LOW, reasons=[]), ""),
    "a brake that keeps the load light": (
        throttled((BRAKE, 100, 1_000), steady_mw=280_000), "load-power-brake/fail load-too-light/warn",
        {"load-heat-slowdown": NO_LOAD},
    ),
    # -- results
    "wrong results": (spoilt(mismatches=2), WRONG, "GPU 3 ", "2 wrong results in 1000 checked launches"),
    "wrong memory": (
        spoilt(memory_mismatches=1), WRONG, "1 pieces of memory (16 bytes) read back differently",
    ),
    "a wrong checksum": (
        spoilt(checksum="bad"), WRONG, "hecksum is not the one that the CPU computed",
    ),
    "wrong data in a light load": (
        spoilt(mismatches=1, steady_mw=200_000), f"{WRONG} load-power-capped/warn load-too-light/warn",
    ),
    "one GPU alone accuses the probe, unless its results differ": [
        (loaded(gpu(0, checksum="bad")), CHECKSUM),
        (loaded(gpu(0, checksum="bad", mismatches=1)), WRONG),
    ],
    "eight equal odd checksums accuse the probe, and no eight that differ": [
        (everywhere(checksum="odd"), CHECKSUM, UNSURE_OF_DATA),
        (loaded(*(gpu(n, checksum="odd" if n else "odder") for n in range(8))), WRONG),
    ],
    "no launch was checked, or none counted": [
        (spoilt(checks=0), GAP, UNSURE_OF_DATA), (spoilt(mismatches=UNREAD), GAP, UNSURE_OF_DATA),
    ],
    "what a sibling has": (spoilt(h2d_all_gbps=UNREAD), GAP, "GPU 3 ", "h2d_all_gbps: NotSupported"),
    "no GPU's power rose to its limit": (everywhere(reached_ms=UNREAD), ""),
    # -- speed: 610 TFLOPS everywhere else; below 80 % fails, below 92 % warns
    "77, 89 and 93 % of the siblings": [
        (spoilt(tflops=470.0), SLOW),
        (spoilt(tflops=540.0), "load-slow-gpu/warn", {"load-slow-gpu": GOOD}),
        (spoilt(tflops=570.0), ""),
    ],
    "slow memory alone": (spoilt(memory_gbps=2_000.0), "load-slow-memory/fail"),
    "slowdown explains it": (
        throttled((SW_HEAT, 90, 1_000), tflops=300.0), HEAT, {"load-slow-gpu": UNSURE},
    ),
    "one GPU has nothing to compare with, two have each other": [
        (everywhere(of=1), "", {"load-slow-gpu": UNSURE}), (everywhere(of=2), "", {"load-slow-gpu": GOOD}),
    ],
    "other limits and kernels are not compared": [
        (loaded(gpu(0), gpu(1), gpu(2, tflops=300.0, **other), gpu(3, tflops=300.0, **other)), "")
        for other in ({"limit_mw": 350_000, "steady_mw": 340_000}, {"kernel": "f32-fma"})
    ],
    # -- links and rails
    "a link lost half of its width, or generations": [
        (spoilt(width=8), PCIE, "GPU 3 "), (spoilt(generation=3), PCIE, "GPU 3 "),
    ],
    "slow copies to the GPU, and from it": [
        (spoilt(**{way: 20.0, f"{way.removesuffix('gbps')}all_gbps": 20.0}), COPY, "GPU 3 ")
        for way in ("h2d_gbps", "d2h_gbps")
    ],
    "a shared uplink": (
        everywhere(h2d_all_gbps=27.0, d2h_all_gbps=26.5), "load-uplink-shared/info",
    ),
    "a rail droops": [
        (rail("+12V", idle, 11_000), "load-rail-droop/warn") for idle in (12_150, UNREAD)
    ],
    "a small droop, another rail, and what is no voltage of it": [
        (rail(label, 12_150, low), "")
        for label, low in (("+12V", 11_900), ("VCore", 9_500), ("+12V", 1_100), ("+12V", UNREAD))
    ],
}  # fmt: skip


@pytest.mark.parametrize("row", rows(TABLE))
def test_a_load_run_has_these_findings_and_no_other(row: Row) -> None:
    result, expected, *facts = row
    judgement = judge_load(result)
    assert " ".join(f"{finding.code}/{finding.severity}" for finding in judgement.findings) == expected
    bad = {code for code, answer in judgement.answers.items() if answer is BAD}
    assert bad == {code.removesuffix("/fail") for code in expected.split() if code.endswith("/fail")}
    for fact in facts:
        if isinstance(fact, str):
            assert fact in judgement.findings[0].subject + judgement.findings[0].message
        else:
            assert judgement.answers.items() >= fact.items()
    if "GPU 3 " in facts:
        named = judgement.findings[0].gpus[0]
        assert (named.index, named.pci, named.serial) == (3, "0000:12:00.0", "1654922000003")
        assert named.uuid.startswith("GPU-00000003")
    assert judgement.verdict == (expected.partition(" ")[0].partition("/")[2].replace("info", "") or "pass")


def test_exactly_the_tolerated_share_is_tolerated() -> None:
    """Three samples of 120 at a share of 0.025; half of the siblings' TFLOPS at 0.5, of which less fails."""
    limits = Thresholds(load_throttle_warn_share=3 / SAMPLES, load_slow_fail=0.5)
    assert judge_load(throttled((BRAKE, 3, 500)), thresholds=limits).findings == []
    (slow,) = judge_load(spoilt(tflops=305.0), thresholds=limits).findings
    assert (slow.code, slow.severity) == ("load-slow-gpu", Severity.WARN)


def test_eight_gpus_at_their_power_limit_pass() -> None:
    """The software power cap at the limit is what full load looks like."""
    judgement = judge_load(loaded(), peers=lambda _: [610.0] * 7)
    assert (judgement.verdict, judgement.findings) == (Verdict.PASS, [])
    assert set(judgement.answers.values()) == {GOOD}
    assert (judgement.tflops, judgement.power_percent, judgement.hottest) == (610.0, 99, 63)


def test_other_models_are_not_compared() -> None:
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
    value = "" if key == "kernel" else UNREAD
    for result in (spoilt(**{key: value}), everywhere(**{key: value})):
        judgement = judge_load(result)
        assert not {"load-slow-gpu", "load-slow-memory"} & {f.code for f in judgement.findings}
        answers = {judgement.answers.get("load-slow-gpu"), judgement.answers.get("load-slow-memory")}
        assert answers != {GOOD}


LATE = contract.Problem(kind=contract.ProblemKind.DEADLINE, message="no time left")
DEAD = {"message": "CUDA_ERROR_LAUNCH_FAILED (719)", "steady_mw": UNREAD}
SKIPPED, UNKNOWN = Verdict.SKIPPED, Verdict.UNKNOWN
INCOMPLETE = (UNKNOWN, "LoadIncomplete")


SILENT: Table = {
    # what: the run, its verdict and reason, and a part of the summary
    "too little power": [
        (how(steady_mw=watts), Verdict.NO_LOAD, "TooLight")
        for how, watts in ((spoilt, 419_000), (everywhere, 0), (everywhere, UNREAD))
    ],
    "the load gave way, or was cut": [
        (result, verdict, why)
        for end, verdict, why in ((LoadEnd.GAVE_WAY, SKIPPED, "GaveWay"), (LoadEnd.CUT, UNKNOWN, "Cut"))
        for result in (loaded(gpu(0, mismatches=9), gpu(1), ended=end), spoilt(ended=end, max_c=99))
    ],
    "a GPU failed": (spoilt(ended=LoadEnd.FAILED, **DEAD), *INCOMPLETE, "GPU 3"),
    "a GPU hung": (spoilt(ended=LoadEnd.HUNG, **DEAD), *INCOMPLETE, "719"),
    "seven of eight were loaded": (loaded(*(gpu(n) for n in range(7)), expected=8), *INCOMPLETE),
    "the deadline came first": (replace(loaded(), problem=LATE), *INCOMPLETE, "no time left"),
    "no load at all": [
        (result, UNKNOWN, "")
        for result in (
            replace(made.h100(), probe="load", problem=contract.Problem(kind=contract.ProblemKind.CRASHED)),
            made.h100(),
            replace(loaded(), load=contract.LoadResult(), gpus=[]),
        )
    ],
}


@pytest.mark.parametrize("row", rows(SILENT))
def test_a_load_that_was_not_whole_has_no_verdict(row: Row) -> None:
    result, verdict, why, *parts = row
    judgement = judge_load(result)
    assert (judgement.verdict, judgement.readable, judgement.answers) == (verdict, False, {})
    assert judgement.reason.startswith(why)
    assert why not in ("GaveWay", "Cut") or judgement.findings == []
    assert ("load-incomplete" in {f.code for f in judgement.findings}) is (why == "LoadIncomplete")
    text = judgement.summary + "".join(finding.message for finding in judgement.findings)
    assert (judgement.fingerprint, [part for part in parts if part not in text]) == ("", [])


def test_a_fault_of_the_others_counts_all_the_same() -> None:
    """Of the GPUs that were loaded, and before the deadline; 60 % of the limit are enough for a pass."""
    assert judge_load(loaded(gpu(0, mismatches=1), expected=8)).verdict is Verdict.FAIL
    assert judge_load(replace(spoilt(mismatches=1), problem=LATE)).verdict is Verdict.FAIL
    assert judge_load(everywhere(steady_mw=420_000, reasons=[])).verdict is Verdict.PASS


@pytest.mark.parametrize("why", list(contract.LoadSkip))
def test_skipped_runs_say_why(why: contract.LoadSkip) -> None:
    """A busy or divided node is as it should be; no CUDA, no GPU and a hot GPU are worth a word."""
    judgement = judge_load(loaded(skipped=why, message="because"))
    heard = why in (contract.LoadSkip.NO_CUDA, contract.LoadSkip.NO_GPU, contract.LoadSkip.HOT)
    assert judgement.verdict is (Verdict.UNKNOWN if heard else Verdict.SKIPPED)
    assert "because" in judgement.summary
    assert judgement.reason[0].isupper()


@pytest.mark.parametrize("absurd", [837512642974, 1.7e308, 1e-300, -1e9])
@pytest.mark.parametrize("key", ["max_c", "steady_c", "steady_mw", "limit_mw", "tflops"])
def test_a_number_that_no_gpu_has_reaches_no_report(key: str, absurd: float) -> None:
    judged = judge_load(everywhere(**{key: absurd}))
    assert judged.hottest is None or 0 <= judged.hottest <= 200
    assert judged.power_percent is None or 0 <= judged.power_percent <= 999
    assert judged.tflops is None or 0 <= judged.tflops <= 1e5
