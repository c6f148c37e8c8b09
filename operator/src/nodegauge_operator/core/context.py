"""Everything that decisions about one node are made from.

`Snapshot` is what the reconciler knows of a node's name: node, policy and report may each be missing.
`Context` is the same for a node that a policy selects, together with the status at hand (the report's, or
what it becomes after a run) and what follows from it: which readings are stale, the gates, the raw verdict.
Each of those is computed once, at first use.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Mapping
from enum import Enum
from functools import cached_property
from typing import NamedTuple, Protocol

from msgspec import Struct
from msgspec.structs import asdict, replace

from nodegauge_judge import Verdict
from nodegauge_judge.peers import Fleet, Peers, no_fleet
from nodegauge_operator import names
from nodegauge_operator.api.clamped_times import without_future_times
from nodegauge_operator.api.fault import Fault
from nodegauge_operator.api.override import Override
from nodegauge_operator.api.policy import Mode, Policy, seconds
from nodegauge_operator.api.report import BEST_FIRST, GateStatus, ProbeStatus, Report, ReportStatus
from nodegauge_operator.api.times import NEVER, unstamp
from nodegauge_operator.core import device_gates, faults, gates
from nodegauge_operator.core import override as overrides
from nodegauge_operator.core.actions import Judged, PutDeviceRule, WrittenHistory
from nodegauge_operator.core.adoption import adopted
from nodegauge_operator.core.device_rule import DeviceRule
from nodegauge_operator.core.driver_access import DriverAccess, access_of
from nodegauge_operator.core.model import ChassisView, NodeView, PodView, ProbeDefaults
from nodegauge_operator.core.pod_outcome import is_refused
from nodegauge_operator.core.reading_view import PartView, ReadingView

NO_REPORT = Report(name="", uid="", resource_version="", node_uid="")
MAX_WAIT = 7 * 86_400.0
"""Seconds for which a health reading is believed that nobody could renew.  Chosen by this project: longer
than a weekend's outage, and shorter than it takes until nobody remembers it."""
MAX_GRACE = 86_400.0
"""Seconds after which another failed run ends the time to renew a reading: an operator that ends every few
minutes would give it anew at each start.  Chosen by this project: longer than most outages."""
HEALTH = names.PROBE_HEALTH
"""The kind of reading that every node has; all others stand beside it."""


class ReadingKind(Protocol):
    """What a context asks of a kind of reading; `probes.kind.Kind` says what each member means."""

    name: str
    title: str
    reads: bool
    needs_node: bool

    def asked_for(self, context: Context) -> bool:
        """Whether policy and installation ask for it."""

    def interval(self, context: Context) -> float:
        """Seconds between two readings."""

    def run_interval(self, context: Context) -> float:
        """Seconds between two runs by pods."""

    def same_machine(self, context: Context) -> bool:
        """Whether its last reading is of the machine as it is now."""

    def at_condition(self, status: ReportStatus) -> str:
        """What the node's condition says of it beside verdict and gates; empty for nothing."""

    def of_unread_node(self, context: Context) -> str | None:
        """What a reading that stands adds on a node that the health probe cannot read."""


def run_id(*, report_uid: str, probe: str, number: int, nonce: str = "") -> str:
    """The identity of one run: 20 hexadecimal digits, the same on every try, so creating can be repeated.

    `nonce`: a random text that the report holds since the run before, so that nobody else can compute it.
    """
    return hashlib.sha256(f"{report_uid}/{probe}/{number}/{nonce}".encode()).hexdigest()[:20]


class NextRun(NamedTuple):
    """A run that is to start, or has a pod already."""

    number: int
    id: str
    """See `run_id`."""


class Unselected(Enum):
    """What to do with a node that no policy in force selects."""

    RELEASE = "release"
    """Remove everything of ours, and the report."""
    FREEZE = "freeze"
    """Touch nothing: another installation owns it; a policy that may select it, or ranks before the one that
    does, cannot be read; or the node left its policy just now.  A label may only flap, and a policy that is
    deleted may be created again in a moment."""


