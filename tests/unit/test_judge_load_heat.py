"""What a load run says of temperature: close to the limit, rising towards it, one GPU hotter than others."""

from __future__ import annotations

import pytest

from nodegauge_contract import LoadEnd, Result, Unavailable
from nodegauge_judge import Answer, Severity, Verdict
from nodegauge_judge.load_rules.judge import LoadJudgement, judge_load
from support.load_results import everywhere, gpu, loaded, spoilt

UNREAD = Unavailable("NotSupported")


def codes_of(result: Result) -> list[tuple[str, Severity]]:
    """Codes and severities."""
    return [(f.code, f.severity) for f in judge_load(result).findings]


def of(judgement: LoadJudgement, code: str) -> str:
    """The message of a finding."""
    return next(f.message for f in judgement.findings if f.code == code)


def test_one_hot_gpu_is_blocked_air_and_eight_are_the_room() -> None:
    """Against the median of its siblings, and all of them alike."""
    one = judge_load(spoilt(steady_c=80, max_c=81, margin_c=6))
    assert [f.code for f in one.findings] == ["load-hotter-than-siblings"]
    assert one.findings[0].subject.startswith("GPU 3 ")
    aisle = judge_load(everywhere(steady_c=83, max_c=84, margin_c=3))
    assert [(f.code, f.severity) for f in aisle.findings] == [("load-hot", Severity.WARN)]
    assert "All GPUs are as hot" in of(aisle, "load-hot")
    assert aisle.findings[0].subject.endswith("and 7 more")


@pytest.mark.parametrize(
    ("degrees", "codes"), [(76, []), (77, [("load-hotter-than-siblings", Severity.WARN)])]
)
def test_fifteen_degrees_above_the_median_are_a_finding(degrees: int, codes: list[object]) -> None:
    """62 °C everywhere else."""
    assert codes_of(spoilt(steady_c=degrees, max_c=degrees, margin_c=10)) == codes


def test_a_gpu_is_compared_with_its_like_alone() -> None:
    """A card of another limit runs hotter by design; a lone GPU has no siblings."""
    small = gpu(3, limit_mw=350_000, steady_mw=345_000, steady_c=79, max_c=80, margin_c=7, tflops=300.0)
    mixed = loaded(gpu(0), gpu(1), gpu(2), small)
    assert codes_of(mixed) == []
    assert codes_of(loaded(gpu(0, steady_c=79, max_c=80, margin_c=7))) == []


def test_a_rising_temperature_is_projected() -> None:
    """8 °C left and 5 °C a minute: it arrives within two minutes; at 2 °C a minute it does not."""
    warm = {"steady_c": 78, "max_c": 79, "margin_c": 8}
    rising = judge_load(everywhere(**warm, slope_c_per_min=5.0))
    assert [(f.code, f.severity) for f in rising.findings] == [("load-hot", Severity.WARN)]
    assert "still rises by 5 °C a minute" in of(rising, "load-hot")
    assert codes_of(everywhere(**warm, slope_c_per_min=2.0)) == []


@pytest.mark.parametrize("slope", [UNREAD, 400.0, -3.0])
def test_a_slope_that_says_nothing_projects_nothing(slope: object) -> None:
    """Unread, the load's first moment, or falling."""
    assert codes_of(everywhere(steady_c=78, max_c=79, margin_c=8, slope_c_per_min=slope)) == []


def test_a_stop_at_the_vendors_limit_fails() -> None:
    """The probe ended the load 3 °C below slowdown: a job would have gone on."""
    hot = [gpu(n, ended=LoadEnd.TEMPERATURE, seconds=9.0) for n in range(8)]
    hot[5] = gpu(5, ended=LoadEnd.TEMPERATURE, seconds=9.0, steady_c=82, max_c=84, margin_c=3)
    judgement = judge_load(loaded(*hot, ended=LoadEnd.TEMPERATURE))
    assert judgement.verdict is Verdict.FAIL
    assert judgement.findings[0].subject.startswith("GPU 5 ")
    assert judgement.answers["load-hot"] is Answer.BAD


def test_a_stop_by_a_careful_policy_warns() -> None:
    """`stopBelow: 20` ends loads far from slowdown; such a run is no pass, and clears no heat."""
    careful = {"ended": LoadEnd.TEMPERATURE, "seconds": 6.0, "margin_c": 19, "stop_margin_c": 20}
    judgement = judge_load(loaded(*(gpu(n, **careful) for n in range(8)), ended=LoadEnd.TEMPERATURE))
    assert judgement.verdict is Verdict.WARN
    assert judgement.answers["load-hot"] is Answer.UNSURE


def test_a_stop_before_the_power_came_is_no_light_load() -> None:
    """Hot at once: the probe stopped at half power, and that is the finding."""
    early = {"ended": LoadEnd.TEMPERATURE, "seconds": 1.0, "steady_mw": 300_000, "reasons": []}
    assert codes_of(loaded(*(gpu(n, **early) for n in range(2)), ended=LoadEnd.TEMPERATURE)) == [
        ("load-hot", Severity.WARN)
    ]


def test_memory_close_to_its_limit_counts_too() -> None:
    """91 of 95 °C, with a cool core."""
    judgement = judge_load(spoilt(memory_max_c=91))
    assert [f.code for f in judgement.findings] == ["load-hot"]
    assert "memory 91 °C" in of(judgement, "load-hot")


def test_without_any_temperature_nothing_is_said() -> None:
    """Unread is no fault, and clears no gate."""
    unread = dict.fromkeys(
        ("steady_c", "max_c", "memory_max_c", "margin_c", "slope_c_per_min", "stop_c"), UNREAD
    )
    judgement = judge_load(everywhere(**unread))
    assert judgement.verdict is Verdict.PASS
    assert judgement.answers["load-hot"] is Answer.UNSURE


def test_a_margin_of_zero_is_not_believed() -> None:
    """Some GPUs report 0 whatever their temperature."""
    assert codes_of(everywhere(margin_c=0)) == []
