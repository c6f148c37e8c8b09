"""Asks of every change of ours on every node what caused it, and knows nothing of the operator's code.  One
patch of a node follows from what was judged before, or from that and the reading which its probe has written
since."""

from collections import Counter
from collections.abc import Mapping
from copy import deepcopy

from fleet.machines import FAULTS, KINDS, NO_FAULT, OF_NODES, OF_TAINT, UNREADABLE
from fleet.process import CLUSTER_BUDGET
from fleet.record import LATE, LEAVE_RUNS, FaultSeen, NodeRecord, Record, stamp_of
from fleet.virtual import LivingCluster
from nodegauge_operator import names
from nodegauge_operator.api.incident import incidents_of
from nodegauge_operator.api.policy import Mode, PolicySpec
from nodegauge_operator.core.budget import gated_slots
from nodegauge_operator.core.probes.registry import label_keys
from support.api_server import NODES, POLICIES, Body

HOUR = 3600.0
GRACE = 600.0
UNREAD_AFTER = 300.0
DWELL = 600.0
FIRST_PROBATION = 3600.0
LONGEST_WAIT = 7 * 86_400.0
SLACK = 5.0
BY_WRONG_CLOCK = "by a clock that was wrong"
SHORT_KEY = "interconnect"
TOPOLOGY = (
    names.LABEL_INTERCONNECT,
    "nodegauge.dev/interconnect-evidence",
    "nodegauge.dev/nvlink-gbps",
    SHORT_KEY,
)
HEALTH = (names.LABEL_HEALTH, names.LABEL_VALIDATED_AT, "nodegauge.dev/throttled", "nodegauge.dev/psu")
FAULT_TAINTS = (names.TAINT_UNHEALTHY, names.TAINT_THROTTLED)
CONDITION, HELD_BACK = "GPUValidated", "Unknown HeldBack"

LESSER = {"p2p", "nvlink", "unreadable"}
"""Causes with which jobs run, but slower: their taints give way to worse ones."""
THROTTLING = {fault.cause for fault in FAULTS.values() if fault.key == "throttled"}
Ours = dict[str, str]
"""What a node carries of ours: labels by key, taints as `taint KEY`, the condition's status and reason."""


