"""One size from an empty cluster to its figures, phase by phase, each announced by a line."""

import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import ClassVar

from fleet.load import objects, release
from fleet.load.figures import Record, Rows, Write, latencies, latency
from fleet.load.kubelets import Kubelets, ManyClients, in_flight
from fleet.load.measured import Cores, Measured, cpu_of, pin, relist
from fleet.load.release import NAMESPACE, OPERATOR, PROBES
from nodegauge_contract import Result
from nodegauge_contract.reading import Part
from nodegauge_operator import names
from nodegauge_operator.api.policy import Policy, parse
from nodegauge_operator.kube.client import MERGE
from support.cluster_under_test import GROUP
from testbed.controlplane import APISERVER, ControlPlane
from testbed.controlplane_config import KUBELET
from testbed.errors import TestbedError

Say = Callable[[str], None]

CONTROLLERS = "kube-controller-manager"
BATCH = 500
RATE, ROLL_OUT_RATE = 50.0, 100.0
"""Results a second: as many as a fleet of 5,000 brings in an incident; and of a roll-out, whose pods come as
fast as the scheduler places them."""
RACK = 72
BARE_WRITES, AT_A_TIME = 500, 8
STEADY_SECONDS = 120.0
HEARTBEAT_SECONDS = 300.0
"""A kubelet's nodeStatusReportFrequency: it writes the node's status as seldom as that if nothing changes."""
IDLE_SECONDS = 10.0
START_SECONDS, START_SECONDS_PER_NODE = 300.0, 0.03
SETTLE_SECONDS, SETTLE_SECONDS_PER_NODE = 120.0, 0.2
"""The longest that a phase may take: ten times what an idle machine of two cores needs."""
QUIET_SECONDS = 1.0
"""Without a write of the operator for so long, it has done with the results."""
REPORT_STATUS = f"patch {names.REPORT_PLURAL}/status"
READING = f"patch {names.READING_PLURAL}"
WHO = {KUBELET: "kubelets", PROBES: "probes", OPERATOR: "operator"}


