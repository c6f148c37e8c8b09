"""NodeReport: all that nodegauge knows of one node, and the only state that the operator keeps.

Named as its node and owned by it.  Times are RFC 3339 in UTC, whole seconds.  The status is written in one
patch with resourceVersion (promise 3, docs/promises.md); everything on the node is a pure function of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from nodegauge_judge import Finding, OpenEnum, Verdict
from nodegauge_operator import names
from nodegauge_operator.api.gpus_status import GpusStatus
from nodegauge_operator.api.history import Change, Condition, Transition
from nodegauge_operator.api.load_status import LoadStatus
from nodegauge_operator.api.override import Override
from nodegauge_operator.api.sharing import shared
from nodegauge_operator.api.tolerance import readable

NEVER = float("inf")
"""A time that never comes, where times are epoch seconds."""
LAST_SECOND = 253_402_300_799.0
"""The end of the year 9999, epoch seconds."""
SKEW_SECONDS = 300.0
"""Two operators' clocks may differ by this much; a time further in the future means a clock stepped back."""
_INSTALLATION = re.compile(r"[a-z0-9][-a-z0-9]*/[A-Za-z0-9][-A-Za-z0-9_.]*")
"""A namespace, and a value of the label app.kubernetes.io/instance."""
SOME_TIMES = 1024
"""Times that are kept in both forms: one decision asks for each of its own many times."""
MAX_NUMBER = 1_000_000_000
"""After this run the numbers of a probe's runs begin anew; somebody may have edited one."""


class Outcome(OpenEnum):
    """How a run ended.  `skipped`: it could not run because the node was full or busy (ages nothing)."""

    READ = "read"
    UNKNOWN = "unknown"
    SKIPPED = "skipped"


class Run(Struct, frozen=True, rename="camel", kw_only=True):
    """One finished run.  `podUID` is what makes sure that no run is judged twice.

    `nonce`: drawn at random when this run ended; the identity of the next run is made of it.
    """

    number: int
    pod_name: str = ""
    pod_uid: str = msgspec.field(default="", name="podUID")
    outcome: Outcome = Outcome.READ
    reason: str = ""
    message: str = ""
    started_at: str = ""
    finished_at: str = ""
    boot_id: str = msgspec.field(default="", name="bootID")
    nonce: str = ""


