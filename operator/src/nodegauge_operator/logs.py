"""Structured logs: one JSON object per line, or plain text for a terminal."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

FIELDS = ("node", "probe", "run", "outcome", "verdict")
"""Extra fields of a record that are included in its line."""


LEAST = {
    "kopf": logging.CRITICAL,
    "kopf._core": logging.CRITICAL,
    "kopf.objects": logging.WARNING,
    "kopf.activities": logging.WARNING,
    "aiohttp.access": logging.WARNING,
    "asyncio": logging.WARNING,
}
"""Least levels of other loggers.  kopf logs each try of a request in an outage, and a line per event; what
ended it is in our own line.  Failed handlers and logins are logged."""


class JsonFormatter(logging.Formatter):
    """`time`, `level`, `logger`, `message`, our own fields, and `error` with a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line of JSON."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {key: getattr(record, key) for key in FIELDS if hasattr(record, key)}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """A line for people; what a container wrote neither breaks it nor reaches the terminal as a command."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line without control characters."""
        return one_line(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        """A traceback on lines of its own; indented: its text may look like a line of ours."""
        return "\n".join(f"    {one_line(line)}" for line in super().formatException(ei).splitlines())

    def formatStack(self, stack_info: str) -> str:
        """The same for a stack."""
        return "\n".join(f"    {one_line(line)}" for line in stack_info.splitlines())


def one_line(text: str) -> str:
    """A text without line breaks and control characters."""
    return "".join(char if char.isprintable() else " " for char in text)


def configure(*, level: str, form: str) -> None:
    """Send all logs to stderr in the form `json` or `text`."""
    handler = logging.StreamHandler(sys.stderr)
    plain = TextFormatter("%(asctime)s %(levelname)-7s %(message)s")
    handler.setFormatter(JsonFormatter() if form == "json" else plain)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name, least in LEAST.items():
        logging.getLogger(name).setLevel(least)
