"""Power caps and clocks, GPUs that differ or are slow alike, and temperatures."""

from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Clocks, ClocksEvents, Power, Result, Span, Temperature, Window
from nodegauge_judge import Answer, Judgement, Thresholds, Verdict
from nodegauge_operator.api.report import ReportStatus, Run
from nodegauge_operator.api.times import stamp
from nodegauge_operator.core.probes.health import HealthKind
from nodegauge_operator.core.probes.kind import EndedRun
from support.judge_results import (
    LIMIT_WATTS,
    Row,
    Table,
    check,
    codes,
    cool,
    every,
    grew,
    judge,
    later,
    node,
    resting,
    rows,
    span,
    working,
)
from support.objects import NOW, make_context, make_node, read

H100, H200, L40S, A10 = "NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA L40S", "NVIDIA A10"
GOOD, BAD, UNSURE = Answer.GOOD, Answer.BAD, Answer.UNSURE
WARN, FAIL, MIXED, LOW = "slow-clock/warn", "slow-clock/fail", "mixed-gpus/info", "power-cap-low/warn"


def limit(default: float, enforced: float | None = None) -> Power:
    return Power(
        enforced_limit_mw=round(1000 * (default if enforced is None else enforced)),
        default_limit_mw=round(1000 * default),
    )


def capped(mhz: float, *, name: str = "NVIDIA A100-SXM4-80GB", bits: int = 12, **window: Any) -> Result:
    """A machine at work at that clock, the software power cap's bit in so many of twelve samples."""
    return every(node(), name=name, **working(bits={0x4: bits}, sm_mhz=span(mhz), **window))


def paced(*mhz: float, bits: dict[int, dict[int, int]] | None = None) -> Result:
    """GPUs at work at these clocks, which move by 30 MHz."""
    result = node(len(mhz))
    for gpu_index, clock in enumerate(mhz):
        fields = working(sm_mhz=span(clock - 15, clock + 15), bits=(bits or {}).get(gpu_index))
        result = made.with_gpu(result, gpu_index, **fields)
    return result


def tenants(name: str, watts: float, *gpus: tuple[float, float, float, int], **first: Any) -> Result:
    """GPUs of one model and limit in watts: MHz, watts, per cent of utilisation, capped samples."""
    result = every(node(len(gpus)), name=name, power=limit(watts))
    for gpu_index, (mhz, drawn, percent, capped_samples) in enumerate(gpus):
        bits = {0x4: capped_samples} if capped_samples else {}
        window = {"sm_mhz": span(mhz - 30, mhz + 30), "power_mw": span(drawn * 1000)}
        result = made.with_gpu(result, gpu_index, **working(bits=bits, utilization=span(percent), **window))
    return made.with_gpu(result, 0, **first) if first else result


def set_to(memory: int = 2619, *, sm: int = 1980) -> Result:
    full, own = (
        Clocks(max_sm_mhz=1980, app_sm_mhz=a, app_memory_mhz=b) for a, b in ((1980, 2619), (sm, memory))
    )
    result = tenants(H100, 700, SLOWER, *[LIGHT] * 7)
    return made.with_gpu(every(result, clocks=full), 0, clocks=own)


def one_still(mhz: float, watts: float) -> Result:
    fields = working(sm_mhz=span(mhz), power_mw=span(watts * 1000))
    return made.with_gpu(tenants(H100, 700, *[LIGHT] * 8), 3, **fields)


def locked(mhz: float, *, source: int = 0, **fields: Any) -> Result:
    """GPU 3 of eight at that clock, its siblings at 1980 MHz at the same work; `fields`: of its window."""
    result = every(tenants(H100, 700, *[LIGHT] * 8), **working(sm_mhz=span(1980), power_mw=span(310_000)))
    own = working(**{"sm_mhz": span(mhz), "power_mw": span(250_000)} | fields)
    return made.with_gpu(result, 3, **own, power=replace(limit(700), source=source))


def alike(mhz: float, *, name: str = H100, gpus: int = 8, **fields: Any) -> Result:
    window = working(sm_mhz=span(mhz - 15, mhz + 15), power_mw=span(300_000))
    return every(node(gpus), **({"name": name} | window | fields))


def among(result: Result, *mhz: float, **how: Any) -> Judgement:
    return judge(result, peers=lambda fingerprint: mhz if fingerprint else (), **how)


