"""The typed result document, version 1: raw readings with units in the field names.

Rules of the document:
- every leaf that hardware may refuse is `value | Unavailable`; a default of "not read" says so in words;
- units stand in the name (`_mw`, `_mj`, `_mib`, `_mbps`, `_ns`) or in the docstring; temperatures are °C;
- readers ignore fields they do not know (a newer minor version), and refuse another major version;
- lists and strings are bounded, so that a hostile document costs little.

Nothing here judges: thresholds, classes and verdicts belong to `nodegauge_judge`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

SCHEMA = "nodegauge.dev/probe-result"
MAJOR, MINOR = 1, 0
MAX_GPUS = 64
MAX_LINKS = 72
MAX_NICS = 64

Str = Annotated[str, Meta(max_length=512)]
Short = Annotated[str, Meta(max_length=128)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class Unavailable(Struct, frozen=True):
    """A value that could not be read, and why (an NVML error's name, a missing file, "not read")."""

    unavailable: Str


NOT_READ = Unavailable("not read")

Int = Int64 | Unavailable
Num = Int64 | float | Unavailable
Text = Short | Unavailable
Flag = bool | Unavailable


class ProblemKind(StrEnum):
    """What kept a probe, or one GPU, from being read.  Values are stable; new ones may be added."""

    LIBRARY_NOT_FOUND = "library-not-found"
    DRIVER_NOT_LOADED = "driver-not-loaded"
    DRIVER_MISMATCH = "driver-mismatch"
    CALL_HUNG = "call-hung"
    DEADLINE = "deadline"
    TERMINATED = "terminated"
    CRASHED = "crashed"
    TOO_LARGE = "result-too-large"
    GPU_LOST = "gpu-lost"
    RESET_REQUIRED = "reset-required"
    INSUFFICIENT_POWER = "insufficient-power"
    IRQ_ISSUE = "irq-issue"
    CORRUPTED_INFOROM = "corrupted-inforom"
    NO_PERMISSION = "no-permission"
    NVML_ERROR = "nvml-error"


class Problem(Struct, frozen=True, kw_only=True):
    """One thing that went wrong while measuring.

    `kind` is a `ProblemKind` (a plain string, so that an older reader survives a newer probe), `call` the
    NVML function or step, `code` the NVML return value where there was one, `message` words for a person.
    """

    kind: Short
    call: Short = ""
    code: Int64 | None = None
    message: Str = ""


class Host(Struct, frozen=True, kw_only=True):
    """The machine as the probe saw it: `boottime_ms` is CLOCK_BOOTTIME, read beside the counters."""

    boot_id: Text = NOT_READ
    boottime_ms: Int = NOT_READ


class System(Struct, frozen=True, kw_only=True):
    """Versions: `driver` and `nvml` as text, `cuda` as NVML's integer (12040 is 12.4)."""

    driver: Text = NOT_READ
    nvml: Text = NOT_READ
    cuda: Int = NOT_READ


class LinkGroup(Struct, frozen=True, kw_only=True):
    """NVLinks of one GPU that answered alike: `links` are their numbers, so nothing is lost by grouping.

    `state`: 0 inactive, 1 active, 2 sleep, 3 active with traffic disabled.  `p2p`: capability P2P_SUPPORTED.
    `remote`: PCI id of the far end (`0000:0f:00.0`), `remote_type`: 0 GPU, 1 NPU, 2 switch, 255 unknown.
    `mbps`: raw signalling rate per direction, MB/s.  `version`: NVML's NVLink version enumeration.
    """

    links: Annotated[list[Annotated[int, Meta(ge=0, le=255)]], Meta(max_length=MAX_LINKS)]
    state: Int = NOT_READ
    p2p: Int = NOT_READ
    remote: Text = NOT_READ
    remote_type: Int = NOT_READ
    mbps: Int = NOT_READ
    version: Int = NOT_READ


class Fabric(Struct, frozen=True, kw_only=True):
    """`nvmlDeviceGetGpuFabricInfoV`: `state` 0 (not supported) to 3 (completed), `status` an NVML return."""

    state: Int = NOT_READ
    status: Int = NOT_READ
    cluster_uuid: Text = NOT_READ
    clique: Int = NOT_READ
    health_mask: Int = NOT_READ
    health_summary: Int = NOT_READ


class Pcie(Struct, frozen=True, kw_only=True):
    """PCIe generation and lane count, now and at most (both fall at idle: judge them only under load)."""

    generation: Int = NOT_READ
    width: Int = NOT_READ
    max_generation: Int = NOT_READ
    max_width: Int = NOT_READ


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
    """MHz; `pstate` 0 (fastest) to 15."""

    sm_mhz: Int = NOT_READ
    memory_mhz: Int = NOT_READ
    max_sm_mhz: Int = NOT_READ
    max_memory_mhz: Int = NOT_READ
    pstate: Int = NOT_READ


class ReasonSeen(Struct, frozen=True, kw_only=True):
    """One clocks event reason bit: in how many samples it stood, and in how many in a row at most."""

    bit: Int64
    samples: Int64
    longest: Int64


class ClocksEvents(Struct, frozen=True, kw_only=True):
    """Clocks event reasons over the sampling window: `supported` the mask the driver can report at all."""

    supported: Int = NOT_READ
    read: Int = NOT_READ
    """Samples in which the mask could be read, or why none could."""
    seen: Annotated[list[ReasonSeen], Meta(max_length=64)] = []


class Counters(Struct, frozen=True, kw_only=True):
    """Cumulative nanoseconds, read once at the end of the window; judged by growth, never by value.

    `trio` names the field ids the three throttle counters came from ("251-253", "269-271"), or why neither.
    """

    trio: Text = NOT_READ
    sw_power_cap_ns: Int = NOT_READ
    sync_boost_ns: Int = NOT_READ
    sw_thermal_ns: Int = NOT_READ
    hw_thermal_ns: Int = NOT_READ
    power_brake_ns: Int = NOT_READ
    thermal_violation_ns: Int = NOT_READ
    low_utilization_ns: Int = NOT_READ


class Span(Struct, frozen=True, kw_only=True):
    """Smallest, median and largest of the samples of one window."""

    min: Num
    median: Num
    max: Num


SpanOrNot = Span | None


class Window(Struct, frozen=True, kw_only=True):
    """The sampling window: `seconds` long, `samples` taken; a span is null where no sample could be read."""

    seconds: float
    samples: Int64
    utilization: SpanOrNot = None
    """NVML's per cent of time in which any kernel ran."""
    temperature: SpanOrNot = None
    power_mw: SpanOrNot = None
    sm_mhz: SpanOrNot = None
    pstate: SpanOrNot = None


class Gpu(Struct, frozen=True, kw_only=True):
    """One GPU as NVML enumerates it.  `pci` is normalised to sysfs form, `0000:0f:00.0`.

    `error` is set when its handle or its basic identity could not be read; then the rest is "not read".
    `mig`: 0 off, 1 on.  `switch_links`: field 147, links that lead to an NVSwitch.  `numa_node` from sysfs.
    `gpu_numa_id`: the GPU's own NUMA node, where it is one (coherent platforms as Grace Hopper).
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
    window: Window | None = None
    error: Problem | None = None


Row = Annotated[list[Int], Meta(max_length=MAX_GPUS)]
Grid = Annotated[list[Row], Meta(max_length=MAX_GPUS)]
TextRow = Annotated[list[Text], Meta(max_length=MAX_GPUS)]


class Pairs(Struct, frozen=True, kw_only=True):
    """Square grids, row and column in the order of `gpus`; the diagonal is -1.

    `ancestor`: nvmlDeviceGetTopologyCommonAncestor (0, 10, 20, 30, 40, 50).  `read`, `write`, `nvlink`:
    nvmlDeviceGetP2PStatus for caps index 0, 1 and 2 (0 OK; 1 CNS, 2 GNS, 3 TNS, 4 DR, 5 NS, 6 U).
    """

    ancestor: Grid = []
    read: Grid = []
    write: Grid = []
    nvlink: Grid = []


class Nics(Struct, frozen=True, kw_only=True):
    """RDMA devices in the driver's order, with distances from sysfs in nvidia-smi's letters.

    `to_gpu[i][j]`: NIC i to GPU j; `to_nic[i][j]`: NIC i to NIC j ("X" on the diagonal).
    """

    names: Annotated[list[Short], Meta(max_length=MAX_NICS)] = []
    pci: Annotated[list[Text], Meta(max_length=MAX_NICS)] = []
    to_gpu: Annotated[list[TextRow], Meta(max_length=MAX_NICS)] = []
    to_nic: Annotated[list[TextRow], Meta(max_length=MAX_NICS)] = []


class Result(Struct, frozen=True, kw_only=True):
    """One run of one probe on one node.  `run` and `node` echo what the probe was told, for matching.

    `problem` is set when the run ended before everything was read; what had been read is still there.
    `omitted`: members that a message has no room for ("nics"); the document on standard output has them.
    """

    schema: Short = SCHEMA
    version: Short = f"{MAJOR}.{MINOR}"
    probe: Short
    run: Short = ""
    node: Str = ""
    duration_ms: Int64 = 0
    host: Host = Host()
    system: System = System()
    gpus: Annotated[list[Gpu], Meta(max_length=MAX_GPUS)] = []
    pairs: Pairs = Pairs()
    nics: Nics = Nics()
    problem: Problem | None = None
    omitted: Annotated[list[Short], Meta(max_length=16)] = []
