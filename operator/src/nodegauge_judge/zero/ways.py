"""The words of a decision: a training job, a class of nodes, the ways to hold the one on the other, their
cost."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from nodegauge_judge.zero.communication import Bandwidths, Scheme
from nodegauge_judge.zero.estimators import (
    Checkpointing,
    Offload,
    Optimizer,
    PerParameter,
    Precision,
    per_parameter,
)
from nodegauge_judge.zero.offload import MFU, step_flops
from nodegauge_judge.zero.shape import Shape


class Training(Struct, frozen=True, kw_only=True):
    """What is to be trained."""

    shape: Shape
    """The model."""
    precision: Precision = Precision.BF16
    """Of forward and backward pass."""
    optimizer: Optimizer = Optimizer.ADAM
    """Whose state is kept."""
    sequence: int = 4096
    """Tokens of a sequence."""
    batch: int = 1
    """Sequences of a step on each GPU."""
    checkpointing: Checkpointing = Checkpointing.FULL
    """Which activations are computed again."""

    @property
    def recompute(self) -> bool:
        """Whether the backward pass runs the forward pass again."""
        return self.checkpointing is Checkpointing.FULL

    @property
    def bytes(self) -> PerParameter:
        """Bytes of one parameter."""
        return per_parameter(self.precision, self.optimizer)

    @property
    def flops(self) -> float:
        """Operations of one step on one GPU."""
        return step_flops(self.shape, sequence=self.sequence, batch=self.batch, recompute=self.recompute)


class NodeClass(Struct, frozen=True, kw_only=True):
    """Alike nodes, by their slowest; null where nothing was measured or published."""

    name: str
    """As people call it: number and model of GPUs, interconnect."""
    gpus: int
    """GPUs of a node."""
    usable: int
    """Nodes that a job can get; 0 for none."""
    gpu_bytes: float | None = None
    """Memory of a GPU, bytes."""
    tflops: dict[Precision, float] = {}
    """Published dense peak of a GPU, by precision."""
    bandwidths: Bandwidths | None = None
    """Bus bandwidth of collectives between the GPUs of a node."""
    h2d_gbps: float | None = None
    """Copies from the host to a GPU while the others are idle, GB/s (1e9)."""
    h2d_all_gbps: float | None = None
    """The same of each GPU while all copy, GB/s."""
    host_bytes: float | None = None
    """Memory of a node that pods can get."""
    nvme_read_gbps: float | None = None
    """Of a node, GB/s."""
    nvme_write_gbps: float | None = None
    """Of a node, GB/s."""

    def compute(self, job: Training) -> float | None:
        """Seconds of forward and backward pass; null without a published peak in this precision."""
        peak = self.tflops.get(job.precision)
        return job.flops / (peak * 1e12 * MFU) if peak else None


class Way(StrEnum):
    """How a model gets the memory that it needs."""

    NODE = "one node"
    """The GPUs of one node; where they do not suffice, bigger ones would."""
    MORE = "more nodes"
    """More GPUs."""
    CPU = "CPU offload"
    """Host memory of one node."""
    NVME = "NVMe offload"
    """NVMe of one node."""


class Limit(StrEnum):
    """What decides: why it does not fit, or what a step waits for longest."""

    GPU_MEMORY = "GPU memory"
    HOST_MEMORY = "host memory"
    NODES = "usable nodes"
    COMPUTE = "computing"
    BUS = "GPU to GPU"
    HOST_BUS = "host to GPU"
    DISK = "NVMe"
    NETWORK = "network"
    UNKNOWN = "unknown"


class Span(Struct, frozen=True, kw_only=True):
    """Seconds of a step: `most` without any overlap, `least` with all that is possible."""

    least: float | None
    """Null if not even the computing time is known."""
    most: float | None
    """Null if a part of the step is unknown: then it takes at least `least`."""


class Option(Struct, frozen=True, kw_only=True):
    """One way on one class."""

    way: Way
    scheme: Scheme
    """How the training state is split."""
    offload: Offload = Offload.NOTHING
    """What leaves the GPUs."""
    fits: bool | None
    """Null: a value that decides was not measured."""
    nodes: int = 1
    """Nodes that it takes."""
    gpus: int
    """GPUs of each node that take part: all."""
    fewest: int = 0
    """With how many GPUs of one node it fits as well (way `one node`); 0 if that was not asked."""
    gpu_bytes: float
    """That each GPU needs, without what is kept free."""
    host_bytes: float = 0.0
    """That each node's memory needs."""
    disk_bytes: float = 0.0
    """That the node's NVMe needs; nobody measured what is free."""
    step: Span = Span(least=None, most=None)
    """Time of a step."""
    limit: Limit
    """What decides."""
    unknown: tuple[str, ...] = ()
    """Parts of the answer that nobody measured, in words."""

    def tokens_per_second(self, job: Training) -> float | None:
        """At most, for all GPUs together."""
        tokens = job.sequence * job.batch * self.gpus * self.nodes
        return tokens / self.step.least if self.step.least else None