class ProbeStatus(Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """What one probe found.  Verdict and findings are of the last run that could be read.

    `readAt`: when that was; `unread`: runs since then that read nothing; `failingSince`: end of the first
    of the runs that failed in a row (not merely were skipped); `ageLimitSeconds`: how long the last run's
    policy lets a reading age; `streak`: runs in a row with this verdict, `since` its first; `history`: the
    judge's, for its next run; `image`: of its last run, of `pull` the last asked for; `request`: the last
    `requestedAt` answered; `reading`: pod and number of the last part of the NodeReading that was judged,
    whatever came of it."""

    name: str
    last_run: Run | None = None
    verdict: Verdict = msgspec.field(default_factory=lambda: Verdict.UNKNOWN)  # a factory: never omitted
    summary: str = ""
    findings: list[Finding] = []
    streak: int = 0
    since: str = ""
    read_at: str = ""
    unread: int = 0
    failing_since: str = ""
    age_limit_seconds: int = 0
    history: str = ""
    image: str = ""
    boot_id: str = msgspec.field(default="", name="bootID")
    request: str = ""
    reading: str = ""


class InterconnectStatus(Struct, frozen=True, rename="camel", kw_only=True):
    """The interconnect as judged: `class` nvlink, nvlink-pairs, pcie, or empty with the reason why not;
    `reported`: what NVML reports where bandwidth contradicts it (reason Contradicted)."""

    klass: str = msgspec.field(default="", name="class")
    nvlink_gbps: int | None = None
    evidence: str = ""
    reason: str = ""
    message: str = ""
    reported: str = ""

    @property
    def as_reported(self) -> tuple[str, int | None]:
        """Class and GB/s as NVML reports them, also while bandwidth contradicts them."""
        return self.klass or self.reported, self.nvlink_gbps


class BandwidthStatus(Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """Bandwidth as last measured by collectives: whole GB/s of bus bandwidth at 1 GiB, null where a
    collective was not measured.

    `p2pOff`: all_reduce over the host's memory alone; `gpus` of `of` GPUs took part; `agreement`: confirmed,
    contradicted or unsure, with `message`; `fingerprint`: what makes nodes comparable; `grade`: digest of
    the expectations and thresholds that it was graded by (others grade it again); `again`: another run is
    wanted soon; `bootID`: the boot it was measured in, `hardware`: GPUs and driver as last read then.
    `reason`: why no NCCL run can be made here now (SingleGpu, Shared, Mig, Dra, Cordoned, ...; empty if one
    can), with `detail` as a sentence; older results stay.
    """

    all_reduce: int | None = None
    all_gather: int | None = None
    reduce_scatter: int | None = None
    p2p_off: float | None = msgspec.field(default=None, name="p2pOff")
    gpus: int = 0
    of: int = 0
    agreement: str = ""
    message: str = ""
    fingerprint: str = ""
    grade: str = ""
    again: bool = False
    boot_id: str = msgspec.field(default="", name="bootID")
    hardware: str = ""
    reason: str = ""
    detail: str = ""


class ClockStatus(Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """The SM clock (MHz) at which the GPUs last worked without a reason for less; 0 if they never did.
    `fingerprint`: what makes nodes comparable (model and settings)."""

    sm_mhz: int = 0
    fingerprint: str = ""


class GateState(OpenEnum):
    """The state of one gate on one node; one that this version does not know counts as entered."""

    WATCHING = "watching"
    """There were bad runs, but too few for a taint; or the fault is gone, and its return would count as a
    relapse."""
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
    """One gate (`code` is its finding) that is bad, or was lately.

    `bad`, `good`: runs in a row (runs that cannot tell do not count); `since`: when `state` began;
    `enteredAt`, `leftAt`: when it last entered and left; `badAt`, `goodAt`: its last bad and good run;
    `readableSince`: readable runs since the last bad one; `relapses`: how often it came back within the
    policy's window; `subject` and `message`: the finding of the last bad run, which is the taint's evidence.
    `faultAt`: when it was first entered since it was last good for good, also over trials; `incident`: the
    common cause on many nodes that holds its taint back, until a bad run after that.
    """

    code: str
    state: GateState = msgspec.field(default_factory=lambda: GateState.WATCHING)  # a factory: never omitted
    bad: int = 0
    good: int = 0
    since: str = ""
    entered_at: str = ""
    left_at: str = ""
    bad_at: str = ""
    good_at: str = ""
    readable_since: int = 0
    relapses: int = 0
    subject: str = ""
    message: str = ""
    fault_at: str = ""
    incident: str = ""


class DesiredTaint(Struct, frozen=True, kw_only=True):
    """A taint of ours as it should stand on the node."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


class DesiredNode(Struct, frozen=True, rename="camel", kw_only=True):
    """What the node should carry, and why: labels and taints are on the node a moment earlier.

    `condition`: status of GPUValidated ("True", "False", "Unknown" or "" for none); `conflicts`: label keys
    of other owners, left alone; `refusal`: why the API server refused to let us write what stands here.
    """

    labels: dict[str, str] = {}
    taints: list[DesiredTaint] = []
    condition: str = ""
    reason: str = ""
    message: str = ""
    conflicts: list[str] = []
    refusal: str = ""


class ReportStatus(Struct, frozen=True, rename="camel", kw_only=True):
    """The whole of `status`.

    `verdict`: of all probes and gates (`core.verdict`); `rawVerdict`: the worst that the last runs said;
    `gates`: findings that are being confirmed, are gated, or are recovering; `throttleJudgedAt`: the last
    run that showed, under load, that nothing throttles; `passedAt`: the first pass or warn; `installation`:
    namespace and release of the operator that writes it, empty for anybody's; `taintedAt`: when the node
    last took a taint for a fault that it had not, also if that was lifted since: the rate of new taints
    counts it for an hour; `override`: what a person says about the node, in annotations.
    """

    policy: str = ""
    installation: str = ""
    verdict: Verdict = Verdict.UNKNOWN
    summary: str = ""
    interconnect: InterconnectStatus = InterconnectStatus()
    bandwidth: BandwidthStatus = BandwidthStatus()
    gpus: GpusStatus = GpusStatus()
    probes: list[ProbeStatus] = []
    gates: list[GateStatus] = []
    throttle_judged_at: str = ""
    psu: str = ""
    passed_at: str = ""
    desired: DesiredNode = DesiredNode()
    change: Change | None = None
    clock: ClockStatus = ClockStatus()
    load: LoadStatus = LoadStatus()
    raw_verdict: Verdict = Verdict.UNKNOWN
    transitions: list[Transition] = []
    conditions: list[Condition] = []
    tainted_at: str = ""
    override: Override | None = None

    def probe(self, name: str) -> ProbeStatus:
        """The status of one probe; an empty one when it never ran."""
        for probe in self.probes:
            if probe.name == name:
                return probe
        return ProbeStatus(name=name)

    def next_number(self, probe: str) -> int:
        """The number of the next run of a probe; 1 for the first."""
        return (last.number % MAX_NUMBER if (last := self.probe(probe).last_run) else 0) + 1

    def nonce(self, probe: str) -> str:
        """The random part of the identity of a probe's next run; empty for the first."""
        last = self.probe(probe).last_run
        return last.nonce if last else ""

    def with_probe(self, probe: ProbeStatus) -> list[ProbeStatus]:
        """The probes with this one's new status, in the order of `names.PROBES`."""
        known = {p.name: p for p in self.probes} | {probe.name: probe}
        ours = [known.pop(name) for name in names.PROBES if name in known]
        return [*ours, *known.values()]


class Report(Struct, frozen=True, kw_only=True):
    """A NodeReport as the operator keeps it: identity, what was asked for, and the status."""

    name: str
    uid: str
    resource_version: str
    node_uid: str
    """UID of the owning node; with another one than the node's the report counts as absent."""
    requested_at: str = ""
    status: ReportStatus = ReportStatus()
    unreadable: dict[str, Any] | None = None
    """The raw status if not all of it could be read: the next write replaces what could not."""
    left_out: tuple[str, ...] = ()

    @property
    def installation(self) -> str:
        """Whose it is, `namespace/release`; empty if it names nobody, also by a text that names none."""
        name = self.status.installation
        return name if _INSTALLATION.fullmatch(name) else ""


def parse_report(body: Mapping[str, Any]) -> Report:
    """The typed report in a Kubernetes object.  What cannot be read of its status counts as absent."""
    metadata = body.get("metadata", {})
    owners = [o for o in metadata.get("ownerReferences") or () if o.get("kind") == "Node"]
    status, left_out = readable(shared(body.get("status") or {}), ReportStatus)
    return Report(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        resource_version=metadata.get("resourceVersion", ""),
        node_uid=owners[0].get("uid", "") if owners else "",
        requested_at=(body.get("spec") or {}).get("requestedAt", "") or "",
        status=status,
        unreadable=body["status"] if left_out else None,
        left_out=left_out,
    )


def one_more(count: int) -> int:
    """The next of a report's counts, which somebody may have edited: 1 to `MAX_NUMBER`."""
    return min(max(0, count), MAX_NUMBER - 1) + 1


def stamp(now: float) -> str:
    """RFC 3339 of epoch seconds, UTC, whole seconds; empty for 0 and for what no calendar has."""
    return _stamp(int(now)) if 0 < now < LAST_SECOND else ""


@lru_cache(maxsize=SOME_TIMES)
def _stamp(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@lru_cache(maxsize=SOME_TIMES)
def unstamp(text: str) -> float:
    """Epoch seconds of an RFC 3339 text; 0.0 for an empty or unreadable one, and for a time before 1970."""
    try:
        return max(0.0, datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()) if text else 0.0
    except (ValueError, OverflowError):
        return 0.0


def whole(text: str) -> int | None:
    """The whole number in a text of digits; None for any other (int() raises on "²" and on 5,000 digits)."""
    return int(text) if len(text) <= 19 and text.isascii() and text.isdigit() else None
