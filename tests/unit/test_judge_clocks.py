"""Power caps, clocks, GPUs that differ, and GPUs that are slow alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Clocks, ClocksEvents, Power, Result
from nodegauge_judge import Answer, History, Severity, Thresholds, Verdict, judge_health
from nodegauge_judge.peers import Peers
from nodegauge_operator.api.report import ReportStatus, Run, stamp
from nodegauge_operator.core.probes.health import HealthKind
from nodegauge_operator.core.probes.kind import EndedRun
from support.judge_results import LIMIT_WATTS, codes, every, judge, later, node, only, resting, span, working
from support.objects import NOW, make_context, make_node, read


def capped(mhz: float, *, name: str = "NVIDIA A100-SXM4-80GB", bits: int = 12, **window: Any) -> Result:
    """A machine at work at that clock, the software power cap's bit in so many of twelve samples."""
    fields = working(bits={0x4: bits}, sm_mhz=span(mhz), **window)
    return every(node(), name=name, **fields)


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (capped(1274), ["power-cap-low/warn"]),
        (capped(1275), []),
        (capped(1274, bits=7), ["power-cap-low/warn"]),
        (capped(1274, bits=6), []),
        (capped(1274, bits=0), []),
        (capped(1274, name="NVIDIA H100 80GB HBM3"), []),
        (capped(1274, utilization=span(20, 90)), []),
    ],
)
def test_a_cap_below_a_known_base_clock_warns(result: Result, expected: list[str]) -> None:
    """Under load and capped in most samples; a model without a row has no opinion."""
    assert codes(judge(result)) == expected


def paced(*mhz: float, bits: dict[int, dict[int, int]] | None = None) -> Result:
    """GPUs at work at these clocks; `bits` by position."""
    result = node(len(mhz))
    for gpu_index, clock in enumerate(mhz):
        fields = working(sm_mhz=span(clock), bits=(bits or {}).get(gpu_index))
        result = made.with_gpu(result, gpu_index, **fields)
    return result


LIMITED = Power(enforced_limit_mw=LIMIT_WATTS * 950, default_limit_mw=LIMIT_WATTS * 1000)


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (paced(1000, 1000, 1000, 930), []),
        (paced(1000, 1000, 1000, 929), ["slow-clock/warn"]),
        (paced(1000, 1000, 1000, 800), ["slow-clock/warn"]),
        (paced(1000, 1000, 1000, 799), ["slow-clock/fail"]),
        (paced(1000, 799), ["slow-clock/fail"]),
        (paced(1000), []),
        (paced(1000, 1000, 700, bits={2: {0x2: 12}}), []),
        (paced(1000, 1000, 700, bits={2: {0x100: 1}}), []),
        (paced(1000, 1000, 700, bits={2: {0x4: 12}}), []),
        (paced(1000, 1000, 700, bits={n: {0x4: 12} for n in range(3)}), ["slow-clock/fail"]),
        (made.with_gpu(paced(1000, 1000, 700), 2, name="NVIDIA A10"), ["mixed-gpus/info"]),
        (made.with_gpu(paced(1000, 700), 1, power=LIMITED), ["mixed-gpus/info"]),
        (made.with_gpu(paced(1000, 1000, 700), 2, **working(sm_mhz=span(700), utilization=span(40))), []),
    ],
)
def test_a_gpu_is_compared_with_siblings_at_the_same_work(result: Result, expected: list[str]) -> None:
    """Not with another model or limit, an idle one, one whose clocks are set, or one that draws less than its
    cap; only a failure is bad for the gate."""
    judgement = judge(result)
    assert codes(judgement) == expected
    bad = judgement.answers["slow-clock"] is Answer.BAD
    assert bad == ("slow-clock/fail" in expected)
    assert expected != ["slow-clock/warn"] or judgement.answers["slow-clock"] is Answer.GOOD


def tenants(name: str, limit: float, *gpus: tuple[float, float, float, int], **first: Any) -> Result:
    """GPUs of one model and power limit in watts: MHz, watts, per cent of utilisation, samples with the power
    cap's bit; `first`: other fields of the first one."""
    power = Power(enforced_limit_mw=round(limit * 1000), default_limit_mw=round(limit * 1000))
    result = every(node(len(gpus)), name=name, power=power)
    for gpu_index, (mhz, watts, percent, capped_samples) in enumerate(gpus):
        bits = {0x4: capped_samples} if capped_samples else {}
        window = {"sm_mhz": span(mhz - 30, mhz + 30), "power_mw": span(watts * 1000)}
        fields = working(bits=bits, utilization=span(percent), **window)
        result = made.with_gpu(result, gpu_index, **fields)
    return made.with_gpu(result, 0, **first) if first else result


