"""The page's blocks about a load run: power, heat and clocks of every GPU, what it computed and copied."""

from __future__ import annotations

from nodegauge_contract import LoadEnd, LoadGpu, LoadResult, LoadSensor, Num, Storage, Unavailable
from nodegauge_probes.page.format import NOTHING, REASONS, Cells, columns, paragraph, shown


def blocks(load: LoadResult) -> list[str]:
    """The blocks of a load run; empty ones are dropped by `page`."""
    tables = [_heat(load.gpus), _rates(load.gpus), _notes(load.gpus), _sensors(load.sensors)]
    return [_head(load), *tables, _storage(load.storage)]


def _head(load: LoadResult) -> str:
    if load.skipped:
        return paragraph(f"NOT LOADED: {load.skipped}. {load.message}")
    ended = "" if load.ended == LoadEnd.DONE else f"ENDED EARLY: {load.ended}"
    loaded = f"{shown(load.loaded_seconds)} of {shown(load.seconds)} s under load"
    parts = [ended, loaded, f"{shown(load.hz)} samples per second", load.message]
    return paragraph("   ".join(part for part in parts if part))


def _heat(gpus: list[LoadGpu]) -> str:
    heat = ("Start", "Steady", "Max", "Slope", "Memory max")
    rows: list[Cells] = [
        ("GPU", "Power", "of limit", "90 % after", *heat, "SM clock", "PCIe", "Clocks event reasons")
    ]
    for gpu in gpus:
        rows.append(
            (
                str(gpu.index),
                _unit(gpu.steady_mw, "W", scale=1000),
                _share(gpu.steady_mw, gpu.limit_mw),
                _unit(gpu.reached_ms, "s", scale=1000),
                _unit(gpu.start_c, "°C"),
                _unit(gpu.steady_c, "°C"),
                _unit(gpu.max_c, "°C"),
                _unit(gpu.slope_c_per_min, "°C/min"),
                _unit(gpu.memory_max_c, "°C"),
                _unit(gpu.sm_mhz, "MHz"),
                f"{shown(gpu.generation)} x{shown(gpu.width)}",
                ", ".join(
                    f"{REASONS.get(each.bit, hex(each.bit))} {each.samples}/{gpu.samples}"
                    for each in gpu.reasons
                ),
            )
        )
    return columns(rows, right=set(range(1, 11))) if gpus else ""


def _rates(gpus: list[LoadGpu]) -> str:
    copies = ("To GPU", "all", "To host", "all")
    rows: list[Cells] = [("GPU", "Kernel", "TFLOPS", "Memory", *copies, "Checks", "Results", "Checksum")]
    for gpu in gpus:
        rows.append(
            (
                str(gpu.index),
                gpu.kernel or NOTHING,
                _unit(gpu.tflops),
                _unit(gpu.memory_gbps, "GB/s"),
                _unit(gpu.h2d_gbps, "GB/s"),
                _unit(gpu.h2d_all_gbps, "GB/s"),
                _unit(gpu.d2h_gbps, "GB/s"),
                _unit(gpu.d2h_all_gbps, "GB/s"),
                str(gpu.checks),
                _results(gpu),
                str(shown(gpu.checksum)),
            )
        )
    return columns(rows, right=set(range(2, 9))) if gpus else ""


def _results(gpu: LoadGpu) -> str:
    if isinstance(gpu.mismatches, Unavailable):
        return NOTHING
    wrong = [
        f"{count} {what}"
        for count, what in ((gpu.mismatches, "results"), (gpu.memory_mismatches, "in memory"))
        if isinstance(count, int) and count
    ]
    wrong += ["checksum"] if gpu.checksum != gpu.expected else []
    return f"WRONG: {', '.join(wrong)}" if wrong else "right"


def _notes(gpus: list[LoadGpu]) -> str:
    notes = [f"GPU {gpu.index} {gpu.ended}: {gpu.message}" for gpu in gpus if gpu.message]
    return "\n".join(map(paragraph, notes))


def _sensors(sensors: list[LoadSensor]) -> str:
    rows: list[Cells] = [("Sensor", "", "Idle", "Loaded", "Least", "Most")]
    for sensor in sensors:
        unit, scale = ("W", 1e6) if sensor.name.startswith("power") else ("V", 1e3)
        values = (sensor.idle, sensor.loaded, sensor.min, sensor.max)
        cells = [_unit(value, unit, scale=scale) for value in values]
        rows.append((f"{sensor.chip} {sensor.name}", sensor.label, *cells))
    return columns(rows, right={2, 3, 4, 5}) if sensors else ""


def _storage(storage: Storage | None) -> str:
    if storage is None:
        return ""
    where = " on ".join(filter(None, (storage.filesystem, storage.device)))
    node = "" if isinstance(storage.numa_node, Unavailable) else f"NUMA node {storage.numa_node}"
    rates = [
        f"{word} {_unit(rate, 'GB/s')}"
        for word, rate in (("reads", storage.read_gbps), ("writes", storage.write_gbps))
        if not isinstance(rate, Unavailable)
    ]
    known = [f"Storage {storage.path}", where, node, *rates]
    problem = f"NOT READ: {storage.problem}" if storage.problem else ""
    return paragraph("   ".join(filter(None, (*known, problem))))


def _share(value: Num, limit: Num) -> str:
    if isinstance(value, Unavailable) or isinstance(limit, Unavailable) or limit <= 0:
        return NOTHING
    return f"{100 * value / limit:.0f} %"


def _unit(value: Num, unit: str = "", *, scale: float = 1) -> str:
    return NOTHING if isinstance(value, Unavailable) else f"{value / scale:.4g} {unit}".strip()
