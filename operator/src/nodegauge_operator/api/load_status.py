"""`status.load` of a NodeReport."""

from __future__ import annotations

from msgspec import Struct


class LoadStatus(Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """What the last readable load run reached.

    `tflops`: the median GPU's computing speed, null if unread; `powerPercent`: the lowest GPU's power of its
    limit; `hottest`: °C; `gpus`: how many worked; `fingerprint`: what makes nodes comparable; `hardware`:
    GPUs and driver as last read then.  `reason`: why no load run can be made here now (empty if one can, or
    if none is asked for), with `detail` as a sentence; older results stay.  `wantedSince`: since when a
    policy wants the first run here, which follows within an interval (ADR 0027); empty after it.
    """

    tflops: float | None = None
    power_percent: int | None = None
    hottest: int | None = None
    gpus: int = 0
    fingerprint: str = ""
    hardware: str = ""
    reason: str = ""
    detail: str = ""
    wanted_since: str = ""