class Oracle:
    def __init__(self, cluster: LivingCluster, record: Record) -> None:
        self.changed: Counter[tuple[str, str]] = Counter()
        self.violations: list[str] = []
        self.most_gated = 0
        self._record = record
        self._cluster = cluster
        self._ours: dict[str, Ours] = {}
        self._read_at_change: dict[tuple[str, str], int] = {}
        """By node and key: how many readings there had been when the key last changed."""
        self._lifted: dict[tuple[str, str], str] = {}
        """By node and key: the cause of its last removal."""
        self.slots = Slots(cluster, record)
        cluster.subscribers.append(self._follow)
        cluster.wrong_read = self.violations.append

    def _follow(self, path: str, kind: str, body: Body) -> None:
        if path != NODES:
            return
        name = body["metadata"]["name"]
        if kind != "MODIFIED":
            self._ours[name] = ours_of(body) if kind == "ADDED" else {}
            self.slots.note(name, "", tainted=False, now=self._cluster.loop.time())
            for changed in [k for k in (*self._read_at_change, *self._lifted) if k[0] == name]:
                self._read_at_change.pop(changed, None)
                self._lifted.pop(changed, None)
            return
        before, after = self._ours.get(name, {}), ours_of(body)
        if before == after:
            return
        self._ours[name] = after
        node, now = self._record.nodes[name], self._cluster.loop.time()
        keys = [key for key in sorted(before.keys() | after.keys()) if before.get(key) != after.get(key)]
        changes = {key: (before.get(key), after.get(key)) for key in keys}
        causes = self._causes(name, node, changes, now=now)
        self._note_taints(name, node, after)
        for key, (old, new) in changes.items():
            self._count(name, key, old, new, cause=causes[key], now=now)
        unexplained = [key for key, cause in causes.items() if not cause]
        if unexplained:
            self.violate(name, f"without a cause: {', '.join(unexplained)}")

    def _causes(
        self, name: str, node: NodeRecord, changes: Mapping[str, tuple[str | None, str | None]], *, now: float
    ) -> dict[str, str]:
        """The cause of each change of one patch.  If what was judged before does not explain all of them, the
        reading that waits must: it counts as judged from now on."""

        def explained() -> dict[str, str]:
            return {key: self._cause(name, node, key, *change, now=now) for key, change in changes.items()}

        seen = deepcopy(node.seen)
        causes = explained()
        if all(causes.values()) or node.written is None:
            return causes
        node.seen = seen
        node.judged(now, node.written)
        return explained()

    def _note_taints(self, name: str, node: NodeRecord, after: Ours) -> None:
        tainted = any(f"taint {key}" in after for key in FAULT_TAINTS)
        if tainted is not node.machine.drained:
            node.machine.drained, node.changed_at = tainted, self._cluster.loop.time()
        on_node = {
            f"{key.rpartition('/')[2]}={after.get(f'taint {key}', '').partition(':')[0]}"
            for key in FAULT_TAINTS
        }
        node.tainting = {OF_TAINT[taint] for taint in on_node if taint in OF_TAINT}
        self.slots.note(name, node.machine.pool, tainted=tainted, now=self._cluster.loop.time())
        self.most_gated = max(self.most_gated, len(self.slots.tainted))

    def _count(
        self, name: str, key: str, old: str | None, new: str | None, *, cause: str, now: float
    ) -> None:
        """Count the change with its cause, and look whether there was a slot for a taint."""
        node = self._record.nodes[name]
        taints = key.startswith("taint ") and old is None and cause
        if taints and (excess := self.slots.excess(name, node, now=now)):
            self.violate(name, excess)
        node.note(now, f"  {key}: {old} -> {new} ({cause or 'NO CAUSE'})")
        what = "removed" if new is None else "set" if old is None else "changed"
        short = key.replace(names.PREFIX, "")
        self.changed[f"{short} {what}", cause or "NOTHING"] += 1
        self._read_at_change[name, key] = node.readings_ever
        if new is None:
            self._lifted[name, key] = cause

    def violate(self, name: str, what: str) -> None:
        """Something is wrong on a node, with all there is to know."""
        node, now = self._record.nodes[name], stamp_of(self._cluster.loop.time())
        head = f"{now} {name} ({node.machine.kind}, {node.machine.pool}): {what}"
        world = ["-- the cluster:", *self._record.lines[-12:]]
        self.violations.append("\n    ".join([head, *node.lines[-16:], *world]))

    # -- causes --------------------------------------------------------------------------------------------

    def _cause(
        self, name: str, node: NodeRecord, key: str, old: str | None, new: str | None, *, now: float
    ) -> str:
        if key.startswith("taint "):
            return self._cause_of_taint(name, node, key, old, new, now=now)
        if new is None:
            return self._asked_for(name, now) or self._removed(name, node, key, now=now)
        if key == CONDITION and new.startswith("Unknown") and new != HELD_BACK:
            unread = self._unread(name, node, now=now) if new.endswith(" Unreadable") else ""
            return (
                self._stale(name, node, now=now) or unread or ("no reading yet" if not node.readings else "")
            )
        if node.reading is None:
            return ""
        if (
            key == names.LABEL_VALIDATED_AT
            and old is not None
            and int(old) > self._cluster.clock() >= int(new)
        ):
            return "a time in the future put right"
        new_reading = self._read_since(name, node, key)
        if old is not None and not new_reading and key not in (CONDITION, names.LABEL_HEALTH):
            return ""
        if old is None and not new_reading and self._lifted.get((name, key), "").startswith("stale"):
            return ""
        cause = "reading" if new_reading else "restored after a removal"
        return cause if self._supported(node, key, new, now=now) else ""

    def _read_since(self, name: str, node: NodeRecord, key: str) -> bool:
        """Whether the node was read after the key last changed."""
        return node.readings_ever != self._read_at_change.get((name, key), -1)

    def _supported(self, node: NodeRecord, key: str, value: str, *, now: float) -> bool:
        """Whether what the readings say allows this value."""
        reading, kind = node.reading, KINDS[node.machine.kind]
        assert reading is not None
        fault = FAULTS.get(reading.fault)
        hidden = fault is not None and fault.hides_interconnect
        open_faults = [n for n, seen in node.seen.items() if seen.bad or seen.entered_at is not None]
        match key:
            case names.LABEL_INTERCONNECT | "interconnect":
                return not hidden and value == kind.interconnect
            case "nodegauge.dev/nvlink-gbps":
                return not hidden and value == str(kind.gbps)
            case "nodegauge.dev/interconnect-evidence":
                return not hidden and value == "reported"
            case "nodegauge.dev/psu":
                return value == ("fault" if reading.fault in ("psu", "power-brake") else "ok")
            case "nodegauge.dev/throttled":
                entered = {OF_NODES[n].cause for n, seen in node.seen.items() if seen.stands(now)}
                certain = {OF_NODES[n].cause for n, seen in node.seen.items() if self._certain(seen, now)}
                return value in entered or (value == "none" and not certain & THROTTLING)
            case names.LABEL_VALIDATED_AT:
                end, at = self._cluster.clock() - now + reading.ended_at, self._cluster.clock()
                return end - 86_400 * 2 <= int(value) <= max(end, min(reading.stamped, at)) + 1
            case names.LABEL_HEALTH:
                return value != "fail" or bool(open_faults)
            case "GPUValidated":
                return (not value.startswith("False") and value != HELD_BACK) or bool(open_faults)
        return False

    def _certain(self, seen: FaultSeen, now: float) -> bool:
        """Whether a fault stands by any clock that the operator may have had since it was lifted on trial."""
        return seen.stands(now, gain=self._record.clock_gain(seen.lifted_at or now, now))

    def _removed(self, name: str, node: NodeRecord, key: str, *, now: float) -> str:
        """Why a label goes that no policy's edit took away."""
        reading = node.reading
        if reading is None:
            return ""
        fault = FAULTS.get(reading.fault)
        if key in TOPOLOGY:
            if fault is not None and fault.hides_interconnect:
                return "reading"
            if reading.boot != node.machine.boot:
                return "another boot"
        if key == "nodegauge.dev/psu" and reading.fault == "power-brake":
            return "reading"
        entered = [
            seen for n, seen in node.seen.items() if OF_NODES[n].key == "throttled" and seen.entered_at
        ]
        if key == "nodegauge.dev/throttled" and entered:
            for seen in entered:  # also of a fault whose taint was held back
                seen.lifted_at = seen.lifted_at or now
            return "on probation"
        unread = self._unread(name, node, now=now) if key == names.LABEL_HEALTH else ""
        return self._stale(name, node, now=now) or unread

    def _unread(self, name: str, node: NodeRecord, *, now: float) -> str:
        """The node was not to be read for as long as the policy says, whatever gap there was."""
        if node.unread_since is None:
            return ""
        unread = now - node.unread_since + self._record.clock_gain(node.unread_since, now)
        return "unreadable for long enough" if unread >= UNREAD_AFTER - SLACK else ""

    def _stale(self, name: str, node: NodeRecord, *, now: float) -> str:
        """Runs failed for as long as the policy says, and since the last gap one did or had time to."""
        known = self._record.known_since(name, now)
        interval, age = self._record.shortest_staleness(node.machine.pool, known, now)
        if node.failing_since is not None:
            gap_over_at = self._record.gap_over_at(name, now)
            tried = node.failing_until > gap_over_at or now - gap_over_at >= interval - SLACK
            failing = now - node.failing_since + interval + SLACK
            if failing >= age and tried:
                return "stale: runs failed"
            if failing + self._record.clock_gain(node.failing_since, now) >= age and tried:
                return f"stale: runs failed, {BY_WRONG_CLOCK}"
        if node.readings and now - node.read_at >= LONGEST_WAIT - age:
            return "stale: no run for days"
        return ""

    def _asked_for(self, name: str, now: float) -> str:
        """A policy's edit, or a node that is outside of every policy for longer than the grace."""
        if any(spec is not None and spec.mode is Mode.OBSERVE for spec in self._specs(name, now)):
            return "policy: mode Observe"
        if self._record.outside(name, now) >= GRACE - SLACK:
            return "outside of every policy for the grace"
        return ""

    # -- taints --------------------------------------------------------------------------------------------

    def _cause_of_taint(
        self, name: str, node: NodeRecord, key: str, old: str | None, new: str | None, *, now: float
    ) -> str:
        removed = self._taint_removed(name, node, old, now=now) if old is not None else "-"
        if new is None or not removed:
            return removed
        fault = OF_TAINT.get(f"{key.rpartition('/')[2]}={new.partition(':')[0]}")
        seen = node.seen.get(fault) if fault else None
        if fault is None or seen is None or seen.entered_at is None:
            return ""
        lifted = self._lifted.get((name, key), "")
        if lifted.startswith("probation") and not self._read_since(name, node, key):
            return ""
        runs = "failed runs" if fault == UNREADABLE else "bad readings"
        bad = "bad reading" if OF_NODES[fault].runs == 1 else f"{OF_NODES[fault].runs} {runs} in a row"
        if lifted.startswith("probation"):
            return "bad reading on probation"
        return bad if now - seen.entered_at < LATE else f"{bad}, and a slot or an edit since"

    def _taint_removed(self, name: str, node: NodeRecord, old: str, *, now: float) -> str:
        asked = self._asked_for(name, now)
        if asked:
            return asked
        fault = OF_TAINT.get(next(t for t in OF_TAINT if t.partition("=")[2] == old.partition(":")[0]))
        assert fault is not None
        seen, rule = node.seen.get(fault), OF_NODES[fault]
        if any(no_taint_for(spec, fault) for spec in self._specs(name, now)):
            return "policy: no taint for this cause"
        if seen is None or seen.entered_at is None:
            return ""
        stood, gain = now - seen.entered_at, self._record.clock_gain(seen.entered_at, now)
        if seen.good >= LEAVE_RUNS and stood + gain >= DWELL - SLACK:
            node.seen[fault] = FaultSeen()
            return f"{LEAVE_RUNS} good readings in a row{_by(stood, DWELL)}"
        if rule.under_load and stood + gain >= FIRST_PROBATION - SLACK:
            seen.lifted_at = now
            return f"probation{_by(stood, FIRST_PROBATION)}"
        worse = [n for n, s in node.seen.items() if s.entered_at is not None and n != fault]
        if any(OF_NODES[n].key == rule.key for n in worse):
            return "a worse fault"
        if rule.cause in LESSER and self._worse_waits(name, now):
            return "its slot for a worse fault elsewhere"
        return ""

    def _worse_waits(self, name: str, now: float) -> bool:
        """Whether another node has a worse fault, and no taint."""
        waiting = [
            seen
            for other, node in self._record.nodes.items()
            if node.machine.there and other not in (name, *self.slots.tainted)
            for fault, seen in node.seen.items()
            if OF_NODES[fault].cause not in LESSER
        ]
        return any(seen.stands(now) for seen in waiting)

    def _specs(self, name: str, now: float) -> list[PolicySpec | None]:
        """Every spec of its policy that the operator may still go by."""
        pool = self._record.nodes[name].machine.pool
        return self._record.specs(pool, self._record.known_since(name, now), now)


