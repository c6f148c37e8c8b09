"""What a cause is, and every number by which one is told from another.

`cpu` and `storage` look for causes outside of the GPUs, `gpus` for those in them, `diagnosis` chooses.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from nodegauge_judge.model import Scalar


class FeedCause(StrEnum):
    """Why a GPU that somebody holds does not work.  Of two with the same score the first is named."""

    ONE_SLOW = "one-slow-gpu-holds-all"
    MEMORY = "host-memory"
    QUOTA = "cpu-quota"
    STORAGE = "storage"
    NETWORK = "network-storage"
    PCIE = "pcie-or-numa"
    CORES = "cpu-cores"
    SMALL = "small-batches"
    UNKNOWN = "unknown"


class FeedLimits(Struct, frozen=True, kw_only=True):
    """Every number that the judge of feeding compares with.  A pair is the limit, and the value that leaves
    no doubt.  All are chosen by this project unless a source stands beside them."""

    least_seconds: float = 20.0
    """Windows that are shorter say nothing."""
    least_samples: int = 10
    """Fewer samples of a GPU say nothing of it."""
    idle_utilization: float = 1.0
    """%, at most, of an idle GPU: one with 1 % or less in every sample."""
    idle_share: float = 0.98
    """Share of idle samples from which a GPU did nothing in the window."""
    loaded_mib: int = 1024
    """Memory in use from which somebody works with a GPU whose processes are not seen: a context takes some
    hundred MiB, and the driver reserves as much."""
    starved_utilization: float = 70.0
    """%, below which a GPU that is held starves: training that is fed stays above 90."""
    barely_used: float = 15.0
    """%, below which a GPU is hardly used; if nothing outside stalls, it more likely waits for requests."""
    hollow_utilization: float = 50.0
    """%, from which a GPU is busy by NVML, which counts any kernel (nvml.h)."""
    hollow_idle_share: float = 0.2
    """Idle samples, at most, of a GPU that is busy with kernels too small for it."""
    fed_sm_active: float = 0.5
    """DCGM user guide, profiling metrics: below 0.5 likely ineffective use."""
    full_sm_active: float = 0.8
    """The same: 0.8 or more is needed for effective use."""
    fed_power_share: float = 0.4
    """Share of the power limit from which kernels fill a GPU, where `sm_active` is unread."""
    idle_power_share: float = 0.12
    """What an idle GPU of a server draws: 60 to 80 W of 500 to 700 W."""
    full_power_share: float = 0.5
    """Training at full speed draws more than that."""
    fed_memory_utilization: float = 40.0
    """%, from which a GPU is held by its own memory, as in decoding: low power is right there."""
    pause_ends: float = 0.9
    """Idle and full samples together, from which a window has a pause and not gaps."""
    pause_full: float = 0.05
    """Full samples, at least, of such a window."""
    pause_swings: int = 2
    """Swings, at most, of a window with one pause: down, and up again."""
    stuck_score: float = 0.75
    """Score of a cause from which a GPU that did nothing at all, with data in its memory, starves by it."""
    throttled: tuple[float, float] = (0.2, 0.6)
    """Share of its periods in which a quota stopped a pod."""
    cpu_pressure: tuple[float, float] = (0.2, 0.6)
    """`some` of cpu, of the machine or a pod."""
    cpu_busy: tuple[float, float] = (0.85, 0.98)
    """Share of busy CPUs from which cores are too few."""
    cpu_full: tuple[float, float] = (0.95, 0.99)
    """The same where nobody waits, as with one loader for each CPU."""
    cpu_free: float = 0.75
    """Share of busy CPUs up to which some are free: a pod that waits for one then may not use it."""
    runnable: tuple[float, float] = (1.2, 3.0)
    """Tasks that ran or were ready, for each CPU, where there is no pressure file."""
    cpu_steal: float = 0.1
    """Share that the hypervisor took, worth a word."""
    cpuset_used: tuple[float, float] = (0.85, 0.98)
    """Share of the CPUs that a pod may run on which it used."""
    neighbour_share: float = 0.5
    """Part of the busy cores below which the pods with GPUs are not what fills the CPUs."""
    serial_score: float = 0.4
    """Of a machine on which single CPUs are busy, the others free, and nothing waits."""
    serial_busy: float = 0.5
    """Share of busy CPUs up to which the others count as free for that."""
    io_pressure: tuple[float, float] = (0.25, 0.7)
    """`some` of io."""
    io_waiting: tuple[float, float] = (1.0, 4.0)
    """Tasks or CPUs that waited for I/O, mean, where there is no pressure file."""
    disk_busy: tuple[float, float] = (0.5, 0.95)
    """Share of the window with a request under way on a disk that holds others up."""
    unseen_disk: float = 0.7
    """Factor for I/O that is waited for on a machine whose disks are unread."""
    unseen_mount: float = 0.85
    """Factor for a network file system that is only concluded: tasks wait, no disk is busy."""
    port_full: tuple[float, float] = (0.7, 0.95)
    """Share of a port's rate that it received."""
    reading_ratio: float = 2.0
    """How much more a port receives than it sends if it reads; collectives send as much."""
    network_mbps: float = 1.0
    """MB/s from network file systems, worth a word."""
    memory_pressure: tuple[float, float] = (0.1, 0.4)
    """`some` of memory, of the machine or a pod."""
    refault_rate: float = 2000.0
    """Pages a second of the page cache that were dropped and read again: 8 MB/s."""
    refault_part: tuple[float, float] = (0.5, 0.9)
    """Part of what disks and network file systems read that those pages are."""
    swap_mbps: tuple[float, float] = (5.0, 50.0)
    """Swapped in and out."""
    pcie: tuple[float, float] = (0.5, 0.85)
    """Mean share of a link's rate in one direction; a transfer reaches 0.75 to 0.9 of it at best."""
    slow_clock: tuple[float, float] = (0.88, 0.6)
    """SM clock of the slowest GPU as a share of the others'."""
    slowed_share: tuple[float, float] = (0.2, 0.8)
    """Share of the window in which heat, brake or hardware slowed one GPU down, and not the others."""
    spinning: float = 90.0
    """%, from which GPUs that wait for another in NCCL look busy: its kernels spin."""
    power_gap: float = 0.2
    """How much more of its power limit the GPU draws for which the others wait."""
    collective_share: float = 0.05
    """Share of a port's rate, sent and received, from which a job spans nodes."""
    warn_confidence: float = 0.5
    """A finding warns from this confidence on."""
    warn_lost: float = 0.25
    """And from this loss on, GPUs."""


class Stall(Struct, frozen=True, kw_only=True):
    """One cause, and what speaks for it."""

    cause: FeedCause
    """Its name."""
    score: float
    """0 to 1: 0.5 at the limit of its evidence, 1 where there is no doubt."""
    message: str
    """The evidence in a sentence."""
    advice: str
    """What to change."""
    evidence: dict[str, Scalar] = {}
    """The numbers, units in the names."""
    explains_reads: bool = False
    """Whether disks and network are busy only because of it."""


def score(value: float | None, limits: tuple[float, float]) -> float | None:
    """0.5 at the limit, 1 at the value without doubt, linear between; None below the limit or if unread."""
    limit, sure = limits
    if value is None or (value < limit if sure > limit else value > limit):
        return None
    return 0.5 + 0.5 * min(1.0, (value - limit) / (sure - limit))


def confidence(best: Stall, rivals: list[Stall]) -> float:
    """The score of the best cause, less half of it times the score of its strongest rival: a clear cause
    alone has 1, one as clear beside it leaves 0.5."""
    rival = max((stall.score for stall in rivals if stall is not best), default=0.0)
    return round(best.score * (1 - rival / 2), 2)
