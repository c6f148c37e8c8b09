"""The typed result document, version 1.9: a node's GPUs, their interconnect, and the hardware around them.

Rules of the document:
- every leaf that hardware may refuse is `value | Unavailable`; the default is "not read";
- units are in the name or in the docstring;
- readers ignore fields they do not know (a newer minor version), and refuse another major version;
- lists and strings are bounded, so that a hostile document costs little.

Nothing here judges: thresholds, classes and verdicts belong to `nodegauge_judge`.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

from nodegauge_contract.feed import FeedResult
from nodegauge_contract.gpu import Gpu
from nodegauge_contract.load import LoadResult
from nodegauge_contract.nccl import NcclResult
from nodegauge_contract.values import NOT_READ, Flag, Int, Int64, Num, Problem, Short, Str, Text, Unavailable

SCHEMA = "nodegauge.dev/probe-result"
PASTED = "pasted"
"""The `probe` of a document that was read from pasted output of nvidia-smi (`pasted`)."""
MAJOR, MINOR = 1, 9
MAX_GPUS = 64
MAX_NICS = 64
MAX_PORTS = 128
MAX_SENSORS = 128
MAX_REPEATED = 64
MAX_KERNEL_EVENTS = 24
MAX_DISKS = 64


class Host(Struct, frozen=True, kw_only=True):
    """The machine as the probe saw it."""

    boot_id: Text = NOT_READ
    """The kernel's random id of this boot."""
    boottime_ms: Int = NOT_READ
    """CLOCK_BOOTTIME, ms, read with the counters."""
    kernel: Text = NOT_READ
    """The kernel's release."""
    clock_synchronised: Flag = NOT_READ
    """Whether something keeps the clock in step with a source (adjtimex: STA_UNSYNC is not set)."""
    clock_error_us: Int = NOT_READ
    """The clock's largest error as the kernel counts it (adjtimex: maxerror), microseconds."""


class System(Struct, frozen=True, kw_only=True):
    """Versions of the driver."""

    driver: Text = NOT_READ
    """Of the driver, as text."""
    nvml: Text = NOT_READ
    """Of NVML, as text."""
    cuda: Int = NOT_READ
    """NVML's integer: 12040 is CUDA 12.4."""


Row = Annotated[list[Int], Meta(max_length=MAX_GPUS)]
Grid = Annotated[list[Row], Meta(max_length=MAX_GPUS)]
TextRow = Annotated[list[Text], Meta(max_length=MAX_GPUS)]


class Pairs(Struct, frozen=True, kw_only=True):
    """Square grids, row and column in the order of `gpus`; the diagonal is -1.  P2P statuses: 0 OK, 1 CNS, 2
    GNS, 3 TNS, 4 DR, 5 NS, 6 U (nvmlDeviceGetP2PStatus)."""

    ancestor: Grid = []
    """nvmlDeviceGetTopologyCommonAncestor: 0, 10, 20, 30, 40 or 50."""
    read: Grid = []
    """Status of reads (caps index 0)."""
    write: Grid = []
    """Status of writes (caps index 1)."""
    nvlink: Grid = []
    """Status of NVLink (caps index 2)."""


class Port(Struct, frozen=True, kw_only=True):
    """One port of an RDMA device, from /sys/class/infiniband."""

    nic: Annotated[int, Meta(ge=0, le=MAX_NICS)]
    """Position of its device in `Nics.names`."""
    port: Annotated[int, Meta(ge=0, le=255)]
    """Number of the port on its device."""
    state: Text = NOT_READ
    """As the kernel names it, such as ACTIVE."""
    physical: Text = NOT_READ
    """As the kernel names it, such as LinkUp."""
    rate_gbps: Num = NOT_READ
    """Gb/s."""
    link_layer: Text = NOT_READ
    """InfiniBand or Ethernet."""
    link_downed: Int = NOT_READ
    """How often the link went down (counter)."""
    symbol_errors: Int = NOT_READ
    """Symbol errors (counter)."""
    receive_errors: Int = NOT_READ
    """Packets received with errors (counter)."""
    integrity_errors: Int = NOT_READ
    """Times that local errors passed the port's limit (counter `local_link_integrity_errors`)."""
    overruns: Int = NOT_READ
    """Times that packets found no buffer (counter `excessive_buffer_overrun_errors`)."""
    recoveries: Int = NOT_READ
    """Times that the link recovered from errors (counter `link_error_recovery`)."""
    discards: Int = NOT_READ
    """Packets that were thrown away unsent (counter `port_xmit_discards`)."""
    ack_timeouts: Int = NOT_READ
    """Packets that nobody acknowledged in time (hw_counters, `local_ack_timeout_err`)."""
    receiver_not_ready: Int = NOT_READ
    """Sends that were given up because the other end had no room (hw_counters, `rnr_nak_retry_err`)."""