def no_taint_for(spec: PolicySpec | None, fault: str) -> bool:
    """Whether a policy wants no taint for what this fault causes."""
    causes = spec.taints.causes.items() if spec is not None else ()
    return any(c.value == OF_NODES[fault].cause and e.value == "None" for c, e in causes)


def _by(waited: float, needed: float) -> str:
    """Whether so long had passed, or only a wrong clock thought so."""
    return "" if waited >= needed - SLACK else f", {BY_WRONG_CLOCK}"


def ours_of(body: Body) -> Ours:
    keys = {*label_keys(), SHORT_KEY}
    ours = {key: value for key, value in body["metadata"]["labels"].items() if key in keys}
    for taint in body["spec"].get("taints") or ():
        if taint["key"].startswith(names.PREFIX):
            ours[f"taint {taint['key']}"] = f"{taint.get('value', '')}:{taint['effect']}"
    for condition in body["status"]["conditions"]:
        if condition["type"] == CONDITION:
            ours[CONDITION] = f"{condition['status']} {condition['reason']}"
    return ours


def expected_at_rest(node: NodeRecord) -> Ours:
    """What a node must carry once nothing has been wrong for long: its labels, and no more of them."""
    kind, fault = KINDS[node.machine.kind], FAULTS.get(node.machine.fault)
    if node.machine.fault != NO_FAULT and fault is not None and fault.hides_interconnect:
        return {}
    labels = {names.LABEL_INTERCONNECT: kind.interconnect, SHORT_KEY: kind.interconnect}
    labels["nodegauge.dev/interconnect-evidence"] = "reported"
    return labels | ({"nodegauge.dev/nvlink-gbps": str(kind.gbps)} if kind.gbps is not None else {})


