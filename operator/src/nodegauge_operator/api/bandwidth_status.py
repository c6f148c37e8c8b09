"""The part of a report that says what an NCCL run measured."""

from __future__ import annotations

import msgspec
from msgspec import Struct


class BandwidthStatus(Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """Bandwidth of collectives as last measured.  Results stay while no new run can be made."""

    all_reduce: int | None = None
    """Whole GB/s of bus bandwidth at 1 GiB; null if not measured."""
    all_gather: int | None = None
    """As `all_reduce`."""
    reduce_scatter: int | None = None
    """As `all_reduce`."""
    p2p_off: float | None = msgspec.field(default=None, name="p2pOff")
    """GB/s of bus bandwidth of all_reduce through host memory alone (NCCL_P2P_DISABLE=1)."""
    gpus: int = 0
    """GPUs that took part."""
    of: int = 0
    """GPUs that the node should have."""
    agreement: str = ""
    """Whether bandwidth agrees with the interconnect that NVML reports: confirmed, contradicted or unsure."""
    message: str = ""
    """The agreement as a sentence, with the numbers."""
    fingerprint: str = ""
    """What makes nodes comparable (GPU model and count, NVLinks or none, driver, NCCL), as text."""
    grade: str = ""
    """Digest of the expectations and thresholds that graded it.  If they change, it is graded again."""
    again: bool = False
    """Another run is wanted soon (something is bad for the first time, or runs disagree)."""
    boot_id: str = msgspec.field(default="", name="bootID")
    """Boot id of the node during the measurement."""
    hardware: str = ""
    """GPUs and driver as last read then, as text."""
    reason: str = ""
    """Why no NCCL run can be made here now, one word (SingleGpu, Mig, Cordoned, ...); empty if one can."""
    detail: str = ""
    """The reason as a sentence."""
