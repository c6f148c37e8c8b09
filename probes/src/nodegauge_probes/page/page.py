"""One result for a person: the matrix of `nvidia-smi topo -m`, and compact tables.

About 120 columns at most besides the matrix, plain ASCII, no colours: it is read over serial consoles and
pasted into tickets.  A cell without a value is "-", and a paragraph at the end gives the reasons, except for
values that nobody expects: of two families of readings only one exists on a board, and a part whose values
are all missing for one reason is named as a whole.  Nothing is judged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby

import msgspec

from nodegauge_contract import Gpu, Int, Port, Result, Sensor, Unavailable, render_matrix
from nodegauge_contract.placement import numa_lines
from nodegauge_probes.nvml.results import ranges
from nodegauge_probes.page import feed_tables, format, gpu_tables, load_tables, nccl_tables
from nodegauge_probes.page.format import NOTHING, Cells, columns, paragraph, shown


def render(result: Result, *, terminal: int | None = None) -> str:
    """The whole page, ending in a newline.  `terminal`: the columns of the terminal, if there is one."""
    blocks = [_title(result), _problem(result)]
    if result.nccl is not None:
        blocks += nccl_tables.blocks(result.nccl)
        blocks += [render_matrix(result, width=terminal)]
    elif result.feed is not None:
        blocks += feed_tables.blocks(result.feed)
    elif result.load is not None:
        blocks += load_tables.blocks(result.load)
    else:
        blocks += [_matrix(result, terminal), *_tables(result), missing_values(result)]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _title(result: Result) -> str:
    system = result.system
    versions = (("driver", system.driver), ("NVML", system.nvml), ("CUDA", _cuda(system.cuda)))
    parts = [result.node] if result.node else []
    parts += [f"{name} {value}" for name, value in versions if not isinstance(value, Unavailable)]
    names = [gpu.name for gpu in result.gpus if isinstance(gpu.name, str)]
    parts += [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]
    return "   ".join(parts)


def _cuda(version: int | Unavailable) -> str | Unavailable:
    """NVML's integer as a version: 12040 is 12.4."""
    if isinstance(version, Unavailable):
        return version
    return f"{version // 1000}.{version % 1000 // 10}"


def _problem(result: Result) -> str:
    problem = result.problem
    if problem is None:
        return ""
    head = "INCOMPLETE" if result.gpus or result.nccl or result.load else "NOTHING COULD BE READ"
    call = f" in {problem.call}" if problem.call else ""
    return paragraph(f"{head}: {problem.kind}{call}. {problem.message}.")


def _matrix(result: Result, terminal: int | None) -> str:
    if not result.gpus and result.problem is None:
        return paragraph(
            "The driver works but shows no GPU. In a container, check that NVIDIA_VISIBLE_DEVICES=all is set."
        )
    return render_matrix(result, width=terminal)


def _tables(result: Result) -> list[str]:
    gpus = result.gpus
    tables = [
        gpu_tables.condition(result),
        gpu_tables.links(result),
        gpu_tables.p2p_legend(result),
        gpu_tables.throttling(gpus),
        gpu_tables.errors(gpus),
    ]
    host = [bus(result), ports(result), placement(result), sensors(result.sensors)]
    return [*(tables if gpus else []), *host]


NOT_REPORTED = frozenset({"links", "error", "gpu_numa_id", "fans"})
"""Parts of a GPU whose missing values the tables already show or nobody expects."""

EITHER_OR = {
    "temperature": (
        frozenset({"shutdown", "slowdown", "memory_max", "gpu_max"}),
        frozenset({"tlimit_shutdown", "tlimit_slowdown", "tlimit_memory_max", "tlimit_gpu_max", "margin"}),
    ),
    "repair": (
        frozenset({"rows_corrected", "rows_uncorrected", "rows_pending", "rows_failed"}),
        frozenset({"pages_single_bit", "pages_double_bit", "pages_pending"}),
    ),
    "link_errors": (
        frozenset({"replay", "recovery", "crc_flit", "crc_data", "ecc"}),
        frozenset({"recovery_failed", "effective", "symbol", "recoveries", "received", "integrity"}),
    ),
}
"""Families of values: older boards have one of them, newer boards the other."""

