"""Equal texts as one object: the reports of thousands of nodes repeat names, reasons, messages and times.

A report of 8 GPUs takes 7 KB in memory this way instead of 13.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

LONGEST = 200
"""Characters of a text that another report may hold, too; the judge's history is longer, and each its own."""
DEEPEST = 16
"""Levels of a document that are looked at; a report has half as many."""


@lru_cache(maxsize=1 << 14)
def _shared(text: str) -> str:
    return text


def shared(value: Any, *, depth: int = DEEPEST) -> Any:
    """An equal JSON document whose texts are shared with those of other documents."""
    if type(value) is str:
        return _shared(value) if len(value) <= LONGEST else value
    if type(value) is dict and depth:
        return {key: shared(item, depth=depth - 1) for key, item in value.items()}
    if type(value) is list and depth:
        return [shared(item, depth=depth - 1) for item in value]
    return value
