"""What goes wrong, for the whole cluster and on single nodes, as coroutines that begin and end it."""

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from fleet.machines import FAULTS, KINDS, NO_FAULT, Machine
from fleet.process import LATENCY, OperatorProcess
from fleet.record import Record, is_paused, spec_text
from fleet.virtual import POOL, LivingCluster
from nodegauge_operator import names
from nodegauge_operator.api.policy import Mode, PolicySpec
from support.api_server import NODES, PODS, POLICIES, Body

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
KNOWN_READINGS = 2
"""Links and GPUs that went before a node was read twice were never there, for all that anybody can know."""


State = Callable[[bool], None]


class _Disturbing:
    def __init__(self, cluster: LivingCluster, chance: random.Random) -> None:
        self._cluster = cluster
        self._record: Record = cluster.record
        self._chance = chance

    @property
    def now(self) -> float:
        return self._cluster.loop.time()


class Disturbances(_Disturbing):
    def __init__(self, cluster: LivingCluster, process: OperatorProcess, chance: random.Random) -> None:
        super().__init__(cluster, chance)
        self._process = process
        self._api_busy = self._policy_busy = False
        self.specs: dict[str, Body] = {}

    # -- the API server and the operator's process ----------------------------------------------------------

    async def _wrong(self, what: str, seconds: float, state: State) -> None:
        if self._api_busy:
            return
        self._api_busy = True
        self._record.counts[what] += 1
        self._record.note(self.now, f"{what} for {seconds / MINUTE:.0f} min")
        span = self._record.wrong.begin(self.now, what)
        state(True)
        await asyncio.sleep(seconds)
        state(False)
        span.end = self.now
        self._record.note(self.now, f"{what} is over")
        self._api_busy = False

    def _watches(self, *, away: bool, resumed: bool) -> None:
        if away:
            self._process.deafen()
        else:
            self._process.reconnect(resumed=resumed)

    async def outage(self) -> None:
        resumed = self._chance.random() < 0.5

        def state(on: bool) -> None:
            self._process.api.down = self._chance.choice(["refused", "503"]) if on else ""
            self._watches(away=on, resumed=resumed)

        minutes = self._chance.choice([2, 10, 50, 50, 180, 720])
        await self._wrong("outage of the API", minutes * MINUTE * self._chance.uniform(0.8, 1.2), state)

    async def watch_gap(self) -> None:
        resumed = self._chance.random() < 0.3
        minutes = self._chance.choice([1, 5, 30, 90])
        gap = partial(self._watches, resumed=resumed)
        await self._wrong("gap in the watches", minutes * MINUTE, lambda on: gap(away=on))

    async def conflicts(self) -> None:
        api, minutes = self._process.api, self._chance.uniform(5, 60)
        await self._wrong(
            "storm of conflicts", minutes * MINUTE, lambda on: setattr(api, "conflicts", 0.6 if on else 0.0)
        )

    async def lost_answers(self) -> None:
        def state(on: bool) -> None:
            self._process.api.lost, self._process.api.latency = (0.3, 1.0) if on else (0.0, LATENCY)

        await self._wrong("slow API that loses answers", self._chance.uniform(5, 40) * MINUTE, state)

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
    is_open = bool(spans.all) and spans.all[-1].end == float("inf")
    if on and not is_open:
        spans.begin(now, "policy")
    elif is_open and not on:
        spans.all[-1].end = now


def _scaled(duration: str, factor: float) -> str:
    minutes = {"m": 1, "h": 60}[duration[-1]] * int(duration[:-1])
    return f"{round(minutes * 60 * factor)}s"


