"""What offload to host memory and NVMe costs, by ZeRO-Infinity's formulas (arXiv 2104.07857, section 4).

Efficiency without any overlap is ait x bw / (ait x bw + peak): `ait` (operations by byte moved) is sequence x
batch for parameters and gradients, a quarter of it for optimizer states, and 24 x hidden x ci for activation
checkpoints of every ci-th layer; `peak` is what the GPU reaches while it waits for nothing.  The same volumes
as seconds: a step moves the parameters two times (three with recomputing) and the gradients once, 2 bytes
each, and reads and writes the optimizer's states once.  Each GPU moves its own part over its own bus (section
5.1).
"""

from __future__ import annotations

from msgspec import Struct

from nodegauge_judge.zero.shape import Shape

MFU = 0.4
"""Share of the published peak that training reaches: 38 to 43 % for Llama 3 405B (arXiv 2407.21783, table
4)."""


def efficiency(ait: float, gbps: float, peak_tflops: float) -> float:
    """Share of the time that the GPU computes, 0 to 1; `gbps` in GB/s (1e9)."""
    return ait * gbps * 1e9 / (ait * gbps * 1e9 + peak_tflops * 1e12)


def ait_parameters(sequence: int, batch: int) -> float:
    """Operations by byte of parameters and gradients; `batch` of one GPU."""
    return float(sequence * batch)


def ait_optimizer(sequence: int, batch: int) -> float:
    """Operations by byte of optimizer states."""
    return sequence * batch / 4


def ait_activations(hidden: int, every: int = 1) -> float:
    """Operations by byte of activation checkpoints."""
    return 24.0 * hidden * every


def step_flops(shape: Shape, *, sequence: int, batch: int, recompute: bool) -> float:
    """Operations of forward and backward pass on one GPU: 2 for each parameter and token and 4 s h for
    attention in each layer; the backward pass has twice that, recomputing once more (Narayanan et al., arXiv
    2104.04473: 96 b s l h^2 (1 + s / 6h) with recomputing)."""
    tokens = sequence * batch
    forward = 2 * shape.params * tokens + 4 * sequence * tokens * shape.hidden * shape.layers
    return (4 if recompute else 3) * forward


class Moved(Struct, frozen=True, kw_only=True):
    """Bytes of one step, all GPUs together."""

    overlapped: float
    """That can move while the GPUs compute: parameters to them, gradients from them."""
    after: float
    """That can only move when they are done."""


def to_host(params: float, *, weights: int, all_states: bool, recompute: bool) -> Moved:
    """Over the buses to host memory.  With the optimizer alone, gradients leave and new weights come back;
    with the parameters as well, these come for each pass instead, and the new ones are where they belong."""
    passes = (3 if recompute else 2) if all_states else 0
    return Moved(overlapped=(passes + 1) * weights * params, after=0 if all_states else weights * params)


class DiskMoved(Struct, frozen=True, kw_only=True):
    """Bytes of one step between host memory and a node's NVMe."""

    read: float
    written: float
    overlapped: float
    """Of `read`, what can come while the GPUs compute."""


def to_disk(params: float, *, weights: int, states: int, recompute: bool) -> DiskMoved:
    """Weights for each pass; the states are read and written once, as are gradients and new weights."""
    passes = (3 if recompute else 2) * weights * params
    return DiskMoved(read=passes + states * params, written=(states + weights) * params, overlapped=passes)


class Streaming(Struct, frozen=True, kw_only=True):
    """Generating text while the weights come from host memory or NVMe, layer by layer, once for each
    token."""

    pass_seconds: float
    """For one token of every sequence in the batch."""
    tokens_per_second: float
    """Of the whole batch."""


def stream(params: float, *, weights: int = 2, gbps: float, batch: int) -> Streaming:
    """ZeRO-Inference: all weights pass the slowest bus once for each token, and a batch shares them.

    DeepNVMe (DeepSpeed, blogs/deepnvme/06-2025): LLAMA-3-70B with batch 96 makes 7, 17 and 26 tokens/s from
    NVMe at 10, 27 and 48 GB/s.  The prompt's computing is left out, so faster disks look up to a quarter too
    good.
    """
    seconds = params * weights / (gbps * 1e9)
    return Streaming(pass_seconds=seconds, tokens_per_second=batch / seconds)
