"""The plan of an NCCL run: arms, cells and sizes, what is left out, and each arm's NCCL environment.

One budget for the whole run.  It cuts sizes, never arms: little data about every configuration is worth more
than much data about one.  Cells are in the order of their value, so that the least valuable ones are cut; the
first cell of an arm always stays.  Times are estimated pessimistically, from bandwidths that healthy machines
exceed; they decide what is left out in advance, and the child's clock (`Order.budget_ms`) decides the rest.

A child's environment is built from scratch: NCCL reads dozens of variables, and those of a node or an image
would turn a measurement of the hardware into one of their tuning.  Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import takewhile
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from nodegauge_contract import ArmName, Collective
from nodegauge_probes.nccl.protocol import CellOrder, Order

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
AR, AG, RS = Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER

BUDGET_S = 60.0
STARTUP_COUNTED_S = 10.0
"""Maximum of each arm's start that counts towards the budget: longer, the image or the driver is cold."""
TEARDOWN_S = 1.0
START_S: dict[ArmName, tuple[float, float]] = {
    ArmName.DEFAULT: (90.0, 15.0),
    ArmName.P2P_OFF: (60.0, 8.0),
    ArmName.NVLS_OFF: (60.0, 8.0),
}
"""Seconds that the start of an arm may take, and seconds more for each GPU.  Chosen by this project, above
what has been published, in sum: 55 s for the communicators of 8 B200, 52 of them kernels (NCCL issue 1646);
libnccl of 474 MB from a disk of 10 MB/s, 47 s; contexts, created one after the other, more than a second a
GPU (dask-cuda issue 198).  Later arms find files and kernels in memory."""
RESERVED_S = {ArmName.NVLS_OFF: 3.0, ArmName.P2P_OFF: 5.0, ArmName.DEFAULT: 8.0}
"""Measuring time that is reserved for later arms."""
LEAST_S, MOST_S = 1.0, 30.0
"""Measuring time of an arm, whatever the budget; the maximum is below a child's limit of 45 s."""

RESERVED_BYTES = 2 * GIB
"""Of each GPU, for contexts, NCCL's buffers and NVLS."""

NVLS_FROM_CAPABILITY, NVLS_FROM_RANKS = (9, 0), 2
"""SHARP in NVSwitch: from Hopper on.  Published curves use it from 5 GPUs (H200) or 6 (B200) on, but NCCL
makes its channels from 2 on (3 before 2.30; src/transport/nvls.cc), and if that fails NCCL does not start;
the same applies to the 4 GPUs of a GB200 tray."""

FEW_CALLS = 5


class Processes(StrEnum):
    """How many processes drive the GPUs; `AUTO`: one per GPU, as in the jobs, if the engine can."""

    AUTO = "auto"
    PER_GPU = "perGPU"
    ONE = "one"


ENGINES = {
    "nccl4py": "nodegauge_probes.nccl.engine_nccl4py",
    "nccl-tests": "nodegauge_probes.nccl.engine_nccltests",
}
"""Name to module: each is a program that speaks `protocol`."""
ENGINES_PER_GPU = frozenset({"nccl4py"})
"""Engines that can be one rank; nccl-tests would need MPI for that."""

CELLS: dict[ArmName, tuple[CellOrder, ...]] = {
    ArmName.DEFAULT: (
        CellOrder(collective=AR, bytes=GIB),
        CellOrder(collective=AG, bytes=GIB),
        CellOrder(collective=RS, bytes=GIB),
        CellOrder(collective=AR, bytes=64 * KIB, check=True),
        CellOrder(collective=AR, bytes=256 * MIB, check=True),
        CellOrder(collective=AR, bytes=8),
        CellOrder(collective=AG, bytes=64 * KIB, check=True),
        CellOrder(collective=RS, bytes=64 * KIB, check=True),
        CellOrder(collective=AR, bytes=64 * MIB, check=True),
        CellOrder(collective=AR, bytes=4 * KIB),
    ),
    ArmName.NVLS_OFF: (CellOrder(collective=AR, bytes=GIB),),
    ArmName.P2P_OFF: (
        CellOrder(collective=AR, bytes=256 * MIB, calls=FEW_CALLS, check=True),
        CellOrder(collective=AG, bytes=256 * MIB, calls=FEW_CALLS, check=True),
        CellOrder(collective=AR, bytes=64 * KIB, calls=FEW_CALLS, check=True),
        CellOrder(collective=AR, bytes=64 * MIB, calls=FEW_CALLS, check=True),
    ),
}

