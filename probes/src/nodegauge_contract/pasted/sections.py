"""Outputs of several times or machines in one text, each as a document of its own.

A text is read as one first: tables, readings and logs of one machine belong together.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from nodegauge_contract.model import Result
from nodegauge_contract.pasted import cleaning
from nodegauge_contract.pasted.document import Models, PasteError, SeveralCaptures, result
from nodegauge_contract.pasted.statements import near
from nodegauge_contract.pasted.tables import Kind, tables

_STARTS = re.compile(
    r"(?P<overview>NVIDIA-SMI\s+\d\S*\s+(?:Driver|KMD) Version)|(?P<query>=\s*NVSMI LOG\s*=)|"
    r"(?P<xml><nvidia_smi_log)"
)
"""The first line of an output that a machine has once."""
_ABOVE = re.compile(
    r"^[\s+|-]*-{5}|^\s*[A-Z][a-z]{2} [A-Z][a-z]{2} +\d|nvidia-smi|"
    r"^(?:[-=#*]{1,8}\s*[\w.@-]{1,64}|[\w.@-]{1,64}:)[-=:*\s]*$"
)
"""What stands above it and belongs to it: a ruler, the time, the command, the name of a host."""


class Section(NamedTuple):
    """Output of one time and machine: what it is, in words (empty if the text is this alone), and its
    document or why it has none."""

    title: str
    result: Result | PasteError


def sections(text: str, *, models: Models) -> list[Section]:
    """The documents of a paste, at least one.  Raises `PasteError` if nothing in it can be read."""
    try:
        return [Section("", result(text, models=models))]
    except SeveralCaptures:
        starts = _starts(text)
        if len(starts) < 2:
            raise
    raw = text.splitlines()
    each: list[Section] = []
    for number, (start, end) in enumerate(zip(starts, [*starts[1:], len(raw)], strict=True), 1):
        title = f"capture {number} of {len(starts)}, line {start + 1}"
        try:  # the lines before it stay, empty, so that messages name lines of the whole text
            document: Result | PasteError = result("\n" * start + "\n".join(raw[start:end]), models=models)
        except PasteError as error:
            document = error
        each.append(Section(title, document))
    return each


def _starts(text: str) -> list[int]:
    """Where each capture begins, as an index of a line: with an output of a kind that is there already."""
    lines = cleaning.lines(text)
    if len(lines) != len(text.splitlines()):
        return []
    kinds = {
        table.line - 1: "table"
        for table in tables(lines)
        if table.kind is Kind.TOPOLOGY and not table.pcie_only
    }
    for index, line in enumerate(lines):
        if match := _STARTS.search(line):
            kinds[index] = match.lastgroup or ""
    starts, seen = [0], set[str]()
    for index in sorted(kinds):
        if kinds[index] in seen:
            above = [line for line in reversed(list(near(lines, index, before=3))[1:]) if _ABOVE.search(line)]
            starts.append(index - len(above))
            seen = set()
        seen.add(kinds[index])
    return starts
