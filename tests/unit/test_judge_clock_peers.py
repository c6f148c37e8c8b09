"""GPUs that are slow alike: compared with nodes of their model and settings, or with the node's own past."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import support.results as made
from nodegauge_contract import Clocks, Power, Result
from nodegauge_judge import Answer, History, Thresholds, judge_health
from nodegauge_judge.peers import Peers
from nodegauge_operator.api.report import ReportStatus, Run, stamp
from nodegauge_operator.core.probes.health import HealthKind
from nodegauge_operator.core.probes.kind import EndedRun
from support.judge_results import codes, every, judge, later, node, only, resting, span, working
from support.objects import NOW, make_context, make_node, read


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


def test_the_policy_sets_the_share_among_peers() -> None:
    """slowClockFail, as among siblings."""
    strict = Thresholds(slow_clock_fail=0.9)
    assert codes(judge_health(alike(1700), thresholds=strict, peers=peers(1980, 1980))) == ["slow-clock/fail"]


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
