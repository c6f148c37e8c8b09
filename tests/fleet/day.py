"""One day of a fleet in virtual time, by pods and by resident containers, side by side."""

import argparse
import asyncio
import random
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field

from fleet.machines import FAULTS, KINDS, NO_FAULT, Machine
from fleet.virtual import Fleet
from support.virtual_operator import VirtualTimeOperator, play

HOUR = 3600.0
REPAIRED_AFTER = 2 * HOUR
FLEET = 5000
WRITES_OF_A_RUN, WRITES_OF_A_REPORT = 6, 1
"""Writes of others: the scheduler's binding, three statuses of the kubelet, its last delete and the probe's
reading for the pod of a run; the reading of a container that stays."""
WHATEVER_THE_FLEET = ("leases", "daemonsets", "gpuvalidationpolicies/status")
"""What the operator writes as often for one node as for thousands."""
MODES = ("Periodic", "Watch")


@dataclass(frozen=True, kw_only=True)
class Counted:
    """So far: pods of runs, reports of containers, the operator's writes, those of others."""

    pods: int = 0
    reports: int = 0
    writes: Counter[str] = field(default_factory=Counter)
    others: int = 0

    def all_writes(self, scale: float) -> float:
        """Everybody's, with `scale` times as many nodes."""
        fixed = sum(count for what, count in self.writes.items() if what.endswith(WHATEVER_THE_FLEET))
        return (sum(self.writes.values()) - fixed + self.others) * scale + fixed


@dataclass(kw_only=True)
class Day:
    """Seconds from each fault to its taint, and the cost; `at_first`: that of the first hour."""

    hours: float
    taints: dict[str, list[float]] = field(default_factory=dict)
    missed: int = 0
    at_first: Counted = field(default_factory=Counted)
    counted: Counted = field(default_factory=Counted)
    seconds: float = 0.0

    def writes_a_second(self, scale: float) -> float:
        return self.counted.all_writes(scale) / (self.hours * HOUR)

    def later_writes_a_second(self, scale: float) -> str:
        """The same without the first hour, in words; `-` if that is all."""
        if self.hours <= 1:
            return "-"
        later = self.counted.all_writes(scale) - self.at_first.all_writes(scale)
        return f"{later / ((self.hours - 1) * HOUR):.1f}"


@dataclass(frozen=True, kw_only=True)
class Plan:
    at: float
    node: int
    fault: str


def plans(nodes: int, hours: float, faults: int, *, seed: int) -> list[Plan]:
    """Faults at random times on machines that can have them, one a node."""
    chance, kinds = random.Random(seed), list(KINDS)
    result = []
    for number, node in enumerate(chance.sample(range(nodes), faults)):
        possible = [f for f in FAULTS if f not in KINDS[kinds[node % len(kinds)]].immune]
        at = chance.uniform(HOUR, hours * HOUR - REPAIRED_AFTER - HOUR)
        result.append(Plan(at=at, node=node, fault=possible[number % len(possible)]))
    return sorted(result, key=lambda plan: plan.at)


def lived(mode: str, nodes: int, hours: float, wanted: list[Plan], *, seed: int) -> Day:
    day, kinds, fleet = Day(hours=hours), list(KINDS), Fleet()
    machines = [Machine(name=f"node-{n}", kind=kinds[n % len(kinds)], pool="") for n in range(nodes)]
    began = time.monotonic()

    def counted(operator: VirtualTimeOperator) -> Counted:
        containers = fleet.containers.values()
        reports = sum(container.written for container in containers)
        pods = sum(not name.startswith("nodegauge-watch") for name in fleet.created)
        others = pods * WRITES_OF_A_RUN + reports * WRITES_OF_A_REPORT
        return Counted(pods=pods, reports=reports, writes=Counter(operator.client.log), others=others)

    async def story(operator: VirtualTimeOperator) -> None:
        await fleet.begin(operator, machines, mode=mode, chance=random.Random(seed))
        operator.loop.call_at(HOUR, lambda: setattr(day, "at_first", counted(operator)))
        shown = asyncio.create_task(_show(mode, hours, began))
        for at, node, fault in _moments(wanted):
            await asyncio.sleep(max(0.0, at - operator.loop.time()))
            fleet.fault(f"node-{node}", fault)
        await operator.after(max(0.0, hours * HOUR - operator.loop.time()))
        shown.cancel()
        day.counted = counted(operator)

    play(story, cluster=fleet)
    for plan in wanted:
        at = _tainted_at(fleet, plan)
        if at is None:
            day.missed += 1
        else:
            day.taints.setdefault(plan.fault, []).append(at - plan.at)
    day.seconds = time.monotonic() - began
    return day


