"""What a load run says of offload: the slowest GPU's copies from the host, and reads from the node's disk.

A rate stands only if every GPU of the node gave one: the slowest may be the one that is missing.  Nothing is
graded: how much is enough depends on the model.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from nodegauge_contract.load import Storage
from nodegauge_judge.case import clip, short_name
from nodegauge_judge.loadtest_rules.case import LoadCase, positive

MAX_GBPS = 10_000.0
"""More than any host link or storage of a node.  Chosen by this project: NVLink-C2C has 450 one way."""

MAX_PROBLEM = 400
"""Characters: a command that makes the file stays whole."""


class OffloadReading(Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """What one load run measured; null where nothing was read."""

    h2d_gbps: float | None = None
    """Pinned copies from the host to one GPU while the others are idle, of the slowest GPU, GB/s (1e9)."""
    h2d_all_gbps: float | None = None
    """The same while all GPUs copy, of the slowest GPU, GB/s."""
    h2d_problem: str = ""
    """Why one of the two is missing; empty if none is."""
    nvme_read_gbps: float | None = None
    """Reads from the path that the policy names, of the node, GB/s (1e9)."""
    nvme_write_gbps: float | None = None
    """Writes to it when its file was made, if the policy allows them, GB/s."""
    nvme_path: str = ""
    """That path; empty for none."""
    nvme_problem: str = ""
    """Why nothing was read from it; empty if it was, or if the policy names none."""


def offload(case: LoadCase) -> OffloadReading:
    """What the run measured."""
    return _with_storage(_copies(case), case.load.storage)


def _copies(case: LoadCase) -> OffloadReading:
    if (loaded := len(case.gpus)) < case.load.expected:
        return OffloadReading(h2d_problem=f"{loaded} of {case.load.expected} GPUs were loaded")
    alone = [plausible(each.load.h2d_gbps) for each in case.gpus]
    together = [plausible(each.load.h2d_all_gbps) for each in case.gpus]
    gaps = [None in rates for rates in zip(alone, together, strict=True)]
    unread = [short_name(each.gpu) for each, gap in zip(case.gpus, gaps, strict=True) if gap]
    return OffloadReading(
        h2d_gbps=_slowest(alone),
        h2d_all_gbps=_slowest(together),
        h2d_problem=clip(f"no rate of {', '.join(unread)}") if unread else "",
    )


def _slowest(rates: list[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return min(known) if known and len(known) == len(rates) else None


def plausible(value: object) -> float | None:
    """A rate that hardware can have, GB/s; None for any other."""
    rate = positive(value)
    return None if rate is None or rate > MAX_GBPS else float(f"{rate:.4g}")


def _with_storage(reading: OffloadReading, storage: Storage | None) -> OffloadReading:
    if storage is None:
        return reading
    read = None if storage.problem else plausible(storage.read_gbps)
    problem = "" if read is not None else storage.problem or "it gave no plausible rate"
    return replace(
        reading,
        nvme_read_gbps=read,
        nvme_write_gbps=plausible(storage.write_gbps),
        nvme_path=clip(storage.path),
        nvme_problem=clip(problem, most=MAX_PROBLEM),
    )
