"""How the page for a person is set: columns as wide as they must be, paragraphs of 100, "-" for nothing."""

from __future__ import annotations

import textwrap
from typing import Any

from nodegauge_contract import Unavailable
from nodegauge_probes.nvml.values import ranges
from nodegauge_probes.page.nvml_names import NOTHING

WIDTH = 100

Cells = tuple[str, ...]


def columns(rows: list[Cells], *, right: set[int]) -> str:
    """A table; the columns in `right` end at their right edge."""
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if n in right else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def known_columns(rows: list[Cells], *, right: set[int]) -> str:
    """As `columns`, without those that have nothing below their header; empty if none has but the first."""
    kept = [n for n in range(len(rows[0])) if n == 0 or any(row[n] != NOTHING for row in rows[1:])]
    if len(kept) == 1:
        return ""
    ends = {place for place, n in enumerate(kept) if n in right}
    return columns([tuple(row[n] for n in kept) for row in rows], right=ends)


def merged(rows: list[tuple[int, Cells]]) -> list[Cells]:
    """Rows of (GPU, cells) with the GPUs in front, those that say the same in one: `0-3,5`."""
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


def of(value: str, limit: str, *, between: str, unit: str = "") -> str:
    """`72 / 700 W`, `345 / 1980`; nothing at all where both are missing."""
    return NOTHING if value == limit == NOTHING else f"{value}{between}{limit}{unit}"
