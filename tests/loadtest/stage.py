"""One size from an empty cluster to its figures, phase by phase, each announced by a line."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from loadtest import loops, objects
from loadtest.figures import Figures, Latency, Rate, Writes
from loadtest.measured import Defaults, Measured
from loadtest.pace import Pace
from loadtest.population import Population, gone, in_flight
from loadtest.writes import Record, Write, kinds
from nodegauge_contract import Result
from nodegauge_operator import names
from nodegauge_operator.api.policy import Policy
from nodegauge_operator.core.model import NodeView
from nodegauge_operator.kube import nodes as kube_nodes
from nodegauge_operator.kube.client import Client
from support.results import h100
from testbed.controlplane import ControlPlane
from testbed.controlplane_config import ADMIN
from testbed.errors import TestbedError
from testbed.scripted import ScriptedKubelet

Say = Callable[[str], None]

NAMESPACE = "nodegauge"
BARE_NODES = 500
"""Of the bare loops at most, before and after the operator: longer would not be truer."""
PACES = ((10, 100), (50, 500))
"""Results a second, and how many at most: 5,000 nodes every 15 minutes are 5.6 a second, 50 a roll-out."""
COUNTED_NODES = 20
IDLE_SECONDS = 10.0
START_SECONDS = 180.0
SETTLE_SECONDS = 120.0
SETTLE_SECONDS_PER_NODE = 0.2
"""The longest that a phase may take: ten times what an idle machine of two cores needs."""
WRITES_PER_FIRST_RUN = 5
"""Of the operator on a node whose report and finished pod are there: what the bare loops have to write."""


class Stage:
    """One control plane filled with `count` nodes."""

    def __init__(
        self, plane: ControlPlane, client: Client, *, count: int, defaults: Defaults, say: Say
    ) -> None:
        self._plane = plane
        self._client = client
        self._count = count
        self._defaults = defaults
        self._say = say
        self._population = Population(client)
        self._record = Record(plane.audit_log)
        self._operator = Measured(
            kubeconfig=plane.kubeconfig,
            namespace=NAMESPACE,
            directory=plane.directory / "operator",
            defaults=defaults,
        )

    async def run(self, crds: Sequence[str]) -> Figures:
        """All phases.  Raises `TestbedError` for the first thing that did not happen in its time."""
        policy = await self._population.install(crds)
        for namespace in (NAMESPACE, "bare"):
            await self._population.namespace(namespace)
        nodes, size = await self._fill()
        before = await self._bare(policy, nodes[:BARE_NODES], mark="before")
        await self._finish_first_runs(policy, nodes)
        try:
            start, rate, conflicts = await self._throughput(nodes)
            calm, busy = await self._latencies(nodes, policy)
            first, changed, unchanged = await self._writes()
            self._say(f"leaving the operator alone for {IDLE_SECONDS:.0f} s, then reading its memory")
            await asyncio.sleep(IDLE_SECONDS)
            steady, peak = self._operator.memory()
            self._operator.stop()
        finally:
            self._operator.kill()
        after = await self._bare(policy, nodes[:BARE_NODES], mark="after")
        return Figures(
            nodes=self._count,
            node_kilobytes=size / 1000,
            patches=before[0] + after[0],
            same_writes=before[1] + after[1],
            operator=rate,
            conflicts=conflicts,
            calm=calm,
            busy=busy,
            first=first,
            changed=changed,
            unchanged=unchanged,
            start=start,
            rss_steady_mib=steady,
            rss_peak_mib=peak,
        )

    async def _fill(self) -> tuple[list[NodeView], float]:
        self._say(f"creating {self._count:,} nodes")
        wanted = (f"gpu-{location:05d}" for location in range(self._count))
        nodes = await self._population.nodes(wanted, labels=objects.SELECTED)
        size = len(
            json.dumps(self._plane.rest().get(f"/api/v1/nodes/{nodes[0].name}"), separators=(",", ":"))
        )
        self._say(f"nodes are {size / 1000:.1f} KB each")
        return nodes, size

    async def _finish_first_runs(self, policy: Policy, nodes: Sequence[NodeView]) -> None:
        self._say("creating a report and a finished probe pod for each node")
        result = h100()
        await self._population.pods(
            nodes,
            policy=policy,
            namespace=NAMESPACE,
            status=lambda node, pod: objects.finished_status(node, result, pod=pod),
        )
        self._say("waiting until the controllers have done with them")
        await self._population.quiet()

    async def _bare(self, policy: Policy, nodes: Sequence[NodeView], *, mark: str) -> tuple[Rate, Rate]:
        """Both bare loops: patches alone, and the operator's kinds of writes."""
        workers = self._defaults.workers
        patches = await loops.patches(
            self._client, nodes, each=WRITES_PER_FIRST_RUN, at_a_time=workers, mark=mark
        )
        same = await loops.SameWrites(
            self._client, policy=policy, result=h100(), namespace="bare", at_a_time=workers
        ).run(nodes, mark=mark)
        self._say(
            f"bare loops ({mark} the operator) on {len(nodes):,} nodes: "
            f"{patches.writes_per_second:.0f} patches/s, {same.writes_per_second:.0f} same writes/s"
        )
        return patches, same

    async def _throughput(self, nodes: Sequence[NodeView]) -> tuple[float, Rate, int]:
        """Seconds to the first list; the rate from there; conflicts."""
        self._say(f"starting the operator: {self._count:,} results wait for it")
        self._record.mark()
        start, listed = await self._operator.start(within=START_SECONDS)
        cpu = self._operator.cpu()
        await self._wait_idle()
        cpu = self._operator.cpu() - cpu
        mine = [one for one in self._record.since_mark(ADMIN) if _of_validations(one)]
        labelled = {one.name for one in mine if one.kind == "patch nodes" and one.done}
        if labelled != {node.name for node in nodes}:
            raise TestbedError(f"the operator labelled {len(labelled)} of {len(nodes)} nodes")
        await self._check_labels(nodes[-1].name)
        rate = Rate(
            nodes=len(nodes),
            writes=sum(one.done for one in mine),
            seconds=max(one.at for one in mine) - listed,
            cpu=cpu,
        )
        self._say(
            f"listed after {start:.1f} s; {rate.nodes_per_second:.0f} nodes/s, "
            f"{rate.writes_per_second:.0f} writes/s, {rate.writes_per_node:.2f} writes a node"
        )
        return start, rate, sum(one.code == 409 for one in mine)

    async def _check_labels(self, name: str) -> None:
        node = await kube_nodes.get(self._client, name)
        if node.labels.get(names.LABEL_NVLINK_GBPS) != "450":
            raise TestbedError(f"node {name} carries other labels than its hardware demands: {node.labels}")

    async def _wait_idle(self) -> None:
        """Until the operator has dealt with all pods."""
        within = SETTLE_SECONDS + SETTLE_SECONDS_PER_NODE * self._count
        await gone(self._population, NAMESPACE, within=within, alive=self._operator.alive)
        await asyncio.sleep(0.5)  # the last lines of the audit log

    async def _latencies(self, nodes: Sequence[NodeView], policy: Policy) -> list[Latency]:
        pace = Pace(
            self._population,
            self._record,
            policy=policy,
            namespace=NAMESPACE,
            wait_idle=self._wait_idle,
        )
        match = []
        for rate, most in PACES:
            pods = await pace.prepare(nodes[:most])
            self._say(f"ending {len(pods)} probe pods, {rate} a second, with another machine each")
            latency = await pace.run(pods, rate=rate)
            self._say(f"p50 {latency.p50:.0f} ms, p99 {latency.p99:.0f} ms, worst {latency.worst:.0f} ms")
            match.append(latency)
        return match

    async def _writes(self) -> tuple[Writes, Writes, Writes]:
        """Whole validations on a few more nodes: the operator makes the pods, the scheduler places them."""
        self._say(f"counting writes on {COUNTED_NODES} nodes more: first, changed and unchanged run")
        wanted = [f"new-{location:02d}" for location in range(COUNTED_NODES)]
        user = yaml.safe_load(self._plane.kubelet_kubeconfig.read_text(encoding="utf-8"))["users"][0]["user"]
        api = self._plane.rest(user["token"])
        with ScriptedKubelet(api, namespace=NAMESPACE, answer=_answering(h100())) as kubelet:
            self._record.mark()
            await self._population.nodes(wanted, labels=objects.SELECTED)
            first = await self._counted(wanted, kubelet, run=1)
            kubelet.answer = _answering(objects.other_boards())
            changed = await self._counted(wanted, kubelet, run=2)
            unchanged = await self._counted(wanted, kubelet, run=3)
        return first, changed, unchanged

    async def _counted(self, wanted: Sequence[str], kubelet: ScriptedKubelet, *, run: int) -> Writes:
        if run > 1:
            self._record.mark()
            await in_flight(wanted, lambda name: self._ask(name, run), at_a_time=4)
        until = time.monotonic() + SETTLE_SECONDS
        while len(kubelet.ended) < run * len(wanted):
            self._operator.alive()
            if time.monotonic() > until:
                raise TestbedError(f"{len(kubelet.ended)} of {run * len(wanted)} runs ended")
            await asyncio.sleep(0.1)
        await self._wait_idle()
        mine = [one for one in self._record.since_mark(ADMIN) if _of_validations(one)]
        match = Writes(kinds=kinds(mine, per=len(wanted)))
        self._say(f"run {run}: {match.total:g} writes a node: {match}")
        return match

    async def _ask(self, name: str, run: int) -> None:
        path = f"{loops.REPORTS}/{name}"
        body = {"spec": {"requestedAt": f"2026-11-01T00:00:{run:02d}Z"}}
        await self._population.call("PATCH", path, body=body, content_type="application/merge-patch+json")


def _of_validations(write: Write) -> bool:
    """The status of the policy is counted once a second for all nodes together."""
    return not write.resource.startswith(names.POLICY_PLURAL)


def _answering(result: Result) -> Callable[[dict[str, Any]], str]:
    def answer(pod: dict[str, Any]) -> str:
        env = {one["name"]: one.get("value", "") for one in pod["spec"]["containers"][0]["env"]}
        return objects.message(result, run=env["NODEGAUGE_RUN"], node=env["NODEGAUGE_NODE"])

    return answer


def crds(folder: Path) -> list[str]:
    """The texts of the CRDs of this checkout."""
    return [file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.yaml"))]
