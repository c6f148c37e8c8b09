"""One size from an empty cluster to its figures, phase by phase, each announced by a line."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from fleet.load import loops, objects
from fleet.load.figures import CHANGED, SAME, SAME_16, Cost, Figures, Latency, Start, Steady, latency_of
from fleet.load.kubelets import Kubelets
from fleet.load.measured import Defaults, Measured, Options, cpu_of, pin
from fleet.load.population import Population, in_flight
from fleet.load.writes import Record, Write, by_whom, kinds, latencies
from nodegauge_contract import Result
from nodegauge_operator import names
from nodegauge_operator.api.policy import Policy, parse
from nodegauge_operator.core.model import NodeView
from nodegauge_operator.kube import nodes as kube_nodes
from nodegauge_operator.kube.client import Client
from support.cluster_under_test import GROUP, install_crds
from testbed.controlplane import APISERVER, ControlPlane
from testbed.controlplane_config import ADMIN, KUBELET
from testbed.errors import TestbedError

Say = Callable[[str], None]

NAMESPACE = "nodegauge"
CONTROLLERS = "kube-controller-manager"
BARE_NODES = 50
"""Of the bare loop at most, before and after the operator: longer would not be truer."""
BATCH = 500
"""Results of a phase at most."""
RATE, ROLL_OUT_RATE = 50.0, 100.0
"""Results a second: as many as a fleet of 5,000 brings in an incident; and of a roll-out, whose pods come as
fast as the scheduler places them."""
RACK = 72
RUNS = 100
"""Pods of single runs."""
STEADY_SECONDS = 120.0
HEARTBEAT_SECONDS = 300.0
"""A kubelet's nodeStatusReportFrequency: it writes the node's status as seldom as that if nothing changes."""
IDLE_SECONDS = 10.0
START_SECONDS, START_SECONDS_PER_NODE = 300.0, 0.03
SETTLE_SECONDS = 120.0
SETTLE_SECONDS_PER_NODE = 0.2
"""The longest that a phase may take: ten times what an idle machine of two cores needs."""
QUIET_SECONDS = 1.0
"""Without a write of the operator for so long, it has done with the results."""
OF_NODES = ("nodes", "pods", names.REPORT_PLURAL, names.EVIDENCE_PLURAL)
"""Resources that a restart of the operator has nothing to write to."""
REPORT_STATUS = f"patch {names.REPORT_PLURAL}/status"


class Stage:
    """One control plane filled with `count` nodes."""

    def __init__(
        self,
        plane: ControlPlane,
        client: Client,
        *,
        count: int,
        defaults: Defaults,
        options: Options,
        say: Say,
    ) -> None:
        self._plane = plane
        self._client = client
        self._count = count
        self._defaults = defaults
        self._cores = options.cores
        self._say = say
        self._population = Population(client)
        self._kubelets = Kubelets(self._population, NAMESPACE)
        self._record = Record(plane.audit_log)
        self._machines: dict[str, Result] = {}
        """What each node's container reported last."""
        self._operator = Measured(
            kubeconfig=plane.kubeconfig,
            namespace=NAMESPACE,
            directory=plane.directory / "operator",
            defaults=defaults,
            options=options,
        )

    async def run(self) -> Figures:
        """All phases.  Raises `TestbedError` for the first thing that did not happen in its time."""
        for pid in self._server_pids():
            pin(pid, self._cores.server)
        policy = await asyncio.to_thread(self._install)
        every = [f"gpu-{number:05d}" for number in range(self._count)]
        few = every[:BATCH]
        nodes, size = await self._fill(every)
        bare = await self._bare(policy, nodes, mark="before")
        try:
            roll_out = await self._roll_out([node.name for node in nodes])
            start = await self._restart()
            watch, pods = {}, {}
            with self._alone():
                watch[CHANGED], paced = await self._batch(few, objects.other_boards(), rate=RATE)
                watch[SAME], _ = await self._batch(few, objects.other_boards(), rate=RATE)
                rack = await self._rack(every[-RACK:])
            assert paced is not None, "another machine than in the roll-out"
            pods[SAME] = await self._runs(every[-RUNS:])
            with self._alone():
                await self._batch(few, objects.dgx2(), rate=RATE)
                watch[SAME_16], _ = await self._batch(few, objects.dgx2(), rate=RATE)
            pods[SAME_16] = await self._runs(few[:RUNS], request="2")
            steady = await self._steady(every, interval=policy.interval_of(names.PROBE_HEALTH))
            self._say(f"leaving the operator alone for {IDLE_SECONDS:.0f} s, then reading its memory")
            await asyncio.sleep(IDLE_SECONDS)
            memory, peak = self._operator.memory()
            self._say(f"{memory:.0f} MiB, at most {peak:.0f} MiB since the restart")
            self._operator.stop()
        finally:
            self._operator.kill()
        listed = await loops.relist(self._plane, namespace=NAMESPACE)
        self._say(f"a full list: {listed}")
        after = await self._bare(policy, nodes, mark="after")
        return Figures(
            nodes=self._count,
            node_kilobytes=size / 1000,
            bare={what: bare[what] + after[what] for what in bare},
            roll_out=roll_out,
            watch=watch,
            pods=pods,
            paced=paced,
            rack=rack,
            steady=steady,
            relist=listed,
            start=start,
            rss_steady_mib=memory,
            rss_peak_mib=peak,
        )

    def _install(self) -> Policy:
        """The CRDs, a namespace that pods can be made in, and the policy."""
        api = self._plane.rest()
        install_crds(api)
        api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        self._plane.await_objects(namespace=NAMESPACE)
        return parse(api.create(f"{GROUP}/{names.POLICY_PLURAL}", objects.policy_body()))

    def _alone(self) -> AbstractContextManager[None]:
        """Without kube-controller-manager where it has no core: it looks at each watch pod at each change."""
        return contextlib.nullcontext() if self._cores.enough else self._plane.frozen(CONTROLLERS)

    async def _fill(self, wanted: Sequence[str]) -> tuple[list[NodeView], float]:
        self._say(f"creating {len(wanted):,} nodes")
        nodes = await self._population.nodes(wanted, labels=objects.SELECTED)
        size = len(
            json.dumps(self._plane.rest().get(f"/api/v1/nodes/{nodes[0].name}"), separators=(",", ":"))
        )
        self._say(f"nodes are {size / 1000:.1f} KB each")
        return nodes, size

    async def _bare(self, policy: Policy, nodes: Sequence[NodeView], *, mark: str) -> dict[str, Cost]:
        loop = loops.BareLoop(self._client, policy=policy, at_a_time=self._defaults.workers)
        result = await loop.run(nodes[:BARE_NODES], mark=mark)
        self._say(
            f"bare loop ({mark} the operator): "
            + "; ".join(
                f"{what}: {cost.writes_per_second:.0f} writes/s, {cost.milliseconds:.1f} ms CPU a result"
                for what, cost in result.items()
            )
        )
        return result

    async def _roll_out(self, every: Sequence[str]) -> Cost:
        """The operator makes its DaemonSet, the cluster its pods, and each container reports for the first
        time."""
        self._say("starting the operator, and waiting for the pods of its DaemonSet")
        await self._operator.start(within=START_SECONDS)
        await self._kubelets.run_containers(
            count=len(every), within=self._within(), alive=self._operator.alive
        )
        await self._population.quiet()
        self._say(f"{len(every):,} watch containers run; each reports for the first time")
        with self._alone():
            cost, _ = await self._batch(every, objects.h100(), rate=ROLL_OUT_RATE)
        node = await kube_nodes.get(self._client, every[-1])
        if node.labels.get(names.LABEL_NVLINK_GBPS) != "450":
            raise TestbedError(f"node {every[-1]} has other labels than its hardware demands: {node.labels}")
        return cost

    async def _restart(self) -> Start:
        """A new start of the operator, on the fleet at work."""
        await self._population.quiet()
        self._operator.stop()
        self._record.mark()
        within = START_SECONDS + START_SECONDS_PER_NODE * self._count
        listed, _ = await self._operator.start(within=within)
        cpu = self._operator.cpu()
        self._say(f"restarted: listed after {listed:.1f} s, with {cpu:.1f} s of CPU time")
        calm, calm_cpu = await self._operator.calm()
        writes = kinds((one for one in self._of(ADMIN) if one.resource.startswith(OF_NODES)), per=1)
        self._say(f"idle after {calm:.1f} s and {calm_cpu:.1f} s more; writes of nodes meanwhile: {writes}")
        await self._population.quiet()
        return Start(listed=listed, cpu=cpu, calm=calm, calm_cpu=calm_cpu)

    async def _batch(
        self, nodes: Sequence[str], machine: Result, *, rate: float
    ) -> tuple[Cost, Latency | None]:
        """End the containers of these nodes with a result of this machine; latency if it is another one."""
        changed = {node for node in nodes if self._machines.get(node) is not machine}
        messages = self._kubelets.messages(nodes, machine)
        what = "another machine" if changed else "the same machine"
        self._say(f"ending {len(nodes):,} containers, {rate:.0f} a second, with {what} each")
        self._record.mark()
        cost_of = self._meter()
        offered = await self._kubelets.at_rate(messages, rate=rate)
        await self._judged(nodes, changed)
        cost = cost_of(len(nodes))
        self._machines.update(dict.fromkeys(nodes, machine))
        latency = self._latency() if changed else None
        self._say(
            f"{offered:.0f} results/s offered; {cost.milliseconds:.1f} ms CPU and "
            f"{cost.writes_per_result:.2f} writes a result{f'; {latency}' if latency else ''}"
        )
        return cost, latency

    def _meter(self) -> Callable[[int], Cost]:
        """What so many results cost from now until it is called, less the wait that ends a phase."""
        began, cpu, server = time.monotonic(), self._operator.cpu(), cpu_of(*self._server_pids())

        def cost(results: int) -> Cost:
            return Cost(
                results=results,
                writes=sum(one.done for one in self._of(ADMIN)),
                seconds=time.monotonic() - began - QUIET_SECONDS,
                cpu=self._operator.cpu() - cpu,
                server=cpu_of(*self._server_pids()) - server,
            )

        return cost

    def _server_pids(self) -> list[int]:
        return [self._plane.pid(program) for program in (APISERVER, "etcd")]

    async def _rack(self, nodes: Sequence[str]) -> Latency:
        """All containers of a rack end at once, with another machine each."""
        last = self._machines[nodes[0]]
        machine = objects.h100() if last is not objects.h100() else objects.other_boards()
        messages = self._kubelets.messages(nodes, machine)
        self._record.mark()
        await self._kubelets.at_rate(messages, rate=float("inf"))
        await self._judged(nodes, set(nodes))
        self._machines.update(dict.fromkeys(nodes, machine))
        latency = self._latency()
        self._say(f"a rack of {len(nodes)} nodes at once: {latency}")
        return latency

    def _latency(self) -> Latency:
        ended = [one for one in self._of(KUBELET) if one.kind == "patch pods/status"]
        labelled = [one for one in self._of(ADMIN) if one.kind == "patch nodes"]
        return latency_of(list(latencies(ended, labelled, node_of=self._kubelets.pods_of()).values()))

    async def _runs(self, nodes: Sequence[str], *, request: str = "1") -> Cost:
        """A pod for each of these nodes, as in mode Periodic, that finds the machine that is known."""
        self._say(f"asking for a run on {len(nodes)} nodes: a pod each")
        await self._population.quiet()
        self._record.mark()
        cost_of = self._meter()
        machines = {node: self._machines[node] for node in nodes}
        serving = asyncio.create_task(self._kubelets.serve_runs(machines))
        try:
            await in_flight(nodes, lambda name: self._ask(name, request), at_a_time=4)
            await self._judged(nodes, set())
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
        cost = cost_of(len(nodes))
        self._say(f"{cost.milliseconds:.1f} ms CPU and {cost.writes_per_result:.2f} writes a result")
        return cost

    async def _ask(self, name: str, request: str) -> None:
        body = {"spec": {"requestedAt": f"2026-11-01T00:00:0{request}Z"}}
        path = f"{loops.REPORTS}/{name}"
        await self._population.call("PATCH", path, body=body, content_type="application/merge-patch+json")

    async def _steady(self, every: Sequence[str], *, interval: float) -> Steady:
        """Each node reports once an interval, at random moments, and its machine does not change."""
        chance, times = random.Random(1), [0.0]
        while times[-1] < STEADY_SECONDS:
            times.append(times[-1] + chance.expovariate(self._count / interval))
        ends = [(at, chance.choice(every)) for at in times[1:-1]]
        messages = [self._kubelets.messages([node], self._machines[node])[node] for _, node in ends]
        await self._population.quiet()
        self._say(
            f"steady state for {STEADY_SECONDS:.0f} s: {len(ends)} reports, one per node in {interval:g} s"
        )
        self._record.mark()
        began, cpu = time.monotonic(), self._operator.cpu()
        async with asyncio.TaskGroup() as group:
            beating = group.create_task(self._heartbeats(every))
            for (at, node), message in zip(ends, messages, strict=True):
                await asyncio.sleep(began + at - time.monotonic())
                group.create_task(self._kubelets.end(node, message))
            await asyncio.sleep(began + STEADY_SECONDS - time.monotonic())
            beating.cancel()
        took, cpu = time.monotonic() - began, self._operator.cpu() - cpu
        writes = [w for w in self._record.since_mark() if w.kind != "patch nodes/status" or w.user == ADMIN]
        counted = by_whom(writes, {KUBELET: "kubelets", ADMIN: "operator"}, others="controllers")
        each = {who: kinds(of, per=took) for who, of in counted.items()}
        steady = Steady(seconds=took, reports=len(ends) / took, writes=each, cpu=cpu / took)
        self._say(f"{steady.total:.2f} writes a second, {100 * steady.cpu:.1f} % of a core: {steady}")
        return steady

    async def _heartbeats(self, every: Sequence[str]) -> None:
        """Until cancelled, as kubelets do."""
        began = time.monotonic()
        for beat in range(1_000_000):
            await asyncio.sleep(began + beat * HEARTBEAT_SECONDS / len(every) - time.monotonic())
            await self._population.heartbeat(every[beat % len(every)])

    async def _judged(self, nodes: Sequence[str], changed: set[str]) -> None:
        """Until the operator has judged a result of each of these nodes, and has nothing left to write."""
        until, wanted, last, seen = time.monotonic() + self._within(), set(nodes), time.monotonic(), -1
        while True:
            mine = self._of(ADMIN)
            judged = {one.name for one in mine if one.kind == REPORT_STATUS and one.done}
            labelled = {one.name for one in mine if one.kind == "patch nodes" and one.done}
            if len(mine) != seen:
                last, seen = time.monotonic(), len(mine)
            if wanted <= judged and changed <= labelled and time.monotonic() - last >= QUIET_SECONDS:
                return
            self._operator.alive()
            if time.monotonic() > until:
                raise TestbedError(
                    f"{len(wanted & judged)} of {len(wanted)} results were judged, "
                    f"{len(changed & labelled)} of {len(changed)} nodes labelled"
                )
            await asyncio.sleep(0.1)

    def _of(self, user: str) -> list[Write]:
        """Its writes since the mark, without those of the policy's status: one a second for all nodes."""
        policies = names.POLICY_PLURAL
        writes = self._record.since_mark()
        return [one for one in writes if one.user == user and not one.resource.startswith(policies)]

    def _within(self) -> float:
        return SETTLE_SECONDS + SETTLE_SECONDS_PER_NODE * self._count
