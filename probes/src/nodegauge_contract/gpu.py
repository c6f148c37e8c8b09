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
SATURATED = frozenset({2**16 - 1, 2**32 - 1, 2**63 - 1})
"""Numbers at which a counter of 16, 32 or 64 bits stops: it cannot grow, and that proves nothing."""


class LinkGroup(Struct, frozen=True, kw_only=True):
    """NVLinks of one GPU with the same readings; grouping loses nothing."""

    links: Annotated[list[Annotated[int, Meta(ge=0, le=255)]], Meta(max_length=MAX_LINKS)]
    """Numbers of the links, from 0."""
    state: Int = NOT_READ
    """0 inactive, 1 active, 2 sleep, 3 active with traffic disabled."""
    p2p: Int = NOT_READ
    """Capability P2P_SUPPORTED, 0 or 1."""
    remote: Text = NOT_READ
    """PCI id of the far end (`0000:0f:00.0`); from a pasted table its name (`GPU3`)."""
    remote_type: Int = NOT_READ
    """NVML_NVLINK_DEVICE_TYPE_*: 0 GPU, 1 NPU, 2 switch, 255 unknown."""
    mbps: Int = NOT_READ
    """Raw signalling rate per direction, MB/s."""
    version: Int = NOT_READ
    """NVML's NVLink version enumeration (nvmlDeviceGetNvLinkVersion)."""


class LinkErrors(Struct, frozen=True, kw_only=True):
    """NVLink error counters, summed over the GPU's active links; only their growth is judged."""

    replay: Int = NOT_READ
    """Packets sent again (nvmlDeviceGetNvLinkErrorCounter, 0)."""
    recovery: Int = NOT_READ
    """Link recoveries (1)."""
    crc_flit: Int = NOT_READ
    """CRC errors of flow control units (2)."""
    crc_data: Int = NOT_READ
    """CRC errors of data (3)."""
    ecc: Int = NOT_READ
    """ECC errors (4)."""
    recovery_failed: Int = NOT_READ
    """NVLink 5: recoveries that failed (field 214)."""
    effective: Int = NOT_READ
    """NVLink 5: errors that error correction let through (field 219)."""
    symbol: Int = NOT_READ
    """NVLink 5: symbol errors, before correction (field 221)."""
    recoveries: Int = NOT_READ
    """NVLink 5: recoveries, whether they succeeded or not (field 215)."""
    received: Int = NOT_READ
    """NVLink 5: packets that arrived malformed, with errors or without room for them (fields 206 to 210)."""
    integrity: Int = NOT_READ
    """NVLink 5: local link integrity errors (field 211)."""
    full: Int = NOT_READ
    """Links with a counter, other than `ecc` and `symbol`, at the largest number that it can hold."""


class Fabric(Struct, frozen=True, kw_only=True):
    """The GPU's position in an NVLink fabric (`nvmlDeviceGetGpuFabricInfoV`)."""

    state: Int = NOT_READ
    """0 not supported, 1 not started, 2 in progress, 3 completed."""
    status: Int = NOT_READ
    """How the registration ended, as an NVML return value; 0 is success."""
    cluster_uuid: Text = NOT_READ
    """The fabric that it belongs to."""
    clique: Int = NOT_READ
    """Id of its clique: GPUs of one cluster and one clique reach each other over NVLink."""
    health_mask: Int = NOT_READ
    """Bits of the fabric's health (nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_*)."""
    health_summary: Int = NOT_READ
    """The same in one number, from newer drivers: 1 healthy, 2 unhealthy, 3 limited capacity."""


class Pcie(Struct, frozen=True, kw_only=True):
    """PCIe link.  The generation falls at idle, the width stays.  Errors are counters, and only their growth
    is judged."""

    generation: Int = NOT_READ
    """Generation in use, in the busiest sample of the window."""
    width: Int = NOT_READ
    """Lanes in use, in the same sample."""
    max_generation: Int = NOT_READ
    """The highest that card and slot reach together."""
    max_width: Int = NOT_READ
    """The most lanes that card and slot have together."""
    card_generation: Int = NOT_READ
    """The highest that the card alone reaches."""
    utilization: Int = NOT_READ
    """Utilisation of the GPU in that sample, per cent."""
    replays: Int = NOT_READ
    """Packets sent again (nvmlDeviceGetPcieReplayCounter)."""
    replay_rollovers: Int = NOT_READ
    """How often the link's replay number rolled over (field 95)."""
    correctable: Int = NOT_READ
    """Correctable errors (field 173)."""
    recoveries: Int = NOT_READ
    """Times that the link left L0 for recovery (field 169)."""


