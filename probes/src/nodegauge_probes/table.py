"""One result for a person: the matrix as `nvidia-smi topo -m` prints it, and a compact table of health.

At most about 100 columns wide beside the matrix, plain ASCII, no colours: it is read over serial consoles and
pasted into tickets.  A cell without a value is "-", and a note below says why.  It shows and never judges.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from typing import Any

import msgspec

from nodegauge_contract import Gpu, Problem, Result, Span, Unavailable, render_matrix
from nodegauge_probes import words
from nodegauge_probes.words import NOTHING

WIDTH = 100
NAME_WIDTH = 24
QUIET = frozenset({"links", "error", "gpu_numa_id"})
"""Parts of a GPU whose missing values the tables already show or nobody misses."""


def render(result: Result, *, terminal: int | None = None) -> str:
    """The whole page, ending in a newline.  `terminal`: its columns, where one reads along."""
    blocks = [_title(result), *_problem(result.problem, result), *_matrix(result, terminal)]
    if result.gpus:
        blocks += [_health(result), _links(result), _p2p_legend(result), *_counters(result), *_notes(result)]
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
    """NVML's integer as people say it: 12040 is 12.4."""
    if isinstance(version, Unavailable):
        return version
    return f"{version // 1000}.{version % 1000 // 10}"


def _problem(problem: Problem | None, result: Result) -> list[str]:
    if problem is None:
        return []
    head = "INCOMPLETE" if result.gpus else "NOTHING COULD BE READ"
    place = f" in {problem.call}" if problem.call else ""
    return [_fill(f"{head}: {problem.kind}{place}. {problem.message}.")]


def _matrix(result: Result, terminal: int | None) -> list[str]:
    if not result.gpus and result.problem is None:
        return [
            _fill("The driver answers and shows no GPU. In a container: is NVIDIA_VISIBLE_DEVICES=all set?")
        ]
    return [render_matrix(result, width=terminal)]


def _health(result: Result) -> str:
    head = ("GPU", "Name", "Temp", "Limit", "Memory", "Power", "SM MHz", "P", "Util", "Clocks event reasons")
    return _columns([head, *(_health_row(gpu) for gpu in result.gpus)], right={0, 2, 4, 5, 6, 8})


def _health_row(gpu: Gpu) -> tuple[str, ...]:
    name = str(_shown(gpu.name)).removeprefix("NVIDIA ")[:NAME_WIDTH]
    if gpu.error is not None:
        return (f"{gpu.index}", name, *[NOTHING] * 7, f"{gpu.error.kind}: {gpu.error.message}")
    temperature, clocks = gpu.temperature, gpu.clocks
    return (
        f"{gpu.index}",
        name,
        _with(temperature.gpu, " C"),
        _limit(gpu),
        _with(temperature.memory, " C"),
        _of(_watts(gpu.power.usage_mw), _watts(gpu.power.enforced_limit_mw), between=" / ", unit=" W"),
        _of(str(_shown(clocks.sm_mhz)), str(_shown(clocks.max_sm_mhz)), between=" / "),
        _with(clocks.pstate, "", before="P"),
        _span(gpu.window.utilization if gpu.window else None),
        words.reasons(gpu.events),
    )


def _limit(gpu: Gpu) -> str:
    """The distance that the GPU itself reports, or the lowest threshold that it knows."""
    temperature = gpu.temperature
    if isinstance(temperature.margin, int):
        return f"{temperature.margin} C left"
    known = [limit for limit in (temperature.gpu_max, temperature.slowdown) if isinstance(limit, int)]
    return f"max {min(known)} C" if known else NOTHING


def _links(result: Result) -> str:
    head = ("GPU", "PCI", "PCIe", "NUMA", "NVLinks", "P2P read", "write", "NVLink", "Fabric")
    rows: list[tuple[str, ...]] = [head]
    for i, gpu in enumerate(result.gpus):
        grids = (result.pairs.read, result.pairs.write, result.pairs.nvlink)
        rows.append(
            (
                f"{gpu.index}",
                str(_shown(gpu.pci)),
                _pcie(gpu),
                str(_shown(gpu.numa_node)),
                words.links(gpu),
                *(words.p2p(grid[i], i) if i < len(grid) else NOTHING for grid in grids),
                words.fabric(gpu.fabric),
            )
        )
    return _columns(rows, right={0, 3})


def _pcie(gpu: Gpu) -> str:
    pcie = gpu.pcie
    generation = _of(str(_shown(pcie.generation)), str(_shown(pcie.max_generation)), between="/")
    width = _of(str(_shown(pcie.width)), str(_shown(pcie.max_width)), between="/")
    return NOTHING if generation == width == NOTHING else f"gen {generation} x{width}"