APP = Clocks(max_sm_mhz=1980, app_sm_mhz=1200, app_memory_mhz=2619)
FULL = Clocks(max_sm_mhz=1980, app_sm_mhz=1980, app_memory_mhz=2619)


def with_application_clocks(result: Result, *clocks: Clocks) -> Result:
    """The GPUs with these settings, the last one for the rest."""
    for gpu_index in range(len(result.gpus)):
        result = made.with_gpu(result, gpu_index, clocks=clocks[min(gpu_index, len(clocks) - 1)])
    return result


H100, H200, L40S, A10 = "NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA L40S", "NVIDIA A10"
LIGHT = (1980, 310, 99, 0)

EXPLAINED = [
    pytest.param(paced(1000, 1000, 500, bits={2: {0x20: 12}}), id="a slowdown with its own rule"),
    pytest.param(
        tenants(H100, 700, (1200, 698, 99, 12), *[(1700, 690, 99, 12)] * 7), id="heavy work at the limit"
    ),
    pytest.param(
        tenants(H100, 700, (1200, 698, 99, 12), *[(1700, 520, 99, 12)] * 7), id="the others below theirs"
    ),
    pytest.param(
        tenants(A10, 150, *[(1005, 149, 100, 12)] * 2, *[(1695, 148, 100, 12)] * 2), id="half of the node"
    ),
    pytest.param(tenants(L40S, 350, (1620, 351, 100, 7), *[(2520, 180, 97, 0)] * 3), id="at the limit alone"),
    pytest.param(tenants(H200, 700, (1395, 610, 100, 0), *[(1980, 290, 100, 0)] * 7), id="heavier work"),
    pytest.param(tenants(H200, 700, (1500, 150, 100, 0), *[(1980, 560, 100, 0)] * 7), id="lighter work"),
    pytest.param(tenants(H200, 700, (1500, 300, 60, 0), *[(1980, 310, 98, 0)] * 7), id="less utilised"),
    pytest.param(
        with_application_clocks(tenants(H100, 700, (1200, 280, 99, 0), *[LIGHT] * 7), APP, FULL),
        id="application clock, without its bit",
    ),
    pytest.param(
        with_application_clocks(
            tenants(H100, 700, (1200, 280, 99, 0), *[LIGHT] * 7), replace(FULL, app_memory_mhz=1593), FULL
        ),
        id="application clock of the memory",
    ),
    pytest.param(
        tenants(H100, 700, (1200, 280, 99, 0), *[LIGHT] * 3, events=ClocksEvents()), id="reasons not read"
    ),
]


@pytest.mark.parametrize("machine", EXPLAINED)
def test_an_explained_clock_is_no_finding(machine: Result) -> None:
    """By the power limit, by other work, or by a setting; and no good answer either."""
    judgement = judge(machine)
    assert not [code for code in codes(judgement) if code.startswith("slow-clock")]
    assert judgement.answers["slow-clock"] is Answer.UNSURE


@pytest.mark.parametrize(
    "machine",
    [
        tenants(H100, 700, (1200, 280, 99, 0), *[LIGHT] * 7),
        tenants(H100, 700, (1100, 430, 99, 12), *[(1700, 600, 99, 12)] * 7),
        tenants(A10, 150, (900, 70, 100, 0), (1695, 120, 100, 0)),
        tenants(L40S, 350, (1500, 200, 100, 0), (1530, 349, 100, 12), *[(2520, 260, 100, 0)] * 2),
        with_application_clocks(tenants(H100, 700, (1200, 280, 99, 0), *[LIGHT] * 7), FULL),
    ],
)
def test_a_slow_clock_without_an_explanation_fails(machine: Result) -> None:
    """Capped or not, at the same settings, with the power that its clock makes of the same work."""
    judgement = judge(machine)
    assert "slow-clock/fail" in codes(judgement)
    assert judgement.answers["slow-clock"] is Answer.BAD


@pytest.mark.parametrize("mhz", [1500, 1245, 1005])
def test_a_clock_that_stands_still_alone_may_be_locked(mhz: float) -> None:
    """NVML has no call for what `nvidia-smi -lgc` set (open-gpu-kernel-modules issue 1314): it warns.  One
    that is stuck far below fails."""
    still = working(sm_mhz=span(mhz), power_mw=span(250_000))
    judgement = judge(made.with_gpu(tenants(H100, 700, *[LIGHT] * 8), 3, **still))
    assert codes(judgement) == ["slow-clock/warn"]
    assert "as if somebody locked it" in only(judgement).message
    assert judgement.answers["slow-clock"] is Answer.UNSURE
    stuck = working(sm_mhz=span(345), power_mw=span(120_000))
    judgement = judge(made.with_gpu(tenants(H100, 700, *[LIGHT] * 8), 3, **stuck))
    assert codes(judgement) == ["slow-clock/fail"]