class Temperature(Struct, frozen=True, kw_only=True):
    """Temperatures, °C.  Drivers give absolute limits up to Ampere.  From Ada on they give `margin`, and in
    `tlimit_*` the margins at which something happens."""

    gpu: Int = NOT_READ
    """Temperature of the GPU."""
    memory: Int = NOT_READ
    """Temperature of the memory, on boards with a sensor there."""
    shutdown: Int = NOT_READ
    """At this temperature the GPU switches itself off."""
    slowdown: Int = NOT_READ
    """At this temperature hardware slows it down."""
    memory_max: Int = NOT_READ
    """At this temperature of the memory software slows the GPU down (nvml.h, THRESHOLD_MEM_MAX)."""
    gpu_max: Int = NOT_READ
    """At this temperature the GPU may fall below its base clock (nvml.h, THRESHOLD_GPU_MAX)."""
    margin: Int = NOT_READ
    """°C left to the nearest slowdown (nvmlDeviceGetMarginTemperature)."""
    tlimit_shutdown: Int = NOT_READ
    """Margin after which the GPU may switch itself off (field 193)."""
    tlimit_slowdown: Int = NOT_READ
    """Margin after which hardware may slow it down (field 194)."""
    tlimit_memory_max: Int = NOT_READ
    """Margin after which software may slow it down for its memory (field 195)."""
    tlimit_gpu_max: Int = NOT_READ
    """Margin after which it may fall below its base clock (field 196)."""


class Power(Struct, frozen=True, kw_only=True):
    """Power of the board, mW."""

    usage_mw: Int = NOT_READ
    """Draw of the GPU and its circuitry (nvmlDeviceGetPowerUsage): averaged over a second from Ampere on but
    on GA100, else of this moment (nvml.h)."""
    average_mw: Int = NOT_READ
    """Draw of the GPU averaged over a second (field 185); from Ampere on but on GA100 (nvml.h)."""
    instant_mw: Int = NOT_READ
    """Draw of the GPU at this moment (field 186)."""
    enforced_limit_mw: Int = NOT_READ
    """The limit in force, the lowest of all that apply."""
    default_limit_mw: Int = NOT_READ
    """The limit at power-on."""
    min_limit_mw: Int = NOT_READ
    """The lowest limit that may be set."""
    max_limit_mw: Int = NOT_READ
    """The highest limit that may be set."""
    energy_mj: Int = NOT_READ
    """Energy drawn since driver load, mJ; Volta and newer."""
    source: Int = NOT_READ
    """0 AC, 1 battery, 2 undersized supply (nvmlDeviceGetPowerSource)."""


class Clocks(Struct, frozen=True, kw_only=True):
    """Clocks, MHz.  NVML has no call for clocks that `nvidia-smi -lgc` or `-lmc` locked."""

    sm_mhz: Int = NOT_READ
    """SM clock now."""
    memory_mhz: Int = NOT_READ
    """Memory clock now."""
    max_sm_mhz: Int = NOT_READ
    """The highest SM clock."""
    max_memory_mhz: Int = NOT_READ
    """The highest memory clock."""
    pstate: Int = NOT_READ
    """Performance state, 0 (fastest) to 15."""
    app_sm_mhz: Int = NOT_READ
    """The highest SM clock at which work may run (`nvidia-smi -ac`)."""
    app_memory_mhz: Int = NOT_READ
    """The highest memory clock at which work may run (`nvidia-smi -ac`)."""


class ReasonSeen(Struct, frozen=True, kw_only=True):
    """One clocks event reason bit over the window."""

    bit: Int64
    """The bit's value (nvml.h, nvmlClocksEventReason*)."""
    samples: Int64
    """Samples in which it was set."""
    longest: Int64
    """Most samples in a row in which it was set; an unreadable one ends a row."""


class ClocksEvents(Struct, frozen=True, kw_only=True):
    """Clocks event reasons over the sampling window."""

    supported: Int = NOT_READ
    """Mask of the bits that the driver can report."""
    read: Int = NOT_READ
    """Samples in which the mask could be read, or why it never could."""
    seen: Annotated[list[ReasonSeen], Meta(max_length=64)] = []
    """The bits that were set, in order."""