class Stage:
    environment: ClassVar[Mapping[str, str]] = {}
    """Of the operator, beside what the chart gives it."""
    settings: ClassVar[Mapping[str, object]] = {}
    """Of the policy's spec."""

    def __init__(
        self, plane: ControlPlane, client: ManyClients, *, count: int, cores: Cores, limited: bool, say: Say
    ) -> None:
        self._plane, self._client, self._cores, self._say = plane, client, cores, say
        self._nodes = [f"gpu-{number:05d}" for number in range(count)]
        self._within = SETTLE_SECONDS + SETTLE_SECONDS_PER_NODE * count
        self._kubelets = Kubelets(client)
        self._record = Record(plane.audit_log)
        self._rows: Rows = {}
        self._machines: dict[str, Result] = {}
        self._limited = limited
        self._operator: Measured

    async def run(self) -> Rows:
        policy = await asyncio.to_thread(self._install)
        few = self._nodes[:BATCH]
        self._say("creating nodes")
        await self._kubelets.register(self._nodes)
        body = json.dumps(self._plane.rest().get(f"/api/v1/nodes/{self._nodes[-1]}"), separators=(",", ":"))
        self._show({"Size of a node, KB": f"{len(body) / 1000:.1f}"})
        await self._bare("before")
        try:
            await self._roll_out()
            await self._restart()
            with self._alone():
                await self._batch("another machine, 8 GPUs", few, objects.other_boards())
                self._show(latency(self._milliseconds(), of="Reading written to node labelled, 50 results/s"))
                await self._batch("the same, 8 GPUs", few, objects.other_boards())
                await self._rack(self._nodes[-RACK:])
                await self._batch("another machine, 16 GPUs", few, objects.dgx2())
                await self._batch("the same, 16 GPUs", few, objects.dgx2())
            await self._steady(interval=policy.interval_of(names.PROBE_HEALTH))
            await asyncio.sleep(IDLE_SECONDS)
            memory, peak = self._operator.memory()
            of = "Memory of the operator (RSS)"
            self._show({f"{of}, idle, MiB": f"{memory:.0f}", f"{of}, highest, MiB": f"{peak:.0f}"})
            self._operator.finish()
        finally:
            self._operator.kill()
        listed, cpu = await relist(self._plane, self._client, namespace=NAMESPACE)
        self._say(f"bytes of a full list: {listed}")
        megabytes = sum(listed.values()) / 1e6
        self._show({"Full list: MB": f"{megabytes:.1f}", "Full list: CPU, s": f"{cpu:.2f}"})
        await self._bare("after")
        return self._rows

    def _show(self, rows: Rows) -> None:
        self._rows |= rows
        for label, value in rows.items():
            self._say(f"{label}: {value}")

    def _install(self) -> Policy:
        """The release with its admission policies, an operator under its account, and the policy."""
        for pid in self._server_pids():
            pin(pid, self._cores.server)
        environment = {**release.install(self._plane), **release.LOCAL, **self.environment}
        self._operator = Measured(
            kubeconfig=release.kubeconfig(self._plane),
            namespace=NAMESPACE,
            directory=self._plane.directory / "operator",
            environment=environment if self._limited else environment | release.WITHOUT_LIMIT,
        )
        return parse(
            self._plane.rest().create(
                f"{GROUP}/{names.POLICY_PLURAL}", objects.policy_body(dict(self.settings))
            )
        )

    def _alone(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext() if self._cores.enough else self._plane.frozen(CONTROLLERS)

    async def _bare(self, when: str) -> None:
        """What a write costs the operator's own client, in a loop that decides nothing."""

        async def write(number: int) -> None:
            body = {"metadata": {"labels": {"load.example/bare": f"{when}-{number}"}}}
            path = f"/api/v1/nodes/{self._nodes[number % len(self._nodes)]}"
            await self._client.call("PATCH", path, body=body, content_type=MERGE)

        started, cpu = time.monotonic(), time.process_time()
        await in_flight(range(BARE_WRITES), write, at_a_time=AT_A_TIME)
        seconds, cpu = time.monotonic() - started, time.process_time() - cpu
        of = f"Bare loop {when} the operator"
        rate, cost = BARE_WRITES / seconds, 1000 * cpu / BARE_WRITES
        self._show({f"{of}: writes/s": f"{rate:.0f}", f"{of}: CPU of a write, ms": f"{cost:.2f}"})

    async def _roll_out(self) -> None:
        """The operator makes its DaemonSet, the cluster its pods, and each probe writes its first part."""
        self._say("starting the operator, and waiting for the pods of its DaemonSet")
        await self._operator.begin(self._cores.operator, within=START_SECONDS)
        await self._kubelets.run_containers(
            count=len(self._nodes), within=self._within, alive=self._operator.alive
        )
        await self._kubelets.quiet()
        with self._alone():
            seconds = await self._batch("a first result", self._nodes, objects.h100(), rate=ROLL_OUT_RATE)
        self._show({"Roll-out: results/s": f"{len(self._nodes) / seconds:.0f}"})
        labels = self._plane.rest().get(f"/api/v1/nodes/{self._nodes[-1]}")["metadata"]["labels"]
        if labels.get("nodegauge.dev/nvlink-gbps") != "450":
            raise TestbedError(f"node {self._nodes[-1]} has other labels than its hardware demands: {labels}")

    async def _restart(self) -> None:
        """A new start of the operator, on the fleet at work."""
        await self._kubelets.quiet()
        self._operator.finish()
        within = START_SECONDS + START_SECONDS_PER_NODE * len(self._nodes)
        listed = await self._operator.begin(self._cores.operator, within=within)
        cpu = self._operator.cpu()
        await self._operator.calm()
        of = "Operator started to first full list"
        calm = {"Start: CPU until it has nothing to do, s": f"{self._operator.cpu():.1f}"}
        self._show({f"{of}, s": f"{listed:.1f}", f"{of}: CPU, s": f"{cpu:.1f}", **calm})
        await self._kubelets.quiet()

    async def _batch(self, what: str, nodes: Sequence[str], machine: Result, *, rate: float = RATE) -> float:
        """The seconds that it took."""
        parts = self._kubelets.parts(nodes, machine)
        self._say(f"writing {len(nodes):,} readings, {rate:.0f} a second: {what}")
        self._record.mark()
        began, cpu, server = time.monotonic(), self._operator.cpu(), cpu_of(*self._server_pids())
        await self._kubelets.write_at((n / rate, *pair) for n, pair in enumerate(parts.items()))
        await self._judged(nodes, machine)
        counted = {who: kinds.total() / len(nodes) for who, kinds in _by_whom(self._ours()).items()}
        seconds, each = time.monotonic() - began - QUIET_SECONDS, 1000 / len(nodes)
        cpu, server = self._operator.cpu() - cpu, cpu_of(*self._server_pids()) - server
        self._show(
            {
                f"CPU of a result, ms: {what}": f"{cpu * each:.1f}",
                "  of API server and etcd for it: " + what: f"{server * each:.1f}",
                "  writes of the operator for it: " + what: f"{counted['operator']:.2f}",
                "  writes of everybody for it: " + what: f"{sum(counted.values()):.2f}",
            }
        )
        return seconds

    def _server_pids(self) -> list[int]:
        return [self._plane.pid(program) for program in (APISERVER, "etcd")]

    async def _rack(self, nodes: Sequence[str]) -> None:
        """All probes of a rack write at once, each of another machine."""
        last = self._machines[nodes[0]]
        machine = objects.h100() if last is not objects.h100() else objects.other_boards()
        parts = self._kubelets.parts(nodes, machine)
        self._record.mark()
        await self._kubelets.write_at((0.0, *pair) for pair in parts.items())
        await self._judged(nodes, machine)
        self._show(latency(self._milliseconds(), of="A rack at once"))

    def _milliseconds(self) -> list[float]:
        written = [one for one in self._of(PROBES) if one.kind == READING]
        labelled = [one for one in self._of(OPERATOR) if one.kind == "patch nodes"]
        return list(latencies(written, labelled).values())

    async def _steady(self, *, interval: float) -> None:
        """Each node reports once an interval, at random moments, and its machine does not change."""
        chance, times = random.Random(1), [0.0]
        while times[-1] < STEADY_SECONDS:
            times.append(times[-1] + chance.expovariate(len(self._nodes) / interval))
        picked = [(at, chance.choice(self._nodes)) for at in times[1:-1]]
        parts = [(at, *self._part(node)) for at, node in picked]
        await self._kubelets.quiet()
        self._say(
            f"steady state for {STEADY_SECONDS:.0f} s: {len(parts)} reports, one per node in {interval:g} s"
        )
        self._record.mark()
        began, cpu = time.monotonic(), self._operator.cpu()
        beating = asyncio.create_task(self._kubelets.beat(self._nodes, interval=HEARTBEAT_SECONDS))
        await self._kubelets.write_at(parts)
        await asyncio.sleep(began + STEADY_SECONDS - time.monotonic())
        beating.cancel()
        took, cpu = time.monotonic() - began, self._operator.cpu() - cpu
        counted = _by_whom(self._record.since_mark())
        for who, kinds in counted.items():
            self._say(f"writes of {who}: {dict(kinds.most_common())}")
        rates = {who: kinds.total() / took for who, kinds in counted.items()}
        own = {f"  {who}": f"{rate:.2f}" for who, rate in rates.items()}
        self._show({"Steady state, writes/s of everybody": f"{sum(rates.values()):.2f}", **own})
        share = f"{100 * cpu / took:.1f}"
        self._show({"  reports/s": f"{len(parts) / took:.2f}", "  CPU of the operator, % of a core": share})

    def _part(self, node: str) -> tuple[str, Part]:
        [pair] = self._kubelets.parts([node], self._machines[node]).items()
        return pair

    async def _judged(self, nodes: Sequence[str], machine: Result) -> None:
        changed = {node for node in nodes if self._machines.get(node) is not machine}
        until, wanted, last, seen = time.monotonic() + self._within, set(nodes), time.monotonic(), -1
        while True:
            mine = self._of(OPERATOR)
            judged = {one.name for one in mine if one.kind == REPORT_STATUS and one.done}
            labelled = {one.name for one in mine if one.kind == "patch nodes" and one.done}
            if len(mine) != seen:
                last, seen = time.monotonic(), len(mine)
            if wanted <= judged and changed <= labelled and time.monotonic() - last >= QUIET_SECONDS:
                break
            self._operator.alive()
            if time.monotonic() > until:
                raise TestbedError(
                    f"{len(wanted & judged)} of {len(wanted)} results were judged, "
                    f"{len(changed & labelled)} of {len(changed)} nodes labelled"
                )
            await asyncio.sleep(0.1)
        self._machines.update(dict.fromkeys(nodes, machine))

    def _of(self, user: str) -> list[Write]:
        return [one for one in self._ours() if one.user == user]

    def _ours(self) -> list[Write]:
        """Writes since the mark, without those of the policy's status: one a second for all nodes."""
        return [one for one in self._record.since_mark() if names.POLICY_PLURAL not in one.kind]


def _by_whom(writes: Iterable[Write]) -> dict[str, Counter[str]]:
    """Accepted writes by who made them and by kind, without the heartbeats of nodes."""
    result: dict[str, Counter[str]] = {who: Counter() for who in (*WHO.values(), "controllers")}
    for one in writes:
        if one.done and (one.user == OPERATOR or one.kind != "patch nodes/status"):
            result[WHO.get(one.user, "controllers")][one.kind] += 1
    return result
