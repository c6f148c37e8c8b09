"""One GPU in the result document: raw readings, units in the field names.

`_mw` milliwatts, `_mj` millijoules, `_mib` MiB, `_mbps` MB/s, `_ns` nanoseconds; temperatures are °C.
Lists are bounded.  Nothing here judges: thresholds belong to `nodegauge_judge`.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from nodegauge_contract.values import NOT_READ, Flag, Int, Int64, Num, Problem, Text

MAX_LINKS = 72
MAX_FANS = 16
MAX_XIDS = 32


class LinkGroup(Struct, frozen=True, kw_only=True):
    """NVLinks of one GPU with the same readings: `links` are their numbers, so grouping loses nothing.

    `state`: 0 inactive, 1 active, 2 sleep, 3 active with traffic disabled.  `p2p`: capability P2P_SUPPORTED.
    `remote`: PCI id of the far end (`0000:0f:00.0`), from a pasted table its name (`GPU3`).  `remote_type`:
    0 GPU, 1 NPU, 2 switch, 255 unknown.  `mbps`: raw signalling rate per direction, MB/s.  `version`: NVML's
    NVLink version enumeration.
    """

    links: Annotated[list[Annotated[int, Meta(ge=0, le=255)]], Meta(max_length=MAX_LINKS)]
    state: Int = NOT_READ
    p2p: Int = NOT_READ
    remote: Text = NOT_READ
    remote_type: Int = NOT_READ
    mbps: Int = NOT_READ
    version: Int = NOT_READ


class LinkErrors(Struct, frozen=True, kw_only=True):
    """NVLink error counters, summed over the GPU's active links; only their growth is judged.

    `replay` to `ecc`: nvmlDeviceGetNvLinkErrorCounter 0 to 4.  The rest: NVLink 5's fields 214, 219 and 221.
    """

    replay: Int = NOT_READ
    recovery: Int = NOT_READ
    crc_flit: Int = NOT_READ
    crc_data: Int = NOT_READ
    ecc: Int = NOT_READ
    recovery_failed: Int = NOT_READ
    effective: Int = NOT_READ
    symbol: Int = NOT_READ


class Fabric(Struct, frozen=True, kw_only=True):
    """`nvmlDeviceGetGpuFabricInfoV`: `state` 0 (not supported) to 3 (completed), `status` an NVML return."""

    state: Int = NOT_READ
    status: Int = NOT_READ
    cluster_uuid: Text = NOT_READ
    clique: Int = NOT_READ
    health_mask: Int = NOT_READ
    health_summary: Int = NOT_READ


class Pcie(Struct, frozen=True, kw_only=True):
    """PCIe generation and lane count, current and maximum (the generation falls at idle, the width stays).

    `generation` and `width` are those of the busiest sample of the window, `utilization` its per cent;
    `max_*` is the maximum of card and slot together, `card_generation` that of the card.  Errors are
    counters.
    """

    generation: Int = NOT_READ
    width: Int = NOT_READ
    max_generation: Int = NOT_READ
    max_width: Int = NOT_READ
    card_generation: Int = NOT_READ
    utilization: Int = NOT_READ
    replays: Int = NOT_READ
    replay_rollovers: Int = NOT_READ
    correctable: Int = NOT_READ
    recoveries: Int = NOT_READ


class Temperature(Struct, frozen=True, kw_only=True):
    """°C.  Absolute thresholds up to Ampere; `margin` and `tlimit_*` are distances, from Ada on."""

    gpu: Int = NOT_READ
    memory: Int = NOT_READ
    shutdown: Int = NOT_READ
    slowdown: Int = NOT_READ
    memory_max: Int = NOT_READ
    gpu_max: Int = NOT_READ
    margin: Int = NOT_READ
    tlimit_shutdown: Int = NOT_READ
    tlimit_slowdown: Int = NOT_READ
    tlimit_memory_max: Int = NOT_READ
    tlimit_gpu_max: Int = NOT_READ


class Power(Struct, frozen=True, kw_only=True):
    """Milliwatts; `energy_mj` millijoules since driver load; `source` 0 AC, 1 battery, 2 undersized."""

    usage_mw: Int = NOT_READ
    average_mw: Int = NOT_READ
    instant_mw: Int = NOT_READ
    enforced_limit_mw: Int = NOT_READ
    default_limit_mw: Int = NOT_READ
    min_limit_mw: Int = NOT_READ
    max_limit_mw: Int = NOT_READ
    energy_mj: Int = NOT_READ
    source: Int = NOT_READ


class Clocks(Struct, frozen=True, kw_only=True):
    """MHz; `pstate` 0 (fastest) to 15; `app_*`: application clocks, the highest at which work may run
    (`nvidia-smi -ac`).  NVML has no call for clocks that `nvidia-smi -lgc` or `-lmc` locked."""

    sm_mhz: Int = NOT_READ
    memory_mhz: Int = NOT_READ
    max_sm_mhz: Int = NOT_READ
    max_memory_mhz: Int = NOT_READ
    pstate: Int = NOT_READ
    app_sm_mhz: Int = NOT_READ
    app_memory_mhz: Int = NOT_READ


class ReasonSeen(Struct, frozen=True, kw_only=True):
    """One clocks event reason bit: in how many samples it was set, and in how many consecutive ones at
    most."""

    bit: Int64
    samples: Int64
    longest: Int64


class ClocksEvents(Struct, frozen=True, kw_only=True):
    """Clocks event reasons over the sampling window: `supported`: the bits that the driver can report."""

    supported: Int = NOT_READ
    read: Int = NOT_READ
    """Samples in which the mask could be read, or why it never could."""
    seen: Annotated[list[ReasonSeen], Meta(max_length=64)] = []


class Counters(Struct, frozen=True, kw_only=True):
    """Cumulative nanoseconds, read once at the end of the window; only their growth is judged.

    `trio`: the field ids of the three throttle counters ("251-253", "269-271"), or why neither could be used.
    """

    trio: Text = NOT_READ
    sw_power_cap_ns: Int = NOT_READ
    sync_boost_ns: Int = NOT_READ
    sw_thermal_ns: Int = NOT_READ
    hw_thermal_ns: Int = NOT_READ
    power_brake_ns: Int = NOT_READ
    thermal_violation_ns: Int = NOT_READ
    low_utilization_ns: Int = NOT_READ


class Growth(Struct, frozen=True, kw_only=True):
    """How much the counters grew within the window, and the CLOCK_BOOTTIME between its two readings."""

    elapsed_ms: Int = NOT_READ
    sw_power_cap_ns: Int = NOT_READ
    sw_thermal_ns: Int = NOT_READ
    hw_thermal_ns: Int = NOT_READ
    power_brake_ns: Int = NOT_READ
    thermal_violation_ns: Int = NOT_READ
    energy_mj: Int = NOT_READ


class Ecc(Struct, frozen=True, kw_only=True):
    """Memory errors: `mode` 0 off, 1 on; volatile counts since driver load, aggregate ones over the board's
    life; `sram_threshold` 1 if the driver reports SRAM errors above their limit.  `aggregate_sram` and
    `aggregate_dram`: the uncorrected ones by memory (caches and registers, HBM or GDDR)."""

    mode: Int = NOT_READ
    volatile_corrected: Int = NOT_READ
    volatile_uncorrected: Int = NOT_READ
    aggregate_corrected: Int = NOT_READ
    aggregate_uncorrected: Int = NOT_READ
    sram_threshold: Int = NOT_READ
    aggregate_sram: Int = NOT_READ
    aggregate_dram: Int = NOT_READ


class Repair(Struct, frozen=True, kw_only=True):
    """Memory repairs: done, failed and pending, and the recovery action that the driver asks for.

    `rows_*`: nvmlDeviceGetRemappedRows (Ampere and newer), `rows_pending` and `rows_failed` 0 or 1.
    `pages_*`: retired pages (older), `pages_pending` 0 or 1.  `action`: field 230, GPU recovery action: 0
    none, 1 GPU reset, 2 node reboot, 3 drain P2P, 4 drain and reset, 5 recover IMEX, 6 bus reset, 7 system
    reboot.
    """

    rows_corrected: Int = NOT_READ
    rows_uncorrected: Int = NOT_READ
    rows_pending: Int = NOT_READ
    rows_failed: Int = NOT_READ
    pages_single_bit: Int = NOT_READ
    pages_double_bit: Int = NOT_READ
    pages_pending: Int = NOT_READ
    channels_pending: Int = NOT_READ
    tpcs_pending: Int = NOT_READ
    unrepairable: Int = NOT_READ
    action: Int = NOT_READ


class XidCount(Struct, frozen=True, kw_only=True):
    """How often one Xid came; `first` and `last` are seconds since boot (CLOCK_BOOTTIME, the clock of
    `Host.boottime_ms`), as the probe received them."""

    count: Int64
    first: Int64
    last: Int64


class Xids(Struct, frozen=True, kw_only=True):
    """Xids that the driver reported to this probe and that it had not reported before; those that a watch
    container has reported before are in `Result.watch`.

    `registered`: the driver reports them; `seen`: distinct codes; `counts`: one for each of `seen`, in its
    order (empty from probes before version 1.5).
    """

    registered: Flag = NOT_READ
    seen: Annotated[list[Int64], Meta(max_length=MAX_XIDS)] = []
    counts: Annotated[list[XidCount], Meta(max_length=MAX_XIDS)] = []


class Fan(Struct, frozen=True, kw_only=True):
    """A fan of the GPU: intended and target speed in per cent of its maximum, and its actual speed (rpm)."""

    percent: Int = NOT_READ
    target: Int = NOT_READ
    rpm: Int = NOT_READ


class Span(Struct, frozen=True, kw_only=True):
    """Smallest, median and largest of the samples of one window."""

    min: Num = NOT_READ
    median: Num = NOT_READ
    max: Num = NOT_READ


SpanOrNot = Span | None


class Window(Struct, frozen=True, kw_only=True):
    """The sampling window: `seconds` long, `samples` taken; a span is null if no sample could be read."""

    seconds: float
    samples: Int64
    utilization: SpanOrNot = None
    """NVML's per cent of time in which a kernel ran."""
    temperature: SpanOrNot = None
    power_mw: SpanOrNot = None
    sm_mhz: SpanOrNot = None
    pstate: SpanOrNot = None
    memory_temperature: SpanOrNot = None
    growth: Growth | None = None