PAIR_BYTES, PAIR_COPIES = (256 * MIB, 64 * MIB, 16 * MIB), 5
PAIR_SHARE = 1 / 3
"""Maximum share of an arm's time."""

GBPS = {ArmName.DEFAULT: (20.0, 3.0), ArmName.NVLS_OFF: (20.0, 3.0), ArmName.P2P_OFF: (2.0, 2.0)}
"""GB/s that every machine exceeds, with and without NVLink."""
PAIR_GBPS = (20.0, 5.0)
CHECK_S = 0.3


class Machine(Struct, frozen=True, kw_only=True):
    """The inputs of the plan.  `capability`: compute capability, None if unknown; `switched`: its NVLinks
    lead to switches; `linked`: it has NVLinks; `free_bytes`: of the GPU with the least memory, None if
    unknown."""

    ranks: int
    capability: tuple[int, int] | None = None
    switched: bool = False
    linked: bool = False
    free_bytes: int | None = None


class Spent(Struct, frozen=True, kw_only=True):
    """Seconds that a finished arm took."""

    startup: float
    measure: float
    teardown: float

    @property
    def counted(self) -> float:
        return min(self.startup, STARTUP_COUNTED_S) + self.measure + self.teardown


def arms(machine: Machine) -> tuple[ArmName, ...]:
    """The configurations to measure, the most valuable first."""
    capability = machine.capability or (0, 0)
    sharp = machine.switched and capability >= NVLS_FROM_CAPABILITY and machine.ranks >= NVLS_FROM_RANKS
    return (ArmName.DEFAULT, ArmName.P2P_OFF, *((ArmName.NVLS_OFF,) if sharp else ()))


def allowance(budget: float, *, spent: Sequence[Spent], later: Sequence[ArmName]) -> float:
    """Seconds that the next arm may measure, given the finished arms and the later ones."""
    used = sum(arm.counted for arm in spent)
    reserved = sum(STARTUP_COUNTED_S + TEARDOWN_S + RESERVED_S[arm] for arm in later)
    return min(max(budget - used - reserved - STARTUP_COUNTED_S - TEARDOWN_S, LEAST_S), MOST_S)


def startup_seconds(arm: ArmName, *, ranks: int, starts: int = 1) -> float:
    """Seconds that the start of `arm` may take with so many GPUs; `starts`: how often its engine starts NCCL
    (nccl-tests: once per collective, with warm files after the first)."""
    warm, per_gpu = START_S[ArmName.P2P_OFF]
    first, first_per_gpu = START_S[arm]
    return first + first_per_gpu * ranks + (starts - 1) * (warm + per_gpu * ranks)


def order_for(
    arm: ArmName, machine: Machine, *, uuids: Sequence[str], seconds: float
) -> tuple[Order, tuple[str, ...]]:
    """The order for the child of `arm` with `seconds` of measuring, and the names of what is left out."""
    pairs_bytes = _pairs_bytes(machine, seconds * PAIR_SHARE) if arm is ArmName.DEFAULT else 0
    left = seconds - _pairs_seconds(machine, pairs_bytes)
    wanted = CELLS[arm]
    fitting = dict.fromkeys(_fitting(cell, machine) for cell in wanted)
    kept = _affordable([(cell, _seconds(cell, arm, machine)) for cell in fitting], left)
    cut = [name(cell) for cell in wanted if cell not in kept]
    if arm is ArmName.DEFAULT and pairs_bytes != PAIR_BYTES[0]:
        cut.append(f"pairs/{PAIR_BYTES[0]}")
    order = Order(
        arm=arm,
        uuids=tuple(uuids),
        cells=tuple(kept),
        budget_ms=round(max(left, LEAST_S) * 1000),
        pairs_bytes=pairs_bytes,
        pair_copies=PAIR_COPIES,
    )
    return order, tuple(in_arm(arm, each) for each in cut)


def name(cell: CellOrder) -> str:
    """The cell's name in `NcclResult.cut`."""
    return f"{cell.collective}/{cell.bytes}"