def _tainted_at(fleet: Fleet, plan: Plan) -> float | None:
    for at, name, taints in fleet.tainted:
        in_time = plan.at <= at < plan.at + REPAIRED_AFTER
        if in_time and name == f"node-{plan.node}" and FAULTS[plan.fault].taint in taints:
            return at
    return None


async def _show(mode: str, hours: float, began: float) -> None:
    for part in range(1, 12):
        await asyncio.sleep(max(0.0, part * hours * HOUR / 12 - asyncio.get_running_loop().time()))
        print(
            f"mode {mode}: {part * hours / 12:g} of {hours:g} hours, {time.monotonic() - began:.0f} s",
            flush=True,
        )


def _moments(wanted: list[Plan]) -> list[tuple[float, int, str]]:
    begin = [(plan.at, plan.node, plan.fault) for plan in wanted]
    return sorted([*begin, *((plan.at + REPAIRED_AFTER, plan.node, NO_FAULT) for plan in wanted)])


def table(days: dict[str, Day], *, nodes: int) -> str:
    scale, of_all = FLEET / nodes, list(days.values())
    rows: list[tuple[str, list[str]]] = [
        ("hours lived", [f"{day.hours:g}" for day in of_all]),
        ("pods of health runs", [f"{day.counted.pods:,}" for day in of_all]),
        (
            f"the same a day on {FLEET:,} nodes",
            [f"{day.counted.pods * scale * 24 / day.hours:,.0f}" for day in of_all],
        ),
        ("reports of containers", [f"{day.counted.reports:,}" for day in of_all]),
        ("writes of the operator", [f"{sum(day.counted.writes.values()):,}" for day in of_all]),
        ("writes of scheduler, kubelets and probes", [f"{day.counted.others:,}" for day in of_all]),
        (f"all writes a second on {FLEET:,} nodes", [f"{day.writes_a_second(scale):.1f}" for day in of_all]),
        ("after the first hour", [day.later_writes_a_second(scale) for day in of_all]),
    ]
    for fault, kind in FAULTS.items():
        times = [day.taints.get(fault, []) for day in of_all]
        needs = "1 bad run" if kind.runs == 1 else f"{kind.runs} bad runs"
        if any(times):
            rows.append((f"{fault} ({needs}): median, worst", [_times(each) for each in times]))
    rows.append(("faults without a taint before their repair", [str(day.missed) for day in of_all]))
    lines = [f"| | {' | '.join(days)} |", f"|---|{'---|' * len(days)}"]
    return "\n".join([*lines, *(f"| {what} | {' | '.join(cells)} |" for what, cells in rows)])


def _times(times: list[float]) -> str:
    return f"{statistics.median(times):,.0f} s, {max(times):,.0f} s (of {len(times)})" if times else "-"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=int, default=100, metavar="N", help="default: 100")
    parser.add_argument("--hours", type=float, default=24.0, metavar="N", help="default: 24")
    parser.add_argument("--faults", type=int, default=28, metavar="N", help="default: 28")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="repeats a day; default: 1")


def run_scenario(chosen: argparse.Namespace) -> int:
    wanted = plans(chosen.nodes, chosen.hours, chosen.faults, seed=chosen.seed)
    size = f"{chosen.nodes} nodes, {chosen.hours:g} hours, {len(wanted)} faults"
    print(f"{size}, --seed {chosen.seed}", flush=True)
    days = {}
    for mode in MODES:
        days[mode] = lived(mode, chosen.nodes, chosen.hours, wanted, seed=chosen.seed)
        print(f"mode {mode}: {days[mode].seconds:.0f} s", flush=True)
    print(f"\n{table(days, nodes=chosen.nodes)}")
    return 1 if any(day.missed for day in days.values()) else 0
