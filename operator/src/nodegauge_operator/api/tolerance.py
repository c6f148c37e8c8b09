"""Read as much of a document as its type allows: what does not fit is left out, part by part.

A report that another version wrote, or that someone edited, must not lose its gates with one bad field.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

MAX_PARTS = 100
"""More wrong parts than this are no document of ours."""
LOCATION = re.compile(r"`\$([^`]*)`$")
STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]")


def readable(raw: dict[str, Any], kind: type[T]) -> tuple[T, tuple[str, ...]]:
    """The typed document, and what was wrong with each part that was left out.

    A member of a list that lacks what it needs goes whole.  If nothing can be read: `kind` without values.
    """
    wrong: tuple[str, ...] = ()
    document: Any = raw
    while len(wrong) < MAX_PARTS:
        try:
            return msgspec.convert(document, kind), wrong
        except msgspec.ValidationError as error:
            document = document if wrong else msgspec.json.decode(msgspec.json.encode(raw))
            wrong += (str(error),)
            if not _drop(document, str(error)):
                break
    return kind(), wrong


def _drop(document: Any, error: str) -> bool:
    """Remove the part that the error names; False if it names the whole document."""
    location = LOCATION.search(error)
    # The key of a map is not named: the map goes.
    named = location[1].partition("[...]")[0] if location else ""
    path: list[Any] = [name or int(index) for name, index in STEP.findall(named)]
    if not path:
        return False
    for step in path[:-1]:
        document = document[step]
    del document[path[-1]]
    return True
