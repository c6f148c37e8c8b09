"""What goes wrong, for the whole cluster and on single nodes, as coroutines that begin and end it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import msgspec

from fleet.machines import FAULTS, KINDS, NO_FAULT, Machine
from fleet.process import LATENCY, OperatorProcess
from fleet.record import Record, is_paused, spec_text
from fleet.virtual import LivingCluster
from nodegauge_operator import names
from nodegauge_operator.api.policy import Mode, PolicySpec
from support.api_server import NODES, POLICIES, Body

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
KNOWN_READINGS = 2
"""Links and GPUs that went before a node was read twice were never there, for all that anybody can know."""


class _Disturbing:
    """Begins and ends what goes wrong, and writes it into the record."""

    def __init__(self, cluster: LivingCluster, chance: random.Random) -> None:
        self._cluster = cluster
        self._record: Record = cluster.record
        self._chance = chance

    @property
    def now(self) -> float:
        """Virtual seconds."""
        return self._cluster.loop.time()


class Disturbances(_Disturbing):
    """Of the API server, the operator's process, clocks and policies."""

    def __init__(self, cluster: LivingCluster, process: OperatorProcess, chance: random.Random) -> None:
        super().__init__(cluster, chance)
        self._process = process
        self._api_busy = self._policy_busy = False
        self.specs: dict[str, Body] = {}
        """The spec of each pool's policy, as its owner wants it."""

    # -- the API server and the operator's process ----------------------------------------------------------

    async def _wrong(
        self, what: str, seconds: float, begin: Callable[[], None], end: Callable[[], None]
    ) -> None:
        """For so long the API server or the operator is not as it should be."""
        if self._api_busy:
            return
        self._api_busy = True
        self._record.counts[what] += 1
        self._record.note(self.now, f"{what} for {seconds / MINUTE:.0f} min")
        span = self._record.wrong.begin(self.now, what)
        begin()
        await asyncio.sleep(seconds)
        end()
        span.end = self.now
        self._record.note(self.now, f"{what} is over")
        self._api_busy = False

    async def outage(self) -> None:
        """No call is answered, for minutes or hours; the watches break."""
        api, resumed = self._process.api, self._chance.random() < 0.5

        def begin() -> None:
            api.down = self._chance.choice(["refused", "503"])
            self._process.deafen()

        def end() -> None:
            api.down = ""
            self._process.reconnect(resumed=resumed)

        minutes = self._chance.choice([2, 10, 50, 50, 180, 720])
        await self._wrong("outage of the API", minutes * MINUTE * self._chance.uniform(0.8, 1.2), begin, end)

    async def watch_gap(self) -> None:
        """Watches are interrupted while calls work."""
        resumed = self._chance.random() < 0.3
        minutes = self._chance.choice([1, 5, 30, 90])
        await self._wrong(
            "gap in the watches",
            minutes * MINUTE,
            self._process.deafen,
            lambda: self._process.reconnect(resumed=resumed),
        )

    async def conflicts(self) -> None:
        """Somebody else writes the same objects all the time."""
        minutes = self._chance.uniform(5, 60)
        await self._api_is("storm of conflicts", minutes * MINUTE, {"conflicts": 0.6}, {"conflicts": 0.0})

    async def lost_answers(self) -> None:
        """Writes are made, and their answers are lost; calls are slow."""
        minutes = self._chance.uniform(5, 40)
        slow, normal = {"lost": 0.3, "latency": 1.0}, {"lost": 0.0, "latency": LATENCY}
        await self._api_is("slow API that loses answers", minutes * MINUTE, slow, normal)

    async def _api_is(
        self, what: str, seconds: float, state: dict[str, float], after: dict[str, float]
    ) -> None:
        api = vars(self._process.api)
        await self._wrong(what, seconds, lambda: api.update(state), lambda: api.update(after))

    async def restart(self) -> None:
        """The operator is stopped or killed, at times between two writes; it returns after a while."""
        if self._api_busy:
            return
        self._api_busy = True
        killed = self._chance.random() < 0.6
        self._record.counts["kill of the operator" if killed else "restart of the operator"] += 1
        if killed:
            await self._between_two_writes()
        span = self._record.wrong.begin(self.now, "restart")
        await (self._process.kill() if killed else self._process.stop())
        away = self._chance.choice([5, 60, 10 * MINUTE, 2 * HOUR, 9 * HOUR])
        how = "killed" if killed else "stopped"
        self._record.note(self.now, f"the operator is {how} for {away / MINUTE:.1f} min")
        await asyncio.sleep(away)
        self._process.start()
        span.end = self.now
        self._api_busy = False

    async def _between_two_writes(self) -> None:
        """Return once the process has died at one of its next writes, or after twenty minutes without any."""
        client = self._process.client
        client.kill_at = (
            len(client.log) + self._chance.randrange(12),
            self._chance.choice(["before", "after"]),
        )
        for _ in range(600):
            if client.dead:
                return
            await asyncio.sleep(2)

    async def clock_step(self) -> None:
        """A clock is wrong for a while: the operator's alone, or that of the whole cluster."""
        of: OperatorProcess | LivingCluster = self._process
        if self._chance.random() < 0.5:
            of = self._cluster
        if self._process.clock_error or self._cluster.clock_error:
            return
        error = self._chance.choice([DAY, DAY, 30 * DAY, -HOUR, -HOUR, 7 * MINUTE])
        minutes = self._chance.choice([1, 12, 45, 120])
        whose = "the operator's" if of is self._process else "the cluster's"
        self._record.counts["clock step"] += 1
        self._record.note(self.now, f"{whose} clock is wrong by {error / HOUR:.1f} h for {minutes} min")
        span = self._record.wrong.begin(self.now, "clock")
        of.clock_error = error
        self._record.clock_errors.append((span, error))
        await asyncio.sleep(minutes * MINUTE)
        of.clock_error = 0.0
        span.end = self.now
        self._record.note(self.now, f"{whose} clock is right again")

    # -- policies ------------------------------------------------------------------------------------------

    def write_policy(self, pool: str, spec: Body | None) -> None:
        """The owner writes a policy, or deletes it."""
        there = pool in self._cluster.objects[POLICIES]
        typed = None if spec is None else msgspec.convert(spec, PolicySpec)
        self._record.policies.setdefault(pool, []).append((self.now, typed))
        self._record.note(self.now, f"policy {pool}: {spec_text(typed)}")
        if spec is None:
            self._cluster.remove(POLICIES, pool)
        elif there:
            generation = self._cluster.objects[POLICIES][pool]["metadata"].get("generation", 1) + 1
            self._cluster.change(POLICIES, pool, {"metadata": {"generation": generation}, "spec": spec})
        else:
            self._cluster.add_policy(pool, **spec)
        inactive = typed is None or typed.mode is Mode.OBSERVE or is_paused(typed)
        _mark(self._record.inactive[pool], self.now, inactive)
        _mark(self._record.absent[pool], self.now, typed is None)

    async def policy_edit(self) -> None:
        """A policy is edited, and edited back."""
        if self._policy_busy:
            return
        self._policy_busy = True
        pool = self._chance.choice(sorted(self.specs))
        normal = self.specs[pool]
        probes, budget = normal["probes"], normal["budget"]
        interval = probes["health"]["interval"]
        edits: dict[str, tuple[Body | None, float]] = {
            "shorter interval": (
                {"probes": probes | {"health": {"interval": _scaled(interval, 0.5)}}},
                DAY / 2,
            ),
            "longer interval": ({"probes": probes | {"health": {"interval": _scaled(interval, 2)}}}, DAY),
            "pause": (
                {"budget": budget | {"concurrentProbes": 0}},
                self._chance.choice([HOUR, 9 * HOUR, DAY]),
            ),
            "mode Observe": ({"mode": "Observe"}, self._chance.choice([MINUTE, HOUR, 9 * HOUR])),
            "replace": (None, self._chance.uniform(1, 8 * MINUTE)),
            "deletion": (None, self._chance.uniform(15 * MINUTE, HOUR)),
            "no taint for heat": ({"taints": {"causes": {"thermal": "None"}}}, 6 * HOUR),
            "smaller budget": ({"budget": budget | {"gatedNodes": "2%"}}, DAY),
            "no budget": ({"budget": budget | {"gatedNodes": 0}}, 6 * HOUR),
        }
        what = self._chance.choice(sorted(edits))
        change, lasts = edits[what]
        self._record.counts["policy edit"] += 1
        self._record.note(self.now, f"policy {pool}: {what}")
        self.write_policy(pool, None if change is None else normal | change)
        await asyncio.sleep(lasts)
        self.write_policy(pool, normal)
        self._policy_busy = False


def _mark(spans: Any, now: float, on: bool) -> None:
    """Begin or end the last span."""
    is_open = bool(spans.all) and spans.all[-1].end == float("inf")
    if on and not is_open:
        spans.begin(now, "policy")
    elif is_open and not on:
        spans.all[-1].end = now


def _scaled(duration: str, factor: float) -> str:
    """`30m` by a factor, in seconds."""
    minutes = {"m": 1, "h": 60}[duration[-1]] * int(duration[:-1])
    return f"{round(minutes * 60 * factor)}s"


class NodeDisturbances(_Disturbing):
    """Of one node each."""

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
            state(names.GPU_UPGRADE_DONE)

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
