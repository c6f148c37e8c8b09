"""What the page gets as JSON: about 1 KB a node, nothing that it does not show.

What is empty or unknown is left out; the page then says "not read".  Matrices that many nodes share are in
the fleet once.  Times are RFC 3339 in UTC.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from nodegauge_judge import Severity, Verdict
from nodegauge_operator.api.fault import Fault


class GpuData(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """One GPU of a node."""

    index: int | None = None
    """As in nvidia-smi."""
    name: str = ""
    """Product name, where it differs from the node's."""
    uuid: str = ""
    """As NVML gives it."""
    serial: str = ""
    """Serial number of the board."""
    pci: str = ""
    """PCI address."""
    celsius: int | None = None
    """Highest temperature in the last sampling window, °C."""
    watts: int | None = None
    """Draw, W."""
    limit: int | None = None
    """Power limit in force, W."""
    missing: bool = False
    """Earlier runs read it, the last one did not."""


class RunData(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """What one probe last said."""

    probe: str
    """Its name."""
    verdict: str
    """Of the last readable run."""
    read_at: str = ""
    """When that was; empty for never."""
    summary: str = ""
    """The verdict in a sentence."""
    coverage: str = ""
    """What was read of what should have been."""
    failed: str = ""
    """Why later runs read nothing, and since when; empty if they did."""


class GpuLinks(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """The NVLinks of one GPU."""

    up: int = 0
    """Active links."""
    down: list[int] = []
    """Numbers of the links that are not."""
    gbps: float | None = None
    """Rate of the slowest active link, GB/s one way."""
    errors: dict[str, int] = {}
    """Counters that are not zero, by name."""
    unread: bool = False
    """No error counter could be read."""


class Links(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """How the GPUs of a node are joined."""

    cells: list[list[str]]
    """A square as `nvidia-smi topo -m` has it: X, NV18, PIX, SYS, N/A."""
    refused: dict[str, str] = {}
    """By pair (`0-1`) which direct accesses the driver refuses."""
    gpus: list[GpuLinks] = []
    """One for each row; empty if the GPUs have no NVLink."""


class Collective(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """Bandwidth of one collective at 1 GiB, GB/s of bus bandwidth."""

    name: str
    """all_reduce, all_gather or reduce_scatter."""
    gbps: float
    """Measured."""
    floor: float | None = None
    """Below that it is too slow; None if nothing is known of this machine."""
    basis: str = ""
    """Where the floor comes from."""


class Supply(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """One power supply, as the BMC names it."""

    name: str
    """Its label."""
    state: str = ""
    """Health and line input in the BMC's words; empty if it does not say."""
    watts: int | None = None
    """What it gives or takes, W."""
    capacity: int | None = None
    """What it may give, W."""


class Days(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """A node's NodeHistory as columns; null on a day without the value."""

    first: str
    """Date of the first entry (UTC)."""
    count: int
    """Days from it to the last."""
    values: dict[str, list[float | None]] = {}
    """By key (allReduce, hottest, throttled, tflops, spare): a value a day."""
    changes: dict[str, str] = {}
    """By date what was installed: `driver 550.90.07`."""
    sentences: list[str] = []
    """What the days say, in sentences (`core.trend`)."""


class NodeData(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """One node."""

    name: str
    """Its name."""
    verdict: Verdict
    """As in the label nodegauge.dev/health; unknown where nothing was read."""
    klass: str = msgspec.field(default="", name="class")
    """Number and model of its GPUs; empty if either is unknown."""
    gpus: list[GpuData] = []
    """Its GPUs, those that it lost at the end."""
    count: int = 0
    """GPUs that it has or should have."""
    usable: int = 0
    """Those that can be used."""
    lost: dict[str, int] = {}
    """By cause those that cannot."""
    causes: list[str] = []
    """What is wrong, in one word each: causes of faults, else codes of findings; `unread`."""
    read_at: str = ""
    """When the health probe last read it; empty for never."""
    summary: str = ""
    """The report's."""
    policy: str = ""
    """The policy that it follows."""
    driver: str = ""
    """Version of the driver."""
    labels: dict[str, str] = {}
    """Ours, without the prefix."""
    taints: list[str] = []
    """Ours, as kubectl writes them, without the prefix."""
    condition: str = ""
    """GPUValidated, with its reason."""
    message: str = ""
    """Of that condition."""
    unread: str = ""
    """Why nothing is known of it now, in a sentence; empty if something is."""
    override: str = ""
    """What a person says about it, and whether that is in force."""
    notes: list[str] = []
    """What could not be written to the node, or read of its objects."""
    faults: list[Fault] = []
    """What is wrong, the worst first."""
    runs: list[RunData] = []
    """Its probes."""
    interconnect: str = ""
    """Class and evidence."""
    interconnect_message: str = ""
    """The class as a sentence."""
    links: int | None = None
    """Number of its matrix in the fleet's list; None if not read."""
    bandwidth: list[Collective] = []
    """Of the last NCCL run."""
    bandwidth_note: str = ""
    """The agreement with NVML, and why no run can be made now."""
    peers: str = ""
    """Nodes with the same text can be compared."""
    pairs: str = ""
    """Copies between two GPUs, in a sentence."""
    psu: str = ""
    """State of the power supplies; empty if no sensor can be read."""
    supplies: list[Supply] = []
    """By its BMC."""
    sensors: dict[str, str] = {}
    """Voltages and power by the machine's own sensors."""
    feed: str = ""
    """How well the jobs on it feed their GPUs; empty if nobody looked."""
    fed: float | None = None
    """Share of the held GPUs that its jobs use, 0 to 1."""
    days: Days | None = None
    """None: no history."""


class DayShare(Struct, rename="camel", kw_only=True):
    """One day of the fleet."""

    date: str
    """UTC."""
    gpus: int
    """GPUs of the nodes that were read that day."""
    usable: int
    """Those on nodes that passed or warned."""


class Notice(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """What concerns many nodes at once: an incident, a limit, a policy that does less than it could."""

    title: str
    """What happened."""
    text: str = ""
    """What follows, and what to do; commands in backquotes."""
    severity: Severity = Severity.WARN
    """Of the box; `fail` where GPUs are broken or nobody looks."""
    since: str = ""
    """RFC 3339, UTC; empty if unknown."""
    cause: str = ""
    """To find its nodes in the table; empty if no cause tells them."""
    nodes: list[str] = []
    """Their names, the first `NAMED`."""
    count: int = 0
    """How many there are."""


class FleetData(Struct, rename="camel", kw_only=True):
    """The whole page."""

    title: str
    """Its heading."""
    made_at: str
    """When it was made."""
    source: str
    """Where the objects came from."""
    version: str
    """Of nodegauge."""
    unit: str = "node"
    """What the page calls a machine: node, or host where no cluster has it; such a machine has no labels,
    taints and history."""
    nodes: list[NodeData]
    """By name."""
    matrices: list[Links]
    """Each once."""
    trend: list[DayShare]
    """Oldest first; empty without histories."""
    problems: list[str]
    """Objects that could not be read, and why."""
    notices: list[Notice] = []
    """The worst first."""
