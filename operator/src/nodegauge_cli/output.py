"""What commands print: tables, JSON and YAML alike; plain words, wrapped to 80 columns.

Text of objects is printed without control characters.  Colour goes to terminals alone, and not if NO_COLOR is
set (no-color.org); a pipe that its reader has closed ends a command quietly.  Imports little: a command that
answers at once waits for nothing here.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click

WIDTH = 80
"""Columns of a screen."""
CLOSED_PIPE = 141
"""Exit code of a command whose reader has gone: 128 + SIGPIPE, as shells give it."""
GOOD, WORTH_A_LOOK, BAD, UNKNOWN, TITLE, FAINT = "green", "yellow", "red", "magenta", "bold", "dim"
VERDICTS = {"pass": GOOD, "warn": WORTH_A_LOOK, "fail": BAD}
"""The style of each verdict; `UNKNOWN` for the others."""


class Cell(NamedTuple):
    """A text of a table with its style."""

    text: str
    style: str = ""


def printable(text: str) -> str:
    """Foreign text without control characters."""
    return "".join(char if char.isprintable() else "?" for char in text)


def coloured() -> bool:
    """Whether standard output is a terminal that wants colour."""
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return wanted and sys.stdout.isatty()


def styled(text: str, style: str = "") -> str:
    """Foreign text in one of the styles above, where colour is wanted."""
    text = printable(text)
    if not style or not coloured():
        return text
    colour = None if style in (TITLE, FAINT) else style
    bold, dim = style in (TITLE, BAD) or None, style == FAINT or None
    return click.style(text, fg=colour, bold=bold, dim=dim)


def verdict(value: str) -> Cell:
    """A verdict as a cell."""
    return Cell(value, VERDICTS.get(value, UNKNOWN))


def table(columns: Sequence[str], rows: Iterable[Sequence[str | Cell]]) -> str:
    """The rows below their columns, each column as wide as its widest cell; no trailing blanks."""
    cells = [[Cell(name, TITLE) for name in columns]]
    cells += [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
    cells = [[Cell(printable(cell.text), cell.style) for cell in row] for row in cells]
    widths = [max(len(row[at].text) for row in cells) for at in range(len(columns))]
    return "\n".join(_line(row, widths) for row in cells)


def _line(row: Sequence[Cell], widths: Sequence[int]) -> str:
    parts = [
        styled(cell.text, cell.style) + " " * (width - len(cell.text))
        for cell, width in zip(row, widths, strict=True)
    ]
    return "  ".join(parts).rstrip()


def entry(label: str, text: str, *, style: str = "", indent: int = 10, width: int = WIDTH) -> str:
    """A short word, then text that is wrapped beside it: `indent` columns from the left."""
    lines = textwrap.wrap(printable(text), width - indent, break_on_hyphens=False) or [""]
    margins = [f"{printable(label):<{indent - 1}} ", *(" " * indent for _ in lines[1:])]
    return "\n".join(
        f"{left}{styled(line, style)}".rstrip() for left, line in zip(margins, lines, strict=True)
    )


def paragraph(text: str) -> str:
    """A text that is wrapped to the screen."""
    return "\n".join(textwrap.wrap(printable(text), WIDTH, break_on_hyphens=False))


def age(seconds: float) -> str:
    """How long ago, as kubectl writes it: 45s, 12m, 3h, 2d; `0s` for the future."""
    seconds = max(0.0, seconds)
    for length, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= 2 * length or (seconds >= length and unit != "m"):
            return f"{int(seconds // length)}{unit}"
    return f"{int(seconds)}s"


def output_option(*forms: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option `-o`, parameter `form`: one of these, or None for text."""
    return click.option(
        "-o", "--output", "form", type=click.Choice(forms), help="Print this instead of text for people."
    )


def dump(document: Any, form: str) -> str:
    """The document as `json` or `yaml`, in the order of its fields.  What is no plain data is made so."""
    import msgspec

    plain = msgspec.to_builtins(document, str_keys=True)
    if form == "yaml":
        import yaml

        text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=100)
        hidden = not text.replace("\n", "").isprintable()
        return str(yaml.safe_dump(plain, sort_keys=False) if hidden else text).rstrip()
    text = json.dumps(plain, indent=2, ensure_ascii=False)
    return "".join(char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text)


def write_whole(target: Path, text: str) -> None:
    """The file whole or not at all.  Raises OSError."""
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=target.parent, prefix=f".{target.name}.", delete=False
    ) as partial:
        partial.write(text)
    Path(partial.name).chmod(0o666 & ~_umask())
    Path(partial.name).replace(target)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


@contextmanager
def quiet_pipe() -> Iterator[None]:
    """Ends the program with `CLOSED_PIPE` and without a word if the reader of its output has gone."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # what is still buffered would fail again when Python ends (docs.python.org, signal: SIGPIPE)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(CLOSED_PIPE)
