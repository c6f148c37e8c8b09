"""Everything that decisions about one node are made from.

`Snapshot` is what the reconciler knows of a node's name: node, policy and report may each be missing.
`Context` is the same for a node that a policy selects, together with the status at hand (the report's, or
what it becomes after a run) and what follows from it: which readings are stale, the gates, the raw verdict.
Each of those is computed once, at first use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from functools import cached_property

from msgspec import Struct
from msgspec.structs import asdict, replace

from nodegauge_judge import Probe, Verdict
from nodegauge_judge.peers import Peers, no_peers
from nodegauge_operator import names
from nodegauge_operator.api.clamped_times import without_future_times
from nodegauge_operator.api.override import Override
from nodegauge_operator.api.policy import Mode, Policy
from nodegauge_operator.api.report import (
    NEVER,
    GateStatus,
    ProbeStatus,
    Report,
    ReportStatus,
    unstamp,
)
from nodegauge_operator.core import gates
from nodegauge_operator.core import override as overrides
from nodegauge_operator.core.actions import Judged
from nodegauge_operator.core.gpu_eligibility import PASSING, Hindrance, divided, hindrance, same_hardware
from nodegauge_operator.core.model import ChassisView, NodeView, PodView, ProbeDefaults
from nodegauge_operator.core.readings import PartView, ReadingView

NO_REPORT = Report(name="", uid="", resource_version="", node_uid="")
MAX_WAIT = 7 * 86_400.0
"""Seconds for which a health reading is believed that nobody could renew.  Chosen by this project: longer
than a weekend's outage, and shorter than it takes until nobody remembers it."""
MAX_GRACE = 86_400.0
"""Seconds after which another failed run ends the time to renew a reading: an operator that ends every few
minutes would give it anew at each start.  Chosen by this project: longer than most outages."""
BEST_FIRST = (Verdict.PASS, Verdict.WARN, Verdict.FAIL)


class Unselected(Enum):
    """What to do with a node that no policy in force selects."""

    RELEASE = "release"
    """Remove everything of ours, and the report."""
    FREEZE = "freeze"
    """Touch nothing: another installation owns it; a policy that may select it, or ranks before the one that
    does, cannot be read; or the node left its policy just now.  A label may only flap, and a policy that is
    deleted may be created again in a moment."""


class Snapshot(Struct, frozen=True, kw_only=True, dict=True):
    """All that is known of one node name.

    `node` None: the node is gone for certain.  `policy` None: no policy selects it.  `granted`: pools of
    probe pods that keep a slot for it.  `gate_slot`: the budget of gated nodes has a slot for it, or it is
    gated already.  `incidents`: by cause, the incident that holds new taints back there.  `peers`: what
    nodes like it reach in NCCL runs; `clock_peers`: the SM clocks at which they work; `load_peers`: what
    their GPUs reach in load runs.  `last_peer_read`: when another node of the policy was last read, epoch
    seconds, 0.0 for never.  `posted`: run and reason of the last event that this process posted; `judged`:
    the last run that it judged and that the report does not hold yet.  `fresh`: reads that were made for
    this very question. `since`: since when nodes can be read without a gap (`reconcile.gaps`), epoch
    seconds.  `declined`: writes that the API server has just refused, with its message; they are tried
    later and do not block others. `nonce`: a random text for the run after one that ends now.
    `cordoned_since`: epoch seconds, 0.0 for a node that is not cordoned.  `chassis`: what the BMC reader
    last wrote of it; `reading`: what its probes did; `distrust`: why no reading counts now, empty if they
    do; `trusted`: the admission policy by which they do.  `watchers`: pods of the policy's watch DaemonSet
    here, UID to name, also those that have just gone; `watch_since`: when that was made, epoch seconds, 0.0
    for not yet.
    """

    node: NodeView | None
    policy: Policy | None
    report: Report | None
    pods: tuple[PodView, ...] = ()
    now: float
    granted: frozenset[str] = frozenset()
    peers: Peers = no_peers
    clock_peers: Peers = no_peers
    load_peers: Peers = no_peers
    last_peer_read: Callable[[], float] = float
    gate_slot: bool = False
    incidents: Mapping[str, str] = gates.NO_INCIDENTS
    posted: tuple[str, str] = ("", "")
    judged: Judged | None = None
    fresh: frozenset[type] = frozenset()
    since: float = 0.0
    declined: dict[type, str] = {}
    unselected: Unselected = Unselected.RELEASE
    nonce: str = ""
    cordoned_since: float = 0.0
    chassis: ChassisView | None = None
    reading: ReadingView | None = None
    distrust: str = ""
    trusted: str = ""
    watchers: Mapping[str, str] = {}
    watch_since: float = 0.0
    defaults: ProbeDefaults

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
            status=without_future_times(report.status, now=self.now),
        )

    @cached_property
    def override(self) -> Override | None:
        """What a person says about the node, in force or not; None for nothing."""
        return overrides.override_at(self.node.override, now=self.now) if self.node else None


