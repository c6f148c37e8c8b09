"""How counting files of the kernel are read: bounded; a missing number is a reason, never a zero."""

from __future__ import annotations

import re
from pathlib import Path

from nodegauge_contract import Int, Num, Unavailable

MAX_BYTES = 1 << 20
"""Of one file: /proc/stat of 1,024 CPUs with its interrupts has less than half of that."""
BACKWARDS = Unavailable("the counter decreased: it was reset")
NUMBER = re.compile(r"-?\d{1,19}")


def content(path: Path) -> str | Unavailable:
    """The file's text, or why it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return Unavailable(f"no {path.name}"[:128])
    except (OSError, ValueError) as error:
        return Unavailable(f"{path.name}: {getattr(error, 'strerror', '') or type(error).__name__}"[:128])


def table(path: Path, *, colon: bool = False) -> dict[str, int] | Unavailable:
    """Lines of a name and a whole number, as in vmstat, meminfo (`colon`) and cpu.stat."""
    text = content(path)
    if isinstance(text, Unavailable):
        return text
    values = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":" if colon else " ")
        number = rest.split()
        if number and NUMBER.fullmatch(number[0]):
            values[name] = int(number[0])
    return values


def entry(values: dict[str, int] | Unavailable, name: str) -> Int:
    """One number of a `table`, or why it is missing."""
    if isinstance(values, Unavailable):
        return values
    return values[name] if name in values else Unavailable(f"no {name}")


def whole(path: Path) -> Int:
    """A file that holds one number."""
    text = content(path)
    if isinstance(text, Unavailable):
        return text
    text = text.strip()
    return int(text) if NUMBER.fullmatch(text) else Unavailable(f"{path.name} is no number")


def rate(before: Int, after: Int, *, seconds: float, unit: float = 1.0) -> Num:
    """Growth of a counter a second, in `unit`; or why it is unknown."""
    if isinstance(before, Unavailable):
        return before
    if isinstance(after, Unavailable):
        return after
    return BACKWARDS if after < before else rounded((after - before) / seconds / unit)


def share(before: Int, after: Int, *, of: float) -> Num:
    """Growth of a counter as a share of `of`, at most 1."""
    grown = rate(before, after, seconds=of)
    return grown if isinstance(grown, Unavailable) else min(1.0, grown)


def rounded(number: float) -> float:
    """Four digits: a document says no more than was measured."""
    return float(f"{number:.4g}")
