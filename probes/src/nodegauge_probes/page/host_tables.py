"""The page's blocks about the rest of the host: PCI bus, network ports, sensors."""

from __future__ import annotations

from itertools import groupby

from nodegauge_contract import Int, Port, Result, Sensor, Unavailable
from nodegauge_probes.page.format import NOTHING, Cells, columns, paragraph, shown

UNITS = {
    "in": (1_000, "V", 2),
    "curr": (1_000, "A", 1),
    "power": (1_000_000, "W", 0),
    "temp": (1_000, "C", 0),
    "fan": (1, "rpm", 0),
}
"""hwmon's kinds of sensors: the factor to the printed unit, that unit, and its digits."""


def bus(result: Result) -> str:
    """A line per difference between the GPUs on the bus and those of the driver."""
    on_bus = result.bus.gpus
    if isinstance(on_bus, Unavailable):
        return ""
    known = {gpu.pci for gpu in result.gpus if isinstance(gpu.pci, str)}
    lines = [f"{gpu} is on the PCI bus but does not respond (reads all ones)" for gpu in result.bus.silent]
    unread = any(gpu.error is not None for gpu in result.gpus)
    missing = [gpu for gpu in on_bus if gpu not in known and gpu not in result.bus.silent]
    if missing and not unread:
        lines.append(f"on the PCI bus, but unknown to the driver: {', '.join(missing)}")
    return "\n".join(paragraph(line) for line in lines)


def ports(result: Result) -> str:
    """Network ports; equal ones share a row."""
    names = result.nics.names
    kinds: dict[tuple[str, ...], list[Port]] = {}
    for port in result.nics.ports:
        kinds.setdefault(_kind(port), []).append(port)
    if not kinds:
        return ""
    head = ("Ports", "State", "Link", "Rate", "Layer", "Errors since reset", "Network cards")
    rows: list[Cells] = [head]
    rows += [(f"{len(alike)}", *kind, _errors(alike), _names(alike, names)) for kind, alike in kinds.items()]
    return columns(rows, right={0, 3})


def sensors(readings: list[Sensor]) -> str:
    """A paragraph per chip, in hwmon's order of kinds."""
    chips: dict[str, list[Sensor]] = {}
    for sensor in readings:
        chips.setdefault(sensor.chip, []).append(sensor)
    lines = [paragraph(f"{chip}: {_readings(alike)}", indent="  ") for chip, alike in chips.items()]
    return "\n".join(["Sensors of supplies and fans", *lines]) if lines else ""


def _kind(port: Port) -> tuple[str, ...]:
    rate = NOTHING if isinstance(port.rate_gbps, Unavailable) else f"{port.rate_gbps:g} Gb/s"
    return str(shown(port.state)), str(shown(port.physical)), rate, str(shown(port.link_layer))


def _errors(alike: list[Port]) -> str:
    """Sums over the ports, if above zero."""
    parts = []
    for name, label in (
        ("link_downed", "link down"),
        ("symbol_errors", "symbol"),
        ("receive_errors", "receive"),
    ):
        counts = [count for port in alike if isinstance(count := getattr(port, name), int)]
        parts += [f"{sum(counts)} {label}"] if sum(counts) else []
    return ", ".join(parts) or "0"


def _names(alike: list[Port], names: list[str]) -> str:
    """`mlx5_0 to mlx5_3, mlx5_6`: three or more consecutive cards as a range."""
    runs: list[list[Port]] = []
    for port in (port for port in alike if port.nic < len(names)):
        if runs and port.nic <= runs[-1][-1].nic + 1:
            runs[-1].append(port)
        else:
            runs.append([port])
    parts = [(run[0], run[-1]) if len(run) > 2 else run for run in runs]
    joints = [" to " if len(run) > 2 else ", " for run in runs]
    return ", ".join(
        joint.join(_named(port, names) for port in part) for joint, part in zip(joints, parts, strict=True)
    )


def _named(port: Port, names: list[str]) -> str:
    return names[port.nic] + (f"/{port.port}" if port.port != 1 else "")


def _readings(alike: list[Sensor]) -> str:
    """`pin 1631, 1622 W`: sensors with the same name together, because several supplies have the same
    chip."""
    parts = []
    for (label, kind), group in groupby(
        alike, key=lambda sensor: (sensor.label or sensor.name, _kind_of(sensor))
    ):
        scale, unit, digits = UNITS.get(kind, (1, "", 0))
        alike_ones = list(group)
        raised = [_raised(sensor.alarm) for sensor in alike_ones]
        values = [_reading(sensor, scale=scale, digits=digits) for sensor in alike_ones]
        if any(raised):  # ALARM follows its value, so each value needs its unit
            alarms = [" ALARM" if alarm else "" for alarm in raised]
            marked = [f"{value} {unit}".rstrip() + alarm for value, alarm in zip(values, alarms, strict=True)]
            parts.append(f"{label} {', '.join(marked)}")
        else:
            parts.append(f"{label} {', '.join(values)} {unit}".rstrip())
    return "; ".join(parts)


def _reading(sensor: Sensor, *, scale: int, digits: int) -> str:
    return NOTHING if isinstance(sensor.value, Unavailable) else f"{sensor.value / scale:.{digits}f}"


def _raised(alarm: Int) -> bool:
    return isinstance(alarm, int) and alarm != 0


def _kind_of(sensor: Sensor) -> str:
    return sensor.name.rstrip("0123456789")
