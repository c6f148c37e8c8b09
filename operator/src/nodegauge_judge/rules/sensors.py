"""Rules about power supplies, 12 V rails and fans, from what hwmon and NVML show without privileges.

Most hwmon inputs cannot be trusted: mainboard chips need a scale that the kernel does not know.  So only a
supply's own alarms count, and only a reading that a supply's chip or a kernel label calls 12 V is a rail.
A missing sensor proves nothing.

Sources: Documentation/hwmon of the kernel and the device names that its drivers register; for the tolerance
of 12 V at the connectors, Intel's ATX 3.0 design guide (336521), table 3-5.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nodegauge_contract import Sensor
from nodegauge_judge.case import Case, HealthRule, all_answered, clip, number, of_gpu, once
from nodegauge_judge.model import Cause, Gate, GateKind, Scalar, Severity
from nodegauge_judge.rule import DRAIN, REPORT, Observation
from nodegauge_judge.thresholds import Thresholds

NOMINAL = 12.0
PLAUSIBLE = (9.0, 15.0)
"""Volts that a 12 V rail can have on a running machine; anything else is another rail or a wrong scale."""
TOLERANCE = (10.2, 13.8)
"""Volts within which a chip's own limits are a tolerance (15 % off 12 V).  At wider limits a supply switches
itself off (corsair-psu: 8.41 and 15.59).  Chosen by this project."""
SENSORS = "sensors"
"""The name in `omitted` of a document that lacks sensors."""
UNDERSIZED = 2
"""NVML_POWER_SOURCE_UNDERSIZED."""
_TWELVE = re.compile(r"(?<![\d.])\+?p?12(\.0)?[ _]?v(?![a-z])", re.IGNORECASE)
_STATUS = re.compile(r"\b(pg|pgood|power.?good|ok)\b", re.IGNORECASE)

_SUPPLIES = re.compile(
    "acbel_fsg032|aps_379|bpa_rs600|bpd_rs600|cffps|corsairpsu|crps|d1u74t|dps920ab|hac300s|ibm_cffps|"
    "intel_crps|ipsps|lineage_pem|pfe1100|pfe3000|yh5151e|ym2151e"
)
"""Prefixes of the chip names that kernel drivers for power supplies register."""
_MAINBOARD = ("nct6", "it86", "it87", "f71", "f8000", "w83", "sch5", "smsc", "dme1737", "pc87", "vt1211")
"""Prefixes of the names of SuperIO chips.  Their inputs need a multiplier that only the board's vendor knows,
and their alarms compare with limits that are not set."""
_UNITS = (
    ("in", 1000, 2, "V"),
    ("curr", 1000, 1, "A"),
    ("power", 1_000_000, 1, "W"),
    ("temp", 1000, 1, "°C"),
    ("fan", 1, 0, "rpm"),
)
"""By hwmon's prefix: its units per unit that is printed, digits, and the printed unit."""


def psu_fault(case: Case) -> Iterator[Observation]:
    """Supplies that raise an alarm, and GPUs whose power source is undersized."""
    for sensor in _supply_sensors(case):
        if sensor.alarm == 1:
            yield _alarm(sensor, Severity.FAIL, whose="The power supply")
    message = "The driver calls the GPU's power supply undersized (NVML power source 2)."
    for gpu in case.result.gpus:
        if gpu.power.source == UNDERSIZED:
            yield of_gpu(gpu, Severity.FAIL, message, evidence={"power_source": UNDERSIZED})


def rail(case: Case) -> Iterator[Observation]:
    """12 V rails outside their tolerance."""
    for sensor in _rails(case):
        observation = _out_of_range(sensor, case.thresholds)
        if observation is not None:
            yield observation


def fan_stopped(case: Case) -> Iterator[Observation]:
    """Fans with a target speed that do not turn."""
    for gpu in case.result.gpus:
        for number_of_fan, fan in enumerate(gpu.fans):
            if fan.rpm == 0 and isinstance(fan.target, int) and fan.target >= case.thresholds.fan_target:
                yield of_gpu(
                    gpu,
                    Severity.WARN,
                    message=f"0 rpm at a target of {fan.target} %.",
                    evidence={"rpm": 0, "target_percent": fan.target},
                    weight=fan.target,
                    part=f"fan {number_of_fan}",
                )
    for sensor in case.result.sensors:
        if _is_fan_alarm(sensor):
            yield _alarm(sensor, Severity.WARN, whose="The chip that watches the fan")