class NodeDisturbances(_Disturbing):
    async def _on_node(
        self, machine: Machine, what: str, *, seconds: float, state: State, spans: str = "wrong"
    ) -> None:
        if machine.busy or not machine.there:
            return
        machine.busy.add(what)
        node = self._record.nodes[machine.name]
        self._record.counts[what] += 1
        node.note(self.now, f"{what} for {seconds / MINUTE:.1f} min")
        span = getattr(node, spans).begin(self.now, what)
        state(True)
        await asyncio.sleep(seconds)
        span.end = self.now
        if self._record.nodes[machine.name] is node and machine.there:
            state(False)
            machine.busy.discard(what)
            node.note(self.now, f"{what} is over")

    async def label_flap(self, machine: Machine) -> None:
        """The label that the policy selects by is away, mostly for moments, at times for longer."""
        seconds = self._chance.choice([3.0, 40.0, 300.0, 540.0, 1500.0, 3 * HOUR])
        name, pool = machine.name, machine.pool

        def state(on: bool) -> None:
            self._cluster.change(NODES, name, {"metadata": {"labels": {POOL: None if on else pool}}})

        await self._on_node(machine, "flapping label", seconds=seconds, state=state, spans="unlabelled")

    def _has_its_gpu_again(self, machine: Machine) -> None:
        if machine.fault == "gpu-lost":
            self._record.fault_changed(machine.name, self.now, NO_FAULT)

    async def reboot(self, machine: Machine) -> None:
        def state(on: bool) -> None:
            if not on:
                machine.boot, machine.booted_at = machine.boot + 1, self.now
                self._has_its_gpu_again(machine)
            self._cluster.set_ready(machine, not on)
            if on:
                self._cluster.kill_pods(machine.name)

        minutes = self._chance.choice([3, 8, 30, 300])
        await self._on_node(machine, "reboot", seconds=minutes * MINUTE, state=state)

    async def driver_upgrade(self, machine: Machine) -> None:
        def state(on: bool) -> None:
            if not on:
                machine.driver += 1
                self._has_its_gpu_again(machine)
            label = {names.GPU_UPGRADE_STATE: "pod-restart-required" if on else names.GPU_UPGRADE_DONE}
            self._cluster.change(NODES, machine.name, {"metadata": {"labels": label}})

        minutes = self._chance.uniform(5, 40)
        await self._on_node(machine, "driver upgrade", seconds=minutes * MINUTE, state=state)

    async def replacement(self, machine: Machine) -> None:
        if machine.busy or not machine.there:
            return
        self._record.counts["node replaced"] += 1
        machine.there = False
        self._cluster.remove(NODES, machine.name)
        await asyncio.sleep(30)
        for pod in self._cluster.pods_on(machine.name):
            self._cluster.remove(PODS, pod["metadata"]["name"])
        await asyncio.sleep(self._chance.choice([1.0, 5 * MINUTE, 2 * HOUR]))
        machine.boot, machine.booted_at, machine.fault = machine.boot + 1, self.now, NO_FAULT
        self._cluster.register(machine)

    async def cordon(self, machine: Machine) -> None:
        def state(on: bool) -> None:
            taints = self._cluster.objects[NODES][machine.name]["spec"].get("taints") or []
            others = [t for t in taints if t["key"] != UNSCHEDULABLE]
            more = [{"key": UNSCHEDULABLE, "effect": "NoSchedule"}] if on else []
            spec = {"unschedulable": on or None, "taints": others + more}
            self._cluster.change(NODES, machine.name, {"spec": spec})

        hours = self._chance.choice([1, 6, 40])
        await self._on_node(machine, "cordon", seconds=hours * HOUR, state=state)

    async def trouble(self, machine: Machine) -> None:
        """Probes cannot be scheduled, crash, hang or are preempted, for minutes to days."""
        kind = self._chance.choice(["full", "full", "crash", "garbage", "silent", "preempt"])
        for_long = kind == "full" and self._chance.random() < 0.1
        days = 8.5 if for_long else self._chance.choice([0.01, 0.1, 0.5, 2.0])

        def state(on: bool) -> None:
            machine.trouble = kind if on else ""

        await self._on_node(machine, f"probes: {kind}", seconds=days * DAY, state=state)

    async def idleness(self, machine: Machine) -> None:
        if not machine.idle and machine.fault == NO_FAULT:
            machine.idle = True
            await asyncio.sleep(self._chance.uniform(1, 12) * HOUR)
            machine.idle = False

    async def fault(self, machine: Machine, *, only: str = "", days: float = 0.0) -> None:
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
