"""What the operator keeps of a `NodeReading`: who wrote each part, and the document until it was judged.

The API server orders the writes of one object, so the newest state is the newest reading: nothing here
compares clocks.  A part is told from those before by its pod and its number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from nodegauge_contract.reading import Part
from nodegauge_operator.api.times import unstamp

OF_ANY_OBJECT = {"apiVersion", "kind", "metadata"}
"""Keys of a NodeReading that are no part."""


class PartView(Struct, frozen=True, kw_only=True):
    """One part of a NodeReading."""

    sequence: int
    """Number of the reading among those of its pod."""
    at: float
    """When the reading ended by the node's clock, epoch seconds."""
    reason: str
    """Why it was taken."""
    pod_uid: str
    """The pod that wrote it."""
    node_uid: str
    """The Node object that the pod ran on."""
    boot_id: str
    """Boot of the node; empty if unknown."""
    text: str
    """The document; empty once the report holds what it says."""
    arrived: float = 0.0
    """When an event brought it, epoch seconds; 0.0 if a list did."""

    @property
    def identity(self) -> str:
        """Each is judged once."""
        return f"{self.pod_uid}/{self.sequence}"

    def known_at(self, now: float) -> float:
        """When it was read, epoch seconds: as it arrived, or by the node's clock where that can be true."""
        return min(self.arrived or self.at, now)

    def is_before(self, identity: str) -> bool:
        """Whether the same pod wrote the reading with that identity later: this one was put back."""
        pod, _, number = identity.rpartition("/")
        return pod == self.pod_uid and number.isdecimal() and self.sequence < int(number)


class ReadingView(Struct, frozen=True, kw_only=True):
    """A NodeReading, trimmed."""

    name: str
    """Name of the node."""
    uid: str
    """UID of the object."""
    resource_version: str
    """Version of the object that was read."""
    parts: dict[str, PartView] = {}
    """By probe."""
    left_out: tuple[str, ...] = ()
    """What of it could not be read, and why."""


def reading_view(body: Mapping[str, Any], *, arrived: float = 0.0) -> ReadingView:
    """The view of a NodeReading; a part that is malformed is left out."""
    metadata = body["metadata"]
    parts, left_out = {}, []
    for name in body.keys() - OF_ANY_OBJECT:
        try:
            part = msgspec.convert(body[name], Part)
        except msgspec.ValidationError as error:
            left_out.append(f"{name}: {error}")
            continue
        parts[name] = PartView(
            sequence=part.sequence,
            at=unstamp(part.at),
            reason=part.reason,
            pod_uid=part.pod_uid,
            node_uid=part.node_uid,
            boot_id=part.boot_id,
            text=part.reading,
            arrived=arrived,
        )
    return ReadingView(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        resource_version=metadata.get("resourceVersion", ""),
        parts=parts,
        left_out=tuple(left_out),
    )
