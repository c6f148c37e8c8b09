"""Serving a model: on how many GPUs its weights fit, and how fast they stream from host memory or NVMe."""

from __future__ import annotations

from math import ceil

from msgspec import Struct

from nodegauge_judge.zero.estimators import usable
from nodegauge_judge.zero.offload import stream
from nodegauge_judge.zero.ways import NodeClass

WIDTH = 2
"""Bytes of a weight: bf16 or fp16."""


class Serving(Struct, frozen=True, kw_only=True):
    """One model on one class.  Keys and values of sequences need memory too: they are not counted."""

    weights: float
    """Bytes."""
    gpus: int | None
    """GPUs of a node that hold them; 0: not one node's, null: their memory is unknown."""
    host_passes: float | None
    """Passes a second while the weights stream from host memory to one GPU, each one token of every sequence
    in the batch; null if the rate or the memory is unknown, 0 if they do not fit."""
    nvme_passes: float | None
    """The same from NVMe, over the slower of disk and bus; null if a rate is unknown.  Free space is not
    known."""


def serve(params: float, node_class: NodeClass) -> Serving:
    """What the class can do with 2-byte weights."""
    weights = params * WIDTH
    bytes_left = None if node_class.gpu_bytes is None else usable(node_class.gpu_bytes)
    fewest = None if bytes_left is None else ceil(weights / bytes_left) if bytes_left else 0
    bus, disk, host = node_class.h2d_gbps, node_class.nvme_read_gbps, node_class.host_bytes
    fits = None if host is None else weights <= host
    return Serving(
        weights=weights,
        gpus=0 if fewest is not None and fewest > node_class.gpus else fewest,
        host_passes=0.0 if fits is False else _passes(params, bus) if fits else None,
        nvme_passes=None if bus is None or disk is None else _passes(params, min(bus, disk)),
    )


def _passes(params: float, gbps: float | None) -> float | None:
    return None if gbps is None else 1 / stream(params, weights=WIDTH, gbps=gbps, batch=1).pass_seconds