def powered(**limits: int) -> Result:
    return made.every_gpu(made.phb(), power=Power(**limits))


LIGHT = (1980, 310, 99, 0)
SLOWER = (1200, 280, 99, 0)
LENIENT = Thresholds(slow_clock_warn=0.6, slow_clock_fail=0.5)
CAPPED = powered(enforced_limit_mw=250_000, default_limit_mw=400_000)
IDLE = every(later(alike(1980), 900, low_utilization=900, watts=70), **resting())
LOWER = alike(1200, clocks=Clocks(max_sm_mhz=1980, app_sm_mhz=1200))
EXPLAINED = ("", {"slow-clock": UNSURE})
SLOW = (FAIL, {"slow-clock": BAD})
FINE, IDLE_CLOCK = ("", {"slow-clock": GOOD}), {"slow-clock": Answer.NO_LOAD}
TABLE: Table = {
    "a cap below a known base clock warns, if most samples are capped": [
        (capped(1274), LOW),
        (capped(1275), ""),
        (capped(1274, bits=7), LOW),
        (capped(1274, bits=6), ""),
    ],
    "a model without a row and a GPU without load have no opinion": [
        (capped(1274, name=H100), ""),
        (capped(1274, utilization=span(20, 90)), ""),
    ],
    "a GPU is compared with its siblings": [
        (paced(1000, 1000, 1000, 930), ""),
        (paced(1000, 1000, 1000, 929), WARN, {"slow-clock": GOOD}),
        (paced(1000, 1000, 1000, 800), WARN, {"slow-clock": GOOD}),
        (paced(1000, 1000, 1000, 799), *SLOW),
        (paced(1000), ""),
    ],
    "not one whose clocks are set, or that draws less than its cap": [
        *(
            (paced(1000, 1000, 700, bits={2: bits}), *EXPLAINED)
            for bits in ({0x2: 12}, {0x100: 1}, {0x4: 12})
        ),
        (paced(1000, 1000, 700, bits={n: {0x4: 12} for n in range(3)}), *SLOW),
    ],
    "nor with another model or limit, nor an idle one": [
        (made.with_gpu(paced(1000, 1000, 700), 2, name=A10), MIXED),
        (made.with_gpu(paced(1000, 700), 1, power=limit(LIMIT_WATTS, LIMIT_WATTS * 0.95)), MIXED),
        (made.with_gpu(paced(1000, 1000, 700), 2, **working(sm_mhz=span(700), utilization=span(40))), ""),
    ],
    "a slowdown with its own rule explains": [
        (paced(1000, 1000, 500, bits={2: {0x20: 12}}), "sw-thermal-slowdown/fail", {"slow-clock": UNSURE})
    ],
    "the limit explains": [(tenants(H100, 700, (1200, 698, 99, 12), *[(1700, 690, 99, 12)] * 7), *EXPLAINED)],
    "other work explains": [
        (tenants(H200, 700, (1395, 610, 100, 0), *[(1980, 290, 100, 0)] * 7), *EXPLAINED),
        (tenants(H200, 700, (1500, 150, 100, 0), *[(1980, 560, 100, 0)] * 7), *EXPLAINED),
        (tenants(H200, 700, (1500, 300, 60, 0), *[(1980, 310, 98, 0)] * 7), *EXPLAINED),
    ],
    "an application clock explains, also that of the memory and without its bit": [
        (set_to(sm=1200), *EXPLAINED),
        (set_to(1593), *EXPLAINED),
    ],
    "reasons that were not read could be any": [
        (tenants(H100, 700, SLOWER, *[LIGHT] * 3, events=ClocksEvents()), *EXPLAINED)
    ],
    "at the same settings, with the power that its clock makes of the same work, it fails": [
        (tenants(H100, 700, SLOWER, *[LIGHT] * 7), *SLOW),
        (tenants(L40S, 350, (1500, 200, 100, 0), (1530, 349, 100, 12), *[(2520, 260, 100, 0)] * 2), *SLOW),
        (set_to(), *SLOW),
    ],
    "NVML does not tell what `nvidia-smi -lgc` set (open-gpu-kernel-modules issue 1314)": [
        (one_still(mhz, 250), WARN, "as if somebody locked it", {"slow-clock": UNSURE})
        for mhz in (1500, 1245, 1005)
    ],
    "nor does it tell where the siblings stand still, too, or the lock is a range": [
        *((locked(mhz), WARN, "NVML cannot tell", {"slow-clock": UNSURE}) for mhz in (1410, 705)),
        (locked(1410, sm_mhz=Span(min=1200, median=1410, max=1410)), WARN, {"slow-clock": UNSURE}),
        (locked(1410, bits={0x1: 3}), WARN, {"slow-clock": UNSURE}),
        (locked(1935), ""),
    ],
    "power, heat and counters agree with a fault": [
        (locked(1410, source=2), f"{FAIL} psu-fault/fail"),
        (locked(1410, temperature=span(85)), f"{FAIL} hot/warn"),
        ((locked(1410), later(locked(1410), 900, gpu=3, sw_thermal=20)), f"{FAIL} sw-thermal-slowdown/warn"),
        (locked(1410, bits={0x4: 3}), FAIL),
    ],
    "a clock that is stuck far below fails": [(one_still(345, 120), FAIL)],
    "the policy sets the shares of slow clocks": [
        (judge(paced(1000, 700), thresholds=LENIENT), ""),
        (judge(paced(1000, 550), thresholds=LENIENT), WARN),
        (among(alike(1700), 1980, 1980, thresholds=Thresholds(slow_clock_fail=0.9)), FAIL),
    ],
    "a cap below nine tenths of the default warns": [
        (powered(enforced_limit_mw=359_999, default_limit_mw=400_000), LOW),
        (powered(enforced_limit_mw=360_000, default_limit_mw=400_000), ""),
        (
            CAPPED,
            LOW,
            ": Capped at 250 W of 400 W by default (62%, warns below 90%).",
            {"enforced_watts": 250},
        ),
    ],
    "a missing or zero reading is no cap": [
        (powered(enforced_limit_mw=0, default_limit_mw=400_000), ""),
        (powered(default_limit_mw=400_000), ""),
        (powered(enforced_limit_mw=100_000), ""),
    ],
    "a policy may want caps": [(judge(CAPPED, thresholds=Thresholds(power_cap_ratio=0.6)), "")],
    "GPUs that differ are information, the model first": [
        (
            made.with_gpu(made.phb(), 0, name=A10),
            MIXED,
            Verdict.PASS,
            "1x NVIDIA A10, 1x NVIDIA GeForce RTX 4090",
        ),
        (made.with_gpu(made.phb(), 0, vbios="94.02"), MIXED),
        (made.with_gpu(made.phb(), 0, power=limit(400, 390)), MIXED),
    ],
    "a node whose GPUs are slow alike is compared with its peers": [
        (among(alike(792), *[1980] * 4), *SLOW),
        (among(alike(345, name="NVIDIA L4", gpus=1), 2040, 2025), *SLOW),
        (alike(792), ""),
    ],
    "a node that is not slower than its peers passes": [
        (among(alike(1600), *[1980] * 4), *FINE),
        (among(alike(792), 792, 800, 1980), *FINE),
    ],
    "one of two has no peers": [
        (among(alike(792), 1980), *FINE),
        (among(alike(792, gpus=1), 1980), *EXPLAINED),
    ],
    "a node with a reason, an idle one, and one of two models are not compared": [
        (among(every(alike(792), **working(sm_mhz=span(792), bits={0x4: 12})), *[1980] * 4), *FINE),
        (among(every(alike(792), **working(sm_mhz=span(792), bits={0x2: 12})), *[1980] * 4), *EXPLAINED),
        (among(every(alike(792), **resting(sm_mhz=span(792))), *[1980] * 4), "", IDLE_CLOCK),
        (among(made.with_gpu(alike(792), 3, name=H200), *[1980] * 4), MIXED, {"slow-clock": UNSURE}),
    ],
    "without peers the past tells; a setting would look the same, so it warns and enters no gate": [
        ((alike(1980), alike(792)), WARN, {"slow-clock": UNSURE}),
        ((alike(1980), IDLE, alike(792)), WARN, {"slow-clock": UNSURE}),
        ((alike(792), alike(1980)), *FINE),
    ],
    "peers outweigh the past, for a fleet may be set to a lower clock": [
        (among(alike(1200), 1200, 1215, history=judge(alike(1980)).history), ""),
        (
            among(alike(1200), 1980, 1965, history=judge(alike(1980)).history),
            FAIL,
            "1200 MHz against 1965 MHz of the median of 3 nodes",
        ),
    ],
    "another setting starts another past": [((alike(1980), LOWER), "")],
}


