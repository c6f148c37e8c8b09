"""Whether this node can be measured now, and if not, why: skipped is an answer, and an old result stays.

A benchmark beside somebody's job measures the job and slows it; on a part of a GPU it measures the part.
Pure: what was read comes in.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from nodegauge_contract import Gpu, Int, Skip, Unavailable
from nodegauge_contract.nccl import MAX_RANKS

VGPU_MODES = {2: "vGPU", 3: "a host of vGPUs", 4: "a host of vSGAs"}
"""NVML_GPU_VIRTUALIZATION_MODE_*; 0 none and 1 passthrough are whole GPUs."""

IDLE_MIB = 1024
"""GPU memory in use, without what the driver reserves, above which somebody is there.  A container sees no
processes of others where PID namespaces hide them (ours; a CUDA context takes about 0.5 GiB, a desktop less
than 1)."""


class Use(Struct, frozen=True, kw_only=True):
    """One GPU as it is right now: compute processes, memory in use and free (MiB), how it is virtualised."""

    processes: Int
    used_mib: Int
    free_mib: Int
    virtualization: Int


class Skipped(Struct, frozen=True, kw_only=True):
    """Why not, and in words."""

    why: Skip
    message: str


def usable(gpus: Sequence[Gpu]) -> list[Gpu]:
    """GPUs that answer and have a name to be asked for by, in the order of NVML."""
    return [gpu for gpu in gpus if gpu.error is None and isinstance(gpu.uuid, str)][:MAX_RANKS]


def skipped(
    gpus: Sequence[Gpu], uses: Sequence[Use], *, expected: int, shared: str, confidential: Int
) -> Skipped | None:
    """Why nothing is to be measured; `uses` belong to `usable(gpus)`."""
    able = usable(gpus)
    if shared:
        return Skipped(why=Skip.SHARED, message=f"the GPUs are shared: {shared}"[:240])
    if any(gpu.mig == 1 for gpu in able):
        return Skipped(why=Skip.MIG, message="MIG is on: NCCL would measure parts of GPUs")
    for use in uses:
        if use.virtualization in VGPU_MODES:
            words = VGPU_MODES[int(str(use.virtualization))]
            return Skipped(why=Skip.VGPU, message=f"NVML says that this is {words}")
    if confidential == 1:
        return Skipped(why=Skip.CONFIDENTIAL, message="confidential computing is on: copies are encrypted")
    if len(able) < 2:
        there = max(expected, len(gpus))
        message = f"{len(able)} of {there} GPUs can be used, and it takes two to communicate"
        return Skipped(why=Skip.SINGLE_GPU, message=message)
    return busy(able, uses)


def busy(able: Sequence[Gpu], uses: Sequence[Use]) -> Skipped | None:
    """Somebody computes on one of the GPUs, or holds its memory."""
    for gpu, use in zip(able, uses, strict=True):
        if isinstance(use.processes, int) and use.processes > 0:
            several = "es" if use.processes > 1 else ""
            message = f"GPU {gpu.index} is in use by {use.processes} compute process{several}"
            return Skipped(why=Skip.BUSY, message=message)
        if isinstance(use.used_mib, int) and use.used_mib > IDLE_MIB:
            message = f"{use.used_mib} MiB of GPU {gpu.index} are in use by nobody that can be seen"
            return Skipped(why=Skip.BUSY, message=message)
    return None


def missing(gpus: Sequence[Gpu], *, expected: int) -> str:
    """Which GPUs do not take part, in words; empty where all do."""
    able = usable(gpus)
    if len(able) >= max(expected, len(gpus)):
        return ""
    ill = [f"GPU {gpu.index} {gpu.error.kind}" for gpu in gpus if gpu.error is not None]
    unseen = max(expected - len(gpus), 0)
    parts = [*ill, *([f"{unseen} not visible"] if unseen else [])]
    return f"measured on {len(able)} of {max(expected, len(gpus))} GPUs: {', '.join(parts)}"[:240]


def least_free(uses: Sequence[Use]) -> int | None:
    """Bytes free on the fullest GPU; None where one does not say."""
    free = [use.free_mib for use in uses]
    if not free or any(isinstance(each, Unavailable) for each in free):
        return None
    return min(int(str(each)) for each in free) << 20
