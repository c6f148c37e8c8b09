"""Memory of a training job: DeepSpeed's estimators to the byte, activations, and what is kept free.

`zero2` and `zero3` are `estimate_zero2_model_states_mem_needs` (deepspeed/runtime/zero/stage_1_and_2.py) and
`estimate_zero3_model_states_mem_needs` (stage3.py), for Adam in mixed precision (`MIXED_ADAM`); other
optimizers and fp32 put their own bytes into the same formulas.  DeepSpeed's documentation explains them
(docs/code-docs/source/memory.rst).
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from nodegauge_judge.zero.shape import Shape

GIB = 2**30
BUFFER = 1.5
"""DeepSpeed's `additional_buffer_factor` for host memory."""
RESERVE_BYTES = 4 * GIB
"""CUDA context and NCCL's buffers (about 1.5 GiB), and DeepSpeed's default buckets for reducing and gathering
(5e8 elements of 2 bytes each).  Chosen by this project."""
RESERVE_SHARE = 0.05
"""Of a GPU's memory, for fragmentation.  Chosen by this project."""


class Precision(StrEnum):
    """What forward and backward pass compute in."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"
    """On tensor cores (TF32)."""
    FP8 = "fp8"
    """Matrices in FP8, weights kept in bf16 (NVIDIA Transformer Engine): memory as bf16."""


class Optimizer(StrEnum):
    """How much state a parameter has."""

    ADAM = "adam"
    ADAM_8BIT = "adam8bit"
    SGD = "sgd"
    ADAFACTOR = "adafactor"


class Checkpointing(StrEnum):
    """Which activations are computed again in the backward pass."""

    FULL = "full"
    SELECTIVE = "selective"
    """Attention alone, as FlashAttention does."""
    NONE = "none"


STATE_BYTES = {Optimizer.ADAM: 8, Optimizer.ADAM_8BIT: 2, Optimizer.SGD: 4, Optimizer.ADAFACTOR: 0}
"""Bytes a parameter: two fp32 moments, two of 8 bits (arXiv 2110.02861), one fp32 momentum; Adafactor keeps a
row and a column of each matrix (arXiv 1804.04235), which is below 0.1 %."""


class PerParameter(Struct, frozen=True, kw_only=True):
    """Bytes of one parameter."""

    weights: int
    """That forward and backward pass use."""
    gradients: int
    """That the backward pass makes."""
    states: int
    """That the optimizer's step needs: fp32 weights (in mixed precision), fp32 gradients, moments."""


MIXED_ADAM = PerParameter(weights=2, gradients=2, states=16)
"""What DeepSpeed's estimators assume."""


class Needs(Struct, frozen=True, kw_only=True):
    """Bytes for parameters, gradients and optimizer states."""

    gpu: int
    """Of each GPU."""
    host: int
    """Of each node's memory."""


def per_parameter(precision: Precision, optimizer: Optimizer) -> PerParameter:
    """Mixed precision keeps fp32 weights beside the 2-byte ones (ZeRO, arXiv 1910.02054, section 3.1)."""
    width, fp32_weights = (4, 0) if precision is Precision.FP32 else (2, 4)
    return PerParameter(weights=width, gradients=width, states=fp32_weights + 4 + STATE_BYTES[optimizer])


def ddp(params: float, each: PerParameter = MIXED_ADAM) -> Needs:
    """All of it on every GPU: 16 bytes a parameter with Adam (arXiv 1910.02054, section 3.1), which counts no
    second fp32 copy of the gradients."""
    return Needs(gpu=int((each.weights + each.gradients + each.states - 4) * params), host=0)


def zero2(
    params: float,
    *,
    gpus: int,
    nodes: int = 1,
    offload: bool = False,
    each: PerParameter = MIXED_ADAM,
    buffer: float = BUFFER,
) -> Needs:
    """Stages 1 and 2; `gpus` of each node; `offload`: the optimizer's states are in host memory.

    GPU: 2P with offload, else 4P + 16P / all GPUs.  Host: max(4 x all GPUs, 16) x P x buffer with offload,
    else 4P x GPUs of a node x buffer, which only loading needs.
    Stage 2 may need less than stage 1, down to (2 + 14/N)P (arXiv 1910.02054); the estimator grants neither.
    """
    ranks = nodes * gpus
    if offload:
        host = params * max(4 * ranks, each.states) * buffer
        return Needs(gpu=int(each.weights * params), host=int(host))
    own = int(each.states * params / ranks)
    return Needs(
        gpu=int((each.weights + each.gradients) * params + own), host=int(params * 4 * gpus * buffer)
    )


class Offload(StrEnum):
    """What leaves the GPUs."""

    NOTHING = ""
    OPTIMIZER = "optimizer"
    ALL = "optimizer and parameters"


def zero3(
    params: float,
    *,
    largest_layer: float,
    gpus: int,
    nodes: int = 1,
    offload: Offload = Offload.NOTHING,
    zero_init: bool = True,
    each: PerParameter = MIXED_ADAM,
    buffer: float = BUFFER,
) -> Needs:
    """Stage 3, with the largest layer gathered on each GPU (4 bytes a parameter of it).

    GPU: that layer, and 18P, 2P or nothing by all GPUs.  Host, by nodes and times buffer: 18P for all, 16P
    for the optimizer; without offload, or without `zero_init`, what loading needs counts.
    """
    share, total = 1 / nodes, each.weights + each.states
    layer = (each.weights + each.gradients) * largest_layer
    kept = {Offload.NOTHING: total, Offload.OPTIMIZER: each.weights, Offload.ALL: 0}[offload]
    moved = {Offload.NOTHING: 0, Offload.OPTIMIZER: each.states, Offload.ALL: total}[offload]
    if offload is Offload.NOTHING:
        host = (largest_layer if zero_init else params) * 4 * gpus * buffer
    elif zero_init:
        host = params * moved * share * buffer
    else:
        host = params * max(4 * gpus, moved * share) * buffer
    return Needs(gpu=int(layer + int(kept * params / (nodes * gpus))), host=int(host))


def activations(
    shape: Shape, *, sequence: int, batch: int, checkpointing: Checkpointing, precision: Precision
) -> int:
    """Bytes on one GPU: a layer keeps s b h (34 + 5 a s / h), without attention 34 s b h, recomputed 2 s b h
    and one layer at work; the head 4 s b h, and 4 s b v for its fp32 logits (Korthikanti et al.,
    arXiv 2205.05198, equation 1, table 2, section 4.3).  These are for 16 bits; fp32 doubles all but the
    logits.
    """
    tokens, hidden = sequence * batch, shape.hidden
    light = 34 * tokens * hidden
    if checkpointing is Checkpointing.FULL:
        layers = 2 * tokens * hidden * shape.layers + light
    elif checkpointing is Checkpointing.SELECTIVE:
        layers = light * shape.layers
    else:
        layers = (light + 5 * shape.heads * sequence * tokens) * shape.layers
    scale = 2 if precision is Precision.FP32 else 1
    return scale * (layers + 4 * tokens * hidden) + 4 * tokens * shape.vocabulary


def usable(gpu_bytes: float) -> float:
    """What of a GPU's memory a job may fill."""
    return max(0.0, gpu_bytes * (1 - RESERVE_SHARE) - RESERVE_BYTES)