@pytest.mark.parametrize("row", rows(TABLE))
def test_clocks_and_caps_are_judged(row: Row) -> None:
    assert (check(*row).answers.get("slow-clock") is BAD) == (FAIL in row[1])


def test_peers_have_the_same_model_and_settings() -> None:
    first = alike(1980)
    same = (first, made.with_links(first, 0, links=list(range(17))), alike(1980, gpus=4), alike(1200))
    other = (
        alike(1980, name=H200),
        alike(1980, power=limit(700, 500)),
        alike(1980, clocks=Clocks(max_sm_mhz=1980, app_sm_mhz=1500)),
    )
    clock = judge(first).clock
    assert clock.mhz == 1980
    for result in (*same, *other):
        theirs = judge(result).clock
        assert (theirs.fingerprint == clock.fingerprint) == (result in same)
    assert judge(every(first, **resting())).clock is None


def test_the_operator_compares_a_node_with_its_peers_and_keeps_its_clock() -> None:
    run = Run(number=1, pod_name="pod-1", pod_uid="uid-1", started_at=stamp(NOW - 5))
    node_view = make_node()

    def after(result: Result, status: ReportStatus) -> ReportStatus:
        context = make_context(node=node_view, peers={"health": lambda _: (1980, 1965)}).after(status)
        return HealthKind().after_run(context, EndedRun(run=run, end=read(result)))

    slow = after(alike(792), ReportStatus())
    assert [finding.code for finding in slow.probe["health"].findings] == ["slow-clock"]
    assert slow.clock.sm_mhz == 792
    assert after(every(alike(792), **resting()), slow).clock == slow.clock


