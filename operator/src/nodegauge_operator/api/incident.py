"""`status.incidents` of a GPUValidationPolicy: what the operator keeps of them over a restart."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

MAX_INCIDENTS = 16
"""A policy's status keeps so many."""


class Incident(Struct, frozen=True, rename="camel", kw_only=True):
    """One cause that came up on many nodes within minutes."""

    id: str
    """Made of the cause and of `since`."""
    cause: str
    """The taint's value."""
    group: str = ""
    """The nodes that it holds back, as `key=value`; empty for all of the policy."""
    since: str = ""
    """When the first of the nodes was entered (RFC 3339)."""
    nodes: int = 0
    """Nodes with the cause, tainted or not."""
    closed_at: str = ""
    """When it ended (RFC 3339); empty while it is open."""


def incidents_of(status: dict[str, Any]) -> list[Incident]:
    """The incidents in a policy's status; those that cannot be read count as absent."""
    result = []
    items = status.get("incidents")
    for item in items if isinstance(items, list) else ():
        try:
            result.append(msgspec.convert(item, Incident))
        except msgspec.ValidationError:
            continue
    return result[:MAX_INCIDENTS]
