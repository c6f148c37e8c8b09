"""The page's layout: columns as wide as their content, paragraphs of 100 characters, "-" for no value."""

from __future__ import annotations

import textwrap
from typing import Any

from nodegauge_contract import Unavailable
from nodegauge_probes.nvml.values import ranges

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


def of(value: str, limit: str, *, between: str, unit: str = "") -> str:
    """`72 / 700 W`, `345 / 1980`; "-" if both are missing."""
    return NOTHING if value == limit == NOTHING else f"{value}{between}{limit}{unit}"
