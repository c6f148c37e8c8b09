"""The page's layout, and names for NVML's numbers.

Columns are as wide as their content, paragraphs have 100 characters, "-" means no value.  Sources of the
names: nvml.h (nvmlClocksEventReasons, nvmlGpuP2PStatus_t, nvmlGpuFabricState), the legend of `nvidia-smi
topo -p2p` and pynvml's NVML_GPU_RECOVERY_ACTION_*.  A name is not a judgement: "SW power cap" is normal
under load.
"""

from __future__ import annotations

import textwrap
from typing import Any

from nodegauge_contract import ClocksEvents, Fabric, Gpu, LinkGroup, Repair, Unavailable
from nodegauge_contract.model import Row
from nodegauge_contract.values import NOT_READ
from nodegauge_probes.nvml.results import ranges

WIDTH = 100
NOTHING = "-"

Cells = tuple[str, ...]


def columns(rows: list[Cells], *, right: set[int]) -> str:
    """A table; the columns in `right` are aligned right."""
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if n in right else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def known_columns(rows: list[Cells], *, right: set[int]) -> str:
    """As `columns`, without empty columns; empty if only the first column has values."""
    kept = [n for n in range(len(rows[0])) if n == 0 or any(row[n] != NOTHING for row in rows[1:])]
    if len(kept) == 1:
        return ""
    aligned = {index for index, n in enumerate(kept) if n in right}
    return columns([tuple(row[n] for n in kept) for row in rows], right=aligned)


def merged(rows: list[tuple[int, Cells]]) -> list[Cells]:
    """Rows from (GPU, cells); GPUs with the same cells share a row: `0-3,5`."""
    alike: dict[Cells, int] = {}
    for gpu, cells in rows:
        alike[cells] = alike.get(cells, 0) | 1 << gpu
    return [(ranges([gpus], bits=gpus.bit_length()), *cells) for cells, gpus in alike.items()]


def paragraph(text: str, *, indent: str = "") -> str:
    return textwrap.fill(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False
    )


def shown(value: Any) -> Any:
    return NOTHING if isinstance(value, Unavailable) else value


def with_unit(value: Any, after: str, *, before: str = "") -> str:
    return NOTHING if isinstance(value, Unavailable) else f"{before}{value}{after}"


def with_limit(value: str, limit: str, *, between: str, unit: str = "") -> str:
    """`72 / 700 W`, `345 / 1980`; "-" if both are missing."""
    return NOTHING if value == limit == NOTHING else f"{value}{between}{limit}{unit}"


REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "SW power cap",
    0x8: "HW slowdown",
    0x10: "sync boost",
    0x20: "SW thermal slowdown",
    0x40: "HW thermal slowdown",
    0x80: "HW power brake",
    0x100: "display clocks",
}
P2P = {0: "ok", 1: "CNS", 2: "GNS", 3: "TNS", 4: "DR", 5: "NS", 6: "U"}
P2P_LEGEND = {
    "CNS": "chipset not supported",
    "GNS": "GPU not supported",
    "TNS": "topology not supported",
    "DR": "disabled by regkey",
    "NS": "not supported",
    "U": "unknown",
}
FABRIC = {0: "none", 1: "not started", 2: "in progress", 3: "completed"}
ACTIONS = {
    0: "none",
    1: "GPU reset",
    2: "node reboot",
    3: "drain P2P",
    4: "drain and reset",
    5: "recover IMEX",
    6: "bus reset",
    7: "system reboot",
}
COUNTERS = {
    "sw_power_cap_ns": "SW power cap",
    "sync_boost_ns": "Sync boost",
    "sw_thermal_ns": "SW thermal",
    "hw_thermal_ns": "HW thermal",
    "power_brake_ns": "Power brake",
    "thermal_violation_ns": "Thermal violation",
}
CODES = {
    NOT_READ.unavailable: "not read, because the run ended earlier",
    "NVML_ERROR_NOT_SUPPORTED": "not supported by this GPU",
    "NVML_ERROR_FUNCTION_NOT_FOUND": "this driver lacks the call",
    "NVML_ERROR_NO_PERMISSION": "no permission for this user",
    "NVML_ERROR_INVALID_ARGUMENT": "unknown to this GPU or driver",
}

ACTIVE = 1
REMOTE_SWITCH = 2


def reason(text: str) -> str:
    """Why a value is missing, with a description instead of NVML's code."""
    return CODES.get(text, text)


def reasons(events: ClocksEvents) -> str:
    """Clocks event reasons of the window, with their share of samples unless it was all of them."""
    if isinstance(events.read, Unavailable):
        return NOTHING
    names = [
        REASONS.get(seen.bit, hex(seen.bit))
        + ("" if seen.samples == events.read else f" {seen.samples}/{events.read}")
        for seen in events.seen
    ]
    return ", ".join(names) or "nothing"


def links(gpu: Gpu) -> str:
    """How many NVLinks are up, and their rate; "none" if the driver reports that there are none."""
    known = [group for group in gpu.links if not isinstance(group.state, Unavailable)]
    if not known:
        return "none" if _has_no_links(gpu) else NOTHING
    up = [group for group in known if group.state == ACTIVE]
    count, total = _count(up), _count(known)
    rates = [group.mbps for group in up if isinstance(group.mbps, int)]
    rate = f" x {min(rates) / 1000:.3g} GB/s" if rates else ""
    target = ", switch" if any(group.remote_type == REMOTE_SWITCH for group in up) else ""
    return f"{count} of {total} up{rate}{target}" if count else f"0 of {total} up"


def p2p(row: Row, index: int) -> str:
    """One GPU's row of a P2P grid: number of peers with status OK, and the other statuses."""
    peers = [status for column, status in enumerate(row) if column != index]
    if not peers:
        return NOTHING
    good = sum(status == 0 for status in peers)
    bad = [P2P.get(s, str(s)) if isinstance(s, int) else "n/a" for s in peers if s != 0]
    return " ".join([f"{good}/{len(peers)}", *dict.fromkeys(bad)])


def fabric(fabric: Fabric) -> str:
    if isinstance(fabric.state, Unavailable):
        return NOTHING
    state = FABRIC.get(fabric.state, f"state {fabric.state}")
    if fabric.state == 3 and isinstance(fabric.status, int) and fabric.status != 0:
        return f"{state}, status {fabric.status}"
    return state


def action(repair: Repair) -> str:
    """The recovery action that the driver asks for (field 230)."""
    if isinstance(repair.action, Unavailable):
        return NOTHING
    return ACTIONS.get(repair.action, f"action {repair.action}")


def _count(groups: list[LinkGroup]) -> int:
    return sum(len(group.links) for group in groups)


def _has_no_links(gpu: Gpu) -> bool:
    answers = {g.state.unavailable for g in gpu.links if isinstance(g.state, Unavailable)}
    return bool(gpu.links) and answers <= {"NVML_ERROR_NOT_SUPPORTED"}