def supply_is_fine(case: Case) -> bool:
    """Whether at least one sensor of a supply was read, none is mute, and no supply or rail is bad.  A supply
    that lost its input often stops answering."""
    supplies = _supply_sensors(case)
    read = bool(supplies) and _all_listed(case) and not any(_is_mute(sensor) for sensor in supplies)
    return read and not any(True for check in (psu_fault, rail) for _ in check(case))


def supply_read(case: Case) -> bool:
    """Whether a fault would have been seen: no sensor of a supply is mute; or, without such a chip, every GPU
    that supports it reports its power source."""
    if not _all_listed(case):
        return False
    supplies = _supply_sensors(case)
    if supplies:
        return not any(_is_mute(sensor) for sensor in supplies)
    return all_answered(gpu.power.source for gpu in case.result.gpus)


def rail_read(case: Case) -> bool:
    """Whether at least one 12 V rail was read and every other one too."""
    mute = any(is_called_rail(s) and number(s.value) is None for s in case.result.sensors)
    return bool(_rails(case)) and not mute and _all_listed(case)


def _all_listed(case: Case) -> bool:
    """Whether the document lists all sensors."""
    return case.result.problem is None and SENSORS not in case.result.omitted


@once
def _supply_sensors(case: Case) -> list[Sensor]:
    return [sensor for sensor in case.result.sensors if _is_supply(sensor)]


@once
def _rails(case: Case) -> list[Sensor]:
    return [sensor for sensor in case.result.sensors if is_rail(sensor)]


def is_rail(sensor: Sensor) -> bool:
    millivolts = number(sensor.value)
    plausible = millivolts is not None and PLAUSIBLE[0] <= millivolts / 1000 <= PLAUSIBLE[1]
    return plausible and is_called_rail(sensor)


def is_called_rail(sensor: Sensor) -> bool:
    """A voltage that the kernel labels as 12 V, or a supply's output."""
    label = sensor.label.strip().lower()
    if not sensor.name.startswith("in") or _STATUS.search(label):
        return False
    output = _is_supply(sensor) and (not label or label.startswith("vout"))
    return output or _TWELVE.search(label) is not None


def _is_mute(sensor: Sensor) -> bool:
    return number(sensor.value) is None and not isinstance(sensor.alarm, int)


def _out_of_range(sensor: Sensor, thresholds: Thresholds) -> Observation | None:
    volts = (number(sensor.value) or 0.0) / 1000
    own = _own_limits(sensor)
    fails = _limits(own, low=thresholds.rail_low, high=thresholds.rail_high)
    if not fails[0] <= volts <= fails[1]:
        return _rail_hit(sensor, Severity.FAIL, volts=volts, limits=fails)
    warns = _limits(own, low=thresholds.rail_warn, high=thresholds.rail_warn)
    if not warns[0] <= volts <= warns[1]:
        return _rail_hit(sensor, Severity.WARN, volts=volts, limits=warns)
    return None


def _own_limits(sensor: Sensor) -> tuple[float | None, float | None]:
    """The chip's lower and upper limit in volts; None for one that is too wide to be a tolerance."""
    low, high = number(sensor.low), number(sensor.high)
    return (
        low / 1000 if low is not None and TOLERANCE[0] <= low / 1000 < NOMINAL else None,
        high / 1000 if high is not None and NOMINAL < high / 1000 <= TOLERANCE[1] else None,
    )


def _limits(own: tuple[float | None, float | None], *, low: float, high: float) -> tuple[float, float]:
    """Volts, to the millivolt: the chip's own limits, else the policy's shares of 12 V."""
    return (
        own[0] if own[0] is not None else round(NOMINAL * (1 - low), 3),
        own[1] if own[1] is not None else round(NOMINAL * (1 + high), 3),
    )


def _rail_hit(
    sensor: Sensor, severity: Severity, *, volts: float, limits: tuple[float, float]
) -> Observation:
    low, high = limits
    return Observation(
        severity=severity,
        location=_full_location(sensor),
        short=_short_location(sensor),
        message=f"{volts:.2f} V; should be {low:.2f} to {high:.2f} V.",
        evidence={"volts": round(volts, 3), "low_volts": round(low, 3), "high_volts": round(high, 3)},
        weight=abs(volts - NOMINAL),
    )


def _alarm(sensor: Sensor, severity: Severity, *, whose: str) -> Observation:
    value = number(sensor.value)
    reading = "" if value is None else with_unit(sensor, value)
    evidence: dict[str, Scalar] = {"alarm": 1, "reading": reading} if reading else {"alarm": 1}
    return Observation(
        severity=severity,
        location=_full_location(sensor),
        short=_short_location(sensor),
        message=f"{whose} raises an alarm{f'; it reads {reading}' if reading else ''}.",
        evidence=evidence,
    )


