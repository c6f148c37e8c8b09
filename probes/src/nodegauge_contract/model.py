"""The typed result document, version 1.6: a node's GPUs, their interconnect, and the hardware around them.

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

from nodegauge_contract.gpu import Gpu
from nodegauge_contract.load import LoadResult
from nodegauge_contract.nccl import NcclResult
from nodegauge_contract.values import NOT_READ, Int, Int64, Num, Problem, Short, Str, Text, Unavailable

SCHEMA = "nodegauge.dev/probe-result"
PASTED = "pasted"
"""The `probe` of a document that was read from pasted output of nvidia-smi (`pasted`)."""
MAJOR, MINOR = 1, 6
MAX_GPUS = 64
MAX_NICS = 64
MAX_PORTS = 128
MAX_SENSORS = 128
MAX_REPEATED = 64


class Host(Struct, frozen=True, kw_only=True):
    """The machine as the probe saw it: `boottime_ms` is CLOCK_BOOTTIME, read with the counters."""

    boot_id: Text = NOT_READ
    boottime_ms: Int = NOT_READ


class System(Struct, frozen=True, kw_only=True):
    """Versions: `driver` and `nvml` as text, `cuda` as NVML's integer (12040 is 12.4)."""

    driver: Text = NOT_READ
    nvml: Text = NOT_READ
    cuda: Int = NOT_READ


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


class Port(Struct, frozen=True, kw_only=True):
    """One port of an RDMA device, from /sys/class/infiniband: `nic` is its position in `Nics.names`, `state`
    and `physical` as the kernel names them (ACTIVE, LinkUp), `rate_gbps` in Gb/s; the rest are counters."""

    nic: Annotated[int, Meta(ge=0, le=MAX_NICS)]
    port: Annotated[int, Meta(ge=0, le=255)]
    state: Text = NOT_READ
    physical: Text = NOT_READ
    rate_gbps: Num = NOT_READ
    link_layer: Text = NOT_READ
    link_downed: Int = NOT_READ
    symbol_errors: Int = NOT_READ
    receive_errors: Int = NOT_READ


class Nics(Struct, frozen=True, kw_only=True):
    """RDMA devices in the driver's order, with distances from sysfs in nvidia-smi's letters.

    `to_gpu[i][j]`: NIC i to GPU j; `to_nic[i][j]`: NIC i to NIC j ("X" on the diagonal).
    """

    names: Annotated[list[Short], Meta(max_length=MAX_NICS)] = []
    pci: Annotated[list[Text], Meta(max_length=MAX_NICS)] = []
    to_gpu: Annotated[list[TextRow], Meta(max_length=MAX_NICS)] = []
    to_nic: Annotated[list[TextRow], Meta(max_length=MAX_NICS)] = []
    ports: Annotated[list[Port], Meta(max_length=MAX_PORTS)] = []


class Bus(Struct, frozen=True, kw_only=True):
    """GPUs on the PCI bus (vendor 10de, class 0300 or 0302), which sysfs shows without access to the GPU.

    `gpus`: their addresses, or why the tree could not be read (a virtual machine may hide it); `silent`:
    those whose configuration space reads all ones: the bus lists them, but they do not respond.  `drivers`:
    the kernel driver of each of `gpus`, or why there is none; `nvidia, excluded` for a GPU that
    NVreg_ExcludedGpus keeps from users.
    """

    gpus: Annotated[list[Short], Meta(max_length=MAX_GPUS)] | Unavailable = NOT_READ
    silent: Annotated[list[Short], Meta(max_length=MAX_GPUS)] = []
    drivers: Annotated[list[Text], Meta(max_length=MAX_GPUS)] = []


class Sensor(Struct, frozen=True, kw_only=True):
    """One hwmon sensor in hwmon's units: `in*` mV, `power*` microwatts, `curr*` mA, `fan*` rpm, `temp*`
    thousandths of a degree.  `chip` is the driver's name, `name` as `in1`, `label` empty if there is none,
    `alarm` 1 while the chip raises one; `low` and `high` the chip's own limits."""

    chip: Short
    name: Short
    label: Short = ""
    value: Num = NOT_READ
    alarm: Int = NOT_READ
    low: Num = NOT_READ
    high: Num = NOT_READ


class RepeatedXid(Struct, frozen=True, kw_only=True):
    """An Xid of an earlier report: NVML index and code of the GPU, how many came, the first and the last in
    seconds since boot (`XidCount`)."""

    gpu: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    code: Int64
    count: Int64
    first: Int64
    last: Int64


class WatchReport(Struct, frozen=True, kw_only=True):
    """What a watch container adds: its Xids up to `at` (seconds since boot) are in this report or in
    earlier ones.  `repeated`: those of earlier ones, oldest first, for a reader that missed some of them;
    whoever read a report of this boot knows all whose `last` is not after its `at`.  `lost`: how many more
    came that the container had no room for, since it last could tell."""

    at: Annotated[int, Meta(ge=0, le=2**62)]
    repeated: Annotated[list[RepeatedXid], Meta(max_length=MAX_REPEATED)] = []
    lost: Int64 = 0


class Result(Struct, frozen=True, kw_only=True):
    """One run of one probe on one node.  `run` and `node` echo the probe's environment, for matching.

    `problem` is set if the run ended before everything was read; the readings until then are included.
    `omitted`: members that were still being read at the end ("nics.ports", "sensors").
    `nccl`: the NCCL measurements (probe `nccl`); `gpus` then hold identity, links and PCIe.  `load`: the
    measurements under load (probe `load`); `gpus` then hold identity, and PCIe, temperatures, power and
    clocks before the load.  `watch`: of a watch container alone.
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
    bus: Bus = Bus()
    sensors: Annotated[list[Sensor], Meta(max_length=MAX_SENSORS)] = []
    problem: Problem | None = None
    omitted: Annotated[list[Short], Meta(max_length=16)] = []
    nccl: NcclResult | None = field(default=None, name="bench")
    load: LoadResult | None = None
    watch: WatchReport | None = None
