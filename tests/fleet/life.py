"""Weeks of a cluster in virtual time, disturbed by a plan that a seed draws; every change needs a cause."""

import argparse
import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest

from fleet.disturbances import DAY, HOUR, Disturbances, NodeDisturbances
from fleet.machines import KINDS, Machine
from fleet.oracle import Oracle
from fleet.process import LIVE_SECONDS, LOOK_SECONDS, RENEW_SECONDS, OperatorProcess, clocks
from fleet.promises import Promises
from fleet.record import Record, Spans
from fleet.virtual import LivingCluster
from nodegauge_operator.kube import client as client_module
from nodegauge_operator.reconcile import installation, reading_trust
from nodegauge_operator.reconcile import reconciler as reconciler_module
from nodegauge_operator.reconcile import sweep as sweep_module
from support.api_server import EVENTS
from support.client import Killed
from support.virtual_time import VirtualLoop, run

FAST, FLEET = "fast", "fleet"
INTERVALS = {FAST: "1h", FLEET: "24h"}
REST_DAYS = 2.0
"""At the end nothing is disturbed for so long: time for any gate to be left."""
MOST_VIOLATIONS = 25
PER_DAY: dict[str, float] = {
    "outage": 0.6,
    "watch_gap": 0.8,
    "conflicts": 0.4,
    "lost_answers": 0.3,
    "restart": 0.6,
    "clock_step": 0.3,
    "policy_edit": 0.6,
}
"""Disturbances of the whole cluster a day."""
PER_NODE_AND_DAY: dict[str, float] = {
    "label_flap": 0.03,
    "reboot": 0.02,
    "driver_upgrade": 0.01,
    "replacement": 0.005,
    "cordon": 0.02,
    "trouble": 0.03,
    "idleness": 0.1,
    "fault": 0.03,
}
"""Disturbances of each node a day."""


@dataclass(frozen=True, kw_only=True)
class Size:
    nodes: int
    days: float
    seed: int
    fast_nodes: int
    heat_waves: float
    """Days from one heat wave to the next; each heats three of ten nodes, more than the budget allows."""


Say = Callable[[str], None]


def live(size: Size, *, say: Say = lambda text: None) -> "Story":
    """A whole life on virtual time, as it ended; the same size and seed give the same life."""

    async def main() -> Story:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        story = Story(loop, size, say)
        with pytest.MonkeyPatch.context() as patch:
            clock = clocks(story.process)
            for module in (sweep_module, reconciler_module, client_module):
                patch.setattr(module, "time", clock)
            patch.setattr(installation, "RENEW_SECONDS", RENEW_SECONDS)
            patch.setattr(installation, "LIVE_SECONDS", LIVE_SECONDS)
            patch.setattr(reading_trust, "LOOK_SECONDS", LOOK_SECONDS)
            await story.live()
            return story

    logger = logging.getLogger("nodegauge")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        return run(main())
    finally:
        logger.setLevel(before)