class Counters(Struct, frozen=True, kw_only=True):
    """Cumulative times, ns, read at the end of the window; only their growth is judged.  Those of fields 74,
    75, 76 and 78 are times below application clocks, by cause (nvml.h, nvmlPerfPolicyType_t)."""

    trio: Text = NOT_READ
    """Field ids of `sw_thermal_ns`, `hw_thermal_ns` and `power_brake_ns` ("251-253", "269-271"), or why
    neither could be used (`collectors.counters`)."""
    sw_power_cap_ns: Int = NOT_READ
    """Below application clocks for power (field 74, NVML's SW_POWER_CAP)."""
    sync_boost_ns: Int = NOT_READ
    """Below application clocks for sync boost (field 76)."""
    sw_thermal_ns: Int = NOT_READ
    """Software thermal slowdown."""
    hw_thermal_ns: Int = NOT_READ
    """Hardware thermal slowdown."""
    power_brake_ns: Int = NOT_READ
    """Power brake, which the supply or the board asserts."""
    thermal_violation_ns: Int = NOT_READ
    """Below application clocks for temperature (field 75, else nvmlDeviceGetViolationStatus)."""
    low_utilization_ns: Int = NOT_READ
    """Below application clocks for low utilisation (field 78)."""


class Growth(Struct, frozen=True, kw_only=True):
    """Growth of counters between two readings; "not read" if a reading took too long to compare."""

    elapsed_ms: Int = NOT_READ
    """CLOCK_BOOTTIME from before the first reading to after the second, ms."""
    sw_power_cap_ns: Int = NOT_READ
    """Growth of the counter of that name, ns; so the next four."""
    sw_thermal_ns: Int = NOT_READ
    """Software thermal slowdown."""
    hw_thermal_ns: Int = NOT_READ
    """Hardware thermal slowdown."""
    power_brake_ns: Int = NOT_READ
    """Power brake."""
    thermal_violation_ns: Int = NOT_READ
    """Below application clocks for temperature."""
    energy_mj: Int = NOT_READ
    """Energy drawn, mJ."""


class Ecc(Struct, frozen=True, kw_only=True):
    """Memory errors.  Volatile counts are since driver load, aggregate ones over the board's life."""

    mode: Int = NOT_READ
    """0 off, 1 on.  Off, the driver refuses all counts."""
    volatile_corrected: Int = NOT_READ
    """Corrected errors since driver load."""
    volatile_uncorrected: Int = NOT_READ
    """Uncorrected errors since driver load."""
    aggregate_corrected: Int = NOT_READ
    """Corrected errors over the board's life."""
    aggregate_uncorrected: Int = NOT_READ
    """Uncorrected errors over the board's life."""
    sram_threshold: Int = NOT_READ
    """1 if the driver reports SRAM errors above their limit."""
    aggregate_sram: Int = NOT_READ
    """The uncorrected ones in caches and registers."""
    aggregate_dram: Int = NOT_READ
    """The uncorrected ones in HBM or GDDR."""


class Repair(Struct, frozen=True, kw_only=True):
    """Memory repairs: done, failed and pending.  Newer boards remap rows, older ones retire pages, so one
    half is always unavailable."""

    rows_corrected: Int = NOT_READ
    """Rows remapped for corrected errors (nvmlDeviceGetRemappedRows, from Ampere on)."""
    rows_uncorrected: Int = NOT_READ
    """Rows remapped for uncorrected errors."""
    rows_pending: Int = NOT_READ
    """1 if a remapping waits for a reset."""
    rows_failed: Int = NOT_READ
    """1 if a remapping failed."""
    pages_single_bit: Int = NOT_READ
    """Pages retired for single bit errors (before Ampere)."""
    pages_double_bit: Int = NOT_READ
    """Pages retired for double bit errors."""
    pages_pending: Int = NOT_READ
    """1 if a page waits to be retired."""
    channels_pending: Int = NOT_READ
    """1 if the repair of a memory channel is pending (nvmlDeviceGetRepairStatus)."""
    tpcs_pending: Int = NOT_READ
    """1 if the repair of a TPC is pending."""
    unrepairable: Int = NOT_READ
    """1 if the driver calls the memory beyond repair."""
    action: Int = NOT_READ
    """Recovery action (field 230): 0 none, 1 GPU reset, 2 node reboot, 3 drain P2P, 4 drain and reset, 5
    recover IMEX, 6 bus reset, 7 system reboot."""


class XidCount(Struct, frozen=True, kw_only=True):
    """How often one Xid came.  Times are seconds since boot (CLOCK_BOOTTIME, the clock of
    `Host.boottime_ms`)."""

    count: Int64
    """Xids that came."""
    first: Int64
    """When the probe received the first one."""
    last: Int64
    """When it received the last one."""


