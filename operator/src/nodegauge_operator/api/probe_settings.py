"""`spec.probes` of a GPUValidationPolicy: per probe whether, how often and how long it runs."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

DURATION = r"^([0-9]+(ms|s|m|h))+$"
Duration = Annotated[str, Meta(pattern=DURATION, max_length=32)]


class HealthMode(StrEnum):
    """What brings health readings: a resident container on each node that writes a reading when something
    has changed (ADR 0035), or a pod per run."""

    WATCH = "Watch"
    PERIODIC = "Periodic"


class WatchSettings(Struct, frozen=True, rename="camel", kw_only=True):
    """The resident container of mode Watch."""

    interval: Duration = "2h"
    """Time between two readings of a node on which nothing changes; at least 1m."""


LOG_PATH = r"^/var/log(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+$"


class KernelLog(Struct, frozen=True, rename="camel", kw_only=True):
    """The kernel's log as a second witness (ADR 0041)."""

    enabled: bool = False
    """Whether the probe reads it.  Its pods then mount the folder of `path`, read-only, which Pod Security
    allows only at the level privileged."""
    path: Annotated[str, Meta(pattern=LOG_PATH, max_length=128)] = "/var/log/kern.log"
    """The text file on the node, below /var/log, into which a syslog daemon writes the kernel's lines."""
    group: Annotated[int, Meta(ge=1, le=2**31 - 1)] = 4
    """Number of the group that may read it; 4 is adm, of Debian, Ubuntu and their like."""

    @property
    def folder(self) -> str:
        """Where the file is."""
        return self.path.rpartition("/")[0]


class HealthProbe(Struct, frozen=True, rename="camel", kw_only=True):
    """The health probe: it reads topology, links, temperatures, power and clocks, and uses no GPU."""

    enabled: bool = True
    """Whether it runs.  False: labels go once the last reading is too old; taints for faults stay."""
    mode: HealthMode = HealthMode.WATCH
    """How nodes are read: by a resident container, or by a pod per run."""
    watch: WatchSettings = WatchSettings()
    """The container of mode Watch."""
    kernel_log: KernelLog = KernelLog()
    """The kernel's log as a second witness."""
    interval: Duration = "15m"
    """Mode Periodic: time between two runs on one node; at least 5s.  Both modes: the unit of
    `staleAfterIntervals`."""
    recheck: Duration = "1m"
    """Time to the next run while a gate counts runs; at most `interval`, and at least `intervalFloor` for
    gates that depend on counters or load."""
    deadline: Duration = "60s"
    """Longest time of one run, from the start of its pod; below `interval`."""
    window: Duration = "3s"
    """How long one run samples clocks, power and temperatures; below 80 % of `deadline`, where the probe
    stops itself.  Mode Watch: at most 1 s, and this long while a GPU is slowed down."""

    unread_after: Duration = "5m"
    """Time from the first reading that failed for a reason of the node itself until its condition is Unknown
    and its label `health` goes; 30s to 24h.  The report says so at once, and other labels stay for
    `staleAfterIntervals`.  Default chosen by this project: a health pod has tried three times by then."""

    @property
    def period(self) -> str:
        """Time between two readings in this mode."""
        return self.watch.interval if self.mode is HealthMode.WATCH else self.interval


class Engine(StrEnum):
    """What makes the collectives: the nccl image's `nccl4py`, or an `all_reduce_perf` binary (`nccl-tests`)
    that the user's own nccl image brings."""

    NCCL4PY = "nccl4py"
    NCCL_TESTS = "nccl-tests"


class Processes(StrEnum):
    """How many processes drive the GPUs in an NCCL run: one per GPU as torchrun starts them, or one for all;
    `auto`: one per GPU if the engine can (nccl4py)."""

    AUTO = "auto"
    PER_GPU = "perGPU"
    ONE = "one"


