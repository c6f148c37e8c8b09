"""`status.offload` of a NodeReport: what the node has beside its GPUs for models that do not fit there."""

from __future__ import annotations

from msgspec import Struct


class OffloadStatus(Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """Measured and counted values; null where nothing was read."""

    h2d_gbps: float | None = None
    """Pinned copies from the host to one GPU while the others are idle, of the slowest GPU, GB/s (1e9)."""
    h2d_all_gbps: float | None = None
    """The same while all GPUs copy, of the slowest GPU, GB/s."""
    host_memory_gib: float | None = None
    """Memory of the host that pods can get (allocatable), by GPU, GiB."""
    cores: float | None = None
    """CPUs that pods can get (allocatable), by GPU."""
    nvme_read_gbps: float | None = None
    """Reads from the path that the policy names, of the node, GB/s (1e9)."""
    nvme_write_gbps: float | None = None
    """Writes to it, if the policy allows them, GB/s."""
    nvme_path: str = ""
    """That path; empty for none."""
    nvme_problem: str = ""
    """Why nothing was read from it; empty if it was, or if the policy names none."""
