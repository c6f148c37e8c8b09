"""What goes wrong on single nodes, as coroutines that begin and end it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from life.cluster import LivingCluster
from life.disturbances import DAY, HOUR, MINUTE
from life.hardware import FAULTS, KINDS, NO_FAULT, Machine
from life.record import Record
from nodegauge_operator import names
from support.api_server import NODES

KNOWN_READINGS = 2
"""Links and GPUs that went before a node was read twice were never there, for all that anybody can know."""
DONE = names.GPU_UPGRADE_DONE


class NodeDisturbances:
    """Begins and ends what goes wrong on a node, and writes it into the record."""

    def __init__(self, cluster: LivingCluster, record: Record, chance: random.Random) -> None:
        self._cluster = cluster
        self._record = record
        self._chance = chance

    @property
    def now(self) -> float:
        """Virtual seconds."""
        return self._cluster.loop.time()

    async def _on_node(
        self,
        machine: Machine,
        what: str,
        *,
        seconds: float,
        begin: Callable[[], None],
        end: Callable[[], None],
        spans: str = "",
    ) -> None:
        """For so long something is so on one node, unless it is gone meanwhile."""
        if machine.busy or not machine.there:
            return
        machine.busy.add(what)
        node = self._record.nodes[machine.name]
        self._record.counts[what] += 1
        node.note(self.now, f"{what} for {seconds / MINUTE:.1f} min")
        span = getattr(node, spans).begin(self.now, what) if spans else None
        begin()
        await asyncio.sleep(seconds)
        if span is not None:
            span.end = self.now
        if self._record.nodes[machine.name] is node and machine.there:
            end()
            machine.busy.discard(what)
            node.note(self.now, f"{what} is over")

    async def label_flap(self, machine: Machine) -> None:
        """The label that the policy selects by is away, mostly for moments, at times for longer."""
        seconds = self._chance.choice([3.0, 40.0, 300.0, 540.0, 1500.0, 3 * HOUR])
        name, pool = machine.name, machine.pool
        await self._on_node(
            machine,
            "flapping label",
            seconds=seconds,
            begin=lambda: self._cluster.set_label(name, None),
            end=lambda: self._cluster.set_label(name, pool),
            spans="unlabelled",
        )

    async def reboot(self, machine: Machine) -> None:
        """The node is away for minutes, and in another boot after it."""

        def begin() -> None:
            self._cluster.set_ready(machine, False)
            self._cluster.kill_pods(machine.name)

        def end() -> None:
            machine.boot, machine.booted_at = machine.boot + 1, self.now
            if machine.fault == "gpu-lost":
                self._record.fault_changed(machine.name, self.now, NO_FAULT)
            self._cluster.set_ready(machine, True)

        minutes = self._chance.choice([3, 8, 30, 300])
        await self._on_node(machine, "reboot", seconds=minutes * MINUTE, begin=begin, end=end, spans="wrong")

    async def driver_upgrade(self, machine: Machine) -> None:
        """The GPU Operator changes the driver: no run may start."""

        def state(value: str) -> None:
            self._cluster.change(
                NODES, machine.name, {"metadata": {"labels": {names.GPU_UPGRADE_STATE: value}}}
            )

        def end() -> None:
            machine.driver += 1
            if machine.fault == "gpu-lost":
                self._record.fault_changed(machine.name, self.now, NO_FAULT)
            state(DONE)

        await self._on_node(
            machine,
            "driver upgrade",
            seconds=self._chance.uniform(5, 40) * MINUTE,
            begin=lambda: state("pod-restart-required"),
            end=end,
            spans="wrong",
        )

    async def replacement(self, machine: Machine) -> None:
        """The node is deleted, and registers again under its name."""
        if machine.busy or not machine.there:
            return
        self._record.counts["node replaced"] += 1
        machine.there = False
        self._cluster.remove(NODES, machine.name)
        await asyncio.sleep(30)
        self._cluster.collect_pods(machine.name)
        await asyncio.sleep(self._chance.choice([1.0, 5 * MINUTE, 2 * HOUR]))
        machine.boot, machine.booted_at, machine.fault = machine.boot + 1, self.now, NO_FAULT
        self._cluster.register(machine)

    async def cordon(self, machine: Machine) -> None:
        """Nothing new is scheduled there."""

        def mark(value: bool | None) -> Callable[[], None]:
            return lambda: _cordoned(self._cluster, machine.name, value)

        hours = self._chance.choice([1, 6, 40])
        await self._on_node(
            machine, "cordon", seconds=hours * HOUR, begin=mark(True), end=mark(None), spans="wrong"
        )

    async def trouble(self, machine: Machine) -> None:
        """Probes cannot be scheduled, crash, hang or are preempted, for minutes to days."""
        kind = self._chance.choice(["full", "full", "crash", "garbage", "silent", "preempt"])
        days = (
            8.5
            if kind == "full" and self._chance.random() < 0.1
            else self._chance.choice([0.01, 0.1, 0.5, 2.0])
        )
        await self._on_node(
            machine,
            f"probes: {kind}",
            seconds=days * DAY,
            begin=lambda: setattr(machine, "trouble", kind),
            end=lambda: setattr(machine, "trouble", ""),
            spans="wrong",
        )

    async def idleness(self, machine: Machine) -> None:
        """Nobody wants the node's GPUs for hours."""
        if not machine.idle and machine.fault == NO_FAULT:
            machine.idle = True
            await asyncio.sleep(self._chance.uniform(1, 12) * HOUR)
            machine.idle = False

    async def fault(self, machine: Machine, *, only: str = "", days: float = 0.0) -> None:
        """The machine breaks; somebody repairs it hours or days later."""
        node = self._record.nodes[machine.name]
        ready = machine.there and machine.up and machine.fault == NO_FAULT and node.readings >= KNOWN_READINGS
        if not ready or node.reading is None or node.reading.boot != machine.boot:
            return
        kinds = [only] if only else sorted(FAULTS.keys() - KINDS[machine.kind].immune)
        name = self._chance.choice(kinds)
        self._record.counts[f"fault {name}"] += 1
        machine.idle = False
        self._record.fault_changed(machine.name, self.now, name)
        await asyncio.sleep(DAY * (days or self._chance.choice([0.05, 0.5, 2.0, 6.0])))
        if self._record.nodes[machine.name] is node and machine.fault == name:
            self._record.fault_changed(machine.name, self.now, NO_FAULT)


def _cordoned(cluster: LivingCluster, name: str, value: bool | None) -> None:
    taints = cluster.objects[NODES][name]["spec"].get("taints") or []
    others = [t for t in taints if t["key"] != "node.kubernetes.io/unschedulable"]
    more = [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}] if value else []
    cluster.change(NODES, name, {"spec": {"unschedulable": value, "taints": others + more}})
