"""The statements of a paste, gathered: equal ones once, with their number."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct, field

from nodegauge_contract.paste import MAX_CAPTURES, MAX_STATEMENTS, Capture, Paste, Statement, StatementKind

_LOG_PREFIX = re.compile(
    r"^[\s*>]*(?:\[(?!NV_)[^\]]{1,40}\]\s*|[A-Z][a-z]{2} [ \d]\d [\d:.]{8,18}\s+\S{1,255}\s+|"
    r"(?:\S{1,255} )?kernel:\s*|\d,\d{1,12},\d{1,20},[^;]{1,8};)+"
)
_ADDRESS = re.compile(r"([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})(\.[0-9A-Fa-f])?(?![0-9A-Fa-f])")


class Gathered(Struct):
    """Statements and captures while the text is read."""

    captures: dict[str, Capture] = field(default_factory=dict)
    statements: dict[tuple[str, str, str, int | None], Statement] = field(default_factory=dict)
    omitted: int = 0

    def seen(self, kind: str, line: int, *, passed: int = 0) -> None:
        """A capture of this kind has a line here."""
        known = self.captures.get(kind)
        if known is not None:
            line, passed = known.line, known.passed + passed
        if known is not None or len(self.captures) < MAX_CAPTURES:
            self.captures[kind] = Capture(kind=kind, line=line, passed=passed)

    def add(
        self,
        kind: StatementKind,
        line: int,
        text: str,
        *,
        source: str,
        subject: str = "",
        code: int | None = None,
    ) -> None:
        """A statement; the first words of equal ones are kept."""
        self.seen(source, line)
        key = (kind, source, subject, code)
        known = self.statements.get(key)
        if known is None and len(self.statements) >= MAX_STATEMENTS:
            self.omitted += 1
            return
        first = known or Statement(
            kind=kind,
            line=line,
            text=sentence(text),
            source=source,
            subject=subject[:128],
            code=code,
            count=0,
        )
        self.statements[key] = Statement(
            kind=kind,
            line=first.line,
            text=first.text,
            source=first.source,
            subject=first.subject,
            code=code,
            count=first.count + 1,
        )

    def drop(self, kind: StatementKind, *, source: str) -> None:
        """Forget statements that a reading replaces."""
        self.statements = {
            key: each for key, each in self.statements.items() if (each.kind, each.source) != (kind, source)
        }

    def paste(self) -> Paste:
        """All of it, in the order of the text."""
        return Paste(
            captures=sorted(self.captures.values(), key=lambda capture: capture.line),
            statements=sorted(self.statements.values(), key=lambda statement: statement.line),
            omitted=self.omitted,
        )


def sentence(text: str) -> str:
    """A line's words, without what a log puts before them; at most 400 characters."""
    return " ".join(_LOG_PREFIX.sub("", text).replace("*", " ").split())[:400]


def address(text: str) -> str:
    """The first PCI address in a text, as in sysfs, with its function if it has one; empty without one."""
    match = _ADDRESS.search(text)
    return f"{match[1][-4:]}:{match[2]}:{match[3]}{match[4] or ''}".lower() if match is not None else ""


def near(lines: Sequence[str], index: int, before: int = 2, after: int = 0) -> Iterable[str]:
    """A line, those after it and those before it, nearest first: drivers and mails wrap sentences."""
    yield lines[index]
    yield from lines[index + 1 : index + 1 + after]
    yield from reversed(lines[max(0, index - before) : index])