class Gpu(Struct, frozen=True, kw_only=True):
    """One GPU as NVML enumerates it.  `pci` is normalised to sysfs form, `0000:0f:00.0`.

    `error` is set if its handle or its basic identity could not be read; then the rest is "not read".
    `mig`: 0 off, 1 on.  `switch_links`: field 147, links to an NVSwitch.  `numa_node`: from sysfs.
    `gpu_numa_id`: the NUMA node that the GPU itself is (coherent platforms such as Grace Hopper).
    `virtualization`: nvmlGpuVirtualizationMode_t: 0 none, 1 passed through to this virtual machine, 2 a vGPU,
    3 and 4 a host that shares the GPU among its virtual machines (vGPU, vSGA).
    """

    index: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    uuid: Text = NOT_READ
    name: Text = NOT_READ
    pci: Text = NOT_READ
    minor: Int = NOT_READ
    serial: Text = NOT_READ
    vbios: Text = NOT_READ
    architecture: Int = NOT_READ
    compute_capability: Text = NOT_READ
    module_id: Int = NOT_READ
    memory_mib: Int = NOT_READ
    persistence: Flag = NOT_READ
    mig: Int = NOT_READ
    cpus: Text = NOT_READ
    memory_nodes: Text = NOT_READ
    numa_node: Int = NOT_READ
    gpu_numa_id: Int = NOT_READ
    pcie: Pcie = Pcie()
    links: Annotated[list[LinkGroup], Meta(max_length=MAX_LINKS)] = []
    switch_links: Int = NOT_READ
    fabric: Fabric = Fabric()
    temperature: Temperature = Temperature()
    power: Power = Power()
    clocks: Clocks = Clocks()
    events: ClocksEvents = ClocksEvents()
    counters: Counters = Counters()
    link_errors: LinkErrors = LinkErrors()
    ecc: Ecc = Ecc()
    repair: Repair = Repair()
    xids: Xids = Xids()
    fans: Annotated[list[Fan], Meta(max_length=MAX_FANS)] = []
    window: Window | None = None
    error: Problem | None = None
    virtualization: Int = NOT_READ
