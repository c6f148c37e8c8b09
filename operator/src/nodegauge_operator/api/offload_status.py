"""`status.offload` of a NodeReport: what the node has beside its GPUs for models that do not fit there."""

from __future__ import annotations

from nodegauge_judge.loadtest_rules.offload import OffloadReading


class OffloadStatus(OffloadReading, frozen=True, omit_defaults=True, kw_only=True):
    """Measured and counted values that stand now; null where nothing was read, or no longer counts."""

    host_memory_gib: float | None = None
    """Memory of the host that pods can get (allocatable), by GPU, GiB."""
    cores: float | None = None
    """CPUs that pods can get (allocatable), by GPU."""
