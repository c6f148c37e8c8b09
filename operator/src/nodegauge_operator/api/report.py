"""NodeReport: all that nodegauge knows of one node, and the only state that the operator keeps.

Named as its node and owned by it.  Times are RFC 3339 in UTC, whole seconds.  The status is written in one
patch with resourceVersion (promise 3, docs/promises.md); everything on the node is a pure function of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from nodegauge_judge import Finding, OpenEnum, Severity, Verdict
from nodegauge_judge.model import Versions
from nodegauge_operator import names
from nodegauge_operator.api.bandwidth_status import BandwidthStatus
from nodegauge_operator.api.desired_device import DesiredDevice
from nodegauge_operator.api.gpus_status import GpusStatus
from nodegauge_operator.api.history import Change, Condition, Transition
from nodegauge_operator.api.load_status import LoadStatus
from nodegauge_operator.api.node_class_status import NodeClassStatus
from nodegauge_operator.api.offload_status import OffloadStatus
from nodegauge_operator.api.override import Override
from nodegauge_operator.api.sharing import shared
from nodegauge_operator.api.times import unstamp
from nodegauge_operator.api.tolerance import readable

_INSTALLATION = re.compile(r"[a-z0-9][-a-z0-9]*/[A-Za-z0-9][-A-Za-z0-9_.]*")
"""A namespace, and a value of the label app.kubernetes.io/instance."""
BEST_FIRST = (Verdict.PASS, Verdict.WARN, Verdict.FAIL)
MAX_NUMBER = 1_000_000_000
"""After this run the numbers of a probe's runs begin anew; somebody may have edited one."""


class Outcome(OpenEnum):
    """How a run ended.  `skipped`: it could not run because the node was full or busy (ages nothing)."""

    READ = "read"
    UNKNOWN = "unknown"
    SKIPPED = "skipped"


class Run(Struct, frozen=True, rename="camel", kw_only=True):
    """One finished run."""

    number: int
    """Number of the run of this probe on this node, from 1."""
    pod_name: str = ""
    """Name of its pod."""
    pod_uid: str = msgspec.field(default="", name="podUID")
    """UID of its pod, by which each run is judged only once."""
    outcome: Outcome = Outcome.READ
    """How it ended."""
    reason: str = ""
    """Why the result could not be read, as one word."""
    message: str = ""
    """Why the result could not be read, as a sentence with the next step."""
    started_at: str = ""
    """RFC 3339, UTC; empty if unknown."""
    finished_at: str = ""
    """RFC 3339, UTC; empty if unknown."""
    boot_id: str = msgspec.field(default="", name="bootID")
    """Boot id of the node during the run."""
    nonce: str = ""
    """Random text, drawn when this run ended.  The identity of the next run is made of it, so that nobody who
    cannot read the report can compute the next pod's name."""