def heated(celsius: int, /, *, heat: bool = False, memory: int = 70, **temperature: int) -> Result:
    """A machine at work whose first GPU is that hot, slowed down by heat in half of its window or not."""
    window = working(
        temperature=span(celsius - 1, celsius),
        memory_temperature=span(memory),
        growth=grew(sw_thermal=1.2 if heat else 0),
    )
    known = {"gpu": celsius} | (temperature or {"gpu_max": 87, "memory_max": 95})
    return made.with_gpu(node(), 0, temperature=Temperature(**known), **window)


TLIMITS = {"margin": 16, "tlimit_gpu_max": 0, "tlimit_memory_max": 0}
DISTANT = TLIMITS | {"margin": 2, "tlimit_memory_max": 3}
GB200 = TLIMITS | {"gpu": 31, "margin": 55}
"""`nvidia-smi -q` of both, as published: "Memory Max Operating T.Limit Temp: 0 C", no limit in °C.  The
margin is 86 or 87 less the core's temperature, whatever the memory has."""


def memory(celsius: int, limits: dict[str, int] | None = None, *, heat: bool = False, **more: int) -> Result:
    """The first GPU's memory is that hot, the second one's cool; `limits`: all that the driver says."""
    known = {"gpu": 71, **limits, **more} if limits else {}
    hot = heated(known.get("gpu", 60), heat=heat, memory=celsius, **known)
    return made.with_gpu(hot, 1, **working(memory_temperature=span(60)))


