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


class Collective(StrEnum):
    """Collectives, named as NCCL and nccl-tests name them."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"


def busbw_factor(collective: str, ranks: int) -> float:
    """The factor from algbw to busbw: all_reduce 2(n-1)/n, all_gather and reduce_scatter (n-1)/n.

    It is 0 for one rank, which sends nothing.  Raises ValueError for another collective and for fewer than
    one rank.  Source: nccl-tests, doc/PERFORMANCE.md ("Bandwidth", summary of correction factors).
    """
    if ranks < 1:
        raise ValueError(f"{ranks} ranks: at least one takes part")
    shares = {Collective.ALL_REDUCE: 2, Collective.ALL_GATHER: 1, Collective.REDUCE_SCATTER: 1}
    return shares[Collective(collective)] * (ranks - 1) / ranks


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
    """One collective at one size.

    `bytes`: the size as nccl-tests prints it (for all_gather and reduce_scatter the total over all ranks);
    `us`: median over batches of the time of one call, microseconds, each batch taking its slowest GPU;
    `us_min`, `us_max`: the fastest and the slowest batch; `spread`: coefficient of variation over batches (a
    share, 0.02 is 2 %); `wrong`: elements with the wrong value; `algorithm`, `protocol`: as NCCL logged its
    choice (RING, TREE, NVLS; LL, LL128, SIMPLE).  `launch_us`: microseconds that the host needed to launch
    one call on all of its GPUs; a call that takes no longer is limited by its launch, not by its transfer.
    """

    collective: Short
    bytes: Int64
    us: Num = NOT_READ
    us_min: Num = NOT_READ
    us_max: Num = NOT_READ
    spread: Num = NOT_READ
    batches: Int64 = 0
    calls: Int64 = 0
    wrong: Int = NOT_READ
    algorithm: Text = NOT_READ
    protocol: Text = NOT_READ
    launch_us: Num = NOT_READ

    @property
    def launch_bound(self) -> bool:
        """Whether its launch takes most of the call: 0.8 of it, chosen by this project."""
        us, launch = self.us, self.launch_us
        return not isinstance(us, Unavailable) and not isinstance(launch, Unavailable) and launch >= 0.8 * us


PairRow = Annotated[list[Num], Meta(max_length=MAX_RANKS)]


class Arm(Struct, frozen=True, kw_only=True):
    """One NCCL configuration: how its process ended, and what it measured until then.

    `phase`: where it was if it was ended; `pairs[i][j]`: GB/s (1e9) one way from rank i's GPU
    to rank j's by copies (with one process per GPU by NCCL's send and receive), the diagonal -1, empty if it
    was not requested; `transport`: how NCCL connected the ranks (P2P/direct pointer, P2P/CUMEM,
    SHM/direct/direct, ..., several joined with a plus sign); `nvls`: NVLS channels were made; `host_buffers`:
    the kind of NCCL's host memory (cuMem, or /dev/shm).
    Milliseconds: `spawn_ms` Python and libraries, `init_ms` communicators, `load_ms` the first kernel,
    `measure_ms` with checks and pairs, `teardown_ms`.  `starts`: how often it was started (2: its first start
    took too long, and this is the second); `processes`: how many processes drove the GPUs (1, or one per
    rank).  `multicast`: NCCL logged that the GPUs support multicast, which NVLS needs (false: that they do
    not).
    """

    name: Short
    outcome: Short = ArmOutcome.DONE
    phase: Short = ""
    message: Str = ""
    exit_code: Int = NOT_READ
    spawn_ms: Int = NOT_READ
    init_ms: Int = NOT_READ
    load_ms: Int = NOT_READ
    measure_ms: Int = NOT_READ
    teardown_ms: Int = NOT_READ
    cells: Annotated[list[Cell], Meta(max_length=MAX_CELLS)] = []
    pairs: Annotated[list[PairRow], Meta(max_length=MAX_RANKS)] = []
    transport: Text = NOT_READ
    nvls: Flag = NOT_READ
    channels: Int = NOT_READ
    host_buffers: Text = NOT_READ
    starts: Int64 = 1
    processes: Int = NOT_READ
    multicast: Flag = NOT_READ


class NcclResult(Struct, frozen=True, kw_only=True):
    """One run of the NCCL probe.

    `engine`: nccl4py, nccl-tests, or another source of the numbers; `nccl`, `cuda`: the versions it reports.
    `ranks`: GPUs measured, `expected`: GPUs that the node should have (0 if unknown); `uuids` in rank order;
    `nodes`: machines that took part (a log may hold several; a run of the probe has one).  `skipped`: a
    `Skip` if nothing was measured, with `message`.  `cut`: cells that did not fit the budget, as
    COLLECTIVE/BYTES.  `throttled_periods`: growth of nr_throttled in the pod's cpu.stat during the run (CFS
    limits stall launches: do not trust latencies then); `shm_bytes`: size of /dev/shm.
    """

    engine: Short = ""
    engine_version: Text = NOT_READ
    nccl: Text = NOT_READ
    cuda: Text = NOT_READ
    ranks: Int64 = 0
    expected: Int64 = 0
    nodes: Int64 = 1
    uuids: Annotated[list[Short], Meta(max_length=MAX_RANKS)] = []
    skipped: Short = ""
    message: Str = ""
    arms: Annotated[list[Arm], Meta(max_length=MAX_ARMS)] = []
    cut: Annotated[list[Short], Meta(max_length=MAX_CELLS)] = []
    throttled_periods: Int = NOT_READ
    shm_bytes: Int = NOT_READ
