"""What the judge says: verdicts, findings, the interconnect class, and the judgement that holds them all.

Everything here is a msgspec Struct that encodes to JSON as it is, so that a report can hold it and a person
can pipe it through `jq`.  No rules live here: numbers are in `thresholds`, words in `findings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field

from nodegauge_judge.history.model import History

Scalar = str | int | float | bool


class Verdict(StrEnum):
    """The worst that was found, or why nothing was decided.

    `unknown`: the node could not be judged.  `skipped`: the run could not take place (busy node).  `no-load`:
    nothing ran, so what needs load was not judged.  The last three neither set nor clear anything.
    """

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"
    SKIPPED = "skipped"
    NO_LOAD = "no-load"


class Severity(StrEnum):
    """How bad one finding is: worth knowing, worth a look, broken."""

    INFO = "info"
    WARN = "warn"
    FAIL = "fail"


class Finding(Struct, frozen=True, kw_only=True):
    """One judged fact.  `code` is a row of the catalogue in `findings`; `evidence` holds the numbers it is
    made of, units in the names.  There is one finding per code and severity: `subject` names the worst place
    and how many more there are, `message` says what was measured, against what, and the next step."""

    code: str
    severity: Severity
    subject: str
    message: str
    evidence: dict[str, Scalar] = {}


class Answer(StrEnum):
    """What one readable run says about one row of the catalogue that has a gate.

    `good` includes, for temperatures, that they are well below the value that enters.  `no-load`: the row is
    only judged under load, and nothing ran.  `unsure`: what it needs could not be read, or lies between
    entering and leaving.  The last two neither enter nor leave anything.
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
    GPU_LOST = "gpu-lost"
    RESET_REQUIRED = "reset-required"
    POWER_CABLE = "power-cable"
    GPU_FAULT = "gpu-fault"
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


class Judged(StrEnum):
    """When a gate's row can be judged at all: on every readable run, or under load alone."""

    ALWAYS = "always"
    UNDER_LOAD = "under-load"


class Gate(Struct, frozen=True, kw_only=True):
    """What a failure of a row does to the node: the taint, after so many bad `runs` in a row.

    Source of runs and loads: the table of docs/reference/findings.md (own numbers).
    """

    kind: GateKind
    cause: Cause
    runs: int = 2
    judged: Judged = Judged.ALWAYS


class Load(StrEnum):
    """Whether the node worked while it was watched; `unknown` where that cannot be told."""

    LOADED = "loaded"
    IDLE = "idle"
    UNKNOWN = "unknown"


class Psu(StrEnum):
    """What supply sensors and NVML say of the node's power supply (`ok` only when a sensor was read)."""

    OK = "ok"
    FAULT = "fault"


class InterconnectClass(StrEnum):
    """`nvlink`: a ring over all GPUs on NVLink alone; `nvlink-pairs`: some pairs; `pcie`: no NVLink."""

    NVLINK = "nvlink"
    NVLINK_PAIRS = "nvlink-pairs"
    PCIE = "pcie"


class Evidence(StrEnum):
    """What stands behind a class: `reported` by NVML alone, or `measured` by collectives as well."""

    REPORTED = "reported"
    MEASURED = "measured"


class Interconnect(Struct, frozen=True, rename="camel", kw_only=True):
    """How the node's GPUs are joined.  `klass` (`class` in JSON) is null when that cannot be told; `reason`
    (PascalCase, one of `interconnect.Reason`) and `message` then say why.  `nvlink_gbps`: GB/s per GPU one
    way, only with class `nvlink`, null where the link rate could not be read."""

    klass: InterconnectClass | None = field(default=None, name="class")
    nvlink_gbps: int | None = None
    evidence: Evidence | None = None
    reason: str = ""
    message: str = ""


class GpuBrief(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One GPU in a line; what could not be read is an empty text, and left out in JSON.  `band`: what its
    temperature is called (excellent, good, warm, throttling-likely), as information beside the vendor's
    limits."""

    index: int
    uuid: str = ""
    name: str = ""
    pci: str = ""
    celsius: int | None = None
    band: str = ""


class Sharing(StrEnum):
    """Whether `nvidia.com/gpu` counts whole GPUs: time-slicing, MPS and MIG multiply it, DRA has none."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"


class NodeFacts(Struct, frozen=True, kw_only=True):
    """What the cluster says of the node: `gpu_capacity` is that of `nvidia.com/gpu`, null for none."""

    gpu_capacity: int | None = None
    sharing: Sharing = Sharing.SHARED

    @classmethod
    def of(cls, *, labels: Mapping[str, str], capacity: Mapping[str, str]) -> NodeFacts:
        """Facts out of a Node's labels and `status.capacity`.

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
        )


class Judgement(Struct, frozen=True, kw_only=True):
    """All that one result says about a node.

    `readable`: enough was read to decide something, that is, the verdict is pass, warn or fail.  `summary`:
    one sentence.  `matrix`: the text that `nvidia-smi topo -m` would print, empty where nothing was read.
    `history`: what the next judgement needs to know of this one (see `history`).  `answers`: by finding code,
    for every row of the catalogue that has a gate (empty where nothing was readable).  `psu`: None for "not
    known".
    """

    verdict: Verdict
    readable: bool
    summary: str
    findings: list[Finding]
    interconnect: Interconnect
    gpus: list[GpuBrief]
    product: str
    driver: str
    history: History
    matrix: str = ""
    answers: dict[str, Answer] = {}
    load: Load = Load.UNKNOWN
    psu: Psu | None = None