class Snapshot(Struct, frozen=True, kw_only=True, dict=True):
    """All that is known of one node name."""

    node: NodeView | None
    """None: the node is gone for certain."""
    policy: Policy | None
    """None: no policy selects it."""
    report: Report | None
    """Of this name; it may be an earlier node's.  None: there is none."""
    pods: tuple[PodView, ...] = ()
    """Probe pods of the node, also those of an earlier node of its name."""
    now: float
    """Epoch seconds."""
    defaults: ProbeDefaults
    """What the installation sets for probes."""
    kinds: Mapping[str, ReadingKind]
    """Every kind of reading by name, health first."""
    granted: frozenset[str] = frozenset()
    """Pools of probe pods that keep a slot for it."""
    peers: Mapping[str, Peers] = {}
    """By a kind's name: what nodes like this one reach."""
    fleet: Fleet = no_fleet
    """What other nodes of a class run."""
    last_peer_read: Callable[[], float] = float
    """When another node of the policy was last read, epoch seconds, 0.0 for never."""
    last_peer_unreadable: Callable[[], float] = float
    """Since when another node of the policy is unreadable, the one that was so last; epoch seconds, 0.0 for
    none."""
    gate_slot: bool = False
    """The budget of gated nodes has a slot for it, or it is gated already."""
    device_slots: int = 0
    """How many devices of the node the budget lets be gated, those that are gated among them."""
    device_rules: bool = False
    """The API server has DeviceTaintRules."""
    rules: tuple[DeviceRule, ...] = ()
    """Those of nodegauge for devices of the node, or of an earlier one of its name."""
    gives_way: bool = False
    """It is gated for a lesser fault, and a worse one elsewhere takes its slot."""
    incidents: Mapping[str, str] = gates.NO_INCIDENTS
    """By cause, the incident that holds new taints back there."""
    posted: tuple[str, str] = ("", "")
    """Run and reason of the last event that this process posted."""
    written: WrittenHistory | None = None
    """What this process wrote into the NodeHistory, and the report does not say yet."""
    judged: Judged | None = None
    """The last run that this process judged and that the report does not hold yet."""
    fresh: frozenset[type] = frozenset()
    """Reads that were made for this very question."""
    up_to_date: bool = False
    """At `now` this report was found to say what it should, and what was written since changes nothing of
    that (`actions.FOLLOWING`): nothing is to be decided again.  What comes meanwhile wakes the node."""
    since: float = 0.0
    """Since when nodes can be read without a gap (`reconcile.gaps`), epoch seconds."""
    declined: Mapping[Hashable, str] = {}
    """Writes that the API server has just refused, with its message: they are tried later, and do not block
    others."""
    unselected: Unselected = Unselected.RELEASE
    """What to do if no policy selects the node."""
    nonce: str = ""
    """A random text for the run after one that ends now."""
    cordoned_since: float = 0.0
    """Epoch seconds, 0.0 for a node that is not cordoned."""
    chassis: ChassisView | None = None
    """What the BMC reader last wrote of it."""
    reading: ReadingView | None = None
    """What its probes wrote."""
    claims_refused: str = ""
    """Why the API server refuses the templates of the probes' claims; empty if it does not."""
    distrust: str = ""
    """Why no reading counts now; empty if they do."""
    trusted: str = ""
    """The admission policy by which readings count."""
    watchers: Mapping[str, str] = {}
    """Pods of the policy's watch DaemonSet here, UID to name, also those that have just gone."""
    waited_for: Callable[[], bool] = bool
    """Whether pods of others wait for GPUs that this node could serve."""
    ends_for: Mapping[str, str] = {}
    """UIDs of our pods whose run ends to leave its GPUs to a pod, and the name of that one."""
    watch_since: float = 0.0
    """When that DaemonSet was made, epoch seconds, 0.0 for not yet."""

    @property
    def own_report(self) -> Report | None:
        """The report, if it belongs to this very node and not to an earlier node of the same name."""
        same = self.node is not None and self.report is not None and self.report.node_uid == self.node.uid
        return self.report if same else None

    @cached_property
    def context(self) -> Context | None:
        """The context of a node that a policy selects; None for any other."""
        if self.node is None or self.policy is None:
            return None
        report = self.own_report or NO_REPORT
        policy = overrides.applied(self.policy, self.override)
        return Context(
            **asdict(self) | {"report": report, "policy": policy},
            status=adopted(without_future_times(report.status, now=self.now), self.node, now=self.now),
        )

    @cached_property
    def override(self) -> Override | None:
        """What a person says about the node, in force or not; None for nothing."""
        return overrides.override_at(self.node.override, now=self.now) if self.node else None


