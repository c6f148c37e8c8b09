"""`make day`: one day of a fleet in virtual time, by pods and by resident containers, side by side."""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from day.kubelet import WatchContainer
from life.hardware import FAULTS, KINDS, NO_FAULT, Machine
from nodegauge_operator import names
from nodegauge_operator.core.model import pod_view
from support.api_server import DAEMONSETS, NODES, Body
from support.cluster import FakeCluster
from support.objects import NOW, addressed
from support.virtual_operator import VirtualTimeOperator, play

HOUR = 3600.0
REPAIRED_AFTER = 2 * HOUR
FLEET = 5000
WRITES_OF_A_RUN, WRITES_OF_A_REPORT = 5, 4
"""Writes of others: the scheduler's binding, three statuses of the kubelet and its last delete for the pod
of a run; for a container that ends and runs again two statuses of the kubelet, and two of the DaemonSet's by
its controller (`make loadtest` counts them), and one more where the kubelet backs off."""
WHATEVER_THE_FLEET = ("leases", "daemonsets", "gpuvalidationpolicies/status")
"""What the operator writes as often for one node as for thousands."""
MODES = ("Periodic", "Watch")


@dataclass(kw_only=True)
class Day:
    """What happened: seconds from each fault to its taint, and what it cost."""

    taints: dict[str, list[float]] = field(default_factory=dict)
    missed: int = 0
    pods: int = 0
    reports: int = 0
    writes: Counter[str] = field(default_factory=Counter)
    others: int = 0
    at_first: Counter[str] = field(default_factory=Counter)
    others_at_first: int = 0
    """Of these writes, those of the first hour: a container that is new reports four times."""
    hours: float
    seconds: float = 0.0

    def writes_a_second(self, scale: float) -> float:
        """Everybody's, with `scale` times as many nodes."""
        return _writes(self.writes, self.others, scale) / (self.hours * HOUR)

    def later_writes_a_second(self, scale: float) -> str:
        """The same without the first hour, in words; `-` if that is all."""
        if self.hours <= 1:
            return "-"
        writes, others = self.writes - self.at_first, self.others - self.others_at_first
        return f"{_writes(writes, others, scale) / ((self.hours - 1) * HOUR):.1f}"


def _writes(writes: Counter[str], others: int, scale: float) -> float:
    fixed = sum(count for what, count in writes.items() if what.endswith(WHATEVER_THE_FLEET))
    return (sum(writes.values()) - fixed + others) * scale + fixed


class Fleet(FakeCluster):
    """Nodes with machines behind them."""

    machines: dict[str, Machine]

    def result(self, pod: Body) -> str:
        """What a health probe reads there now."""
        view = pod_view(pod)
        assert view is not None
        return addressed(self.machines[view.node].document(self.clock()), view)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A fault of one node, from when on."""

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
    """The day in this mode."""
    day, kinds = Day(hours=hours), list(KINDS)
    machines = {
        f"node-{n}": Machine(name=f"node-{n}", kind=kinds[n % len(kinds)], pool="") for n in range(nodes)
    }
    began = time.monotonic()

    async def story(operator: VirtualTimeOperator) -> None:
        cluster, loop, chance = operator.cluster, operator.loop, random.Random(seed)
        assert isinstance(cluster, Fleet)
        cluster.machines = machines
        waiting: dict[str, tuple[float, str]] = {}
        containers: dict[str, WatchContainer] = {}

        def seen(path: str, kind: str, body: Body) -> None:
            name = body["metadata"]["name"]
            if path != NODES or name not in waiting:
                return
            since, fault = waiting[name]
            taints = [t for t in body["spec"].get("taints") or () if t["key"] in names.TAINTS_OF_FAULTS]
            if any(taint["value"] == FAULTS[fault].cause for taint in taints):
                day.taints.setdefault(fault, []).append(loop.time() - since)
                del waiting[name]

        cluster.subscribers.append(seen)
        for name, machine in machines.items():
            cluster.add_node(name, boot=machine.boot_id)
        cluster.add_policy(
            probes={"health": {"mode": mode}, "load": {"enabled": False}, "nccl": {"enabled": False}},
            budget={"gatedNodes": "100%"},
        )
        operator.start()
        tasks = []
        if mode == "Watch":
            await operator.after(5.0)
            assert cluster.objects[DAEMONSETS], "the operator makes it at once"
            containers |= {
                name: WatchContainer(cluster, machine, chance=chance) for name, machine in machines.items()
            }
            tasks = [asyncio.create_task(container.live()) for container in containers.values()]

        def count() -> tuple[int, Counter[str], int]:
            """Pods of runs, the operator's writes, those of others."""
            day.reports = sum(container.reports for container in containers.values())
            backed_off = sum(container.backed_off for container in containers.values())
            runs = [name for name in cluster.created if not name.startswith("nodegauge-watch")]
            others = len(runs) * WRITES_OF_A_RUN + day.reports * WRITES_OF_A_REPORT + backed_off
            return len(runs), Counter(operator.client.log), others

        def count_first() -> None:
            _, day.at_first, day.others_at_first = count()

        loop.call_at(HOUR, count_first)
        shown = asyncio.create_task(_show(mode, hours, began))
        for at, node, fault in _moments(wanted):
            await asyncio.sleep(max(0.0, at - loop.time()))
            name = f"node-{node}"
            machines[name].fault = fault
            if fault:
                waiting[name] = (loop.time(), fault)
            if name in containers:
                containers[name].changed()
        await asyncio.sleep(max(0.0, hours * HOUR - loop.time()))
        await operator.after(0.0)
        for task in (*tasks, shown):
            task.cancel()
        day.missed = len(waiting)
        day.pods, day.writes, day.others = count()

    play(story, cluster=_cluster())
    day.seconds = time.monotonic() - began
    return day


