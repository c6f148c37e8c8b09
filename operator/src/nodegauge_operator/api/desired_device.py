"""The part of a report that says which devices a fault gates (ADR 0060)."""

from __future__ import annotations

from msgspec import Struct

from nodegauge_judge import OpenEnum


class DeviceState(OpenEnum):
    """Whether a device is gated: by a rule (with effect None: would be), not yet for want of a slot or for an
    incident, or not at all because no ResourceSlice shows it, so that nobody can get it."""

    GATED = "gated"
    HELD_BACK = "held-back"
    NOT_OFFERED = "not-offered"


class DesiredDevice(Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """A device that a fault of its GPU gates."""

    uuid: str
    """Of the GPU, as NVML gives it."""
    state: DeviceState
    """Whether it is gated."""
    key: str
    """Key of the taint."""
    cause: str
    """Value of the taint: the worst cause."""
    code: str
    """The finding."""
    since: str = ""
    """When it was confirmed (RFC 3339)."""
    effect: str = "NoSchedule"
    """NoSchedule, or None in a dry run."""
    serial: str = ""
    """Serial number of the GPU; empty if unknown."""
    driver: str = ""
    """DRA driver; with the next two empty for a device that no ResourceSlice shows."""
    pool: str = ""
    """Pool of the device."""
    name: str = ""
    """Name within the pool."""

    @property
    def taken(self) -> bool:
        """Whether it is out of use by a rule that stands or is to stand."""
        return self.state is DeviceState.GATED and self.effect != "None"