class Xids(Struct, frozen=True, kw_only=True):
    """Xids that the driver reported to this probe, without those that a watch container has reported before
    (`Result.watch`)."""

    registered: Flag = NOT_READ
    """Whether the driver reports them at all."""
    seen: Annotated[list[Int64], Meta(max_length=MAX_XIDS)] = []
    """Distinct codes."""
    counts: Annotated[list[XidCount], Meta(max_length=MAX_XIDS)] = []
    """One for each of `seen`, in its order; empty from probes before version 1.5."""


class Fan(Struct, frozen=True, kw_only=True):
    """A fan of the GPU."""

    percent: Int = NOT_READ
    """Intended speed, per cent of its maximum."""
    target: Int = NOT_READ
    """Target speed, per cent of its maximum."""
    rpm: Int = NOT_READ
    """Actual speed."""


class Span(Struct, frozen=True, kw_only=True):
    """Samples of one window."""

    min: Num = NOT_READ
    """The smallest."""
    median: Num = NOT_READ
    """The middle one, or the mean of the two in the middle."""
    max: Num = NOT_READ
    """The largest."""


SpanOrNot = Span | None


class Window(Struct, frozen=True, kw_only=True):
    """The sampling window; a span is null if no sample could be read."""

    seconds: float
    """Seconds from the first sample to the last."""
    samples: Int64
    """Samples taken."""
    utilization: SpanOrNot = None
    """NVML's per cent of time in which a kernel ran."""
    temperature: SpanOrNot = None
    """Of the GPU, °C."""
    power_mw: SpanOrNot = None
    """Draw, mW."""
    sm_mhz: SpanOrNot = None
    """SM clock, MHz."""
    pstate: SpanOrNot = None
    """Performance state, 0 (fastest) to 15."""
    memory_temperature: SpanOrNot = None
    """Of the memory, °C."""
    growth: Growth | None = None
    """Growth of the counters from before the window until after it."""


class Gpu(Struct, frozen=True, kw_only=True):
    """One GPU as NVML enumerates it."""

    index: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    """NVML's index, as in nvidia-smi; it may change at a reboot."""
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
    """Whether persistence mode is on: without it counters restart with the last client."""
    mig: Int = NOT_READ
    """0 off, 1 on."""
    compute_mode: Int = NOT_READ
    """nvmlComputeMode_t: 0 default, 1 and 3 exclusive (one thread, one process), 2 prohibited."""
    cpus: Text = NOT_READ
    """CPUs near the GPU, as ranges (`0-31,64-95`)."""
    memory_nodes: Text = NOT_READ
    """NUMA nodes of the memory near the GPU, as ranges."""
    numa_node: Int = NOT_READ
    """NUMA node of the PCI device, from sysfs."""
    gpu_numa_id: Int = NOT_READ
    """NUMA node that the GPU itself is (coherent platforms such as Grace Hopper)."""
    pcie: Pcie = Pcie()
    """Its PCIe link."""
    links: Annotated[list[LinkGroup], Meta(max_length=MAX_LINKS)] = []
    """Its NVLinks, those with equal readings together."""
    switch_links: Int = NOT_READ
    """Links to an NVSwitch (field 147)."""
    fabric: Fabric = Fabric()
    """Its position in an NVLink fabric."""
    temperature: Temperature = Temperature()
    """Temperatures and their limits."""
    power: Power = Power()
    """Draw and limits."""
    clocks: Clocks = Clocks()
    """Clocks before the window."""
    events: ClocksEvents = ClocksEvents()
    """Why clocks were low in the window."""
    counters: Counters = Counters()
    """Time that each reason held clocks down."""
    link_errors: LinkErrors = LinkErrors()
    """Errors of its NVLinks."""
    ecc: Ecc = Ecc()
    """Memory errors."""
    repair: Repair = Repair()
    """Memory repairs, and the recovery action that the driver asks for."""
    xids: Xids = Xids()
    """Xids that it reported during the run."""
    fans: Annotated[list[Fan], Meta(max_length=MAX_FANS)] = []
    """Its fans; passive boards have none."""
    window: Window | None = None
    """Samples of a few seconds; None if none was taken."""
    error: Problem | None = None
    """Set if its handle or its basic identity could not be read, or it was lost; what is missing is "not
    read"."""
    virtualization: Int = NOT_READ
    """nvmlGpuVirtualizationMode_t: 0 none, 1 passed through to this virtual machine, 2 a vGPU, 3 and 4 a host
    that shares the GPU among its virtual machines (vGPU, vSGA)."""
