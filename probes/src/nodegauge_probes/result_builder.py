"""The result document while it is being measured: written value by value, so that every reading is kept.

A call into the driver may hang and a pod may be ended at any moment; the readings until then are the result.
So collectors write each value as soon as they have it, and `build` makes a document at any time, from another
thread too.  A value that is not there yet is "not read".

It must not read, judge or format anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec, Protocol, TypeVar

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from nodegauge_contract import (
    Arm,
    ArmOutcome,
    Bus,
    Cell,
    Clocks,
    ClocksEvents,
    Counters,
    Disk,
    Ecc,
    Fabric,
    Fan,
    FeedResult,
    Flag,
    Gpu,
    Growth,
    Host,
    Int,
    KernelLog,
    LinkErrors,
    LinkGroup,
    LoadResult,
    NcclResult,
    Nics,
    Num,
    Pairs,
    Pcie,
    Port,
    Power,
    Problem,
    Repair,
    Result,
    Sensor,
    System,
    Temperature,
    Text,
    WatchReport,
    Window,
    Xids,
)
from nodegauge_contract.values import NOT_READ

SELF = -1
"""The diagonal of the pair grids."""

P = ParamSpec("P")
S = TypeVar("S", bound=Struct)


class Builder(Generic[P, S]):
    """One struct of the contract while its members are being read.

    `set` takes the keyword arguments of the struct's constructor, so mypy checks name and type of everything
    that a collector writes.  It replaces `value` as a whole: other threads always see a complete struct.
    """

    def __init__(self, kind: Callable[P, S], *args: P.args, **members: P.kwargs) -> None:
        self.value: S = kind(*args, **members)

    def set(self, *args: P.args, **members: P.kwargs) -> None:
        assert not args
        self.value = replace(self.value, **members)


class Identity(Struct, kw_only=True):
    """The members of `Gpu` that are in no group."""

    uuid: Text = NOT_READ
    """As NVML gives it (`GPU-...`)."""
    name: Text = NOT_READ
    """Product name."""
    pci: Text = NOT_READ
    """PCI address in sysfs form, `0000:0f:00.0`."""
    minor: Int = NOT_READ
    """Number of its device file (`/dev/nvidiaN`)."""
    serial: Text = NOT_READ
    """Serial number of the board."""
    vbios: Text = NOT_READ
    """Version of the VBIOS."""
    architecture: Int = NOT_READ
    """NVML_DEVICE_ARCH_*."""
    compute_capability: Text = NOT_READ
    """`MAJOR.MINOR`."""
    module_id: Int = NOT_READ
    """Number of the module on its baseboard, on SXM boards."""
    memory_mib: Int = NOT_READ
    """Total memory, MiB."""
    persistence: Flag = NOT_READ
    """Whether persistence mode is on."""
    mig: Int = NOT_READ
    """MIG mode in force: 0 off, 1 on."""
    compute_mode: Int = NOT_READ
    """nvmlComputeMode_t: 2 is prohibited."""
    cpus: Text = NOT_READ
    """CPUs near the GPU, as ranges (`0-31,64-95`)."""
    memory_nodes: Text = NOT_READ
    """NUMA nodes of the memory near the GPU, as ranges."""
    numa_node: Int = NOT_READ
    """NUMA node of the PCI device, from sysfs."""
    gpu_numa_id: Int = NOT_READ
    """NUMA node that the GPU itself is."""
    switch_links: Int = NOT_READ
    """Links to an NVSwitch (field 147)."""
    virtualization: Int = NOT_READ
    """nvmlGpuVirtualizationMode_t, 0 to 4."""


class GpuBuilder:
    """One GPU."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.identity = Identity()
        self.pcie = Builder(Pcie)
        self.fabric = Fabric()
        self.temperature = Builder(Temperature)
        self.power = Builder(Power)
        self.clocks = Builder(Clocks)
        self.events = Builder(ClocksEvents)
        self.counters = Counters()
        self.link_errors = Builder(LinkErrors)
        self.ecc = Builder(Ecc)
        self.repair = Builder(Repair)
        self.xids = Builder(Xids)
        self.fans: list[Fan] = []
        self.links: list[LinkGroup] = []
        """One entry per link; `build` groups those with the same readings."""
        self.window: Window | None = None
        self.growth: Growth | None = None
        self.error: Problem | None = None

    def build(self) -> Gpu:
        return Gpu(
            index=self.index,
            **asdict(self.identity),
            pcie=self.pcie.value,
            links=group_links(list(self.links)),
            fabric=self.fabric,
            temperature=self.temperature.value,
            power=self.power.value,
            clocks=self.clocks.value,
            events=self.events.value,
            counters=self.counters,
            link_errors=self.link_errors.value,
            ecc=self.ecc.value,
            repair=self.repair.value,
            xids=self.xids.value,
            fans=list(self.fans),
            window=self.window and replace(self.window, growth=self.growth),
            error=self.error,
        )