async def _show(mode: str, hours: float, began: float) -> None:
    """A line for each twelfth of the time."""
    for part in range(1, 12):
        await asyncio.sleep(max(0.0, part * hours * HOUR / 12 - asyncio.get_running_loop().time()))
        print(
            f"mode {mode}: {part * hours / 12:g} of {hours:g} hours, {time.monotonic() - began:.0f} s",
            flush=True,
        )


def _cluster() -> Fleet:
    """Its clock is that of the loop that runs it."""
    return Fleet(lambda: NOW + asyncio.get_running_loop().time())


def _moments(wanted: list[Plan]) -> list[tuple[float, int, str]]:
    begin = [(plan.at, plan.node, plan.fault) for plan in wanted]
    return sorted([*begin, *((plan.at + REPAIRED_AFTER, plan.node, NO_FAULT) for plan in wanted)])


def table(days: dict[str, Day], *, nodes: int) -> str:
    """Both days, as Markdown."""
    scale = FLEET / nodes
    rows: list[tuple[str, list[str]]] = [
        ("hours lived", [f"{day.hours:g}" for day in days.values()]),
        ("pods of health runs", [f"{day.pods:,}" for day in days.values()]),
        (
            f"the same a day on {FLEET:,} nodes",
            [f"{day.pods * scale * 24 / day.hours:,.0f}" for day in days.values()],
        ),
        ("reports of containers", [f"{day.reports:,}" for day in days.values()]),
        ("writes of the operator", [f"{sum(day.writes.values()):,}" for day in days.values()]),
        ("writes of scheduler, kubelets and controllers", [f"{day.others:,}" for day in days.values()]),
        (
            f"all writes a second on {FLEET:,} nodes",
            [f"{day.writes_a_second(scale):.1f}" for day in days.values()],
        ),
        ("after the first hour", [day.later_writes_a_second(scale) for day in days.values()]),
    ]
    for fault, kind in FAULTS.items():
        times = [day.taints.get(fault, []) for day in days.values()]
        needs = "1 bad run" if kind.runs == 1 else f"{kind.runs} bad runs"
        if any(times):
            rows.append((f"{fault} ({needs}): median, worst", [_times(each) for each in times]))
    rows.append(("faults without a taint before their repair", [str(day.missed) for day in days.values()]))
    lines = [f"| | {' | '.join(days)} |", f"|---|{'---|' * len(days)}"]
    return "\n".join([*lines, *(f"| {what} | {' | '.join(cells)} |" for what, cells in rows)])


def _times(times: list[float]) -> str:
    return f"{statistics.median(times):,.0f} s, {max(times):,.0f} s (of {len(times)})" if times else "-"


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when every fault was tainted in both modes, 1 if not, 130 on Ctrl-C."""
    parser = argparse.ArgumentParser(prog="make day", description=__doc__)
    parser.add_argument("--nodes", type=int, default=100, metavar="N", help="default: 100")
    parser.add_argument("--hours", type=float, default=24.0, metavar="N", help="default: 24")
    parser.add_argument(
        "--periodic-hours", type=float, metavar="N", help="live only the first hours in mode Periodic"
    )
    parser.add_argument("--faults", type=int, default=28, metavar="N", help="default: 28")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="repeats a day; default: 1")
    options = parser.parse_args(arguments)
    wanted = plans(options.nodes, options.hours, options.faults, seed=options.seed)
    print(
        f"{options.nodes} nodes, {options.hours:g} hours, {len(wanted)} faults, --seed {options.seed}",
        flush=True,
    )
    days = {}
    try:
        for mode in MODES:
            hours = options.periodic_hours if mode == "Periodic" else None
            hours = min(hours or options.hours, options.hours)
            begun = [plan for plan in wanted if plan.at + REPAIRED_AFTER <= hours * HOUR]
            days[mode] = lived(mode, options.nodes, hours, begun, seed=options.seed)
            print(f"mode {mode}: {days[mode].seconds:.0f} s", flush=True)
    except KeyboardInterrupt:
        return 130
    print(f"\n{table(days, nodes=options.nodes)}")
    return 1 if any(day.missed for day in days.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
