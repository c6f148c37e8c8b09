"""What a load run says of GPUs that were slowed down: by heat, brake, hardware; and of the power cap."""

from __future__ import annotations

import pytest

from nodegauge_contract import Growth, Unavailable
from nodegauge_judge import Answer, Severity, Verdict
from nodegauge_judge.load_rules.judge import judge_load
from support.load_results import SAMPLES, everywhere, loaded, reason, spoilt

SW_HEAT, HW_HEAT, BRAKE, HW, CAP = 0x20, 0x40, 0x80, 0x8, 0x4


def test_eight_gpus_at_their_power_limit_pass() -> None:
    """The software power cap at the limit is what full load looks like."""
    judgement = judge_load(loaded())
    assert (judgement.verdict, judgement.findings) == (Verdict.PASS, [])
    assert set(judgement.answers.values()) == {Answer.GOOD}
    assert (judgement.tflops, judgement.power_percent, judgement.hottest) == (610.0, 99, 63)


@pytest.mark.parametrize(
    ("bit", "code"),
    [
        (SW_HEAT, "load-heat-slowdown"),
        (HW_HEAT, "load-heat-slowdown"),
        (BRAKE, "load-power-brake"),
        (HW, "load-hw-slowdown"),
    ],
)
def test_slowdown_over_a_tenth_of_the_load_fails_with_its_cause(bit: int, code: str) -> None:
    """The GPU, the share and the time to the first sample are named; the other gates stay good."""
    judgement = judge_load(spoilt(reasons=reason(bit, samples=40, first_ms=7_000)))
    (finding,) = judgement.findings
    assert (finding.code, finding.severity) == (code, Severity.FAIL)
    assert finding.subject.startswith("GPU 3 ")
    assert "33% of the load, first after 7 s" in finding.message
    assert finding.gpus[0].serial == "1654922000003"
    assert judgement.answers[code] is Answer.BAD
    assert [c for c, answer in judgement.answers.items() if answer is Answer.BAD] == [code]


def test_heat_in_the_last_second_fails_because_it_goes_on() -> None:
    """A job is longer than 30 s: slowdown that lasts to the end is no pulse."""
    late = reason(SW_HEAT, samples=4, first_ms=29_000)
    judgement = judge_load(spoilt(reasons=late))
    assert judgement.verdict is Verdict.FAIL
    assert "until the end" in judgement.findings[0].message
    assert "first after 29 s" in judgement.findings[0].message


def test_a_pulse_at_the_load_step_only_warns() -> None:
    """Three samples of 120 early on, and none after."""
    judgement = judge_load(spoilt(reasons=reason(BRAKE, samples=3, first_ms=500)))
    assert [(f.code, f.severity) for f in judgement.findings] == [("load-power-brake", Severity.WARN)]
    assert judgement.answers["load-power-brake"] is Answer.GOOD


@pytest.mark.parametrize("samples", [1, 5])
def test_single_samples_are_a_clock_change(samples: int) -> None:
    """Hardware slowdown is set for a moment while clocks change."""
    judgement = judge_load(spoilt(reasons=reason(HW, samples=samples, longest=1)))
    assert judgement.verdict is Verdict.PASS


def test_the_umbrella_bit_of_a_brake_is_one_finding() -> None:
    """Hardware slowdown is set beside the bit that names the cause."""
    both = reason(BRAKE, samples=60) + reason(HW, samples=60)
    assert [f.code for f in judge_load(spoilt(reasons=both)).findings] == ["load-power-brake"]


def test_counters_speak_where_reasons_cannot_be_read() -> None:
    """The driver's own time in slowdown; without either, the gate's answer is unsure."""
    grown = Growth(elapsed_ms=31_000, hw_thermal_ns=12 * 10**9)
    unreadable = {"reasons": [], "reasons_read": Unavailable("NotSupported")}
    judgement = judge_load(spoilt(growth=grown, **unreadable))
    assert (judgement.verdict, judgement.findings[0].code) == (Verdict.FAIL, "load-heat-slowdown")
    assert judgement.answers["load-power-brake"] is Answer.UNSURE
    neither = judge_load(everywhere(**unreadable))
    assert neither.verdict is Verdict.PASS
    assert neither.answers["load-heat-slowdown"] is Answer.UNSURE


def test_a_counter_that_no_sample_confirms_only_warns() -> None:
    """Field ids have moved between drivers: 120 samples without heat outweigh a counter."""
    grown = Growth(elapsed_ms=31_000, sw_thermal_ns=20 * 10**9)
    judgement = judge_load(spoilt(growth=grown))
    assert [(f.code, f.severity) for f in judgement.findings] == [("load-heat-slowdown", Severity.WARN)]
    assert "no sample shows it" in judgement.findings[0].message


def test_a_power_cap_below_the_limit_is_another_cap() -> None:
    """At 70 % of its own limit, and the driver says power cap."""
    low = {"steady_mw": 490_000, "reasons": reason(CAP, samples=SAMPLES)}
    judgement = judge_load(everywhere(**low))
    assert [(f.code, f.severity) for f in judgement.findings] == [("load-power-capped", Severity.WARN)]
    uncapped = judge_load(everywhere(steady_mw=490_000, reasons=[]))
    assert uncapped.verdict is Verdict.PASS


def test_a_brake_that_keeps_the_load_light_is_still_a_brake() -> None:
    """The brake is why the GPU draws 40 %: the fault counts, and the light load clears nothing."""
    braked = judge_load(spoilt(steady_mw=280_000, reasons=reason(BRAKE, samples=100)))
    assert braked.verdict is Verdict.FAIL
    assert braked.answers["load-power-brake"] is Answer.BAD
    assert braked.answers["load-heat-slowdown"] is Answer.NO_LOAD
