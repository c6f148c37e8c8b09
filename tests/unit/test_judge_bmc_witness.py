"""What a BMC says beside NVML: text in the finding of the same thing, or a finding of the contradiction."""

from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Problem, ProblemKind
from nodegauge_contract.chassis import AirTemperature, BoardGpu, ChassisReading, Fan, Supply
from nodegauge_judge import Judgement, Verdict
from support.judge_results import Row, Table, check, grew, judge, later, node, rows, working

GOOD = {"present": True, "state": "Enabled", "health": "OK", "capacity_watts": 2000, "output_watts": 400}


def supplies(*changes: dict[str, Any], watts: float | None = 1600, **more: Any) -> ChassisReading:
    """Four supplies of 2 kW, of which the first ones are changed so, and a machine that draws 1.6 kW."""
    each = [Supply(name=f"PSU{i}", **(GOOD | (changes[i] if i < len(changes) else {}))) for i in range(4)]
    load: dict[str, Any] = {} if watts is None else {"watts": watts}
    return ChassisReading(lists_supplies=True, supplies=each, **load, **more)


def board(**changes: Any) -> ChassisReading:
    gpus = [
        BoardGpu(name=uuid, uuid=uuid.removeprefix("GPU-").upper(), ports=18, ports_up=18)
        for uuid in map(made.uuid, range(2))
    ]
    return ChassisReading(gpus=[gpus[0], replace(gpus[1], **changes)])


def braked(chassis: ChassisReading | None, seconds: float = 60, **grown: float) -> Judgement:
    return judge(node(), later(node(), 900, gpu=0, power_brake=seconds, **grown), chassis=chassis)


def linked(up: int, bmc: int) -> Judgement:
    return judge(made.without_links(made.h100(2), 1, count=18 - up), chassis=board(ports_up=bmc))


def compared(*, turned: bool, **changes: Any) -> Judgement:
    gpus = board(**changes).gpus
    return judge(made.h100(2), chassis=ChassisReading(gpus=gpus[::-1] if turned else gpus))


POWERLESS = made.with_gpu(node(), 0, error=Problem(kind=ProblemKind.INSUFFICIENT_POWER))
UNPLUGGED = supplies({"line_input": "LossOfInput"})
BRAKE, LINKS = "power-brake/fail", "nvlink-contradicted/warn"
TABLE: Table = {
    "a brake and a faulty supply are one finding with two witnesses": [
        (braked(chassis), BRAKE, "60 s of 900 s", {"bmc": f"The BMC agrees: a power supply {text}."})
        for chassis, text in (
            (UNPLUGGED, "has no input (PSU0) [supply-no-input]"),
            (supplies({"health": "Critical"}), "failed (PSU0) [supply-failed]"),
        )
    ],
    "a brake with healthy supplies and watts to spare is a contradiction, which warns": (
        braked(supplies()),
        f"{BRAKE} power-contradicted/warn",
        "cables",
        "limits in the BMC",
        {"bmc": None},
    ),
    "no BMC, and nothing read": [(braked(None), BRAKE), (braked(ChassisReading()), BRAKE)],
    "a shelf's supplies are in no server's list": (braked(ChassisReading(lists_supplies=True)), BRAKE),
    "watts in use are none to spare": [
        (braked(supplies({"present": False, "state": "Absent"}, watts=5900)), BRAKE),
        (braked(supplies(watts=7900)), BRAKE),
    ],
    "a size that nobody states is not guessed": [
        (braked(supplies(*[{"capacity_watts": 0, "output_watts": 0}] * 4, watts=None)), BRAKE),
        (braked(supplies({"capacity_watts": None})), BRAKE),
    ],
    "a GPU without power beside healthy supplies is a contradiction": [
        (judge(POWERLESS, chassis=supplies()), "insufficient-power/fail power-contradicted/warn"),
        (judge(POWERLESS, chassis=UNPLUGGED), "insufficient-power/fail", "[supply-no-input]"),
    ],
    "a brake on one idle GPU, which sound machines have shown, contradicts nobody": (
        braked(supplies(), low_utilization=900),
        "power-brake/info",
    ),
    "where both see lost links, one finding says so; where they differ, that is a finding": [
        (linked(18, 18), ""),
        (linked(18, 17), LINKS, "GPU 1 "),
        (linked(10, 18), f"nvlink-degraded/fail {LINKS}", "GPU 1 "),
        (linked(10, 10), "nvlink-degraded/fail", {"bmc": "The BMC agrees: 10 of 18 ports are up."}),
    ],
    "a BMC that lies or counts other ports contradicts nothing": [
        (compared(turned=turned, **changes), "")
        for turned in (False, True)
        for changes in (
            {"ports": 12, "ports_up": 11},
            {"uuid": "of-another-gpu", "ports_up": 17},
            {"ports_up": float("nan")},
            {"ports_up": 19},
            {"ports": 1e300, "ports_up": 1e299},
            {"ports_up": -1},
            {"uuid": made.uuid(0), "ports_up": 17},
        )
    ],
    "MIG: links read as down": (judge(made.every_gpu(made.h100(2), mig=1), chassis=board(ports_up=17)), ""),
}


@pytest.mark.parametrize("row", rows(TABLE))
def test_two_witnesses_are_compared(row: Row) -> None:
    for finding in check(*row).findings:
        assert str(finding.evidence.get("bmc", "")) in finding.message.partition(" Next: ")[0]
        assert "nvlink" not in finding.code or finding.gpus[0].index == 1


def test_a_contradiction_names_the_spare_watts_and_the_same_gpu() -> None:
    brake, contradiction = braked(supplies()).findings
    assert contradiction.evidence == {"spare_watts": 6400}
    assert contradiction.gpus == brake.gpus


def test_a_hostile_reading_stays_bounded() -> None:
    named = [Supply(name="\x1b[31m" + "x" * 10**6, **(GOOD | {"health": "Critical"})) for _ in range(64)]
    window = working(seconds=3.0, growth=grew(power_brake=3))
    (finding,) = judge(node(**window), chassis=ChassisReading(lists_supplies=True, supplies=named)).findings
    assert finding.code == "power-brake"
    assert len(finding.message) < 2000
    assert "\x1b" not in finding.message


def test_heat_names_warm_inlets_failed_fans_and_the_board_s_own_temperature() -> None:
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


def test_a_bmc_neither_sets_nor_clears_a_gate_of_nvml() -> None:
    first = node()
    last = later(first, 900, gpu=0, power_brake=60)
    alone, both = judge(first, last), judge(first, last, chassis=supplies({"health": "Critical"}))
    assert (alone.answers, alone.verdict, alone.history) == (both.answers, both.verdict, both.history)
    calm = judge(made.h100(2), chassis=board(ports_up=17))
    assert (calm.verdict, calm.answers) == (Verdict.WARN, judge(made.h100(2)).answers)