def _p2p_legend(result: Result) -> str:
    """The meaning of the P2P statuses that the table shows."""
    grids = (result.pairs.read, result.pairs.write, result.pairs.nvlink)
    codes = {status for grid in grids for row in grid for status in row if isinstance(status, int)}
    names = [words.P2P[code] for code in sorted(codes) if code in words.P2P]
    return ", ".join(f"{name} = {words.P2P_LEGEND[name]}" for name in names if name in words.P2P_LEGEND)


def _counters(result: Result) -> list[str]:
    head = ("GPU", *(words.COUNTERS.values()))
    rows = [
        (f"{gpu.index}", *(_seconds(getattr(gpu.counters, field)) for field in words.COUNTERS))
        for gpu in result.gpus
    ]
    if all(set(row[1:]) == {NOTHING} for row in rows):
        return []
    table = _columns([head, *rows], right=set(range(len(head))))
    return ["Time with clocks held back, since the counters began (what counts is their growth)\n" + table]


def _notes(result: Result) -> list[str]:
    """Why cells are empty: a paragraph per reason, with the values and the GPUs that it concerns."""
    where: dict[str, dict[tuple[int, ...], list[tuple[str, str]]]] = {}
    for reason, places in _reasons(result).items():
        for place, gpus in places.items():
            where.setdefault(reason, {}).setdefault(tuple(gpus), []).append(place)
    lines = []
    for reason, groups in where.items():
        parts = [_places(places) + _on(gpus, all_of=len(result.gpus)) for gpus, places in groups.items()]
        lines.append(_fill(f"{words.reason(reason)}: {'; '.join(parts)}", indent="  "))
    return ["Not available\n" + "\n".join(lines)] if lines else []


def _reasons(result: Result) -> dict[str, dict[tuple[str, str], list[int]]]:
    """Reason -> (part, value) -> the GPUs that lack it for that reason."""
    found: dict[str, dict[tuple[str, str], list[int]]] = {}
    for gpu in result.gpus:
        if gpu.error is None:
            for place, reason in _unavailable(gpu):
                found.setdefault(reason, {}).setdefault(place, []).append(gpu.index)
    return found


def _places(places: list[tuple[str, str]]) -> str:
    """`temperature: memory, margin; clocks: pstate` in the words of the document, without units."""
    parts: dict[str, list[str]] = {}
    for part, value in places:
        parts.setdefault(part, []).append(re.sub(r"_(ns|mw|mj|mib|mhz)$", "", value).replace("_", " "))
    return "; ".join(f"{part} {', '.join(values)}".strip() for part, values in parts.items())


def _on(gpus: tuple[int, ...], *, all_of: int) -> str:
    return "" if len(gpus) == all_of else f" (GPU {', '.join(map(str, gpus))})"


def _unavailable(gpu: Gpu) -> Iterator[tuple[tuple[str, str], str]]:
    """Every unavailable value of a GPU, as ((part, value), reason)."""
    for field in msgspec.structs.fields(gpu):
        value = getattr(gpu, field.name)
        if field.name in QUIET:
            continue
        if isinstance(value, Unavailable):
            yield ("", field.name), value.unavailable
        elif isinstance(value, msgspec.Struct):
            for inner in msgspec.structs.fields(value):
                leaf = getattr(value, inner.name)
                if isinstance(leaf, Unavailable):
                    yield (field.name, inner.name), leaf.unavailable


def _columns(rows: list[tuple[str, ...]], *, right: set[int]) -> str:
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if n in right else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _fill(text: str, *, indent: str = "") -> str:
    return textwrap.fill(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False
    )


def _shown(value: Any) -> Any:
    return NOTHING if isinstance(value, Unavailable) else value


def _with(value: int | Unavailable, after: str, *, before: str = "") -> str:
    return NOTHING if isinstance(value, Unavailable) else f"{before}{value}{after}"


def _of(now: str, most: str, *, between: str, unit: str = "") -> str:
    """A value and its limit; one sign where neither is there."""
    return NOTHING if now == most == NOTHING else f"{now}{between}{most}{unit}"


def _watts(milliwatts: int | Unavailable) -> str:
    return NOTHING if isinstance(milliwatts, Unavailable) else f"{milliwatts / 1000:.0f}"


def _seconds(nanoseconds: int | Unavailable) -> str:
    if isinstance(nanoseconds, Unavailable):
        return NOTHING
    return f"{nanoseconds / 1e9:.1f} s" if nanoseconds else "0"


def _span(span: Span | None) -> str:
    return NOTHING if span is None else f"{_shown(span.median):g} %"
