"""What a BMC says beside NVML: text in the finding of the same thing, or a finding of the contradiction."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Problem, ProblemKind, Result
from nodegauge_contract.chassis import AirTemperature, BoardGpu, ChassisReading, Fan, Supply
from nodegauge_judge import Finding, Severity, Verdict
from support.judge_results import codes, grew, judge, later, node, working

GOOD: dict[str, Any] = {
    "present": True,
    "state": "Enabled",
    "health": "OK",
    "capacity_watts": 2000,
    "output_watts": 400,
}


def supplies(*changes: dict[str, Any], watts: float | None = 1600, **more: Any) -> ChassisReading:
    """Four supplies of 2 kW, of which the first ones are changed so, and a machine that draws 1.6 kW."""
    each = [Supply(name=f"PSU{i}", **(GOOD | (changes[i] if i < len(changes) else {}))) for i in range(4)]
    load: dict[str, Any] = {} if watts is None else {"watts": watts}
    return ChassisReading(lists_supplies=True, supplies=each, **load, **more)


def board(**changes: Any) -> ChassisReading:
    """A baseboard with the GPUs of the health run, named without NVML's prefix; the second differs."""
    gpus = [
        BoardGpu(name=uuid, uuid=uuid.removeprefix("GPU-").upper(), ports=18, ports_up=18)
        for uuid in map(made.uuid, range(2))
    ]
    return ChassisReading(gpus=[gpus[0], replace(gpus[1], **changes)])


def braked(chassis: ChassisReading | None, seconds: float = 60) -> list[Finding]:
    """Findings of a machine with the power brake on one busy GPU."""
    first = node()
    return judge(first, later(first, 900, gpu=0, power_brake=seconds), chassis=chassis).findings


def listed(findings: list[Finding]) -> tuple[str, ...]:
    return tuple(f"{finding.code}/{finding.severity}" for finding in findings)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"line_input": "LossOfInput"}, "(PSU0) [supply-no-input]"),
        ({"health": "Critical"}, "(PSU0) [supply-failed]"),
    ],
)
def test_a_brake_and_a_faulty_supply_are_one_finding_with_two_witnesses(
    changes: dict[str, Any], text: str
) -> None:
    """It says what the BMC found, in its message and its evidence, before the next step."""
    (finding,) = braked(supplies(changes))
    assert (finding.code, finding.severity) == ("power-brake", Severity.FAIL)
    assert "60 s of 900 s" in finding.message
    assert text in finding.message.partition(" Next: ")[0]
    assert text in str(finding.evidence["bmc"])


def test_a_brake_with_healthy_supplies_and_watts_to_spare_is_a_contradiction() -> None:
    """The supplies are not the cause, so it names cables and limits; it adds a warning and no more."""
    brake, contradiction = braked(supplies())
    assert (brake.code, contradiction.code) == ("power-brake", "power-contradicted")
    assert "bmc" not in brake.evidence
    assert contradiction.evidence == {"spare_watts": 6400}
    assert contradiction.severity is Severity.WARN
    assert "cables" in contradiction.message
    assert "limits in the BMC" in contradiction.message
    assert contradiction.gpus == brake.gpus


@pytest.mark.parametrize(
    "chassis",
    [
        None,
        ChassisReading(),
        ChassisReading(lists_supplies=True),
        supplies({"present": False, "state": "Absent"}, watts=5900),
        supplies(watts=7900),
        supplies(*[{"capacity_watts": 0, "output_watts": 0}] * 4, watts=None),
        supplies({"capacity_watts": None}),
    ],
    ids=["no BMC", "nothing read", "rack shelf", "bay empty, full", "full", "sentinels", "size unknown"],
)
def test_only_known_watts_contradict(chassis: ChassisReading | None) -> None:
    """A shelf's supplies are in no server's list, and a size that nobody states is not guessed.  Watts in
    use are none to spare."""
    assert listed(braked(chassis)) == ("power-brake/fail",)


def test_a_gpu_without_power_beside_healthy_supplies_is_a_contradiction() -> None:
    """NVML's other word for it."""
    result = made.with_gpu(node(), 0, error=Problem(kind=ProblemKind.INSUFFICIENT_POWER))
    assert "power-contradicted/warn" in codes(judge(result, chassis=supplies()))
    second = judge(result, chassis=supplies({"line_input": "LossOfInput"}))
    assert "power-contradicted/warn" not in codes(second)
    assert "[supply-no-input]" in next(f for f in second.findings if f.code == "insufficient-power").message


def test_a_brake_that_has_to_be_confirmed_contradicts_nobody() -> None:
    """On one idle GPU it has been seen on sound machines."""
    first = node()
    idle = later(first, 900, gpu=0, power_brake=60, low_utilization=900)
    assert codes(judge(first, idle, chassis=supplies())) == ["power-brake/info"]


