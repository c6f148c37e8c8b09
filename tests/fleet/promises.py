"""What must happen: a fault is tainted, and a sound node released, in time; at rest every node carries what
its machine is.  Time counts only while runs could be made and judged."""

from fleet.machines import FAULTS, NO_FAULT, OF_NODES, UNREADABLE
from fleet.oracle import Oracle, expected_at_rest, no_taint_for, ours_of
from fleet.record import LEAVE_RUNS, NodeRecord, Record
from fleet.virtual import LivingCluster
from nodegauge_operator.api.policy import Mode
from support.api_server import NODES

HOUR = 3600.0
PAD = 0.5 * HOUR
"""After a disturbance: retries have their pauses."""
PROMISED_SLACK = HOUR
CALM_AT_REST = 40 * HOUR
"""Three intervals of the slower policy."""
LAST_PROBATION = 24 * HOUR


class Promises:
    def __init__(self, cluster: LivingCluster, record: Record, oracle: Oracle) -> None:
        self._cluster = cluster
        self._record = record
        self._oracle = oracle
        self._late: set[tuple[str, float]] = set()
        self._full_at: dict[str, float] = {}
        self._idle_at: dict[str, float] = {}
        """By pool: when its budget was last seen used up."""

    def check(self) -> None:
        """Every faulty node is tainted in time, and every healthy one free in time."""
        now = self._cluster.loop.time()
        for pool in self._record.policies:
            if not self._oracle.slots.has_free(pool, now):
                self._full_at[pool] = now
        for name, node in self._record.nodes.items():
            if node.machine.there and self._applies(node):
                self._check_node(name, node)

    def check_at_rest(self) -> None:
        for name, node in self._record.nodes.items():
            now = self._cluster.loop.time()
            begin = now - CALM_AT_REST
            recent = max(node.healthy_since, node.faulty_since or 0.0) > begin
            if recent or not node.machine.there or self._record.disturbed(name, begin, now):
                continue
            ours = ours_of(self._cluster.objects[NODES][name])
            wanted = expected_at_rest(node)
            topology = {key: ours.get(key) for key in wanted}
            if topology != wanted:
                self._broken(name, f"at rest it carries {topology} instead of {wanted}")
            health, fault = ours.get("nodegauge.dev/health"), FAULTS.get(node.machine.fault)
            seen = node.seen.get(node.machine.fault)
            if fault is not None and (fault.absent_when_idle or (seen is not None and seen.lifted_at)):
                continue  # it depends on whether there was work when the node was read
            if (health == "fail") is not bool(fault) and not self._excused(node):
                self._broken(
                    name, f"at rest health is {health}, the machine is {node.machine.fault or 'well'}"
                )

    def _applies(self, node: NodeRecord) -> bool:
        spec = self._record.spec(node.machine.pool)
        return spec is not None and spec.mode is Mode.ENFORCE

    def _check_node(self, name: str, node: NodeRecord) -> None:
        machine = node.machine
        if machine.fault and node.faulty_since is not None:
            if machine.fault in node.tainting:
                return
            if not machine.loaded:
                self._idle_at[name] = self._cluster.loop.time()  # what shows under load alone cannot be seen
            times = (node.changed_at, self._full_at.get(machine.pool, 0.0), self._idle_at.get(name, 0.0))
            since = max(node.faulty_since, *times)
            needed = self._runs(node, FAULTS[machine.fault].runs, since)
            if self._calm(name, since) > needed and not self._excused(node):
                self._broken(name, f"{machine.fault} is not tainted after {needed / HOUR:.1f} calm hours")
        elif not machine.fault and node.tainting:
            loads = any(OF_NODES[fault].under_load for fault in node.tainting)
            needed = self._runs(node, LEAVE_RUNS, node.healthy_since) + (LAST_PROBATION if loads else 0.0)
            since = node.changed_at if UNREADABLE in node.tainting else node.healthy_since
            if self._calm(name, since) > needed:
                self._broken(name, f"well, and still tainted after {needed / HOUR:.1f} calm hours")

    def _runs(self, node: NodeRecord, count: int, since: float) -> float:
        """Seconds in which so many runs are promised, the first of them an interval away."""
        now = self._cluster.loop.time()
        return count * self._record.longest_interval(node.machine.pool, since, now) + PROMISED_SLACK

    def _calm(self, name: str, since: float) -> float:
        now = self._cluster.loop.time()
        return now - since - self._record.disturbed(name, since, now, pad=PAD)

    def _excused(self, node: NodeRecord) -> bool:
        pool, fault = node.machine.pool, node.machine.fault
        if not self._oracle.slots.has_free(pool, self._cluster.loop.time()):
            return True
        return fault != NO_FAULT and no_taint_for(self._record.spec(pool), fault)

    def _broken(self, name: str, what: str) -> None:
        node = self._record.nodes[name]
        key = (name, node.faulty_since or node.healthy_since)
        if key not in self._late:
            self._late.add(key)
            self._oracle.violate(name, what)