class ArmBuilder(Struct):
    """One arm of an NCCL run, with the members of `Arm`; until its outcome is known, it was cut short."""

    name: str
    """An `ArmName`."""
    outcome: ArmOutcome = ArmOutcome.CUT
    """How it ended; cut until it has."""
    phase: str = ""
    """Where it is, or was when it was ended, a `Phase`; empty before it begins and once it is done."""
    message: str = ""
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
    cells: list[Cell] = field(default_factory=list)
    """What was measured so far."""
    pairs: list[list[Num]] = field(default_factory=list)
    """GB/s from rank to rank; empty if not measured."""
    transport: Text = NOT_READ
    """How NCCL connected the ranks, from its log."""
    nvls: Flag = NOT_READ
    """Whether NVLS channels were made, from NCCL's log."""
    channels: Int = NOT_READ
    """Channels of collectives that NCCL made, from its log."""
    host_buffers: Text = NOT_READ
    """Kind of NCCL's host memory, from its log."""
    starts: int = 1
    """How often it was started."""
    processes: Int = NOT_READ
    """Processes that drive the GPUs: 1, or one per rank."""
    multicast: Flag = NOT_READ
    """Whether NCCL logged that the GPUs support multicast."""

    def build(self) -> Arm:
        return Arm(**(asdict(self) | {"cells": list(self.cells), "pairs": [list(row) for row in self.pairs]}))


class NcclBuilder(Struct, kw_only=True):
    """An NCCL run, with the members of `NcclResult`."""

    engine: str
    """The engine that was asked for, then the one that a child reports."""
    expected: int
    """GPUs that the node should have; 0 if unknown."""
    shm_bytes: Int
    """Size of /dev/shm."""
    engine_version: Text = NOT_READ
    """The engine's, from the first child that reports it."""
    nccl: Text = NOT_READ
    """Version of NCCL, from the first child that reports it, else from NCCL's log."""
    cuda: Text = NOT_READ
    """Version of CUDA, likewise."""
    ranks: int = 0
    """GPUs to measure; 0 if nothing is."""
    uuids: list[str] = field(default_factory=list)
    """UUIDs in rank order."""
    skipped: str = ""
    """A `Skip` if nothing is measured; else empty."""
    message: str = ""
    """Explains `skipped`, or names GPUs that take no part."""
    arms: list[ArmBuilder] = field(default_factory=list)
    """Its configurations, in the order of the plan."""
    cut: list[str] = field(default_factory=list)
    """What did not fit the budget, as COLLECTIVE/BYTES, with the arm before it unless it is the default."""
    throttled_periods: Int = NOT_READ
    """Growth of nr_throttled in the pod's cpu.stat since the first arm began."""

    def add_versions(self, *, engine_version: Text = NOT_READ, nccl: Text, cuda: Text) -> None:
        """Fill in versions that are not known yet."""
        self.engine_version = engine_version if self.engine_version == NOT_READ else self.engine_version
        self.nccl = nccl if self.nccl == NOT_READ else self.nccl
        self.cuda = cuda if self.cuda == NOT_READ else self.cuda

    def build(self) -> NcclResult:
        lists = {"arms": [arm.build() for arm in list(self.arms)], "cut": list(self.cut)}
        return NcclResult(**(asdict(self) | lists))


class LoadBuilder(Protocol):
    """What a load run has seen so far (`nodegauge_probes.load.record`)."""

    def build(self) -> LoadResult: ...


class ResultBuilder:
    """All readings of one run so far."""

    def __init__(self, *, probe: str, run: str, node: str, access: str = "") -> None:
        self.probe, self.run, self.node = probe, run, node
        self.access = access
        """How the driver comes in (`Access`), for a problem's remedy."""
        self.host = Builder(Host)
        self.system = Builder(System)
        self.gpus: list[GpuBuilder] = []
        self.pairs = Pairs()
        """Without grids until pairs are read; then they are filled in place, see `empty_pairs`."""
        self.nics = Nics()
        self.ports: list[Port] = []
        self.bus = Bus()
        self.sensors: list[Sensor] = []
        self.disks: list[Disk] = []
        self.kernel_log: KernelLog | None = None
        self.incomplete: list[str] = []
        """Members that are still being read."""
        self.nccl: NcclBuilder | None = None
        self.load: LoadBuilder | None = None
        self.watch: WatchReport | None = None
        self.feed: FeedResult | None = None
        self.problem: Problem | None = None
        """A probe's own finding; a problem with which the run ended takes precedence."""

    def build(self, *, duration_ms: int, problem: Problem | None = None) -> Result:
        grids = {name: [list(row) for row in grid] for name, grid in asdict(self.pairs).items()}
        return Result(
            probe=self.probe,
            run=self.run,
            node=self.node,
            duration_ms=duration_ms,
            host=self.host.value,
            system=self.system.value,
            gpus=[gpu.build() for gpu in list(self.gpus)],
            pairs=Pairs(**grids),
            nics=replace(self.nics, ports=list(self.ports)),
            bus=self.bus,
            sensors=list(self.sensors),
            disks=list(self.disks),
            kernel_log=self.kernel_log,
            problem=problem or self.problem,
            omitted=list(self.incomplete),
            nccl=None if self.nccl is None else self.nccl.build(),
            load=None if self.load is None else self.load.build(),
            watch=self.watch,
            feed=self.feed,
        )


def empty_pairs(gpus: int) -> Pairs:
    """Grids for so many GPUs, "not read" outside the diagonal."""

    def grid() -> list[list[Int]]:
        return [[SELF if i == j else NOT_READ for j in range(gpus)] for i in range(gpus)]

    return Pairs(ancestor=grid(), read=grid(), write=grid(), nvlink=grid())


def group_links(links: list[LinkGroup]) -> list[LinkGroup]:
    """Links with the same readings as one group each, in the order of their lowest number."""
    groups: list[LinkGroup] = []
    for link in links:
        for index, group in enumerate(groups):
            if replace(link, links=group.links) == group:
                groups[index] = replace(group, links=[*group.links, *link.links])
                break
        else:
            groups.append(link)
    return groups
