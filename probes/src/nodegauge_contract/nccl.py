"""The measurements of the NCCL probe: arms, cells and the pair matrix.

An arm is one NCCL configuration, in a separate process; a cell is one collective at one size.  The document
stores times; the judge computes bandwidths from time, size and ranks.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from nodegauge_contract.values import NOT_READ, Flag, Int, Int64, Num, Short, Str, Text, Unavailable

MAX_RANKS = 64
MAX_CELLS = 64
MAX_ARMS = 8
MAX_VARIABLES = 16


class Collective(StrEnum):
    """The programs of nccl-tests.  The probe measures the first three (`GRADED`); only they are graded, any
    other is read from a log for its faults."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALLTOALL = "alltoall"
    BROADCAST = "broadcast"
    GATHER = "gather"
    REDUCE = "reduce"
    SCATTER = "scatter"
    SENDRECV = "sendrecv"


GRADED = (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
TOTALS = frozenset(
    {
        Collective.ALL_GATHER,
        Collective.REDUCE_SCATTER,
        Collective.ALLTOALL,
        Collective.GATHER,
        Collective.SCATTER,
    }
)
"""Collectives whose size is the total over all ranks, each with a share of it (nccl-tests src/*.cu)."""


def busbw_factor(collective: str, ranks: int) -> float:
    """The factor from algbw to busbw: all_reduce 2(n-1)/n, those of `TOTALS` (n-1)/n, the others 1.

    It is 0 for one rank, which sends nothing.  Raises ValueError for another collective and for fewer than
    one rank.  Source: nccl-tests, doc/PERFORMANCE.md ("Bandwidth", summary of correction factors).
    """
    if ranks < 1:
        raise ValueError(f"{ranks} ranks: at least one takes part")
    if Collective(collective) in TOTALS:
        return (ranks - 1) / ranks
    return 2 * (ranks - 1) / ranks if collective == Collective.ALL_REDUCE else float(ranks > 1)


class ArmName(StrEnum):
    """The NCCL configurations: NCCL's defaults, only the host-memory path
    (NCCL_P2P_DISABLE=1 NCCL_NVLS_ENABLE=0), and NVLink without SHARP (NCCL_NVLS_ENABLE=0)."""

    DEFAULT = "default"
    P2P_OFF = "p2p-off"
    NVLS_OFF = "nvls-off"


class ArmOutcome(StrEnum):
    """How an arm ended.  Values are stable; new ones may be added.

    `hung`: no end of the first calls, of measuring or of shutting down; `start-slow`: processes, contexts,
    libraries and communicators took longer than a start may, which a cold disk explains as well as a hang;
    `failed`: NCCL or CUDA returned an error; `out-of-memory`: of the GPU or of the pod; `garbage`: the child
    wrote invalid output; `partial`: it exited with 0 before it was done; `cut`: the run's time was up, or the
    pod was terminated.
    """

    DONE = "done"
    HUNG = "hung"
    START_SLOW = "start-slow"
    CRASHED = "crashed"
    FAILED = "failed"
    OUT_OF_MEMORY = "out-of-memory"
    GARBAGE = "garbage"
    PARTIAL = "partial"
    CUT = "cut"


class Phase(StrEnum):
    """Where a child is: starting Python and loading libraries, making communicators, loading kernels (the
    first call), measuring (with its warm-up), checking data, copying between pairs, tearing down."""

    SPAWN = "spawn"
    INIT = "init"
    LOAD = "load"
    MEASURE = "measure"
    CHECK = "check"
    PAIRS = "pairs"
    TEARDOWN = "teardown"


class Skip(StrEnum):
    """Why a healthy node was not measured."""

    BUSY = "busy"
    SINGLE_GPU = "single-gpu"
    MIG = "mig"
    VGPU = "vgpu"
    SHARED = "shared"
    CONFIDENTIAL = "confidential-computing"
    NO_ENGINE = "no-engine"


class Cell(Struct, frozen=True, kw_only=True):
    """One collective at one size.  A batch takes as long as its slowest GPU."""

    collective: Short
    """A `Collective`."""
    bytes: Int64
    """The size as nccl-tests prints it: for all_gather and reduce_scatter the total over all ranks."""
    us: Num = NOT_READ
    """Median over batches of the time of one call, microseconds."""
    us_min: Num = NOT_READ
    """The same in the fastest batch."""
    us_max: Num = NOT_READ
    """The same in the slowest batch."""
    spread: Num = NOT_READ
    """Coefficient of variation over batches; 0.02 is 2 %."""
    batches: Int64 = 0
    """Batches that were timed."""
    calls: Int64 = 0
    """Calls in all batches."""
    wrong: Int = NOT_READ
    """Elements with the wrong value."""
    algorithm: Text = NOT_READ
    """As NCCL logged its choice: RING, TREE, NVLS, ..."""
    protocol: Text = NOT_READ
    """As NCCL logged its choice: LL, LL128 or SIMPLE."""
    launch_us: Num = NOT_READ
    """Microseconds that the host needed to launch one call on all of its GPUs.  A call that takes no longer
    is limited by its launch, not by its transfer."""

    @property
    def launch_bound(self) -> bool:
        """Whether its launch takes most of the call: 0.8 of it, chosen by this project."""
        us, launch = self.us, self.launch_us
        return not isinstance(us, Unavailable) and not isinstance(launch, Unavailable) and launch >= 0.8 * us


PairRow = Annotated[list[Num], Meta(max_length=MAX_RANKS)]


class Arm(Struct, frozen=True, kw_only=True):
    """One NCCL configuration: how its process ended, and what it measured until then."""

    name: Short
    """An `ArmName`."""
    outcome: Short = ArmOutcome.DONE
    """An `ArmOutcome`."""
    phase: Short = ""
    """Where it was if it was ended, a `Phase`; else empty."""
    message: Str = ""
    """What NCCL, CUDA or the probe says about it."""
    exit_code: Int = NOT_READ
    """Exit code of its process; 128 and the signal's number if a signal ended it."""
    spawn_ms: Int = NOT_READ
    """ms for Python and libraries."""
    init_ms: Int = NOT_READ
    """ms for communicators."""
    load_ms: Int = NOT_READ
    """ms for the first kernel."""
    measure_ms: Int = NOT_READ
    """ms of measuring, with checks and pairs."""
    teardown_ms: Int = NOT_READ
    """ms for the end."""
    cells: Annotated[list[Cell], Meta(max_length=MAX_CELLS)] = []
    """What was measured."""
    pairs: Annotated[list[PairRow], Meta(max_length=MAX_RANKS)] = []
    """`pairs[i][j]`: GB/s (1e9) one way from rank i's GPU to rank j's by copies (with one process per GPU by
    NCCL's send and receive).  The diagonal is -1; empty if it was not requested."""
    transport: Text = NOT_READ
    """How NCCL connected the ranks (P2P/direct pointer, P2P/CUMEM, SHM/direct/direct, ...), several joined
    with a plus sign."""
    nvls: Flag = NOT_READ
    """Whether NVLS channels were made."""
    channels: Int = NOT_READ
    """Channels of collectives that NCCL made."""
    host_buffers: Text = NOT_READ
    """Kind of NCCL's host memory: cuMem or /dev/shm."""
    starts: Int64 = 1
    """How often it was started; 2: its first start took too long."""
    processes: Int = NOT_READ
    """Processes that drove the GPUs: 1, or one per rank."""
    multicast: Flag = NOT_READ
    """Whether NCCL logged that the GPUs support multicast, which NVLS needs."""
    environment: Annotated[list[Short], Meta(max_length=MAX_VARIABLES)] = []
    """Variables of NCCL that change how it communicates, as a log of nccl-tests shows them (NCCL_ALGO=Ring).
    The probe sets its own, and leaves this empty."""


class NcclResult(Struct, frozen=True, kw_only=True):
    """One run of the NCCL probe."""

    engine: Short = ""
    """nccl4py, nccl-tests, or another source of the numbers."""
    engine_version: Text = NOT_READ
    """Its version."""
    nccl: Text = NOT_READ
    """Version of NCCL that it reports."""
    cuda: Text = NOT_READ
    """Version of CUDA that it reports."""
    ranks: Int64 = 0
    """GPUs measured."""
    expected: Int64 = 0
    """GPUs that the node should have; 0 if unknown."""
    nodes: Int64 = 1
    """Machines that took part: a log may hold several, a run of the probe has one."""
    uuids: Annotated[list[Short], Meta(max_length=MAX_RANKS)] = []
    """UUIDs in rank order."""
    skipped: Short = ""
    """A `Skip` if nothing was measured; else empty."""
    message: Str = ""
    """Explains `skipped`, or names GPUs that took no part."""
    arms: Annotated[list[Arm], Meta(max_length=MAX_ARMS)] = []
    """Its configurations, in the order of the plan."""
    cut: Annotated[list[Short], Meta(max_length=MAX_CELLS)] = []
    """Cells that did not fit the budget, as COLLECTIVE/BYTES."""
    throttled_periods: Int = NOT_READ
    """Growth of nr_throttled in the pod's cpu.stat during the run.  CFS limits stall launches: latencies are
    then worthless."""
    shm_bytes: Int = NOT_READ
    """Size of /dev/shm."""