class Nics(Struct, frozen=True, kw_only=True):
    """RDMA devices in the driver's order, with distances from sysfs in nvidia-smi's letters."""

    names: Annotated[list[Short], Meta(max_length=MAX_NICS)] = []
    """The kernel's names, such as mlx5_0."""
    pci: Annotated[list[Text], Meta(max_length=MAX_NICS)] = []
    """PCI address of each."""
    to_gpu: Annotated[list[TextRow], Meta(max_length=MAX_NICS)] = []
    """`to_gpu[i][j]`: NIC i to GPU j."""
    to_nic: Annotated[list[TextRow], Meta(max_length=MAX_NICS)] = []
    """`to_nic[i][j]`: NIC i to NIC j; "X" on the diagonal."""
    ports: Annotated[list[Port], Meta(max_length=MAX_PORTS)] = []
    """Ports of all devices."""
    numa: Annotated[list[Int], Meta(max_length=MAX_NICS)] = []
    """NUMA node of each; empty from probes before version 1.9."""


class Bus(Struct, frozen=True, kw_only=True):
    """GPUs on the PCI bus (vendor 10de, class 0300 or 0302), which sysfs shows without access to the GPU."""

    gpus: Annotated[list[Short], Meta(max_length=MAX_GPUS)] | Unavailable = NOT_READ
    """Their addresses, or why the tree could not be read (a virtual machine may hide it)."""
    silent: Annotated[list[Short], Meta(max_length=MAX_GPUS)] = []
    """Those whose configuration space reads all ones: the bus lists them, but they do not respond."""
    drivers: Annotated[list[Text], Meta(max_length=MAX_GPUS)] = []
    """The kernel driver of each of `gpus`, or why there is none; `nvidia, excluded` for a GPU that
    NVreg_ExcludedGpus keeps from users."""


class Sensor(Struct, frozen=True, kw_only=True):
    """One hwmon sensor.  Units: `in*` mV, `power*` microwatts, `curr*` mA, `fan*` rpm, `temp*` thousandths of
    a degree."""

    chip: Short
    """The driver's name of the chip."""
    name: Short
    """The sensor's, as `in1`."""
    label: Short = ""
    """Its label; empty if there is none."""
    value: Num = NOT_READ
    """The reading."""
    alarm: Int = NOT_READ
    """1 while the chip raises an alarm or fault, else 0."""
    low: Num = NOT_READ
    """The chip's own lower limit."""
    high: Num = NOT_READ
    """The chip's own upper limit."""


class Disk(Struct, frozen=True, kw_only=True):
    """One NVMe controller, from /sys/class/nvme."""

    name: Short
    """The kernel's, such as nvme0."""
    model: Text = NOT_READ
    """Product name."""
    state: Text = NOT_READ
    """As the kernel names it; `live` is the one in which it works."""
    fatal: Int = NOT_READ
    """Uncorrected fatal PCIe errors since the kernel found it (AER)."""
    nonfatal: Int = NOT_READ
    """Other uncorrected PCIe errors since then (AER)."""
    too_hot: Int = NOT_READ
    """1 while the controller warns of its temperature (hwmon `temp1_alarm`), else 0."""
    numa_node: Int = NOT_READ
    """NUMA node of its PCI device."""