class Context(Snapshot, frozen=True, kw_only=True, dict=True):
    """A node that a policy selects.  `policy`: as it is in force there, by the node's override.

    `report`: this very node's; `NO_REPORT` while there is none.  `status`: the report's, without times in
    the future and with what stands on the node if nothing was written to it, or what it becomes after a run.
    """

    node: NodeView
    policy: Policy
    report: Report
    status: ReportStatus

    @property
    def may_run(self) -> bool:
        """A new run may be planned: the node allows it, and nobody has paused it or refuses its claim."""
        claimless = bool(self.claims_refused) and self.access is DriverAccess.DRA
        return self.node.may_run and self.policy.spec.mode is not Mode.PAUSED and not claimless

    @cached_property
    def access(self) -> DriverAccess:
        """How pods reach the GPU driver here."""
        return access_of(self.node, self.defaults.driver_access)

    def after(self, status: ReportStatus) -> Context:
        """The same node with another status; what was computed stays if nothing differs."""
        return self if status == self.status else replace(self, status=status)

    @cached_property
    def faults(self) -> list[Fault]:
        """What is wrong with the node by its status."""
        return faults.faults(self.status, policy=self.policy, node=self.node.name)

    @cached_property
    def faults_without_rules(self) -> list[Fault]:
        """The same for a text that stays as it is when a DeviceTaintRule gets another name."""
        return faults.faults(self.status, policy=self.policy)

    def unjudged_part(self, probe: str) -> PartView | None:
        """What this probe left of this very node, unless it was judged, or is one from before what was
        judged."""
        part = self.reading.parts.get(probe) if self.reading is not None and not self.distrust else None
        known = self.status.probe[probe]
        if part is None or not part.text or part.node_uid != self.node.uid:
            return None
        # A clock may go back with a boot, and the numbers of a container that lost its state with it.
        put_back = part.is_before(known.reading) and part.boot_id == known.boot_id
        return None if part.identity == known.reading or put_back else part

    def next_run(self, probe: str) -> NextRun:
        """The probe's run after the last one that the report knows."""
        known = self.status.probe[probe]
        number = known.next_number
        return NextRun(
            number, run_id(report_uid=self.report.uid, probe=probe, number=number, nonce=known.nonce)
        )

    def is_next_run(self, pod: PodView) -> bool:
        """Whether this is the pod that the operator made for the next run that the report has to record.

        What others can write (annotations, a status) must agree with what they cannot: the pod's owner and
        node never change, and its name holds a random number.
        """
        run = self.next_run(pod.probe)
        return (
            pod.number == run.number
            and pod.node_uid == self.node.uid
            and pod.owner_uid == self.report.uid
            and pod.on_node in ("", self.node.name)
            and pod.name == names.pod_name(probe=pod.probe, run=run.id)
        )

    # Three times end what a reading says.  For health, with an interval of 15 min and 3 of them until stale:
    #
    #   what happens after it was read        claims_until          expires_at
    #   no run: full node, outage, upgrade    = expires_at          read + 7 days
    #   runs fail                             = expires_at          first failure + 30 min (gap's end + 15)
    #   runs are refused (ADR 0046)           first refusal + 30    read + 7 days
    #   policy is paused                      = expires_at          never
    #
    # `claims_until` ends what it says of now: verdict, labels `health` and `throttled`.  `expires_at`, which
    # every kind of reading has, ends the rest: labels of topology, or bandwidth, and `validated-at`.
    # `unknown_at` is a short cut for a node whose own probe cannot read it: `unreadAfter` (5 min) after the
    # first such failure verdict and label `health` go, whatever the others say (ADR 0043).  Taints stay.

    def interval_of(self, probe: str) -> float:
        """Seconds between two readings."""
        return self.kinds[probe].interval(self)

    def stale_seconds_of(self, probe: str) -> float:
        """Seconds after which a reading no longer counts (three intervals by default)."""
        return self.interval_of(probe) * self.policy.spec.stale_after_intervals

    def age_limit_of(self, probe: str) -> float:
        """Seconds of failed runs, with the interval before them, after which a reading no longer counts."""
        return self.kinds[probe].run_interval(self) * self.policy.spec.stale_after_intervals

    def expires_at(self, probe: ProbeStatus) -> float:
        """When a probe's reading goes stale, epoch seconds; `NEVER` before the first.

        A reading ages while it could be renewed and was not: it goes stale when runs have failed for as long
        as the policy says, counted from the interval before the first of them.  Waiting does not age it: for
        a slot, for room on the node, for a node or an API server that is away, for a pod that is refused or
        whose image does not come (`claims_until` ends what it says of health), or for a paused policy.  A
        health reading that only waits is believed for `MAX_WAIT` at most, and one whose probe was switched
        off for as long as the policy says.  A policy that allows less than that of the last run
        strips nothing before the next one.  After each gap there is an interval to renew it, unless runs go
        on to fail for `MAX_GRACE`.  What does not need the node, such as a BMC, is excused by a gap alone.
        """
        kind, of_health = self.kinds[probe.name], probe.name == HEALTH
        if of_health and self._stays_stale:
            return 0.0
        if not probe.read_at or self.policy.paused:
            return NEVER
        read_at = probe.read_epoch
        age = max(self.stale_seconds_of(probe.name), probe.age_limit_seconds)
        interval = kind.run_interval(self)
        renewable_until = self.since + interval
        if not kind.needs_node:
            return max(read_at + age, renewable_until)
        waited = max(read_at + max(age, MAX_WAIT), renewable_until) if of_health else NEVER
        if probe.failing_since and not is_refused(probe.last_run):
            failed = self._failed_at(probe)
            tried_at = unstamp(probe.last_run.finished_at) if probe.last_run else 0.0
            if tried_at > failed + MAX_GRACE:
                return failed
            return max(failed, renewable_until if self.may_run else waited)
        return waited if kind.asked_for(self) else read_at + age

    def _failed_at(self, probe: ProbeStatus) -> float:
        """When runs have failed for as long as the policy says."""
        age = max(self.age_limit_of(probe.name), probe.age_limit_seconds)
        since = unstamp(probe.failing_since) - self.kinds[probe.name].run_interval(self)
        return max(probe.read_epoch, since) + age

    @cached_property
    def claims_until(self) -> float:
        """Until when the health reading says what the node is like now, epoch seconds: while runs are refused
        no longer than while they fail, so that only what is built into the node stays (ADR 0046)."""
        probe = self.status.probe[HEALTH]
        expires_at = self.expires_at(probe)
        if self.policy.paused or not (probe.failing_since and is_refused(probe.last_run)):
            return expires_at
        return min(expires_at, self._failed_at(probe))

    @cached_property
    def is_known(self) -> bool:
        """Whether anything is known of the node's health now."""
        return bool(self.status.probe[HEALTH].read_at) and self.now <= self.claims_until

    @property
    def unknown_at(self) -> float:
        """When the node's condition and its label `health` go because its probe cannot read it, epoch
        seconds; `NEVER` while it can, and in a paused policy.

        No gap moves it: the last that was heard of the node is that it does not answer.
        """
        unreadable = self.status.probe[HEALTH].unreadable
        if unreadable is None or self.policy.paused:
            return NEVER
        return unstamp(unreadable.since) + seconds(self.policy.spec.probes.health.unread_after)

    @property
    def validates_by(self) -> float:
        """By when the node has to pass, epoch seconds; `NEVER` once it has, in a paused policy, or without a
        deadline.  An interruption begins it anew: nobody could look at the node meanwhile."""
        within = self.policy.spec.taints.validated_within
        if not within or self.status.passed_at or self.policy.paused or not self.node.created_at:
            return NEVER
        return max(self.node.created_at, self.report.created_at, self.since) + seconds(within)

    @cached_property
    def _stays_stale(self) -> bool:
        """The report says that the health reading is stale, and no run has read the node since: neither a gap
        nor a clock makes it fresh again.

        A node that should carry a condition and no `validated-at` was read too long ago, whatever the
        condition says: a fault's condition outlives its reading.  In mode Observe, where nodes carry nothing,
        the report's own verdict says so.
        """
        before, now = (status.probe[HEALTH] for status in (self.report.status, self.status))
        numbers = [probe.last_run.number if probe.last_run else 0 for probe in (before, now)]
        read = numbers[0] != numbers[1] and not now.unread
        known = self.report.status
        unmarked = names.LABEL_VALIDATED_AT not in known.desired.labels
        stale = unmarked if known.desired.condition else known.raw_verdict is Verdict.UNKNOWN
        return bool(before.read_at) and stale and not read

    def rebooted_since(self, probe: ProbeStatus) -> bool:
        """The node runs under another boot id than when it was read."""
        return bool(probe.boot_id and self.node.boot_id) and probe.boot_id != self.node.boot_id

    @cached_property
    def readings(self) -> tuple[ProbeStatus, ...]:
        """The last reading of every kind that reads, the health reading first."""
        known = self.status.probe
        return tuple(known[kind.name] for kind in self.kinds.values() if kind.reads)

    @cached_property
    def stale(self) -> frozenset[str]:
        """Kinds whose last reading no longer counts."""
        return frozenset(p.name for p in self.readings if self.now > self.expires_at(p))

    @cached_property
    def not_read_lately(self) -> frozenset[str]:
        """Kinds that have not read the node lately, for whatever reason: time alone moves none of their
        gates."""
        paused, now = self.policy.paused, self.now
        return frozenset(p.name for p in self.readings if paused or now > self._confirmed_until(p.name))

    def _confirmed_until(self, probe: str) -> float:
        known = self.status.probe[probe]
        return known.read_epoch + self.stale_seconds_of(probe) if known.read_at else NEVER

    @cached_property
    def counting(self) -> frozenset[str]:
        """Kinds whose last reading counts: it is not stale, and of this machine as it is now."""
        read = (known.name for known in self.readings if known.read_at and known.name not in self.stale)
        return frozenset(probe for probe in read if self.kinds[probe].same_machine(self))

    @cached_property
    def standing(self) -> tuple[ProbeStatus, ...]:
        """What was read by other means and counts beside the health probe's reading, the worst first."""
        others = [probe for probe in self.readings if probe.name != HEALTH and probe.name in self.counting]
        judged = [probe for probe in others if probe.verdict in BEST_FIRST]
        return tuple(sorted(judged, key=lambda probe: -BEST_FIRST.index(probe.verdict)))

    @cached_property
    def gates(self) -> list[GateStatus]:
        """The gates as they stand now, with or without a slot in the budget of gated nodes.

        A node that carries a taint of ours without a reservation in its report (this operator was killed
        before it wrote the report, somebody set it by hand, or it is being removed) keeps it only with a
        slot, like any other. A node that was not read lately enters no gate but that of unreadable nodes,
        and time alone moves no gate of a paused policy.  A reservation that the node does not carry yet
        needs a run and a slot: who can write reports can write one.  A node that gives way has no slot.
        """
        reserved = any(taint.own in names.TAINTS_OF_FAULTS for taint in self.status.desired.taints)
        on_node = any(taint.own in names.TAINTS_OF_FAULTS for taint in self.node.taints)
        ran = self.status.probe[HEALTH].last_run is not None or self.now >= self.validates_by
        slot = self.gate_slot and not self.gives_way and ran
        return gates.current(
            self.status.gates,
            policy=self.policy,
            now=self.now,
            slot=slot and not self.policy.paused,
            reserved=reserved and (on_node or slot) and not self.gives_way,
            not_read_lately=self.not_read_lately,
            incidents=self.incidents,
            on_devices=device_gates.on_devices(
                self.status.gates,
                policy=self.policy,
                node=self.node,
                gpus=self.status.gpus,
                served=self.device_rules and PutDeviceRule not in self.declined,
            ),
            device_slot=self.device_slots > 0 and not self.policy.paused,
        )

    @cached_property
    def has_fault(self) -> bool:
        """Whether a gate was entered, with or without a slot or a taint."""
        return gates.any_entered(self.gates)

    @cached_property
    def verdict(self) -> Verdict:
        """What the condition and the label `health` say: that of the last reading for a while longer than the
        report, so that a call that is merely slow costs no write."""
        unread = self.now >= self.unknown_at
        return gates.verdict(self.status.gates, raw=self.raw_verdict, unreadable=unread, policy=self.policy)

    @cached_property
    def raw_verdict(self) -> Verdict:
        """What the last runs say, confirmed or not: unknown once the health reading is stale, or says nothing
        of now; else the worst of it and of the other probes' runs that stand."""
        if self.now > self.claims_until:
            return Verdict.UNKNOWN
        health = self.status.probe[HEALTH].verdict
        if health not in BEST_FIRST:
            return health
        verdicts = [health, *(probe.verdict for probe in self.standing)]
        return max(verdicts, key=BEST_FIRST.index)