@pytest.mark.parametrize(
    ("code", "result", "expected", "answer"),
    [
        ("hot", heated(81), "", GOOD),
        ("hot", heated(82), "hot/warn", GOOD),
        ("hot", heated(83), "hot/warn", UNSURE),
        ("hot", heated(86, heat=True), "hot/warn", UNSURE),
        ("hot", heated(87, heat=True), "hot/fail", BAD),
        ("hot", heated(70, margin=6), "", GOOD),
        ("hot", heated(70, margin=5), "hot/warn", GOOD),
        ("hot", heated(70, margin=4), "hot/warn", UNSURE),
        ("hot", heated(85, margin=0), "hot/warn", UNSURE),
        ("hot", heated(85, margin=0, heat=True), "hot/fail", BAD),
        ("hot", heated(70, margin=-2), "", GOOD),
        ("hot", heated(85, margin=0, tlimit_gpu_max=-2, heat=True), "hot/warn", UNSURE),
        ("hot", heated(79, shutdown=98), "", GOOD),
        ("hot", heated(80, shutdown=98), "hot/warn", GOOD),
        ("hot", heated(85, shutdown=98), "hot/warn", GOOD),
        ("hot", heated(86, shutdown=98), "hot/warn", UNSURE),
        ("hot", heated(90, shutdown=98), "hot/fail", BAD),
        ("memory-hot", memory(89), "", GOOD),
        ("memory-hot", memory(90), "memory-hot/warn", GOOD),
        ("memory-hot", memory(91), "memory-hot/warn", UNSURE),
        ("memory-hot", memory(95, heat=True), "memory-hot/fail", BAD),
        ("memory-hot", memory(94, heat=True), "memory-hot/warn", UNSURE),
        ("memory-hot", memory(0, heat=True), "", UNSURE),
        ("memory-hot", memory(94, TLIMITS), "", GOOD),
        ("memory-hot", memory(95, TLIMITS), "memory-hot/warn", GOOD),
        ("memory-hot", memory(115, TLIMITS), "memory-hot/fail", BAD),
        ("memory-hot", memory(105, GB200, heat=True), "memory-hot/fail", BAD),
        ("memory-hot", memory(104, GB200, heat=True), "memory-hot/warn", UNSURE),
        ("memory-hot", memory(92, TLIMITS, margin=5), "hot/warn memory-hot/warn", GOOD),
        ("memory-hot", memory(92, TLIMITS, margin=-1, heat=True), "hot/fail memory-hot/fail", BAD),
        ("memory-hot", memory(92, TLIMITS, margin=-1), "", GOOD),
        ("memory-hot", memory(92, DISTANT, heat=True), "memory-hot/fail hot/warn", BAD),
        ("memory-hot", memory(60, TLIMITS, margin=3), "hot/warn", GOOD),
        ("memory-hot", memory(115, {"tlimit_memory_max": 0}), "memory-hot/fail", BAD),
        ("memory-hot", memory(96, {"margin": 16, "tlimit_memory_max": 95}), "memory-hot/warn", GOOD),
        ("memory-hot", memory(89, TLIMITS, memory_max=95), "", GOOD),
        ("memory-hot", memory(105, TLIMITS, memory_max=110), "memory-hot/warn", GOOD),
        ("memory-hot", memory(115, TLIMITS, memory_max=0), "memory-hot/fail", BAD),
    ],
)
def test_a_limit_fails_only_with_a_counter(code: str, result: Result, expected: str, answer: Answer) -> None:
    """Fails at the vendor's limit with heat counted, good again 5 °C below it; a margin of 0 alone proves
    nothing.  Memory: by the window's hottest sample; without a sensor no answer; without a limit in °C the
    margin to the nearest slowdown point where memory is the hotter part, and the policy's numbers."""
    judgement = judge(result)
    assert " ".join(c for c in codes(judgement) if not c.startswith("sw-thermal")) == expected
    assert judgement.answers[code] is answer


IDLE_HOT = made.with_gpu(
    node(), 0, temperature=Temperature(gpu=92), **resting(temperature=span(92), growth=grew(hw_thermal=3))
)
BIT_SET = made.with_gpu(heated(90), 0, **working(temperature=span(90), bits={0x20: 12}))
BARE = replace(BIT_SET.gpus[0].counters, sw_thermal_ns=BIT_SET.gpus[0].counters.trio)
RUNS = [heated(celsius, gpu_max=95) for celsius in (84, 90, 70, 84)]
REST = made.with_gpu(heated(84, gpu_max=95), 0, **resting(temperature=span(84)))
AT_REST = cool(**TLIMITS, gpu=71, memory=115)
WINDOW = Window(seconds=3.0, samples=12, temperature=Span(min=60, median=70, max=81))
WINDOW_HOT = made.with_gpu(made.phb(), 0, temperature=Temperature(gpu=40, gpu_max=85), window=WINDOW)


def interval(**grown: float) -> tuple[Result, Result]:
    """87 °C now, and what the counters grew by since the last run."""
    return heated(80), later(heated(87), 900, gpu=0, **grown)


def under(result: Result, **limits: Any) -> Judgement:
    return judge(result, thresholds=Thresholds(**limits))