def test_heat_names_warm_inlets_failed_fans_and_the_board_s_own_temperature() -> None:
    """The person who reads it has both witnesses in one line."""
    first, air = node(), AirTemperature(name="Inlet", inlet=True, celsius=41, high_caution_celsius=38)
    fan = Fan(name="FAN3", health="Critical")
    gpus = [replace(gpu, celsius=88) for gpu in board().gpus]
    chassis = ChassisReading(air=[air], fans=[fan], gpus=gpus)
    hot = later(first, 900, gpu=0, hw_thermal=60)
    (finding,) = judge(first, hot, chassis=chassis).findings
    assert finding.code == "hw-thermal-slowdown"
    for text in ("(Inlet) [inlet-hot]", "(FAN3) [fan-failed]", "reads 88 °C"):
        assert text in str(finding.evidence["bmc"])
    counted = {"thermal": 48.0, "hardware": 0.0, "power": 299.0}
    seen = [replace(gpu, memory_celsius=96, throttled_lately_seconds=counted) for gpu in gpus]
    (longer,) = judge(first, hot, chassis=replace(chassis, gpus=seen, since_seconds=300)).findings
    assert "reads 88 °C at this GPU and 96 °C at its memory" in str(longer.evidence["bmc"])
    assert "counted 48 s of such slowdown in 300 s" in str(longer.evidence["bmc"])
    absurd = ChassisReading(gpus=[replace(gpu, celsius=999, memory_celsius=-3) for gpu in gpus])
    (alone,) = judge(first, hot, chassis=absurd).findings
    assert "bmc" not in alone.evidence


def down(result: Result, count: int) -> Result:
    """The second GPU with so many links left."""
    return made.without_links(result, 1, count=18 - count)


@pytest.mark.parametrize(
    ("up", "bmc", "expected"),
    [
        (18, 18, ()),
        (18, 17, ("nvlink-contradicted/warn",)),
        (10, 18, ("nvlink-degraded/fail", "nvlink-contradicted/warn")),
        (10, 10, ("nvlink-degraded/fail",)),
    ],
)
def test_nvlink_has_two_witnesses(up: int, bmc: int, expected: tuple[str, ...]) -> None:
    """Where both see it, one finding says so; where they differ, that is a finding, and the GPU is named."""
    findings = judge(down(made.h100(2), up), chassis=board(ports_up=bmc)).findings
    assert listed(findings) == expected
    for finding in findings:
        assert finding.gpus[0].index == 1
    if (up, bmc) == (10, 10):
        assert findings[0].evidence["bmc"] == "The BMC agrees: 10 of 18 ports are up."


@pytest.mark.parametrize(
    "changes",
    [
        {"ports": 12, "ports_up": 11},
        {"uuid": "of-another-gpu", "ports_up": 17},
        {"ports_up": float("nan")},
        {"ports_up": 19},
        {"ports": 1e300, "ports_up": 1e299},
        {"ports_up": -1},
        {"uuid": made.uuid(0), "ports_up": 17},
    ],
    ids=["other links", "other GPU", "NaN", "more than all", "huge", "negative", "same GPU twice"],
)
def test_numbers_that_cannot_be_compared_contradict_nothing(changes: dict[str, Any]) -> None:
    """A BMC that lies or counts other ports raises no finding about NVLink."""
    gpus = board(**changes).gpus
    for order in (gpus, gpus[::-1]):
        assert codes(judge(made.h100(2), chassis=ChassisReading(gpus=order))) == []


def test_links_that_nvml_hides_contradict_nothing() -> None:
    """With MIG on every link reads as down."""
    result = made.every_gpu(made.h100(2), mig=1)
    assert "nvlink-contradicted/warn" not in codes(judge(result, chassis=board(ports_up=17)))


def test_a_bmc_neither_sets_nor_clears_a_gate_of_nvml() -> None:
    """Its words change no answer; a contradiction warns, and has no gate."""
    first = node()
    last = later(first, 900, gpu=0, power_brake=60)
    alone, both = judge(first, last), judge(first, last, chassis=supplies({"health": "Critical"}))
    assert (alone.answers, alone.verdict, alone.history) == (both.answers, both.verdict, both.history)
    calm = judge(made.h100(2), chassis=board(ports_up=17))
    assert (calm.verdict, calm.answers) == (Verdict.WARN, judge(made.h100(2)).answers)


def test_a_hostile_reading_stays_bounded() -> None:
    """Names of a megabyte are clipped, and control characters go."""
    named = [Supply(name="\x1b[31m" + "x" * 10**6, **(GOOD | {"health": "Critical"})) for _ in range(64)]
    window = working(seconds=3.0, growth=grew(power_brake=3))
    (finding,) = judge(node(**window), chassis=ChassisReading(lists_supplies=True, supplies=named)).findings
    assert finding.code == "power-brake"
    assert len(finding.message) < 2000
    assert "\x1b" not in finding.message
