"""What goes wrong for the whole cluster, as coroutines that begin and end it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import msgspec

from life.cluster import LivingCluster
from life.process import LATENCY, OperatorProcess
from life.record import Record, is_paused, spec_text
from nodegauge_operator.api.policy import Mode, PolicySpec
from support.api_server import POLICIES, Body

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0


class Disturbances:
    """Begins and ends what goes wrong, and writes it into the record."""

    def __init__(
        self, cluster: LivingCluster, process: OperatorProcess, record: Record, chance: random.Random
    ) -> None:
        self._cluster = cluster
        self._process = process
        self._record = record
        self._chance = chance
        self._api_busy = self._policy_busy = False
        self.specs: dict[str, Body] = {}
        """The spec of each pool's policy, as its owner wants it."""

    @property
    def now(self) -> float:
        """Virtual seconds."""
        return self._cluster.loop.time()

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
        api = self._process.api

        def to(share: float) -> Callable[[], None]:
            return lambda: setattr(api, "conflicts", share)

        await self._wrong("storm of conflicts", self._chance.uniform(5, 60) * MINUTE, to(0.6), to(0.0))

    async def lost_answers(self) -> None:
        """Writes are made, and their answers are lost; calls are slow."""
        api = self._process.api

        def to(share: float, latency: float) -> Callable[[], None]:
            def change() -> None:
                api.lost, api.latency = share, latency

            return change

        await self._wrong(
            "slow API that loses answers",
            self._chance.uniform(5, 40) * MINUTE,
            to(0.3, 1.0),
            to(0.0, LATENCY),
        )

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