class Unreadable(Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """Runs of one probe that failed for a reason of the node itself, with none that was read since."""

    symptom: str = ""
    """What the last of them met: the code of a finding (`call-hung`) or a run's reason (`KubeletSilent`)."""
    since: str = ""
    """End of the first of them (RFC 3339, UTC)."""
    message: str = ""
    """What the first with this symptom met, as a sentence: the call and its GPU."""
    read_before: bool = False
    """The same image of the probe and the same driver had read the node earlier in this boot, in the run
    before the first of them: neither an image nor a roll-out of the driver explains it."""


class ProbeStatus(Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """What one probe found.  Verdict and findings are of the last run that could be read."""

    name: str
    """Name of the probe, such as health."""
    last_run: Run | None = None
    """The last finished run, readable or not; None before the first."""
    verdict: Verdict = msgspec.field(default_factory=lambda: Verdict.UNKNOWN)  # a factory: never omitted
    """That of the worst finding."""
    summary: str = ""
    """The verdict in one sentence."""
    coverage: str = ""
    """What was read of what should have been, in one line; empty for a probe that does not say."""
    findings: list[Finding] = []
    """Findings of the last readable run; empty if all is well."""
    streak: int = 0
    """Readable runs in a row with this verdict."""
    since: str = ""
    """Time of the first run of that streak (RFC 3339, UTC)."""
    read_at: str = ""
    """Time of the last readable run (RFC 3339, UTC); empty before the first."""
    unread: int = 0
    """Runs since then that read nothing."""
    failing_since: str = ""
    """End of the first of the runs that failed in a row (RFC 3339, UTC); skipped runs are no failures.  Empty
    if the last run was readable or skipped."""
    unreadable: Unreadable | None = None
    """Runs that failed for a reason of the node itself; None if none did since the last readable one."""
    age_limit_seconds: int = 0
    """How long the reading may age under the policy of the last run, seconds.  A policy that allows less
    applies from the next run on."""
    history: str = ""
    """What the judge keeps of this run for the next one (JSON)."""
    image: str = ""
    """Image of the last run; of the probe `pull`, the last one that was to be pulled."""
    boot_id: str = msgspec.field(default="", name="bootID")
    """Boot id of the node during the last readable run."""
    request: str = ""
    """The last request that was answered (`Report.request_of`)."""
    reading: str = ""
    """The last part of the NodeReading that was judged (`UID/NUMBER` of its pod), whatever came of it."""

    @property
    def read_epoch(self) -> float:
        """`read_at` in epoch seconds; 0.0 before the first."""
        return unstamp(self.read_at)

    @property
    def codes(self) -> frozenset[str]:
        """Codes of what is wrong."""
        return frozenset(finding.code for finding in self.findings if finding.severity is not Severity.INFO)

    @property
    def next_number(self) -> int:
        """The number of the next run; 1 for the first."""
        return (self.last_run.number % MAX_NUMBER if self.last_run else 0) + 1

    @property
    def nonce(self) -> str:
        """The random part of the identity of the next run; empty for the first."""
        return self.last_run.nonce if self.last_run else ""


class _ByName:
    """Asked a hundred times in a decision: to search half a dozen is faster than to build a dict."""

    __slots__ = ("_probes",)

    def __init__(self, probes: list[ProbeStatus]) -> None:
        self._probes = probes

    def __getitem__(self, name: str) -> ProbeStatus:
        for probe in self._probes:
            if probe.name == name:
                return probe
        return _never_ran(name)


@lru_cache(maxsize=64)
def _never_ran(name: str) -> ProbeStatus:
    return ProbeStatus(name=name)


class InterconnectStatus(Struct, frozen=True, rename="camel", kw_only=True):
    """The interconnect as judged."""

    klass: str = msgspec.field(default="", name="class")
    """nvlink, nvlink-pairs or pcie (`InterconnectClass`); empty if unknown."""
    nvlink_gbps: int | None = None
    """NVLink rate of the weakest GPU, GB/s one way; only with class nvlink."""
    evidence: str = ""
    """reported (by the driver alone) or measured (confirmed by the bandwidth of collectives)."""
    reason: str = ""
    """Why the class has this value or is unknown, one word in PascalCase."""
    message: str = ""
    """The reason as a sentence, with the numbers."""
    reported: str = ""
    """The class that NVML reports if bandwidth contradicts it (reason Contradicted), with `klass` empty."""

    @property
    def as_reported(self) -> tuple[str, int | None]:
        """Class and GB/s as NVML reports them, also while bandwidth contradicts them."""
        return self.klass or self.reported, self.nvlink_gbps


class ClockStatus(Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """The SM clock at which the GPUs last worked without a reason for a lower one."""

    sm_mhz: int = 0
    """Median over the GPUs at work, MHz; 0 if they never worked."""
    fingerprint: str = ""
    """What makes nodes comparable (GPU model, clock and power settings), as text."""


class VersionsStatus(Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """What the node runs, to compare it with its class."""

    klass: str = msgspec.field(default="", name="class")
    """Number and model of its GPUs."""
    driver: str = ""
    """Version of the driver."""
    vbios: str = ""
    """Versions of its GPUs' VBIOS, each once."""
    kernel: str = ""
    """Release of the kernel."""
    since: str = ""
    """Since when it is known to run all of that."""

    @property
    def as_read(self) -> Versions:
        """The same for the judge."""
        return Versions(driver=self.driver, vbios=self.vbios, kernel=self.kernel, since=unstamp(self.since))


class GateState(OpenEnum):
    """The state of one gate on one node; one that this version does not know counts as entered."""

    WATCHING = "watching"
    """Too few bad runs for a taint; or the fault is gone, and its return would count as a relapse."""
    HELD_BACK = "held-back"
    """Enough bad runs for a taint, but a budget or rate is used up, or an incident holds the taint back."""
    GATED = "gated"
    """The taint is set, unless its effect is None."""
    PROBATION = "probation"
    """The taint was lifted on trial: one bad run sets it again."""

    @property
    def entered(self) -> bool:
        """Whether only enough good runs end it."""
        return self not in (GateState.WATCHING, GateState.PROBATION)


class GateStatus(Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """One gate that is bad, or was lately.  Runs that cannot tell count neither as bad nor as good."""

    code: str
    """The finding that it belongs to."""
    state: GateState = msgspec.field(default_factory=lambda: GateState.WATCHING)  # a factory: never omitted
    """Whether the taint is set, and why not."""
    bad: int = 0
    """Bad runs in a row."""
    good: int = 0
    """Good runs in a row."""
    since: str = ""
    """When `state` began (RFC 3339, UTC, as all times here)."""
    entered_at: str = ""
    """When the gate was last entered."""
    left_at: str = ""
    """When it was last left."""
    bad_at: str = ""
    """Its last bad run."""
    good_at: str = ""
    """Its last good run."""
    readable_since: int = 0
    """Readable runs since the last bad one."""
    relapses: int = 0
    """How often the fault came back within the policy's `relapseWindow`."""
    subject: str = ""
    """What the last bad run was about, such as a GPU."""
    message: str = ""
    """The finding of the last bad run, which is the taint's evidence; empty after a repair."""
    fault_at: str = ""
    """When the fault was first confirmed.  A trial keeps it; a repair resets it."""
    seen_at: str = ""
    """The first of the bad runs in a row that confirmed it, or may; empty if that was `fault_at`."""
    incident: str = ""
    """The incident that holds the taint back, until the first bad run after its end; empty for none."""
    gpus: list[str] = []
    """UUIDs of the GPUs that it is about; empty if it is about more than single GPUs, or unknown ones."""
    on_devices: bool = False
    """Device rules gate these GPUs instead of the node."""

    @property
    def since_epoch(self) -> float:
        """`since` in epoch seconds, as the three below; 0.0 for never."""
        return unstamp(self.since)

    @property
    def entered_epoch(self) -> float:
        """`entered_at` in epoch seconds."""
        return unstamp(self.entered_at)

    @property
    def left_epoch(self) -> float:
        """`left_at` in epoch seconds."""
        return unstamp(self.left_at)

    @property
    def bad_epoch(self) -> float:
        """`bad_at` in epoch seconds."""
        return unstamp(self.bad_at)


class DesiredTaint(Struct, frozen=True, kw_only=True):
    """A taint of ours as it should stand on the node."""

    key: str
    """As the policy asks for (`spec.taints.keys`)."""
    value: str = ""
    """The cause; empty for unvalidated."""
    effect: str = "NoSchedule"
    """NoSchedule, PreferNoSchedule or NoExecute."""

    @property
    def own(self) -> str:
        """Which of `names.NODE_TAINTS` it is; empty for none."""
        return names.own_taint(self.key)

    @property
    def short(self) -> str:
        """`throttled=thermal:NoSchedule`: as kubectl writes it, without our prefix."""
        name = self.key.removeprefix(names.PREFIX)
        return f"{name}={self.value}:{self.effect}" if self.value else f"{name}:{self.effect}"


class DesiredNode(Struct, frozen=True, rename="camel", kw_only=True):
    """What the node should carry, and why.  Labels and taints are on the node a moment earlier."""

    labels: dict[str, str] = {}
    """Value by key."""
    taints: list[DesiredTaint] = []
    """Our taints, not those of others."""
    devices: list[DesiredDevice] = []
    """Devices that faults gate, or would."""
    condition: str = ""
    """Status of the condition GPUValidated: True, False or Unknown; empty for no condition."""
    reason: str = ""
    """Reason of the condition."""
    message: str = ""
    """Message of the condition."""
    conflicts: list[str] = []
    """Label keys that another owner has set, left alone."""
    refusal: str = ""
    """Error of the API server if it refuses to write this to the node; empty once it is written."""

    @property
    def in_words(self) -> str:
        """What the node carries of ours, for a sentence; empty for nothing."""
        parts = [f"taint {taint.short}" for taint in self.taints]
        parts += [f"label {key}={value}" for key, value in sorted(self.labels.items())]
        parts += [f"condition {names.CONDITION}"] if self.condition else []
        return ", ".join(parts)


class ReportStatus(Struct, frozen=True, rename="camel", kw_only=True):
    """The whole of `status`."""

    policy: str = ""
    """Name of the policy that the node follows."""
    installation: str = ""
    """`NAMESPACE/RELEASE` of the operator that writes this report; any other leaves the node alone.  Empty
    for anybody's."""
    verdict: Verdict = Verdict.UNKNOWN
    """What all probes and gates say together, as in the label nodegauge.dev/health (`core.decision`)."""
    summary: str = ""
    """What the probes found, the worst first; or why the node cannot be read now."""
    cause: str = ""
    """The worst fault in a word, with or without a taint, also in mode Observe: the value of its taint, or
    its code if it never sets one."""
    interconnect: InterconnectStatus = InterconnectStatus()
    """How the GPUs are joined."""
    bandwidth: BandwidthStatus = BandwidthStatus()
    """Last measured bandwidth of collectives."""
    node_class: NodeClassStatus = NodeClassStatus()
    """What schedulers place by (nodegauge.dev/class)."""
    gpus: GpusStatus = GpusStatus()
    """The GPUs in brief."""
    probes: list[ProbeStatus] = []
    """Result of each probe, in the order of `names.PROBES`."""
    gates: list[GateStatus] = []
    """Findings that are being confirmed, are gated, or are recovering."""
    throttle_judged_at: str = ""
    """Last run under load that found no throttling (RFC 3339, UTC, as all times here)."""
    psu: str = ""
    """State of the power supplies by the last health reading (`Psu`); empty if no sensor can be read."""
    passed_at: str = ""
    """First run that passed or warned, which removes the taint unvalidated."""
    desired: DesiredNode = DesiredNode()
    """What the node should carry."""
    change: Change | None = None
    """The last change worth an event; None before the first."""
    clock: ClockStatus = ClockStatus()
    """SM clock at which the GPUs last worked without a reason for a lower one."""
    versions: VersionsStatus = VersionsStatus()
    """What the node runs."""
    load: LoadStatus = LoadStatus()
    """What the last load run reached."""
    offload: OffloadStatus = OffloadStatus()
    """What the node has beside its GPUs for models that do not fit there."""
    raw_verdict: Verdict = Verdict.UNKNOWN
    """Worst verdict of the last readable runs, confirmed or not.  Nobody should repair nodes by it."""
    transitions: list[Transition] = []
    """What changed, oldest first; the last 20, fewer if the report has no space for them."""
    conditions: list[Condition] = []
    """Validated and Tainted, for `kubectl wait`."""
    tainted_at: str = ""
    """When the node last took a new taint for a fault, even if it was removed since.  The rate of new taints
    counts it for an hour."""
    override: Override | None = None
    """What a person says about the node; None for nothing."""
    days: dict[str, str] = {}
    """By date the day that goes on, and those that the NodeHistory lacks (`api.node_history.parse_day`)."""
    recorded: str = ""
    """Digest of the faults in the NodeHistory; `none` after the last of them, empty before the first."""

    @property
    def probe(self) -> _ByName:
        """By name the status of each probe; an empty one for a probe that never ran."""
        return _ByName(self.probes)

    def with_probe(self, probe: ProbeStatus) -> list[ProbeStatus]:
        """The probes with this one's new status, in the order of `names.PROBES`."""
        known = {p.name: p for p in self.probes} | {probe.name: probe}
        ours = [known.pop(name) for name in names.PROBES if name in known]
        return [*ours, *known.values()]


class Report(Struct, frozen=True, kw_only=True):
    """A NodeReport as the operator keeps it: identity, what was asked for, and the status."""

    name: str
    """Name of the report and of its node."""
    uid: str
    """UID of the object; part of the identity of each run."""
    resource_version: str
    """Version by which the next write is made: another writer's change refuses it."""
    node_uid: str
    """UID of the owning node; with another one than the node's the report counts as absent."""
    created_at: float = 0.0
    """When it was made, epoch seconds; 0.0 if unknown."""
    requested_at: str = ""
    """`spec.requestedAt`: a new value asks for one run of each probe."""
    requested_probes: dict[str, str] = {}
    """`spec.requestedProbes`: by probe; a new value asks for one run of this probe alone."""
    status: ReportStatus = ReportStatus()
    """What could be read of the status."""
    unreadable: dict[str, Any] | None = None
    """The raw status if not all of it could be read: the next write replaces what could not."""
    left_out: tuple[str, ...] = ()
    """What was wrong with each part that could not be read."""
    deleting: bool = False
    """Somebody deleted it, and its finalizers keep it."""

    @property
    def installation(self) -> str:
        """Whose it is, `namespace/release`; empty if it names nobody, also by a text that names none."""
        name = self.status.installation
        return name if _INSTALLATION.fullmatch(name) else ""

    def request_of(self, probe: str) -> str:
        """All that asks for a run of this probe as one text, empty for none; a new text asks for one run."""
        return " ".join(filter(None, (self.requested_at, self.requested_probes.get(probe))))


def parse_report(body: Mapping[str, Any]) -> Report:
    """The typed report in a Kubernetes object.  What cannot be read of its status counts as absent."""
    metadata = body.get("metadata", {})
    owners = [o for o in metadata.get("ownerReferences") or () if o.get("kind") == "Node"]
    status, left_out = readable(shared(body.get("status") or {}), ReportStatus)
    asked = body.get("spec") or {}
    return Report(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        resource_version=metadata.get("resourceVersion", ""),
        node_uid=owners[0].get("uid", "") if owners else "",
        created_at=unstamp(metadata.get("creationTimestamp") or ""),
        requested_at=asked.get("requestedAt") or "",
        requested_probes=asked.get("requestedProbes") or {},
        status=status,
        unreadable=body["status"] if left_out else None,
        left_out=left_out,
        deleting="deletionTimestamp" in metadata,
    )


def one_more(count: int) -> int:
    """The next of a report's counts, which somebody may have edited: 1 to `MAX_NUMBER`."""
    return min(max(0, count), MAX_NUMBER - 1) + 1


def whole(text: str) -> int | None:
    """The whole number in a text of digits; None for any other (int() raises on "²" and on 5,000 digits)."""
    return int(text) if len(text) <= 19 and text.isascii() and text.isdigit() else None
