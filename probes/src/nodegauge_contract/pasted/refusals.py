"""What nvidia-smi shows and refuses: GPUs that it cannot read, values that failed, GPUs that it lacks.

A value that failed is a statement; one that a model does not have (`N/A`) is none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from nodegauge_contract.gpu import Gpu
from nodegauge_contract.paste import StatementKind
from nodegauge_contract.pasted import fields, overview
from nodegauge_contract.pasted.query import Query
from nodegauge_contract.pasted.statements import Gathered
from nodegauge_contract.pasted.tables import Table
from nodegauge_contract.values import ProblemKind

_COUNTED = re.compile(
    r"\s*(?:(\d{1,2}) GPUs found\.\s*$|[0-9a-f:.]{7,12} (?:3D|VGA)[\w ]{1,12}controller: NVIDIA)"
)
"""A line with the number of GPUs (dcgmi discovery), or a GPU on the bus (lspci)."""
_SELECTED = re.compile(r"\bnvidia-smi\b.* (?:-i|--id)[ =]")
_FAILED = re.compile(r"\[?(?:(Unknown Error|ERR!)|GPU is lost|GPU requires reset)\]?$", re.IGNORECASE)


def read(
    lines: Sequence[str],
    gathered: Gathered,
    *,
    gpus: Sequence[Gpu],
    query: Query,
    listed: Sequence[Gpu],
    tables: Sequence[Table],
) -> None:
    """Add what nvidia-smi refuses.  `listed`: GPUs of the plain table and of `-L`; `tables`: of `topo`."""
    for gpu in gpus:
        _unreadable(lines, gathered, gpu, query)
    for number, gpu, names in overview.failed(lines):
        if gpu.error is None and (
            any(name not in overview.POWER for name in names) or _answered(listed, gpu)
        ):
            kind = StatementKind.ERR_CELL if overview.MIG_MODE in names else StatementKind.ERR_VALUE
            text = f"GPU {gpu.index} ({gpu.pci}): ERR! instead of its {', '.join(names)}"
            gathered.add(kind, number, text, source="nvidia-smi", subject=f"GPU {gpu.index}")
    _failed_values(gathered, query)
    _fewer(lines, gathered, query=query, listed=listed, tables=tables)


def _unreadable(lines: Sequence[str], gathered: Gathered, gpu: Gpu, query: Query) -> None:
    """What nvidia-smi says of a GPU that it lists and cannot read is a failure, and no missing value."""
    if gpu.error is None or gpu.error.kind != ProblemKind.NVML_ERROR or not isinstance(gpu.pci, str):
        return
    lost = next((lost for at, lost in query.lost.items() if fields.pci(at) == gpu.pci), None)
    kind, index = StatementKind.ERR_CELL, gpu.index
    slot = gpu.pci.partition(":")[2].lower()
    number = next((number for number, line in enumerate(lines, 1) if slot in line.lower()), 1)
    if lost is not None:
        kind, number = StatementKind.DEVICE_HANDLE, lost.line
    name = gpu.pci if lost is not None and lost.index is None else f"GPU{index} ({gpu.pci})"
    gathered.add(kind, number, f"{name}: {gpu.error.message}", source="nvidia-smi", subject=name)


def _answered(listed: Sequence[Gpu], gpu: Gpu) -> bool:
    """Whether another GPU tells its power: `ERR!` for it passes (Azure/azhpc-diagnostics, issue 77)."""
    return any(isinstance(other.power.usage_mw, int) for other in listed if other.index != gpu.index)


def _failed_values(gathered: Gathered, query: Query) -> None:
    """Values of `-q` that failed: a lost GPU and one that waits for a reset say so; other errors count where
    another GPU has the value."""
    for text in query.gpus:
        for key, value in sorted(text.values.items()):
            failed = _FAILED.match(value)
            answered = any(not _FAILED.match(other.values.get(key, value)) for other in query.gpus)
            if failed is None or not (failed[1] is None or answered):
                continue
            kind = StatementKind.ERR_CELL
            if failed[1] is None:
                kind = StatementKind.FALLEN_OFF if "lost" in value.lower() else StatementKind.RESET_REQUIRED
            name = fields.pci(text.pci) if text.pci else ""
            value_name = key.rpartition("/")[2].replace("_", " ")
            message = f"{name}: {value} instead of {value_name}"
            gathered.add(kind, text.line, message, source="nvidia-smi -q", subject=name)


def _fewer(
    lines: Sequence[str],
    gathered: Gathered,
    *,
    query: Query,
    listed: Sequence[Gpu],
    tables: Sequence[Table],
) -> None:
    """A list of GPUs that is shorter than what `-L`, matrix, bus or DCGM shows.  A list with holes is cut."""
    shown = len(query.gpus) or len(overview.gpus(lines)) or len(listed)
    whole = [gpu.index for gpu in listed] == list(range(len(listed)))
    others = {"`-L`": (1, len(listed))} | {f"`{each.kind.value}`": (each.line, each.gpus) for each in tables}
    on_bus: list[int] = []
    for number, line in enumerate(lines, 1):
        if (match := _COUNTED.match(line)) and match[1]:
            others["dcgmi"] = (number, int(match[1]))
        elif match:
            on_bus.append(number)
            others["lspci"] = (on_bus[0], len(on_bus))
    selected = any(_SELECTED.search(line) for line in lines)
    for name, (number, count) in others.items():
        if whole and not selected and 0 < shown < count:
            message = f"nvidia-smi lists {shown} GPUs, {name} {count}"
            gathered.add(StatementKind.FEWER_GPUS, number, message, source="nvidia-smi")
