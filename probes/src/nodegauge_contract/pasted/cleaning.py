"""Text as a person pasted it, without what a terminal, a chat or a web page added to it.

ANSI colours (also those that lost their ESC), HTML tags and entities, quote marks, Markdown fences and table
bars, time stamps and log prefixes.  Values are never changed, and the number of lines changes only where
`<br>` stood within a line.
"""

from __future__ import annotations

import html
import re

_BREAK = re.compile(r"<br\s*/?>(?![ \t]*\r?\n)|</tr>(?![ \t]*\r?\n)", re.IGNORECASE)
_TAG = re.compile(
    r"</?(?:a|b|br|code|details|div|em|font|i|li|p|pre|samp|span|strong|summary|table|tbody|td|th|thead|tr|tt|u)"
    r"(?:\s[^<>]{0,512})?/?>",
    re.IGNORECASE,
)
_ANSI = re.compile(
    r"\x1b\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)|\x1b\[[\d;?]{0,32}[A-Za-z]|[␛^]?\[(?:\d{1,3}(?:;\d{1,3}){0,4})?m"
)
"""Escape sequences, whole, or as `[4m` after a web page dropped the ESC: drivers underline the header."""
_INVISIBLE = dict.fromkeys(map(ord, "\u200b\u200c\u200d\u2060\ufeff\x00"), None) | {0xA0: " ", 0x2502: " "}
_CLOCK = r"\d{2}:\d{2}:\d{2}(?:[.,]\d{1,9})?"
_PREFIX = re.compile(
    r"(?:\s{0,16}(?:"
    r">|#(?= ?[|+])|\[pod/[^\]\s]{1,255}\](?=\s)|\[\d{1,6},\d{1,6}\](?:<std\w{3}>)?:|"
    rf"\[?\d{{4}}-\d\d-\d\d[T ]{_CLOCK}(?:Z|[+-]\d\d:?\d\d)?\]?(?=\s)|\[?{_CLOCK}\]?(?=\s)|"
    rf"[A-Z][a-z]{{2}} [ \d]\d {_CLOCK} \S{{1,255}} \S{{1,255}}:(?=\s)|"
    r"\d{1,6}:(?=\s)|#\d{1,4} \d{1,6}\.\d{1,3}(?=\s)"
    r")){1,6} ?"
)
"""Quote marks; prefixes of kubectl logs, mpirun, journald, srun and docker build; plain time stamps."""


MAX_LINE = 16_384
"""Characters of a line that are read; a whole table on one line has about 4,000."""


def lines(text: str) -> list[str]:
    """The lines of a paste, cleaned, in their order: the first is line 1 of messages."""
    if "&" in text:
        text = html.unescape(text)
    text = _TAG.sub(" ", _BREAK.sub("\n", text)).translate(_INVISIBLE)
    return [_line(line[:MAX_LINE]) for line in _ANSI.sub("", text).splitlines()]


def unquoted(text: str) -> str:
    """The text of an XML document without prefixes and quote marks before its lines."""
    if "<nvidia_smi_log" not in text and "&lt;" in text:
        text = html.unescape(text)
    text = _ANSI.sub("", text.translate(_INVISIBLE))
    return "\n".join(
        _PREFIX.sub("", line, count=1) if _PREFIX.match(line) else line for line in text.splitlines()
    )


def _line(line: str) -> str:
    if line.strip().startswith(("```", "~~~")):
        return ""
    prefix = _PREFIX.match(line)
    return (line[prefix.end() :] if prefix is not None else line).replace("|", " ").rstrip()