HEAT: Table = {
    "an idle hot GPU warns and is no load": [
        (every(IDLE_HOT, **resting(temperature=span(92))), "hot/warn", {"hot": Answer.NO_LOAD})
    ],
    "the policy sets what is hot, cool again, and failed": [
        (under(heated(83), hot_leave_margin=4), "hot/warn", {"hot": GOOD}),
        (under(heated(78, shutdown=98), hot_warn=70, hot_fail=78), "hot/fail"),
        (under(cool(gpu=78, gpu_max=85), hot_margin=7), "hot/warn"),
        (under(cool(gpu=30, gpu_max=85, memory=80, memory_max=95), memory_hot_margin=15), "memory-hot/warn"),
        (under(AT_REST, memory_hot_warn=116, memory_hot_fail=120), ""),
    ],
    "samples of a bit do not count as a counter": [
        (made.with_gpu(BIT_SET, 0, counters=BARE), "sw-thermal-slowdown/fail hot/warn")
    ],
    "growth over the interval makes heat fail": [
        (interval(sw_thermal=100), "sw-thermal-slowdown/fail hot/fail"),
        (interval(hw_thermal=1), "hot/fail hw-thermal-slowdown/warn"),
        (interval(sw_thermal=4), "hot/warn"),
    ],
    "hot memory at rest warns and names the policy's number": (
        AT_REST,
        "memory-hot/warn",
        ": Memory: 115 °C; the driver gives no limit, the policy's memoryHotFail is 105",
        {"memory_celsius": 115},
    ),
    "three of four runs of 84 °C under load are information": [
        (tuple(RUNS[:3]), ""),
        (tuple(RUNS), "hot-for-long/info", Verdict.PASS),
        ((RUNS[0], REST, RUNS[1], REST, RUNS[3]), "hot-for-long/info"),
        ((*RUNS, REST), ""),
        ((*RUNS, RUNS[2], RUNS[2]), ""),
        ((heated(83, gpu_max=95),) * 4, ""),
        (under(RUNS[0], hot_for_long_runs=1), "hot-for-long/info"),
    ],
    "an absolute temperature in place of a T.Limit makes no cool GPU hot": [
        (node(temperature=Temperature(gpu=40, margin=margin, tlimit_gpu_max=limit)), expected)
        for limit, margin, expected in ((87, 47, ""), (0, 47, ""), (0, 4, "hot/warn"))
    ],
    "within 5 °C of the vendor's limit warns": [
        (cool(gpu=60, margin=4, tlimit_gpu_max=-2), ""),
        (cool(gpu=60, margin=3, tlimit_gpu_max=-2), "hot/warn"),
        (cool(gpu=82, margin=-3), "hot/warn"),
        (cool(margin=3), "hot/warn"),
        (cool(gpu=89, margin=30), ""),
    ],
    "a sensor that reads 0 and a cool GPU without margin are fine": [
        (cool(gpu=40, margin=0), ""),
        (cool(gpu=0, gpu_max=85), ""),
    ],
    "without a vendor's limit the policy's number counts, and is named": [
        (cool(gpu=89, gpu_max=0), "hot/warn"),
        (cool(gpu=85), "hot/warn", ": 85 °C; the driver gives no limit, the policy's hotWarn is 80 °C."),
        (
            cool(gpu=95),
            "hot/warn",
            ": 95 °C; the driver gives no limit, the policy's hotFail is 90 °C.",
            {"celsius": 95, "limit_celsius": 90},
        ),
    ],
    "the hottest sample counts": [(WINDOW_HOT, "hot/warn", {"celsius": 81, "limit_celsius": 85})],
}


@pytest.mark.parametrize("row", rows(HEAT))
def test_heat_is_judged(row: Row) -> None:
    """By the vendor's limit or the policy's; nothing fails without load or sensor."""
    check(*row)


def test_a_job_that_ended_before_the_window_is_no_load() -> None:
    first = node()
    ended = every(later(first, 900), **resting())
    answers = judge(first, ended).answers
    assert {answers[code] for code in ("hot", "memory-hot", "hw-slowdown", "slow-clock")} == {Answer.NO_LOAD}
    assert answers["sw-thermal-slowdown"] is Answer.GOOD


@pytest.mark.parametrize(
    ("celsius", "band"),
    [(75, "excellent"), (76, "good"), (79, "good"), (80, "warm"), (83, "warm"), (84, "throttling-likely")],
)
def test_each_temperature_has_a_band(celsius: int, band: str) -> None:
    brief = judge(heated(celsius)).gpus[0]
    assert (brief.celsius, brief.band) == (celsius, band)
    unread = made.with_gpu(node(), 0, temperature=Temperature(), window=None)
    assert (judge(unread).gpus[0].celsius, judge(unread).gpus[0].band) == (None, "")
