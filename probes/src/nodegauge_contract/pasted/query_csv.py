"""`nvidia-smi --query-gpu=... --format=csv` as the values of `nvidia-smi -q`, so that `fields` reads both.

Columns are read by their names, with or without units.  Several rows of one GPU are samples of a loop, and
rows without a header mean nothing: neither is read.  Source: `nvidia-smi --help-query-gpu`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from nodegauge_contract.model import MAX_GPUS
from nodegauge_contract.pasted.query import GpuText

SOURCE = "nvidia-smi --query-gpu"
_KEYS = {
    "name": "*/product_name",
    "uuid": "*/gpu_uuid",
    "gpu_uuid": "*/gpu_uuid",
    "vbios_version": "*/vbios_version",
    "pstate": "*/performance_state",
    "temperature.gpu": "temperature/gpu_current_temp",
    "temperature.memory": "temperature/memory_current_temp",
    "power.draw": "power_readings/power_draw",
    "power.limit": "power_readings/power_limit",
    "enforced.power.limit": "power_readings/enforced_power_limit",
    "power.default_limit": "power_readings/default_power_limit",
    "pcie.link.gen.current": "pcie_generation/current",
    "pcie.link.gen.gpucurrent": "pcie_generation/current",
    "pcie.link.gen.max": "pcie_generation/max",
    "pcie.link.width.current": "link_width/current",
    "pcie.link.width.max": "link_width/max",
    "clocks.sm": "clocks/sm",
    "clocks.current.sm": "clocks/sm",
    "clocks.max.sm": "max_clocks/sm",
    "utilization.gpu": "utilization/gpu",
    "mig.mode.current": "mig_mode/current",
    "ecc.mode.current": "ecc_mode/current",
    "ecc.errors.corrected.volatile.total": "volatile/single_bit/total",
    "ecc.errors.uncorrected.volatile.total": "volatile/double_bit/total",
    "ecc.errors.corrected.aggregate.total": "aggregate/single_bit/total",
    "ecc.errors.uncorrected.aggregate.total": "aggregate/double_bit/total",
    "retired_pages.single_bit_ecc.count": "retired_pages/single_bit_ecc",
    "retired_pages.double_bit.count": "retired_pages/double_bit_ecc",
    "retired_pages.pending": "retired_pages/pending",
    "remapped_rows.correctable": "remapped_rows/correctable_error",
    "remapped_rows.uncorrectable": "remapped_rows/uncorrectable_error",
    "remapped_rows.pending": "remapped_rows/pending",
    "remapped_rows.failure": "remapped_rows/remapping_failure_occurred",
}
_ADDRESS = ("pci.bus_id", "gpu_bus_id")
_REASON = re.compile(r"clocks_(?:throttle|event)_reasons\.(?!active|supported)")
_COLUMN = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z0-9_]+)*(?: \[[^\]]{1,8}\])?")
_NOTHING = re.compile(r"\[(?:N/A|Not Supported)\]")


def gpus(lines: Sequence[str]) -> list[GpuText]:
    """The GPUs of every table, in their order; none if one GPU has several rows."""
    read: dict[str, GpuText] = {}
    columns: list[str] = []
    for number, line in enumerate(lines, 1):
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) > 1 and all(map(_COLUMN.fullmatch, cells)) and _known(cells):
            columns = [cell.partition(" [")[0] for cell in cells]
        elif columns and len(cells) == len(columns):
            gpu = _gpu(number, dict(zip(columns, cells, strict=True)), position=len(read))
            if read.setdefault(gpu.pci or str(gpu.index), gpu) is not gpu:
                return []
        elif line.strip():
            columns = []
    return list(read.values())[:MAX_GPUS]


def _known(cells: Sequence[str]) -> bool:
    names = [cell.partition(" [")[0] for cell in cells]
    return any(name in _KEYS or _REASON.match(name) for name in names) and any("." in name for name in names)


def _gpu(line: int, row: dict[str, str], *, position: int) -> GpuText:
    values: dict[str, str] = {}
    for column, cell in row.items():
        key = _KEYS.get(column, _REASON.sub("clocks_event_reasons/", column))
        values[key] = _NOTHING.sub("N/A", cell)
    address = next((row[column].lower() for column in _ADDRESS if column in row), "")
    index = int(row["index"]) if row.get("index", "").isdecimal() and len(row["index"]) < 3 else position
    return GpuText(line=line, pci=address, values=values, whole=True, index=index)
