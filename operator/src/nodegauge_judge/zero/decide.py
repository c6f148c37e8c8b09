"""Which ways hold a model on a class of nodes, and what a step takes.

A way that needs a value which nobody measured is unknown, never guessed; a part of a step that nobody
measured makes its time a lower bound.  What is modelled and what is not: docs/adr/0051.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from nodegauge_judge.zero.communication import Cost, Job, Scheme, costs
from nodegauge_judge.zero.estimators import (
    RESERVE_BYTES,
    RESERVE_SHARE,
    Needs,
    Offload,
    activations,
    ddp,
    usable,
    zero2,
    zero3,
)
from nodegauge_judge.zero.offload import to_disk, to_host
from nodegauge_judge.zero.shape import by_rule
from nodegauge_judge.zero.ways import Limit, NodeClass, Option, Span, Training, Way

MOST_NODES = 4096
"""Beyond this, more nodes are no answer.  Chosen by this project."""
NO_MEMORY = "the memory of a GPU (label nvidia.com/gpu.memory, from GPU feature discovery)"
NO_H2D = "copies from the host (run the load probe)"
NO_HOST = "host memory of a node (NodeReport status.offload)"
NO_NVME = "reads from NVMe (name a path in the policy)"
NO_NVME_WRITE = "writes to NVMe (the policy must allow them)"
NO_BUSBW = "GPU to GPU (run the NCCL probe)"
NO_NETWORK = "the network between nodes"
NO_CPU = "the optimizer's step on the CPU"
NO_SPACE = "free space on NVMe"
LADDER = (Scheme.DDP, Scheme.ZERO_1, Scheme.ZERO_3)
"""From the least communication to the least memory.  By DeepSpeed's estimator ZeRO-2 needs as much as ZeRO-1,
and communicates no less."""


def decide(job: Training, node_class: NodeClass) -> list[Option]:
    """Every way on this class, in the order of `Way`; `more nodes` only if one does not suffice."""
    one = _one_node(job, node_class)
    more = () if one.fits else (_more_nodes(job, node_class),)
    return [one, *more, _cpu(job, node_class), _nvme(job, node_class)]


def states(job: Training, scheme: Scheme, *, gpus: int, nodes: int = 1, offload: Offload) -> Needs:
    """Parameters, gradients and optimizer states."""
    params, each = job.shape.params, job.bytes
    if scheme is Scheme.ZERO_3:
        largest = job.shape.largest_layer
        return zero3(params, largest_layer=largest, gpus=gpus, nodes=nodes, offload=offload, each=each)
    if scheme is Scheme.DDP:
        return ddp(params, each)
    return zero2(params, gpus=gpus, nodes=nodes, offload=offload is not Offload.NOTHING, each=each)


def needs(
    job: Training, scheme: Scheme, *, gpus: int, nodes: int = 1, offload: Offload = Offload.NOTHING
) -> Needs:
    """The same, and the activations of a step."""
    kept = states(job, scheme, gpus=gpus, nodes=nodes, offload=offload)
    active = activations(
        job.shape,
        sequence=job.sequence,
        batch=job.batch,
        checkpointing=job.checkpointing,
        precision=job.precision,
    )
    return Needs(gpu=kept.gpu + active, host=kept.host)


def _holds(node_class: NodeClass, gpu_bytes: float) -> bool | None:
    return None if node_class.gpu_bytes is None else gpu_bytes <= usable(node_class.gpu_bytes)


def _one_node(job: Training, node_class: NodeClass) -> Option:
    def best(gpus: int) -> Scheme | None:
        ladder = LADDER if gpus > 1 else LADDER[:1]
        return next((s for s in ladder if _holds(node_class, needs(job, s, gpus=gpus).gpu)), None)

    scheme = best(node_class.gpus)
    last = LADDER[-1] if node_class.gpus > 1 else LADDER[0]
    option = Option(
        way=Way.NODE,
        scheme=scheme or last,
        fits=None if node_class.gpu_bytes is None else scheme is not None,
        gpus=node_class.gpus,
        gpu_bytes=needs(job, scheme or last, gpus=node_class.gpus).gpu,
        limit=Limit.GPU_MEMORY,
    )
    if not option.fits:
        return _unsettled(option, node_class)
    fewest = next(n for n in range(1, node_class.gpus + 1) if best(n))
    return _timed(job, node_class, replace(option, fewest=fewest))


def _more_nodes(job: Training, node_class: NodeClass) -> Option:
    gpus = node_class.gpus

    def enough(nodes: int) -> bool:
        return bool(_holds(node_class, needs(job, Scheme.ZERO_3, gpus=gpus, nodes=nodes).gpu))

    nodes = _fewest(enough)
    option = Option(
        way=Way.MORE,
        scheme=Scheme.ZERO_3,
        fits=None if node_class.gpu_bytes is None else nodes is not None,
        nodes=nodes or MOST_NODES,
        gpus=gpus,
        gpu_bytes=needs(job, Scheme.ZERO_3, gpus=gpus, nodes=nodes or MOST_NODES).gpu,
        limit=Limit.GPU_MEMORY,
    )
    if not option.fits or nodes is None:
        return _unsettled(option, node_class)
    if nodes > node_class.usable:
        option = replace(option, fits=False, limit=Limit.NODES)
    compute = node_class.compute(job)
    unknown = (NO_NETWORK, *(() if compute is not None else (_no_peak(job, node_class),)))
    limit = Limit.NETWORK if option.fits else option.limit
    return replace(option, step=Span(least=compute, most=None), unknown=unknown, limit=limit)


def _fewest(enough: Callable[[int], bool]) -> int | None:
    """The fewest nodes, at least two; need falls as their number rises."""
    if not enough(MOST_NODES):
        return None
    low, high = 1, MOST_NODES
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


CPU_LADDER = (
    (Scheme.ZERO_2, Offload.OPTIMIZER),
    (Scheme.ZERO_3, Offload.OPTIMIZER),
    (Scheme.ZERO_3, Offload.ALL),
)
"""From the least moved to the least GPU memory."""


def _cpu(job: Training, node_class: NodeClass) -> Option:
    options = [_cpu_step(job, node_class, scheme, offload) for scheme, offload in CPU_LADDER]
    fitting = [o for o in options if _holds(node_class, o.gpu_bytes)]
    if not fitting:
        return _unsettled(options[-1], node_class)
    if node_class.host_bytes is None:
        return replace(fitting[0], fits=None, unknown=(NO_HOST,), limit=Limit.UNKNOWN)
    affordable = [o for o in fitting if o.host_bytes <= (node_class.host_bytes or 0.0)]
    if not affordable:
        least = min(fitting, key=lambda o: o.host_bytes)
        return replace(least, fits=False, limit=Limit.HOST_MEMORY)
    chosen = replace(affordable[0], fits=True)
    if node_class.h2d_all_gbps is None:
        return replace(chosen, unknown=(NO_H2D,), limit=Limit.UNKNOWN)
    return _timed(job, node_class, chosen)


def _cpu_step(job: Training, node_class: NodeClass, scheme: Scheme, offload: Offload) -> Option:
    need = needs(job, scheme, gpus=node_class.gpus, offload=offload)
    return Option(
        way=Way.CPU,
        scheme=scheme,
        offload=offload,
        fits=False,
        gpus=node_class.gpus,
        gpu_bytes=need.gpu,
        host_bytes=need.host,
        limit=Limit.GPU_MEMORY,
    )


def _nvme(job: Training, node_class: NodeClass) -> Option:
    option = Option(
        way=Way.NVME,
        scheme=Scheme.ZERO_3,
        offload=Offload.ALL,
        fits=False,
        gpus=node_class.gpus,
        gpu_bytes=needs(job, Scheme.ZERO_3, gpus=node_class.gpus, offload=Offload.ALL).gpu,
        disk_bytes=job.shape.params * (job.bytes.weights + job.bytes.states),
        limit=Limit.GPU_MEMORY,
    )
    if not _holds(node_class, option.gpu_bytes):
        return _unsettled(option, node_class)
    missing = [NO_NVME] if node_class.nvme_read_gbps is None else []
    missing += [NO_H2D] if node_class.h2d_all_gbps is None else []
    if missing:
        return replace(option, fits=None, unknown=tuple(missing), limit=Limit.UNKNOWN)
    return _timed(job, node_class, replace(option, fits=True))


def _unsettled(option: Option, node_class: NodeClass) -> Option:
    """An option that does not fit, or cannot be told."""
    if node_class.gpu_bytes is not None:
        return option
    return replace(option, fits=None, limit=Limit.UNKNOWN, unknown=(NO_MEMORY,))


def _timed(job: Training, node_class: NodeClass, option: Option) -> Option:
    """The option with the time of a step and what it waits for longest."""
    compute = node_class.compute(job)
    parts, unknown = _moving(job, node_class, option)
    cost = _cost(job, node_class, option.scheme, compute)
    if option.gpus > 1 and (cost is None or cost.seconds is None):
        unknown = (NO_BUSBW, *unknown)
    if compute is None:
        unknown = (_no_peak(job, node_class), *unknown)
    gathers = (cost.seconds or 0.0) if cost else 0.0
    exposed = (cost.exposed or 0.0) if cost else 0.0
    overlapped, after = sum(p[1] for p in parts), sum(p[2] for p in parts)
    longest = max((part[1] for part in parts), default=0.0)
    least = None if compute is None else max(compute + exposed, longest) + after
    most = None if compute is None or unknown else compute + gathers + overlapped + after
    seconds = {Limit.COMPUTE: compute or 0.0, Limit.BUS: gathers} | {p[0]: p[1] + p[2] for p in parts}
    limit = max(seconds, key=lambda name: seconds[name]) if compute is not None else Limit.UNKNOWN
    open_ends = unknown + ((NO_SPACE,) if option.disk_bytes else ())
    return replace(option, step=Span(least=least, most=most), limit=limit, unknown=open_ends)


def _no_peak(job: Training, node_class: NodeClass) -> str:
    known = ", ".join(f"--precision {precision}" for precision in node_class.tflops)
    return f"a published {job.precision} peak of this GPU" + (f" (there is one for {known})" if known else "")


def _cost(job: Training, node_class: NodeClass, scheme: Scheme, compute: float | None) -> Cost | None:
    """Communication between the GPUs of one node; null without a measured bandwidth, or with one GPU."""
    if node_class.bandwidths is None or node_class.gpus == 1:
        return None
    sent = Job(params=job.shape.params, width=job.bytes.weights, ranks=node_class.gpus, compute=compute)
    return next(cost for cost in costs(sent, node_class.bandwidths) if cost.scheme is scheme)


Part = tuple[Limit, float, float]
"""What is waited for; seconds beside the computing; seconds after it."""


def _moving(job: Training, node_class: NodeClass, option: Option) -> tuple[list[Part], tuple[str, ...]]:
    """Seconds of moving states to host and disk and back, and what of it nobody measured."""
    if option.offload is Offload.NOTHING:
        return [], ()
    moved = to_host(
        job.shape.params,
        weights=job.bytes.weights,
        all_states=option.offload is Offload.ALL,
        recompute=job.recompute,
    )
    assert node_class.h2d_all_gbps is not None
    bus = node_class.h2d_all_gbps * 1e9 * option.gpus
    parts: list[Part] = [(Limit.HOST_BUS, moved.overlapped / bus, moved.after / bus)]
    if option.way is not Way.NVME:
        return parts, (NO_CPU,)
    disk = to_disk(
        job.shape.params, weights=job.bytes.weights, states=job.bytes.states, recompute=job.recompute
    )
    assert node_class.nvme_read_gbps is not None
    read = node_class.nvme_read_gbps * 1e9
    after = (disk.read - disk.overlapped) / read
    unknown: tuple[str, ...] = (NO_CPU,)
    if node_class.nvme_write_gbps is None:
        unknown = (NO_NVME_WRITE, *unknown)
    else:
        after += disk.written / (node_class.nvme_write_gbps * 1e9)
    return [*parts, (Limit.DISK, disk.overlapped / read, after)], unknown


def best(options: Iterable[tuple[NodeClass, Option]], job: Training) -> tuple[NodeClass, Option] | None:
    """What to take: whatever fits on the GPUs of one node, else on more, else by offload; of equals the one
    with the most tokens a second.  Nothing that is unknown, and nothing without a usable node."""
    fitting = [(c, o) for c, o in options if o.fits and c.usable >= o.nodes]
    order = list(Way)
    return min(
        fitting,
        key=lambda pair: (order.index(pair[1].way), -(pair[1].tokens_per_second(job) or 0.0)),
        default=None,
    )


def largest(node_class: NodeClass, way: Way, job: Training) -> float | None:
    """Parameters of the largest model that fits this way, two digits, rounded down; 0 for none, null if a
    value is unknown.  `job` gives everything but the model."""

    def fits(params: float) -> bool | None:
        sized = replace(job, shape=by_rule(params))
        if way is Way.MORE:
            need = needs(sized, Scheme.ZERO_3, gpus=node_class.gpus, nodes=max(1, node_class.usable)).gpu
            return _holds(node_class, need)
        return next(option.fits for option in decide(sized, node_class) if option.way is way)

    return _largest(fits)


def largest_served(node_class: NodeClass) -> float | None:
    """Parameters of the largest model whose 2-byte weights fit on the GPUs of one node; null if their memory
    is unknown.  Sequences need more: their keys and values are not counted."""
    if node_class.gpu_bytes is None:
        return None
    return _floor(usable(node_class.gpu_bytes) * node_class.gpus / 2)


def _largest(fits: Callable[[float], bool | None]) -> float | None:
    low, high = 1e6, 1e14
    if (answer := fits(low)) is not True:
        return None if answer is None else 0.0
    while high / low > 1.005:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if fits(middle) else (low, middle)
    return _floor(low)


def _floor(params: float) -> float:
    digits = 10 ** (len(str(int(params))) - 2) if params >= 10 else 1
    return float(int(params) // digits * digits)


def bigger(job: Training, gpus: int) -> float:
    """Bytes of memory that each of so many GPUs of a node must have to hold the job."""
    scheme = LADDER[-1] if gpus > 1 else LADDER[0]
    return (needs(job, scheme, gpus=gpus).gpu + RESERVE_BYTES) / (1 - RESERVE_SHARE)
