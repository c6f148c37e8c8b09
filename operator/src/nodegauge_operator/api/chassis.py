"""ChassisReading: what the BMC of one node said, written by the BMC reader and judged by the operator.

Named as its node.  The operator only reads it.  Whoever may write these objects may write anything into
them, so that a part which cannot be read counts as absent, and a reading that is too large is not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from nodegauge_contract import chassis
from nodegauge_operator.api.tolerance import readable

MAX_READING = 262_144
"""Bytes of a reading as JSON; the largest recorded one has about 20 KB.  Chosen by this project: 1,000 such
objects are what one list of the operator may cost."""

Count = Annotated[int, Meta(ge=0)]


class ChassisStatus(Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """How the last try went, and the last reading that worked.

    `source`: redfish or ipmi; `address`: scheme, host and port; `readAt`: end of reading `number`; `triedAt`
    and `problem`: of the last try, which worked if the text is empty.  `suppliesPresent`, `suppliesHealthy`
    and `watts` repeat the reading for `kubectl get`; `reading` is the contract's document."""

    source: str = ""
    address: str = ""
    read_at: str = ""
    number: Count = 0
    tried_at: str = ""
    problem: str = ""
    supplies_present: Count | None = None
    supplies_healthy: Count | None = None
    watts: Count | None = None
    reading: Any = None


class Chassis(Struct, frozen=True, kw_only=True):
    """A ChassisReading object.  `reading`: None if there is none, or none that can be read; `left_out`: what
    of the object could not be read."""

    name: str
    uid: str = ""
    resource_version: str = ""
    status: ChassisStatus = ChassisStatus()
    reading: chassis.ChassisReading | None = None
    left_out: tuple[str, ...] = ()


def parse_chassis(body: Mapping[str, Any]) -> Chassis:
    """The typed object.  What cannot be read of it counts as absent."""
    metadata = body.get("metadata", {})
    raw = body.get("status")
    status, left_out = readable(raw if isinstance(raw, dict) else {}, ChassisStatus)
    reading, wrong = _reading(status.reading)
    return Chassis(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        resource_version=metadata.get("resourceVersion", ""),
        status=msgspec.structs.replace(status, reading=None),
        reading=reading,
        left_out=left_out + wrong,
    )


def _reading(raw: Any) -> tuple[chassis.ChassisReading | None, tuple[str, ...]]:
    """The contract's document, and why it or a part of it is left out."""
    if raw is None:
        return None, ()
    if not isinstance(raw, dict):
        return None, ("reading: not an object",)
    if len(msgspec.json.encode(raw)) > MAX_READING:
        return None, (f"reading: more than {MAX_READING} bytes",)
    if raw.get("major", chassis.MAJOR) != chassis.MAJOR:
        return None, (f"reading: version {raw['major']} of the document, not {chassis.MAJOR}",)
    reading, left_out = readable(raw, chassis.ChassisReading)
    return reading, tuple(f"reading: {wrong}" for wrong in left_out)