ValueName = tuple[str, str]
"""Part of the GPU, and value; one of them may be empty."""


def missing_values(result: Result) -> str:
    """A paragraph per reason, with the values and the GPUs; empty if nothing is missing."""
    lines = []
    for reason, names in _reasons(result).items():
        groups: dict[tuple[int, ...], list[ValueName]] = {}
        for name, gpus in names.items():
            groups.setdefault(tuple(gpus), []).append(name)
        parts = [_listed(values) + _on(gpus, all_of=len(result.gpus)) for gpus, values in groups.items()]
        lines.append(paragraph(f"{format.reason(reason)}: {'; '.join(parts)}", indent="  "))
    return "Not available\n" + "\n".join(lines) if lines else ""


def _reasons(result: Result) -> dict[str, dict[ValueName, list[int]]]:
    """Reason -> (part, value) -> the GPUs that lack it for that reason."""
    reasons: dict[str, dict[ValueName, list[int]]] = {}
    for gpu in result.gpus:
        if gpu.error is None:
            for name, reason in _unavailable(gpu):
                reasons.setdefault(reason, {}).setdefault(name, []).append(gpu.index)
    return reasons


def _unavailable(gpu: Gpu) -> Iterator[tuple[ValueName, str]]:
    """Every unavailable value of a GPU that is worth reporting, as ((part, value), reason)."""
    for field in msgspec.structs.fields(gpu):
        value = getattr(gpu, field.name)
        if field.name in NOT_REPORTED:
            continue
        if isinstance(value, Unavailable):
            yield ("", field.name), value.unavailable
        elif isinstance(value, msgspec.Struct):
            yield from _in_part(field.name, value)


def _in_part(name: str, part: msgspec.Struct) -> Iterator[tuple[ValueName, str]]:
    leaves = {field.name: getattr(part, field.name) for field in msgspec.structs.fields(part)}
    missing = {leaf: v.unavailable for leaf, v in leaves.items() if isinstance(v, Unavailable)}
    if len(missing) == len(leaves) and len(set(missing.values())) == 1:
        yield (name, ""), next(iter(missing.values()))
        return
    first, second = EITHER_OR.get(name, (frozenset(), frozenset()))
    irrelevant = (second if first - missing.keys() else frozenset()) | (
        first if second - missing.keys() else frozenset()
    )
    for leaf, reason in missing.items():
        if leaf not in irrelevant:
            yield (name, leaf), reason


def _listed(names: list[ValueName]) -> str:
    """`temperature memory, margin; clocks pstate`: the document's names without units."""
    parts: dict[str, list[str]] = {}
    for part, value in names:
        values = parts.setdefault(part.replace("_", " "), [])
        values.append(re.sub(r"_(ns|mw|mj|mib|mhz)$", "", value).replace("_", " "))
    return "; ".join(f"{part} {', '.join(values)}".strip() for part, values in parts.items())


def _on(gpus: tuple[int, ...], *, all_of: int) -> str:
    listed = ranges([sum(1 << gpu for gpu in gpus)], bits=max(gpus) + 1)
    return "" if len(gpus) == all_of else f" (GPU {listed})"


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
    served = dict(zip(on_bus, result.bus.drivers, strict=False))
    foreign = {
        gpu: who
        for gpu, who in served.items()
        if isinstance(who, str) and who != "nvidia" and gpu not in known
    }
    lines += [f"{gpu} is not for this driver: {who}" for gpu, who in foreign.items()]
    missing = [gpu for gpu in on_bus if gpu not in known | foreign.keys() and gpu not in result.bus.silent]
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


def placement(result: Result) -> str:
    """A line per NUMA node."""
    return "\n".join(map(paragraph, numa_lines(result)))


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