def in_arm(arm: str, cut: str) -> str:
    """A name in `NcclResult.cut`, prefixed with its arm unless that is the default one."""
    return cut if arm == ArmName.DEFAULT else f"{arm}:{cut}"


def _fitting(cell: CellOrder, machine: Machine) -> CellOrder:
    """The cell at the largest size that fits into the memory of the fullest GPU."""
    size = cell.bytes
    while machine.free_bytes is not None and size > 64 * KIB and size + RESERVED_BYTES > machine.free_bytes:
        size //= 4
    return cell if size == cell.bytes else replace(cell, bytes=size, check=True)


def _affordable(priced: Sequence[tuple[CellOrder, float]], seconds: float) -> list[CellOrder]:
    """The first cell, and each of the others that still fits into the time."""
    kept: list[CellOrder] = []
    for cell, price in priced:
        if not kept or price <= seconds:
            kept.append(cell)
            seconds -= price
    return kept


def _seconds(cell: CellOrder, arm: ArmName, machine: Machine) -> float:
    """A pessimistic estimate: a call moves its bytes twice, the limit of 2(n-1)/n."""
    call = 2 * cell.bytes / (GBPS[arm][0 if machine.linked else 1] * 1e9)
    batches = cell.calls * call if cell.calls else cell.batches * max(cell.batch_ms / 1000, call)
    return batches + call + (CHECK_S if cell.check else 0.0)


def _pairs_seconds(machine: Machine, size: int) -> float:
    pairs = machine.ranks * (machine.ranks - 1)
    return pairs * (PAIR_COPIES + 1) * size / (PAIR_GBPS[0 if machine.linked else 1] * 1e9)


def _pairs_bytes(machine: Machine, seconds: float) -> int:
    """The largest copy that fits into time and memory (source and destination); 0 for none."""
    free = machine.free_bytes
    too_large = takewhile(
        lambda size: (
            _pairs_seconds(machine, size) > seconds or (free is not None and 2 * size + RESERVED_BYTES > free)
        ),
        PAIR_BYTES,
    )
    return (*PAIR_BYTES, 0)[len(tuple(too_large))]


KEPT_VARIABLES = frozenset({"PATH", "LD_LIBRARY_PATH", "PYTHONPATH"})
KEPT_PREFIXES = ("NVIDIA_", "NODEGAUGE_")
"""NVIDIA_*: settings of the container runtime."""

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"

QUIET_NETWORK = {
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_NET_PLUGIN": "none",
}
"""One node needs no network; else network policies, sidecars and slow fabrics would slow the start."""

DEBUG = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,GRAPH,ENV,TUNING,NVLS,P2P,SHM",
}
LOG_NAME = "nccl.%h.%p.log"

ARM_VARIABLES: Mapping[ArmName, Mapping[str, str]] = {
    ArmName.DEFAULT: {},
    ArmName.P2P_OFF: {"NCCL_P2P_DISABLE": "1", "NCCL_NVLS_ENABLE": "0"},
    ArmName.NVLS_OFF: {"NCCL_NVLS_ENABLE": "0"},
}
"""P2P off needs NVLS off: NCCL_P2P_DISABLE only sets the P2P level, which NVLS does not check
(NCCL 5067397c, src/transport/nvls.cc)."""


def kept(environment: Mapping[str, str]) -> dict[str, str]:
    """What a child that drives GPUs gets of the probe's environment; CUDA_* of the node or the image could
    change what it sees."""
    return {
        name: value
        for name, value in environment.items()
        if name in KEPT_VARIABLES or name.startswith(KEPT_PREFIXES)
    }


def child_environment(
    inherited: Mapping[str, str],
    *,
    arm: ArmName,
    uuids: Sequence[str],
    policy: Mapping[str, str],
    scratch: Path,
) -> dict[str, str]:
    """The environment of one arm: `inherited` is the probe's, `policy` overrides our defaults but not what
    makes the arm; NCCL writes its log into `scratch`."""
    return {
        "PATH": DEFAULT_PATH,
        **kept(inherited),
        "HOME": "/tmp",
        "LC_ALL": "C.UTF-8",
        **QUIET_NETWORK,
        **policy,
        **DEBUG,
        "NCCL_DEBUG_FILE": str(scratch / LOG_NAME),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(uuids),
        **ARM_VARIABLES[arm],
    }
