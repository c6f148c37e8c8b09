"""Why cells of the page are empty: a paragraph per reason, with the values and the GPUs that it concerns.

Left out is what nobody misses: of two families of readings of which a board has one, the other; a part whose
values are all missing for one reason is named as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from nodegauge_contract import Gpu, Result, Unavailable
from nodegauge_probes.nvml.values import ranges
from nodegauge_probes.page import nvml_names
from nodegauge_probes.page.layout import paragraph

QUIET = frozenset({"links", "error", "gpu_numa_id", "fans"})
"""Parts of a GPU whose missing values the tables already show or nobody misses."""

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
        frozenset({"recovery_failed", "effective", "symbol"}),
    ),
}
"""Families of which the newer and the older boards know one."""

Place = tuple[str, str]


def notes(result: Result) -> list[str]:
    """The block, or nothing where nothing is missing."""
    where: dict[str, dict[tuple[int, ...], list[Place]]] = {}
    for reason, places in _reasons(result).items():
        for place, gpus in places.items():
            where.setdefault(reason, {}).setdefault(tuple(gpus), []).append(place)
    lines = []
    for reason, groups in where.items():
        parts = [_places(places) + _on(gpus, all_of=len(result.gpus)) for gpus, places in groups.items()]
        lines.append(paragraph(f"{nvml_names.reason(reason)}: {'; '.join(parts)}", indent="  "))
    return ["Not available\n" + "\n".join(lines)] if lines else []


def _reasons(result: Result) -> dict[str, dict[Place, list[int]]]:
    """Reason -> (part, value) -> the GPUs that lack it for that reason."""
    found: dict[str, dict[Place, list[int]]] = {}
    for gpu in result.gpus:
        if gpu.error is None:
            for place, reason in _unavailable(gpu):
                found.setdefault(reason, {}).setdefault(place, []).append(gpu.index)
    return found


def _unavailable(gpu: Gpu) -> Iterator[tuple[Place, str]]:
    """Every unavailable value of a GPU that somebody may miss, as ((part, value), reason)."""
    for field in msgspec.structs.fields(gpu):
        value = getattr(gpu, field.name)
        if field.name in QUIET:
            continue
        if isinstance(value, Unavailable):
            yield ("", field.name), value.unavailable
        elif isinstance(value, msgspec.Struct):
            yield from _in_part(field.name, value)


def _in_part(name: str, part: msgspec.Struct) -> Iterator[tuple[Place, str]]:
    leaves = {field.name: getattr(part, field.name) for field in msgspec.structs.fields(part)}
    missing = {leaf: v.unavailable for leaf, v in leaves.items() if isinstance(v, Unavailable)}
    if len(missing) == len(leaves) and len(set(missing.values())) == 1:
        yield (name, ""), next(iter(missing.values()))
        return
    one, other = EITHER_OR.get(name, (frozenset(), frozenset()))
    unmissed = (other if one - missing.keys() else frozenset()) | (
        one if other - missing.keys() else frozenset()
    )
    for leaf, reason in missing.items():
        if leaf not in unmissed:
            yield (name, leaf), reason


def _places(places: list[Place]) -> str:
    """`temperature: memory, margin; clocks: pstate` in the words of the document, without units."""
    parts: dict[str, list[str]] = {}
    for part, value in places:
        told = parts.setdefault(part.replace("_", " "), [])
        told.append(re.sub(r"_(ns|mw|mj|mib|mhz)$", "", value).replace("_", " "))
    return "; ".join(f"{part} {', '.join(values)}".strip() for part, values in parts.items())


def _on(gpus: tuple[int, ...], *, all_of: int) -> str:
    told = ranges([sum(1 << gpu for gpu in gpus)], bits=max(gpus) + 1)
    return "" if len(gpus) == all_of else f" (GPU {told})"