class KernelEvent(Struct, frozen=True, kw_only=True):
    """Lines of the kernel's log that say the same of the same part.  Times are seconds since boot."""

    kind: Short
    """A `StatementKind` (`nodegauge_contract.paste`)."""
    subject: Short = ""
    """The part as the line names it: a PCI address or a switch; empty for none."""
    code: Int64 | None = None
    """Number of the Xid or SXid."""
    count: Int64 = 1
    """How many lines."""
    first: Int64
    """When the first one came."""
    last: Int64
    """When the last one came."""
    before: bool = False
    """Whether the last one is older than this probe's first look at the log."""
    text: Str = ""
    """The words of the first one."""


class KernelLog(Struct, frozen=True, kw_only=True):
    """What the kernel's log says of this boot that NVML did not tell."""

    unread: Short = ""
    """Why it cannot be read; empty if it can."""
    lost: Int64 = 0
    """Bytes or records that were skipped unread: they came too fast, or the kernel overwrote them."""
    events: Annotated[list[KernelEvent], Meta(max_length=MAX_KERNEL_EVENTS)] = []
    """The newest ones, oldest first."""
    dropped: Int64 = 0
    """Events for which there was no room."""


class RepeatedXid(Struct, frozen=True, kw_only=True):
    """An Xid of an earlier report.  Times as in `XidCount`."""

    gpu: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    """NVML index of the GPU."""
    code: Int64
    """The Xid."""
    count: Int64
    """How many came."""
    first: Int64
    """When the first one came."""
    last: Int64
    """When the last one came."""


class WatchReport(Struct, frozen=True, kw_only=True):
    """What a watch container adds to a reading."""

    at: Annotated[int, Meta(ge=0, le=2**62)]
    """Seconds since boot up to which its Xids are in this report or in earlier ones."""
    repeated: Annotated[list[RepeatedXid], Meta(max_length=MAX_REPEATED)] = []
    """Xids of earlier reports, oldest first, for a reader that missed some.  Whoever read a report of this
    boot knows all whose `last` is not after its `at`."""
    lost: Int64 = 0
    """How many more Xids came that the container had no room for, since it last could tell."""


class Result(Struct, frozen=True, kw_only=True):
    """One run of one probe on one node."""

    schema: Short = SCHEMA
    """Name of the document's schema."""
    version: Short = f"{MAJOR}.{MINOR}"
    """`MAJOR.MINOR` of the schema."""
    probe: Short
    """The probe that ran, such as health."""
    run: Short = ""
    """The run's id, from the probe's environment, for matching."""
    node: Str = ""
    """The node's name, likewise."""
    duration_ms: Int64 = 0
    """How long the reading took, ms."""
    host: Host = Host()
    """Boot and its clock."""
    system: System = System()
    """Versions of the driver."""
    gpus: Annotated[list[Gpu], Meta(max_length=MAX_GPUS)] = []
    """GPUs in NVML's order.  Probe nccl: identity, links and PCIe alone.  Probe load: identity, and PCIe,
    temperatures, power and clocks before the load."""
    pairs: Pairs = Pairs()
    """What joins each pair of GPUs."""
    nics: Nics = Nics()
    """RDMA devices."""
    bus: Bus = Bus()
    """GPUs on the PCI bus."""
    sensors: Annotated[list[Sensor], Meta(max_length=MAX_SENSORS)] = []
    """Supplies and fans in hwmon."""
    problem: Problem | None = None
    """Set if the run ended before everything was read; the readings until then are included."""
    omitted: Annotated[list[Short], Meta(max_length=16)] = []
    """Members that were still being read at the end ("nics.ports", "disks", "sensors")."""
    nccl: NcclResult | None = field(default=None, name="bench")
    """Measurements of the probe nccl (`bench` in JSON)."""
    load: LoadResult | None = None
    """Measurements of the probe load."""
    watch: WatchReport | None = None
    """What a watch container adds."""
    feed: FeedResult | None = None
    """One window of the probe feed."""
    disks: Annotated[list[Disk], Meta(max_length=MAX_DISKS)] = []
    """NVMe controllers."""
    kernel_log: KernelLog | None = None
    """What the kernel's log says; None if nobody asked for it."""