def test_the_policy_sets_the_shares_of_slow_clocks() -> None:
    """slowClockWarn and slowClockFail."""
    lenient = Thresholds(slow_clock_warn=0.6, slow_clock_fail=0.5)
    assert codes(judge(paced(1000, 700), thresholds=lenient)) == []
    assert codes(judge(paced(1000, 550), thresholds=lenient)) == ["slow-clock/warn"]


@pytest.mark.parametrize(
    ("power", "expected"),
    [
        (Power(enforced_limit_mw=359_999, default_limit_mw=400_000), ["power-cap-low/warn"]),
        (Power(enforced_limit_mw=360_000, default_limit_mw=400_000), []),
        (Power(enforced_limit_mw=500_000, default_limit_mw=400_000), []),
        (Power(enforced_limit_mw=0, default_limit_mw=400_000), []),
        (Power(default_limit_mw=400_000), []),
        (Power(enforced_limit_mw=100_000), []),
    ],
)
def test_a_cap_below_nine_tenths_of_the_default_warns(power: Power, expected: list[str]) -> None:
    """Below 0.9 warns, exactly 0.9 does not; a missing or zero reading is no cap."""
    result = replace(made.phb(), gpus=[replace(gpu, power=power) for gpu in made.phb().gpus])
    assert codes(judge_health(result)) == expected


def test_the_policy_sets_the_share_of_the_power_limit() -> None:
    """A policy that wants caps may have them."""
    capped = Power(enforced_limit_mw=250_000, default_limit_mw=400_000)
    result = replace(made.phb(), gpus=[replace(gpu, power=capped) for gpu in made.phb().gpus])
    assert codes(judge_health(result, thresholds=Thresholds(power_cap_ratio=0.6))) == []
    finding = only(judge_health(result))
    assert finding.message.startswith("Capped at 250 W of 400 W by default (62%, warns below 90%).")
    assert finding.evidence["enforced_watts"] == 250


def test_different_gpus_are_info() -> None:
    """Model first; VBIOS and power limit within a model; info never changes the verdict."""
    judgement = judge_health(made.with_gpu(made.phb(), 0, name="NVIDIA A10"))
    assert (only(judgement).code, only(judgement).severity) == ("mixed-gpus", Severity.INFO)
    assert judgement.verdict is Verdict.PASS
    assert "1x NVIDIA A10, 1x NVIDIA GeForce RTX 4090" in only(judgement).message
    assert judgement.product == "NVIDIA A10 + NVIDIA GeForce RTX 4090"
    assert codes(judge_health(made.with_gpu(made.phb(), 0, vbios="94.02"))) == ["mixed-gpus/info"]
    power = Power(enforced_limit_mw=390_000, default_limit_mw=400_000)
    assert codes(judge_health(made.with_gpu(made.phb(), 0, power=power))) == ["mixed-gpus/info"]


def alike(mhz: float, *, name: str = "NVIDIA H100 80GB HBM3", gpus: int = 8, **fields: Any) -> Result:
    """A node whose GPUs all work at this clock, without a reason for less."""
    window = working(sm_mhz=span(mhz - 15, mhz + 15), power_mw=span(300_000))
    return every(node(gpus), **({"name": name} | window | fields))


def peers(*mhz: float) -> Peers:
    """Nodes of any kind, at work at these clocks."""
    return lambda fingerprint: mhz if fingerprint else ()


def against(result: Result, others: Sequence[float]) -> tuple[list[str], Answer]:
    """Findings and answer of a node among these."""
    judgement = judge_health(result, peers=peers(*others))
    return codes(judgement), judgement.answers["slow-clock"]


SLOW = [
    pytest.param(alike(792), [1980] * 4, id="H100 at 40 %"),
    pytest.param(alike(1005, name="NVIDIA A10", gpus=4), [1695, 1695, 1680], id="A10 at 59 %"),
    pytest.param(alike(345, name="NVIDIA L4", gpus=1), [2040, 2025], id="L4, stuck far below"),
    pytest.param(
        alike(1300, name="NVIDIA H200", gpus=2), [1980, 1965, 1300, 1980], id="H200 at 66 %, not alone"
    ),
]


@pytest.mark.parametrize(("machine", "others"), SLOW)
def test_a_node_whose_gpus_are_slow_alike_is_compared_with_its_peers(
    machine: Result, others: list[float]
) -> None:
    """Siblings cannot show it; two runs of it are a taint, as for one slow GPU."""
    assert against(machine, others) == (["slow-clock/fail"], Answer.BAD)
    assert not codes(judge_health(machine))


