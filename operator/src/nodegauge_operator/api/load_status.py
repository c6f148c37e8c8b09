"""`status.load` of a NodeReport."""

from __future__ import annotations

from msgspec import Struct

from nodegauge_judge.loadtest_rules.offload import OffloadReading


class LoadStatus(Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """What the GPUs reached in the last readable load run.  Results stay while no new run can be made."""

    tflops: float | None = None
    """Computing speed of the median GPU, TFLOPS; null if unread."""
    power_percent: int | None = None
    """Power of the GPU furthest below its power limit, per cent of that limit."""
    hottest: int | None = None
    """Highest temperature of a GPU, °C."""
    gpus: int = 0
    """GPUs that worked."""
    fingerprint: str = ""
    """What makes nodes comparable (GPU model, power limit, kind of computation), as text."""
    hardware: str = ""
    """GPUs and driver at the time of the run, as text."""
    reason: str = ""
    """Why no load run can be made here now, one word (Shared, Mig, Dra, Cordoned, ...); empty if one can, or
    if none is asked for."""
    detail: str = ""
    """The same as a sentence."""
    wanted_since: str = ""
    """Since when a policy wants the first load run here (RFC 3339); it follows within an interval (ADR 0027).
    Empty after it."""
    offload: OffloadReading = OffloadReading()
    """What it measured of the host; `status.offload` has what of it stands."""
