"""What the judge says: verdicts, findings, the interconnect class, and the judgement that holds them all.

Everything here is a msgspec Struct that encodes to JSON as it is, so that a report can hold it and a person
can pipe it through `jq`.  Numbers to compare with are in `thresholds`, sentences in `rules`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field

from nodegauge_judge.history.model import History
from nodegauge_judge.power_inventory import PowerInventory

Scalar = str | int | float | bool


class OpenEnum(StrEnum):
    """An enum that newer versions extend: a value that this version does not know is kept as it stands, equal
    to no member, so that a report survives a rollback."""

    @classmethod
    def _missing_(cls, value: object) -> OpenEnum | None:
        if not isinstance(value, str):
            return None
        unknown = str.__new__(cls, value)
        unknown._name_ = unknown._value_ = value
        return unknown


class Verdict(OpenEnum):
    """The worst severity, or why there is none.

    `unknown`: the node could not be judged.  `skipped`: the run could not take place (busy node).  `no-load`:
    nothing ran, so rules that need load were not judged.  These three neither set nor clear anything.
    """

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"
    SKIPPED = "skipped"
    NO_LOAD = "no-load"


class Severity(OpenEnum):
    """How bad one finding is: worth knowing, worth a look, broken."""

    INFO = "info"
    WARN = "warn"
    FAIL = "fail"


class GpuIdentity(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What names one GPU.  What is unknown is left out."""

    index: int | None = None
    """As in nvidia-smi; it may change at a reboot."""
    uuid: str = ""
    """As NVML gives it."""
    serial: str = ""
    """Serial number of the board, which a replacement needs."""
    pci: str = ""
    """PCI address, as in sysfs (0000:0f:00.0)."""


