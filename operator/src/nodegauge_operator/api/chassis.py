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
    """How the last try went, and the last reading that worked."""

    source: str = ""
    """Protocol of the last reading that worked, redfish or ipmi; empty before the first."""
    address: str = ""
    """Where the BMC is read: scheme, host and port, never a user or a password."""
    read_at: str = ""
    """End of the last reading that worked (RFC 3339, UTC)."""
    number: Count = 0
    """Readings of this BMC that worked."""
    tried_at: str = ""
    """End of the last try (RFC 3339, UTC)."""
    problem: str = ""
    """Why the last try failed, and the way out; empty if it worked."""
    supplies_present: Count | None = None
    """Power supplies in their bays, for `kubectl get`; null if the BMC lists none."""
    supplies_healthy: Count | None = None
    """Present supplies whose health the BMC calls OK, for `kubectl get`."""
    watts: Count | None = None
    """What the machine draws, W, for `kubectl get`; null if the BMC does not say."""
    reading: Any = None
    """The last reading that worked, as the contract's document; None in `Chassis.status`, which has it
    typed."""


class Chassis(Struct, frozen=True, kw_only=True):
    """A ChassisReading object."""

    name: str
    """Name of the node."""
    uid: str = ""
    """UID of the object."""
    resource_version: str = ""
    """Version of the object that was read."""
    status: ChassisStatus = ChassisStatus()
    """All of the status but `reading`."""
    reading: chassis.ChassisReading | None = None
    """The contract's document; None if there is none that can be read."""
    left_out: tuple[str, ...] = ()
    """What of the object could not be read, and why."""


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