class Slots:
    def __init__(self, cluster: LivingCluster, record: Record) -> None:
        self.tainted: dict[str, str] = {}
        self._cluster = cluster
        self._record = record
        self._new: dict[str, tuple[float, str]] = {}
        """By name: when a node last took a taint that it had not, and its pool."""

    def note(self, name: str, pool: str, *, tainted: bool, now: float) -> None:
        if not tainted:
            self.tainted.pop(name, None)
            return
        if name not in self.tainted:
            self._new[name] = (now, pool)
        self.tainted[name] = pool

    def has_free(self, pool: str, now: float) -> bool:
        spec = self._record.spec(pool)
        away = sum(1 for node in self._record.nodes.values() if not node.machine.there or node.machine.busy)
        total = gated_slots(CLUSTER_BUDGET, len(self._record.nodes) - away)
        own = self._most(pool, now, now) - (away if isinstance(spec and spec.budget.gated_nodes, str) else 0)
        mine = sum(1 for other in self.tainted.values() if other == pool)
        hourly = self._newly(pool, now - HOUR - SLACK) < self._most(pool, now, now, newly=True, away=away)
        return mine < own and len(self.tainted) < total and hourly and not self._has_incident(pool)

    def _has_incident(self, pool: str) -> bool:
        """Whether one cause on many nodes holds taints back; the policy of a pool has its name."""
        status = self._cluster.objects[POLICIES].get(pool, {}).get("status", {})
        return any(not incident.closed_at for incident in incidents_of(status))

    def excess(self, name: str, node: NodeRecord, *, now: float) -> str:
        pool = node.machine.pool
        since = self._record.known_since(name, now)
        mine = sum(1 for other in self.tainted.values() if other == pool)
        total = gated_slots(CLUSTER_BUDGET, len(self._record.nodes))
        if mine > self._most(pool, since, now) or len(self.tainted) > total:
            return "more nodes are tainted than the budget allows"
        if self._record.clock_gain(now - HOUR, now):
            return ""  # a process that started since then believes the clock
        too_many = self._newly(pool, now - HOUR + SLACK) > self._most(pool, since, now, newly=True)
        return "more nodes are tainted within an hour than may be" if too_many else ""

    def _newly(self, pool: str, since: float) -> int:
        return sum(1 for at, other in self._new.values() if at > since and other == pool)

    def _most(self, pool: str, since: float, now: float, *, newly: bool = False, away: int = 0) -> int:
        """How many nodes of a pool may be tainted (`newly`: within an hour), by the largest budget."""
        specs = [spec for spec in self._record.specs(pool, since, now) if spec is not None]
        nodes = sum(1 for node in self._record.nodes.values() if node.machine.pool == pool) - away
        field = "gated_nodes_per_hour" if newly else "gated_nodes"
        return max((gated_slots(getattr(spec.budget, field), nodes) for spec in specs), default=0)