class Context(Snapshot, frozen=True, kw_only=True, dict=True):
    """A node that a policy selects.  `policy`: as it is in force there, by the node's override.

    `report`: this very node's; `NO_REPORT` while there is none.  `status`: the report's, without times in
    the future, or what it becomes after a run.
    """

    node: NodeView
    policy: Policy
    report: Report
    status: ReportStatus

    @property
    def may_run(self) -> bool:
        """A new run may be planned: the node allows it, and nobody has paused it."""
        return self.node.may_run and self.policy.spec.mode is not Mode.PAUSED

    def after(self, status: ReportStatus) -> Context:
        """The same node with another status."""
        return replace(self, status=status)

    def part(self, probe: str) -> PartView | None:
        """What this probe left of this very node, unless it was judged, or is one from before what was
        judged."""
        part = self.reading.parts.get(probe) if self.reading is not None and not self.distrust else None
        known = self.status.probe(probe)
        if part is None or not part.text or part.node_uid != self.node.uid:
            return None
        # A clock may go back with a boot, and the numbers of a container that lost its state with it.
        put_back = part.is_before(known.reading) and part.boot_id == known.boot_id
        return None if part.identity == known.reading or put_back else part

    def run_id(self, probe: str, number: int) -> str:
        """The identity of the probe's run after the last one that the report knows."""
        nonce = self.status.nonce(probe)
        return names.run_id(report_uid=self.report.uid, probe=probe, number=number, nonce=nonce)

    def interval_of(self, probe: str) -> float:
        """Seconds between two readings: the policy's, and of BMCs the installation's."""
        return self.defaults.bmc_interval if probe == names.PROBE_BMC else self.policy.interval_of(probe)

    def stale_seconds_of(self, probe: str) -> float:
        """Seconds after which a reading no longer counts (three intervals by default)."""
        return self.interval_of(probe) * self.policy.spec.stale_after_intervals

    def run_interval_of(self, probe: str) -> float:
        """Seconds between two runs by pods, and of BMCs as `interval_of`."""
        return self.defaults.bmc_interval if probe == names.PROBE_BMC else self.policy.run_interval_of(probe)

    def age_limit_of(self, probe: str) -> float:
        """Seconds of failed runs, with the interval before them, after which a reading no longer counts."""
        return self.run_interval_of(probe) * self.policy.spec.stale_after_intervals

    @cached_property
    def nccl_image(self) -> str:
        """The image of NCCL runs: the policy's, or else the installation's; empty for no NCCL runs."""
        return (
            self.policy.spec.pod_template.nccl_image or self.defaults.nccl_image
            if self.policy.spec.probes.nccl.enabled
            else ""
        )

    def expires_at(self, probe: ProbeStatus) -> float:
        """When a probe's reading goes stale, epoch seconds; `NEVER` before the first.

        A reading ages while it could be renewed and was not: it goes stale when runs have failed for as long
        as the policy says, counted from the interval before the first of them.  Waiting does not age it: for
        a slot, for room on the node, for a node or an API server that is away, or for a paused policy.  A
        health reading that only waits is believed for `MAX_WAIT` at most, and one whose probe was switched
        off for as long as the policy says.  A policy that allows less than that of the last run
        strips nothing before the next one.  After each gap there is an interval to renew it, unless runs go
        on to fail for `MAX_GRACE`.  A BMC answers whatever becomes of its node: only a gap excuses it.
        """
        of_health = probe.name == Probe.HEALTH.value
        if of_health and self._stays_stale:
            return 0.0
        if not probe.read_at or self.policy.paused:
            return NEVER
        read_at = unstamp(probe.read_at)
        age = max(self.stale_seconds_of(probe.name), probe.age_limit_seconds)
        interval = self.run_interval_of(probe.name)
        renewable_until = self.since + interval
        if probe.name == Probe.BMC.value:
            return max(read_at + age, renewable_until)
        waited = max(read_at + max(age, MAX_WAIT), renewable_until) if of_health else NEVER
        if probe.failing_since:
            failing_age = max(self.age_limit_of(probe.name), probe.age_limit_seconds)
            failed = max(read_at, unstamp(probe.failing_since) - interval) + failing_age
            tried_at = unstamp(probe.last_run.finished_at) if probe.last_run else 0.0
            if tried_at > failed + MAX_GRACE:
                return failed
            return max(failed, renewable_until if self.may_run else waited)
        if not self._asked_for(probe.name):
            return read_at + age
        return waited

    def _asked_for(self, probe: str) -> bool:
        """Whether policy and installation ask for runs of this probe."""
        enabled: bool = getattr(self.policy.spec.probes, probe).enabled
        return {names.PROBE_NCCL: bool(self.nccl_image)}.get(probe, enabled)

    @cached_property
    def _stays_stale(self) -> bool:
        """The report says that the health reading is stale, and no run has read the node since: neither a gap
        nor a clock makes it fresh again.

        A node that should carry a condition and no `validated-at` was read too long ago, whatever the
        condition says: a fault's condition outlives its reading.
        """
        before, now = (status.probe(Probe.HEALTH.value) for status in (self.report.status, self.status))
        numbers = [probe.last_run.number if probe.last_run else 0 for probe in (before, now)]
        read = numbers[0] != numbers[1] and not now.unread
        desired = self.report.status.desired
        stale = bool(before.read_at and desired.condition) and names.LABEL_VALIDATED_AT not in desired.labels
        return stale and not read

    def rebooted_since(self, probe: ProbeStatus) -> bool:
        """The node runs under another boot id than when it was read."""
        return bool(probe.boot_id and self.node.boot_id) and probe.boot_id != self.node.boot_id

    @cached_property
    def stale(self) -> frozenset[Probe]:
        """Probes whose last reading no longer counts."""
        return frozenset(p for p in Probe if self.now > self.expires_at(self.status.probe(p.value)))

    @cached_property
    def unconfirmed(self) -> frozenset[Probe]:
        """Probes that have not read the node lately, for whatever reason: time alone moves none of their
        gates."""
        return frozenset(p for p in Probe if self.policy.paused or self.now > self._confirmed_until(p.value))

    def _confirmed_until(self, probe: str) -> float:
        read_at = self.status.probe(probe).read_at
        return unstamp(read_at) + self.stale_seconds_of(probe) if read_at else NEVER

    @cached_property
    def nccl_hindrance(self) -> Hindrance | None:
        """Why no NCCL run can be made here, if NCCL runs are asked for at all."""
        return hindrance(self.status, self.node) if self.nccl_image else None

    @property
    def nccl_wanted(self) -> bool:
        """NCCL runs are asked for, and nothing but a passing hindrance keeps them off this node."""
        why = self.nccl_hindrance
        return bool(self.nccl_image) and (why is None or why.reason in PASSING)

    @cached_property
    def nccl_stands(self) -> bool:
        """The last NCCL run that could be read measured this machine as it is now: same boot, same GPUs and
        driver, whole GPUs, not stale."""
        probe = self.status.probe(names.PROBE_NCCL)
        return (
            bool(probe.read_at)
            and not self.rebooted_since(probe)
            and divided(self.status, self.node) is None
            and same_hardware(self.status.bandwidth.hardware, self.status.gpus)
            and self.now <= self.expires_at(probe)
        )

    @cached_property
    def load_hindrance(self) -> Hindrance | None:
        """Why no load run can be made here, if load runs are asked for at all."""
        asked_for = self.policy.spec.probes.load.enabled
        return hindrance(self.status, self.node, probe=names.PROBE_LOAD) if asked_for else None

    @cached_property
    def load_stands(self) -> bool:
        """The last load run that could be read worked this machine as it is now: same GPUs and driver, whole
        GPUs, not stale.  A reboot cools nothing."""
        probe = self.status.probe(names.PROBE_LOAD)
        return (
            bool(probe.read_at)
            and divided(self.status, self.node, probe=probe.name) is None
            and same_hardware(self.status.load.hardware, self.status.gpus)
            and self.now <= self.expires_at(probe)
        )

    @property
    def bmc_stands(self) -> bool:
        """The last reading of the node's BMC is not stale."""
        return bool(self.status.probe(names.PROBE_BMC).read_at) and Probe.BMC not in self.stale

    @cached_property
    def standing(self) -> tuple[ProbeStatus, ...]:
        """What was read by other means and counts beside the health probe's reading, the worst first."""
        stands = {
            names.PROBE_NCCL: self.nccl_stands,
            names.PROBE_LOAD: self.load_stands,
            names.PROBE_BMC: self.bmc_stands,
        }
        probes = [self.status.probe(name) for name, counts in stands.items() if counts]
        judged = [probe for probe in probes if probe.verdict in BEST_FIRST]
        return tuple(sorted(judged, key=lambda probe: -BEST_FIRST.index(probe.verdict)))

    @property
    def bandwidth_stands(self) -> bool:
        """The last NCCL run stands, and no fault of what joins the GPUs is bad now or holds its gate."""
        doubted = (gate for gate in self.gates if gate.code in gates.GATES_OF_INTERCONNECT)
        return self.nccl_stands and not any(gate.bad or gate.state.entered for gate in doubted)

    @cached_property
    def gates(self) -> list[GateStatus]:
        """The gates as they stand now, with or without a slot in the budget of gated nodes.

        A node that carries a taint of ours without a reservation in its report (this operator was killed
        before it wrote the report, somebody set it by hand, or it is being removed) keeps it only with a
        slot, like any other. A node that was not read lately enters no gate but that of unreadable nodes,
        and time alone moves no gate of a paused policy.  A reservation that the node does not carry yet
        needs a run and a slot: who can write reports can write one.
        """
        reserved = any(taint.key in names.TAINTS_OF_FAULTS for taint in self.status.desired.taints)
        on_node = any(taint.key in names.TAINTS_OF_FAULTS for taint in self.node.taints)
        slot = self.gate_slot and self.status.probe(Probe.HEALTH.value).last_run is not None
        return gates.current(
            self.status.gates,
            policy=self.policy,
            now=self.now,
            slot=slot and not self.policy.paused,
            reserved=reserved and (on_node or slot),
            stale=self.unconfirmed,
            incidents=self.incidents,
        )

    @cached_property
    def raw_verdict(self) -> Verdict:
        """What the last runs say, confirmed or not: unknown once the health reading is stale; else the worst
        of it and of the other probes' runs that stand."""
        if Probe.HEALTH in self.stale:
            return Verdict.UNKNOWN
        health = self.status.probe(names.PROBE_HEALTH).verdict
        if health not in BEST_FIRST:
            return health
        verdicts = [health, *(probe.verdict for probe in self.standing)]
        return max(verdicts, key=BEST_FIRST.index)