class NcclProbe(Struct, frozen=True, rename="camel", kw_only=True):
    """The NCCL probe: it holds all GPUs of a node and measures collectives.  It runs only with an NCCL image:
    the policy's (`podTemplate.ncclImage`) or the installation's (chart: `nccl.image`)."""

    enabled: bool = True
    """Whether it runs."""
    interval: Duration = "24h"
    """Time between two runs on one node; at least 10s."""
    deadline: Duration = "15m"
    """Longest time of one run, from the start of its pod; below `interval`."""
    recheck: Duration = "10m"
    """Time to the next run if one asks for another (bad for the first time, runs that disagree), the GPUs or
    the driver have changed, or the policy now grades its findings away.  While a gate is open, NVLink is
    contradicted, missing GPUs are back, and after a run or a pull without a result, it doubles each time.  Up
    to `interval`."""
    engine: Engine = Engine.NCCL4PY
    """Program that runs the collectives."""
    processes: Processes = Processes.AUTO
    """Processes that drive the GPUs."""
    environment: dict[str, str] = {}
    """NCCL_* variables for the run.  Variables of the node and of the image are never used."""


NVME_PATH = r"^((/[A-Za-z0-9_-][A-Za-z0-9._-]*)+)?$"


class NvmeReads(Struct, frozen=True, rename="camel", kw_only=True):
    """Reads from a disk of the node after a load (ADR 0052)."""

    path: Annotated[str, Meta(pattern=NVME_PATH, max_length=128)] = ""
    """The folder on the node, empty for none.  Load pods then mount it, which Pod Security allows only at the
    level privileged."""
    size_gib: Annotated[int, Meta(ge=1, le=64)] = 4
    """Size of the file that is read, GiB."""
    duration: Duration = "5s"
    """How long it is read, 1s to 30s."""
    write: bool = False
    """Whether the probe may make the file, once.  Without, somebody else has to."""


class LoadProbe(Struct, frozen=True, rename="camel", kw_only=True):
    """The load probe: it runs all GPUs of a node at full power.  First runs are spread over an interval,
    because it draws full power (ADR 0027)."""

    enabled: bool = True
    """Whether it runs."""
    interval: Duration = "168h"
    """Time between two runs on one node; at least 10s.  The first run comes within the first interval."""
    duration: Duration = "30s"
    """How long all GPUs work together; at most half of `deadline`."""
    deadline: Duration = "10m"
    """Longest time of one run, from the start of its pod, with all that it measures before and after the
    load."""
    recheck: Duration = "30m"
    """Time to the next run while a gate of it is open, and after a run that gave no result; it doubles, up to
    `interval`.  Also, without doubling, if the GPUs or the driver have changed."""
    stop_below: Annotated[int, Meta(ge=1, le=40)] = 3
    """°C below the vendor's slowdown temperature, of GPU or memory, at which the probe ends the load."""
    nvme: NvmeReads = NvmeReads()
    """Reads from a disk after the load."""


class BmcReadings(Struct, frozen=True, rename="camel", kw_only=True):
    """Readings of power supplies, fans and temperatures by the BMC reader.  A reading counts for
    `staleAfterIntervals` of the reader's own interval, which the installation sets (chart:
    `bmc.interval`)."""

    enabled: bool = True
    """Whether readings of BMCs are judged."""


DCGM = r"^(http://[A-Za-z0-9_.:\[\]-]+(/[A-Za-z0-9_./-]*)?)?$"


class FeedProbe(Struct, frozen=True, rename="camel", kw_only=True):
    """Why allocated GPUs wait: windows of the resident container of mode Watch (ADR 0050)."""

    enabled: bool = True
    """Whether the container looks and the operator judges.  Nothing is written on nodes."""
    interval: Duration = "1h"
    """Time after which a window is written if nothing has changed; 5m to 24h, and at least twice
    `window`."""
    window: Duration = "2m"
    """Length of a window, of which one follows the other; 30s to 1h."""
    control_groups: bool = False
    """Whether the container sees the node's control groups, which tell a pod's quota, throttling and memory.
    Its pods then mount /sys/fs/cgroup, read-only, which Pod Security allows only at the level privileged."""
    dcgm: Annotated[str, Meta(pattern=DCGM, max_length=256)] = ""
    """URL of the DCGM exporter's metrics as the container reaches it; empty for none."""


class Probes(Struct, frozen=True, rename="camel", kw_only=True):
    """Settings of each kind of reading."""

    health: HealthProbe = HealthProbe()
    """Topology, links, temperatures, power and clocks, without using a GPU."""
    nccl: NcclProbe = NcclProbe()
    """Bandwidth of collectives; holds all GPUs."""
    load: LoadProbe = LoadProbe()
    """All GPUs at full power; holds all GPUs."""
    bmc: BmcReadings = BmcReadings()
    """Readings of the BMC reader."""
    feed: FeedProbe = FeedProbe()
    """Why allocated GPUs wait."""