class Finding(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One judged fact.  There is one per code and severity, about the worst location."""

    code: str
    """That of its rule."""
    severity: Severity
    """How bad it is."""
    subject: str
    """The worst location, and how many more there are."""
    message: str
    """The measurement, its limit and the next step."""
    evidence: dict[str, Scalar] = {}
    """The numbers behind it, units in the names."""
    gpus: list[GpuIdentity] = []
    """GPUs of the worst location: two for a pair, none if it is about no GPU in particular."""


class Answer(StrEnum):
    """What one readable run says about the gate of one rule.

    `good` means, for temperatures, well below the value that is bad.  `no-load`: the rule needs load, and
    nothing ran.  `unsure`: its values could not be read, or lie between bad and good.  The last two neither
    enter nor leave a gate.
    """

    BAD = "bad"
    GOOD = "good"
    NO_LOAD = "no-load"
    UNSURE = "unsure"


class GateKind(StrEnum):
    """The taint that a gate is: `nodegauge.dev/throttled` or `nodegauge.dev/unhealthy`."""

    THROTTLED = "throttled"
    UNHEALTHY = "unhealthy"


class Cause(StrEnum):
    """Why a node is gated: the taint's value.  In this order the worst comes first, kind by kind."""

    THERMAL = "thermal"
    POWER_BRAKE = "power-brake"
    HW_SLOWDOWN = "hw-slowdown"
    CORRUPTION = "corruption"
    GPU_LOST = "gpu-lost"
    RESET_REQUIRED = "reset-required"
    POWER_CABLE = "power-cable"
    GPU_FAULT = "gpu-fault"
    UNREADABLE = "unreadable"
    RECOVERY_ACTION = "recovery-action"
    XID = "xid"
    MEMORY = "memory"
    PSU = "psu"
    P2P = "p2p"
    NVLINK = "nvlink"
    PCIE = "pcie"
    SLOW_GPU = "slow-gpu"
    NCCL = "nccl"
    BUSBW = "busbw"
    NEVER_VALIDATED = "never-validated"


class Judged(StrEnum):
    """Which runs a gate counts: every readable run, only runs under load, or runs that read nothing (a
    readable run is good; the operator answers, because there is no result to judge).  `by-time` counts none:
    the policy's deadline enters it, the first pass leaves it."""

    ALWAYS = "always"
    UNDER_LOAD = "under-load"
    UNREAD = "unread"
    BY_TIME = "by-time"

    @property
    def of_results(self) -> bool:
        """Whether the judge answers it, from a result."""
        return self not in (Judged.UNREAD, Judged.BY_TIME)


class Gate(Struct, frozen=True, kw_only=True):
    """What a failure does to the node.  The numbers of runs are chosen by this project: one for what cannot
    be a misreading, else two."""

    kind: GateKind
    """The taint."""
    cause: Cause
    """The taint's value."""
    runs: int = 2
    """Bad runs in a row that set it; above one, the policy's `enterRuns` counts."""
    judged: Judged = Judged.ALWAYS
    """Which runs it counts."""


class Load(StrEnum):
    """Whether the node was at work during the run."""

    LOADED = "loaded"
    IDLE = "idle"
    UNKNOWN = "unknown"


class Psu(StrEnum):
    """The state of the power supplies from their sensors, NVML or the BMC (`ok` only if one was read)."""

    OK = "ok"
    REDUNDANCY_LOST = "redundancy-lost"
    FAULT = "fault"


class InterconnectClass(StrEnum):
    """`nvlink`: a ring over all GPUs on NVLink alone; `nvlink-pairs`: some pairs; `pcie`: no NVLink."""

    NVLINK = "nvlink"
    NVLINK_PAIRS = "nvlink-pairs"
    PCIE = "pcie"


class Evidence(StrEnum):
    """The basis of a class: `reported` by NVML alone, also `measured` by collectives, or read from text that
    was `pasted` into `nodegauge judge`."""

    REPORTED = "reported"
    MEASURED = "measured"
    PASTED = "pasted"


class Interconnect(Struct, frozen=True, rename="camel", kw_only=True):
    """How the node's GPUs are joined."""

    klass: InterconnectClass | None = field(default=None, name="class")
    """Null if unknown (`class` in JSON)."""
    nvlink_gbps: int | None = None
    """GB/s per GPU one way, only with class `nvlink`; null if the link rate could not be read."""
    evidence: Evidence | None = None
    """What the class rests on; null if unknown."""
    reason: str = ""
    """Why, in PascalCase (`classify.Reason`)."""
    message: str = ""
    """The reason as a sentence."""


class GpuBrief(GpuIdentity, frozen=True, omit_defaults=True, kw_only=True):
    """One GPU in a line; an unreadable value is empty and left out in JSON."""

    index: int
    """As in nvidia-smi."""
    name: str = ""
    """Product name."""
    celsius: int | None = None
    """Highest temperature in the sampling window, °C."""
    band: str = ""
    """Name of its temperature's band (excellent, good, warm, throttling-likely), for information."""


NOT_READABLE = ". Not readable: "
"""Between the counts of a coverage and its gaps."""


class Coverage(Struct, frozen=True, rename="camel", kw_only=True):
    """What a reading covers of what should have been read.  A pass covers all of it."""

    gpus: int
    """GPUs that were read."""
    of_gpus: int
    """GPUs that the node has, as far as is known."""
    stated: int = 0
    """GPUs that it must have, by the policy or by the whole boards of its model; 0 if neither says."""
    subjects: int
    """Subjects (temperature, power, ...) of which every value was read."""
    of_subjects: int
    """Subjects that this machine has."""
    gaps: list[str] = []
    """GPU by GPU, the subjects of which something is missing."""

    @property
    def text(self) -> str:
        """In one line: `8 of 8 GPUs, 9 of 9 subjects`; with gaps, each by name."""
        counts = f"{self.gpus} of {self.of_gpus} GPUs, {self.subjects} of {self.of_subjects} subjects"
        more = f"; and {len(self.gaps) - 4} more GPUs" if len(self.gaps) > 4 else ""
        return f"{counts}{NOT_READABLE}{'; '.join(self.gaps[:4])}{more}" if self.gaps else counts


class Sharing(StrEnum):
    """Whether `nvidia.com/gpu` counts whole GPUs: time-slicing, MPS and MIG multiply it, DRA has none."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"


class XidRule(Struct, frozen=True, kw_only=True):
    """A rule of the policy about Xids, in place of the catalogue for its codes."""

    codes: tuple[int, ...]
    """Xids that count together."""
    severity: Severity | None
    """Of the finding; None for none."""
    count: int = 1
    """Xids on one GPU that raise it."""
    window: float = 86_400.0
    """Seconds within which they come."""


class Versions(Struct, frozen=True, order=True, kw_only=True):
    """What a node runs; what could not be read is empty."""

    driver: str = ""
    """Version of the driver."""
    vbios: str = ""
    """Versions of its GPUs' VBIOS, each once."""
    kernel: str = ""
    """Release of the kernel."""
    since: float = 0.0
    """Since when it is known to run all of that, epoch seconds; 0 for unknown."""


DOMAIN_LABELS = ("nvidia.com/gpu.clique", "accelerator.topograph.run/domain")
"""Labels that name the NVLink domain of a node, as CLUSTER.CLIQUE: of GPU feature discovery (NVIDIA's
k8s-device-plugin), and of topograph (NVIDIA/topograph, docs), whose domains may have other names too."""


class NodeFacts(Struct, frozen=True, kw_only=True):
    """What the cluster knows about the node."""

    gpu_capacity: int | None = None
    """`status.capacity` of nvidia.com/gpu; None if there is none."""
    sharing: Sharing = Sharing.SHARED
    """Whether that counts whole GPUs."""
    expected_gpus: int | None = None
    """The policy's `expectedGpus`; None for none."""
    power: PowerInventory | None = None
    """The policy's `powerInventory`; None for none."""
    xids: tuple[XidRule, ...] = ()
    """The policy's rules about Xids."""
    versions: Versions = Versions()
    """What it ran when it was read last."""
    domains: Mapping[str, str] = {}
    """NVLink domains that others say it is in, by the label's key (`DOMAIN_LABELS`)."""
    access: str = ""
    """How its probes reach the driver (`Access`); empty if unknown."""

    @property
    def xid_windows(self) -> dict[int, float]:
        """Seconds for which Xids are counted, by code: the longest window of the rules that count it."""
        windows: dict[int, float] = {}
        for rule in self.xids:
            for code in rule.codes if rule.severity is not None else ():
                windows[code] = max(rule.window, windows.get(code, 0.0))
        return windows

    @classmethod
    def from_node(
        cls,
        *,
        labels: Mapping[str, str],
        capacity: Mapping[str, str],
        expected_gpus: int | None = None,
        power: PowerInventory | None = None,
        xids: tuple[XidRule, ...] = (),
        versions: Versions = Versions(),  # noqa: B008 (frozen)
        access: str = "",
    ) -> NodeFacts:
        """Facts out of a Node's labels and `status.capacity`, and what the policy says about its GPUs.

        Label names are those of NVIDIA's GPU feature discovery (k8s-device-plugin): `sharing-strategy` (none,
        time-slicing, mps), `replicas` and `mig.strategy`, which gives resources other names or other sizes.
        """
        count = capacity.get("nvidia.com/gpu", "")
        shared = (
            labels.get("nvidia.com/gpu.sharing-strategy", "none") != "none"
            or labels.get("nvidia.com/gpu.replicas", "1") not in ("", "0", "1")
            or labels.get("nvidia.com/mig.strategy", "none") not in ("", "none")
        )
        return cls(
            gpu_capacity=int(count) if count.isdecimal() else None,
            sharing=Sharing.SHARED if shared else Sharing.EXCLUSIVE,
            expected_gpus=expected_gpus,
            power=power,
            xids=xids,
            versions=versions,
            access=access,
            domains={key: labels[key] for key in DOMAIN_LABELS if labels.get(key)},
        )


class NodeClock(Struct, frozen=True, kw_only=True):
    """The SM clock at which the node's GPUs worked while nothing explained a lower one."""

    fingerprint: str
    """Equal for nodes with which it can be compared (model and settings)."""
    mhz: int
    """Median, MHz."""


class Judgement(Struct, frozen=True, kw_only=True):
    """All that one result says about a node."""

    verdict: Verdict
    """The worst severity, or why there is none."""
    readable: bool
    """The verdict is pass, warn or fail."""
    summary: str
    """One sentence."""
    findings: list[Finding]
    """One per code and severity, worst first."""
    interconnect: Interconnect
    """How the GPUs are joined."""
    gpus: list[GpuBrief]
    """The GPUs in brief, in the driver's order."""
    product: str
    """Product name of the GPUs."""
    driver: str
    """Driver version."""
    history: History
    """What the next judgement needs of this one."""
    matrix: str = ""
    """The text that `nvidia-smi topo -m` would print; empty if nothing was read."""
    answers: dict[str, Answer] = {}
    """By code, for every rule with a gate; empty if not readable."""
    load: Load = Load.UNKNOWN
    """Whether the GPUs were at work."""
    psu: Psu | None = None
    """State of the power supplies; None for unknown."""
    clock: NodeClock | None = None
    """SM clock at work; None if no GPU worked, or a reason set the clocks."""
    locations: list[Finding] = []
    """The findings, one per location."""
    versions: Versions = Versions()
    """What the node runs."""
    klass: str = ""
    """Equal for nodes that should run the same (model and number of GPUs); empty if nothing was read."""
    coverage: Coverage | None = None
    """What was read of what should have been; None for a judgement of anything but GPUs."""
    slowed_seconds: float | None = None
    """Growth since the last reading of the time that heat or the power brake held clocks down, summed over
    GPUs (`throttle.slowed_seconds`); None if no counter tells."""