def _is_fan_alarm(sensor: Sensor) -> bool:
    """A mainboard chip also raises alarms for headers without a fan; a label means that there is one."""
    trusted = bool(sensor.label.strip()) or not _is_mainboard(sensor)
    return sensor.name.startswith("fan") and sensor.alarm == 1 and trusted and not _is_supply(sensor)


def _is_supply(sensor: Sensor) -> bool:
    """Whether the chip is a power supply."""
    chip = _normal(sensor.chip)
    return _SUPPLIES.match(chip) is not None or "psu" in chip


def _is_mainboard(sensor: Sensor) -> bool:
    """Whether the chip is a SuperIO."""
    return _normal(sensor.chip).startswith(_MAINBOARD)


def _short_location(sensor: Sensor) -> str:
    """`corsairpsu in1`."""
    return clip(f"{sensor.chip} {sensor.name}")


def _full_location(sensor: Sensor) -> str:
    """`corsairpsu in1 (v_out +12v)`, or without a label."""
    label = sensor.label.strip()
    return f"{_short_location(sensor)} ({clip(label)})" if label else _short_location(sensor)


def with_unit(sensor: Sensor, value: float) -> str:
    """A value of the sensor with its unit: `11.52 V`."""
    for prefix, scale, digits, unit in _UNITS:
        if sensor.name.startswith(prefix):
            return f"{value / scale:.{digits}f} {unit}"
    return f"{value:g}"


def _normal(chip: str) -> str:
    return chip.strip().lower().replace("-", "_").replace(" ", "_")


RULES = (
    HealthRule(
        code="psu-fault",
        title="a power supply reports a fault or is undersized",
        meaning=(
            "A power supply raises an alarm on one of its own sensors (input lost, output, current, "
            "temperature, its fan), or the driver reports that a GPU's power supply is undersized (NVML "
            "power source 2). Under load, the power brake will slow GPUs down next, or the node will switch "
            "off."
        ),
        when={
            Severity.FAIL: (
                "a supply's own sensor raises an alarm (hwmon), or NVML's power source is undersized (2)"
            )
        },
        next_step="check supply, power cord and feed; the BMC's event log says more.",
        way_out=(
            "`sensors` on the node shows the alarm; `ipmitool sdr type 'Power Supply'` and `ipmitool sel "
            "list` show what the BMC logged.",
            "Check the power cord and the feed (PDU, breaker); swap supplies to tell a bad supply from a "
            "bad slot.",
            DRAIN,
            "Replace the supply, or fit one with the rating that the GPUs need.",
        ),
        gate=Gate(kind=GateKind.UNHEALTHY, cause=Cause.PSU),
        check=psu_fault,
        readable=supply_read,
    ),
    HealthRule(
        code="rail",
        title="12 V is out of range",
        meaning=(
            "A 12 V rail that feeds GPUs reads too low or too high. Only trustworthy sensors count: those of "
            "power supplies, and those that the kernel labels as 12 V. An unlabelled input of a mainboard "
            "chip needs a multiplier that only the board's vendor knows, so it never counts as a rail."
        ),
        when={
            Severity.WARN: "more than `railWarn` (default 0.05) off 12 V, as a share of it",
            Severity.FAIL: (
                "more than `railHigh` (default 0.05) above or `railLow` (default 0.08) below 12 V; if the "
                "chip has tolerances of its own, outside of those instead"
            ),
        },
        next_step="measure the rail under load; reseat the power cables, one cable per socket.",
        way_out=(
            "`sensors` on the node, idle and under load: a sag that follows the load comes from the supply "
            "or its cables, a constant one from the sensor.",
            DRAIN,
            "Reseat the cables, one per socket and no pigtails; replace the supply if it stays low.",
        ),
        gate=Gate(kind=GateKind.UNHEALTHY, cause=Cause.PSU),
        check=rail,
        readable=rail_read,
    ),
    HealthRule(
        code="fan-stopped",
        title="a fan stands still",
        meaning=(
            "A fan has a target speed and does not turn. Cards without fans and fans that rest while it is "
            "cool do not count: the target must be high, or the chip that watches the fan must raise an "
            "alarm."
        ),
        when={
            Severity.WARN: (
                "0 rpm at a target of `fanTarget` (default 60) per cent or more, or a fan alarm (hwmon; on "
                "mainboard chips only for fans with a label)"
            )
        },
        next_step="look at the fan: blocked, unplugged or worn out.",
        way_out=(
            "`nvidia-smi -q -d FAN_SPEED` or `sensors` on the node shows which fan.",
            "Free it from cables, check its plug, replace it. Heat slows the GPU down before it harms it.",
            REPORT,
        ),
        check=fan_stopped,
    ),
)
