"""`status.incidents` of a GPUValidationPolicy: what the operator keeps of them over a restart."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

MAX_INCIDENTS = 16
"""A policy's status keeps so many."""


class Incident(Struct, frozen=True, rename="camel", kw_only=True):
    """One cause that came up on many nodes within minutes.

    `id`: made of cause and `since`, when the first of the nodes was entered (RFC 3339); `group`: the nodes
    that it holds back, as `key=value`, or empty for all of the policy; `nodes`: those with the cause, tainted
    or not; `closedAt`: when it ended (RFC 3339); empty while it is open.
    """

    id: str
    cause: str
    group: str = ""
    since: str = ""
    nodes: int = 0
    closed_at: str = ""


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