class Story:
    def __init__(self, loop: VirtualLoop, size: Size, say: Say) -> None:
        chance = random.Random(size.seed)
        self.loop = loop
        self.size = size
        self.record = Record()
        self.cluster = LivingCluster(loop, self.record, random.Random(chance.random()))
        self.process = OperatorProcess(self.cluster, random.Random(chance.random()))
        self.oracle = Oracle(self.cluster, self.record)
        self.promises = Promises(self.cluster, self.record, self.oracle)
        self.disturbances = Disturbances(self.cluster, self.process, random.Random(chance.random()))
        self.node_disturbances = NodeDisturbances(self.cluster, random.Random(chance.random()))
        self._chance, self._say, self._began = chance, say, time.monotonic()
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._violations_printed = 0

    def _note(self, _: object, context: dict[str, Any]) -> None:
        """An error of a callback or of a lost task ends the life, unless the operator was killed in it."""
        error = context.get("exception")
        if error is not None and not isinstance(error, Killed):
            self._failure = self._failure or error

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    async def live(self) -> None:
        """From the first node to the end of the calm days."""
        loop: Any = self.loop
        loop.set_exception_handler(self._note)
        self._create()
        self.process.start()
        await asyncio.sleep(DAY / 2 if self.size.days > 1 else HOUR)
        self._disturb()
        end = self.size.days * DAY
        while self.loop.time() < end and len(self.oracle.violations) < MOST_VIOLATIONS:
            await self._hour()
        await self._rest()
        await self.process.stop()

    def _create(self) -> None:
        for pool, interval in INTERVALS.items():
            self.record.inactive[pool], self.record.absent[pool] = Spans(), Spans()
            self.disturbances.specs[pool] = {
                "nodeSelector": {"matchLabels": {"example.com/pool": pool}},
                "mode": "Enforce",
                "probes": {"health": {"mode": "Periodic", "interval": interval}, "load": {"enabled": False}},
                "budget": {"concurrentProbes": "20%", "gatedNodes": "20%", "gatedNodesPerHour": "5%"},
                "breaker": {},
                "taints": {"causes": {"thermal": "NoSchedule"}},
            }
            self.disturbances.write_policy(pool, self.disturbances.specs[pool])
        kinds, shares = list(KINDS), [kind.share for kind in KINDS.values()]
        for number in range(self.size.nodes):
            pool = FAST if number < self.size.fast_nodes else FLEET
            [kind] = self._chance.choices(kinds, shares)
            self.cluster.register(Machine(name=f"node-{number}", kind=kind, pool=pool))

    def _disturb(self) -> None:
        until = self.size.days * DAY
        for name, rate in PER_DAY.items():
            self._begin(self._repeat(getattr(self.disturbances, name), rate, until))
        for machine in self.cluster.machines.values():
            for name, rate in PER_NODE_AND_DAY.items():
                disturb = getattr(self.node_disturbances, name)
                self._begin(self._repeat(disturb, rate, until, machine))
        self._begin(self._heat_waves(until))

    async def _repeat(self, disturb: Callable[..., Any], rate: float, until: float, *of: Machine) -> None:
        while True:
            await asyncio.sleep(self._chance.expovariate(rate) * DAY)
            if self.loop.time() >= until:
                return
            await disturb(*of)

    async def _heat_waves(self, until: float) -> None:
        while True:
            await asyncio.sleep(self.size.heat_waves * DAY * self._chance.uniform(0.3, 1.0))
            if self.loop.time() >= until:
                return
            self.record.note(self.loop.time(), "a heat wave")
            self.record.counts["heat wave"] += 1
            for machine in self.cluster.machines.values():
                if self._chance.random() < 0.3:
                    self._begin(self.node_disturbances.fault(machine, only="hot", days=1.5))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._failure = task.exception()

    async def _hour(self) -> None:
        await asyncio.sleep(HOUR)
        self.process.check()
        if self._failure is not None:
            raise self._failure
        self.promises.check()
        self.cluster.objects[EVENTS].clear()  # they live for an hour
        for text in self.oracle.violations[self._violations_printed :]:
            self._say(f"\nVIOLATION {text}\n")
        self._violations_printed = len(self.oracle.violations)
        day, hour = divmod(round(self.loop.time() / HOUR), 24)
        if hour == 0:
            changes, tainted = sum(self.oracle.changed.values()), len(self.oracle.slots.tainted)
            self._say(
                f"day {day:3}: {self.cluster.pods_made:7,} runs, {changes:7,} changes, {tainted:3} tainted, "
                f"{len(self.oracle.violations)} violations, {self.seconds:4.0f} s"
            )

    async def _rest(self) -> None:
        """Let everything that goes on come to its end, heal nothing, disturb nothing."""
        if self.oracle.violations:
            return
        for _ in range(round(REST_DAYS * 24)):
            await self._hour()
        self.promises.check_at_rest()
        await self._hour()


def table(story: Story) -> str:
    size, record, oracle = story.size, story.record, story.oracle
    lines = [
        f"{size.nodes} nodes, {size.days:g} days, seed {size.seed}: {story.cluster.pods_made:,} runs, "
        f"{story.process.starts} starts of the operator, {sum(oracle.changed.values()):,} changes on nodes, "
        f"{len(oracle.violations)} violations, {story.seconds:.0f} s.",
        f"At most {oracle.most_gated} nodes were tainted at a time.",
        "",
        "| change | why | how often |",
        "|---|---|---|",
    ]
    lines += [f"| {what} | {why} | {count:,} |" for (what, why), count in sorted(oracle.changed.items())]
    lines += ["", "| what happened | how often |", "|---|---|"]
    lines += [f"| {what} | {count:,} |" for what, count in sorted(record.counts.items())]
    return "\n".join(lines)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=int, default=500, metavar="N", help="default: 500")
    parser.add_argument("--days", type=float, default=60.0, metavar="N", help="default: 60")
    parser.add_argument("--fast", type=int, metavar="N", help="read every hour; default: one in a hundred")
    parser.add_argument("--heat-waves", type=float, default=13.0, metavar="DAYS", help="apart; default: 13")
    parser.add_argument("--seed", type=int, help="repeats a life; default: a new one")


def run_scenario(chosen: argparse.Namespace) -> int:
    """0 when every change had a cause."""
    seed = chosen.seed if chosen.seed is not None else random.SystemRandom().randrange(100_000)
    size = Size(
        nodes=chosen.nodes,
        days=chosen.days,
        seed=seed,
        fast_nodes=chosen.fast or max(1, chosen.nodes // 100),
        heat_waves=chosen.heat_waves,
    )
    print(f"{size.nodes} nodes, {size.days:g} days, --seed {seed}", flush=True)
    story = live(size, say=lambda text: print(text, flush=True))
    print(f"\n{table(story)}")
    return 1 if story.oracle.violations else 0