@pytest.mark.parametrize(
    ("machine", "others", "answer"),
    [
        (alike(1980), [1980] * 4, Answer.GOOD),
        (alike(1600), [1980] * 4, Answer.GOOD),
        (alike(792), [792, 800, 1980], Answer.GOOD),
        (alike(792), [1980], Answer.GOOD),
        (alike(792, gpus=1), [1980], Answer.UNSURE),
        (every(alike(792), **working(sm_mhz=span(792), bits={0x4: 12})), [1980] * 4, Answer.GOOD),
        (every(alike(792), **working(sm_mhz=span(792), bits={0x2: 12})), [1980] * 4, Answer.UNSURE),
        (every(alike(792), **resting(sm_mhz=span(792))), [1980] * 4, Answer.NO_LOAD),
        (made.with_gpu(alike(792), 3, name="NVIDIA H200"), [1980] * 4, Answer.UNSURE),
    ],
    ids=["full", "0.81", "fleet", "two nodes", "no one", "capped", "set", "idle", "mixed"],
)
def test_a_node_that_is_not_slower_than_its_peers_passes(
    machine: Result, others: list[float], answer: Answer
) -> None:
    """Nor one with a reason, an idle one, or one among too few nodes."""
    finding_codes, answered = against(machine, others)
    assert not [code for code in finding_codes if code.startswith("slow-clock")]
    assert answered is answer


def test_peers_have_the_same_model_and_settings() -> None:
    """Links and the number of GPUs do not matter; a power limit or an application clock does."""
    clock = judge_health(alike(1980)).clock
    assert clock is not None
    assert clock.mhz == 1980
    limit = Power(enforced_limit_mw=500_000, default_limit_mw=700_000)
    same = [
        made.with_links(alike(1980), 0, links=list(range(17))),
        alike(1980, gpus=4),
        alike(1200),
    ]
    other = [
        alike(1980, name="NVIDIA H200"),
        alike(1980, power=limit),
        alike(1980, clocks=Clocks(max_sm_mhz=1980, app_sm_mhz=1500)),
    ]
    for result in same:
        assert (other_clock := judge_health(result).clock) is not None
        assert other_clock.fingerprint == clock.fingerprint
    for result in other:
        assert (other_clock := judge_health(result).clock) is not None
        assert other_clock.fingerprint != clock.fingerprint
    assert judge_health(every(alike(1980), **resting())).clock is None


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ([1980], 792, ["slow-clock/warn"]),
        ([1980, 792, 792], 792, ["slow-clock/warn"]),
        ([792, 1980], 1300, ["slow-clock/warn"]),
        ([1980], 1600, []),
        ([792], 1980, []),
        ([], 792, []),
    ],
)
def test_a_node_without_peers_is_compared_with_its_past(
    before: list[float], now: float, expected: list[str]
) -> None:
    """A setting that NVML does not tell would look the same, so it warns and enters no gate."""
    judgement = judge(*(alike(mhz) for mhz in (*before, now)))
    assert codes(judgement) == expected
    assert judgement.answers["slow-clock"] is (Answer.UNSURE if expected else Answer.GOOD)


def test_peers_outweigh_the_past() -> None:
    """A fleet that was set to a lower clock is no fleet of warnings."""
    history = judge(alike(1980)).history
    assert codes(judge_health(alike(1200), history=history, peers=peers(1200, 1215))) == []
    finding = only(judge_health(alike(1200), history=history, peers=peers(1980, 1965)))
    assert "1200 MHz against 1965 MHz of the median of 3 nodes" in finding.message
    strict = Thresholds(slow_clock_fail=0.9)
    assert codes(judge_health(alike(1700), thresholds=strict, peers=peers(1980, 1980))) == ["slow-clock/fail"]


def test_another_setting_starts_another_past() -> None:
    """And idle runs keep it, also through the report's text."""
    first = alike(1980)
    lower = alike(1200, clocks=Clocks(max_sm_mhz=1980, app_sm_mhz=1200))
    assert codes(judge(first, lower)) == []
    idle = every(later(first, 900, low_utilization=900, watts=70), **resting())
    history = History.decode(judge(first, idle).history.encode())
    assert history is not None
    assert history.clock is not None
    assert history.clock.mhz == 1980


def test_the_operator_compares_a_node_with_its_peers_and_keeps_its_clock() -> None:
    """Through the reports: of the others when it judges, and its own for them, also after an idle run."""
    run = Run(number=1, pod_name="pod-1", pod_uid="uid-1", started_at=stamp(NOW - 5))
    node_view = make_node()

    def after(result: Result, status: ReportStatus) -> ReportStatus:
        context = make_context(node=node_view, clock_peers=peers(1980, 1965)).after(status)
        return HealthKind().after_run(context, EndedRun(run=run, end=read(result))).status

    slow = after(alike(792), ReportStatus())
    assert [finding.code for finding in slow.probe("health").findings] == ["slow-clock"]
    assert slow.clock.sm_mhz == 792
    assert after(every(alike(792), **resting()), slow).clock == slow.clock
