"""From a finished probe pod to its node's labels, with results that arrive at a fixed rate.

An open loop: results arrive whether or not the operator keeps up, as they would from a fleet.  Every result
is of another machine than the one before, so that the labels change.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from loadtest import objects
from loadtest.figures import Latency, latency_of
from loadtest.population import Population
from loadtest.writes import Record, latencies
from nodegauge_contract import Result
from nodegauge_operator.api.policy import Policy
from nodegauge_operator.core.model import NodeView
from support.results import h100
from testbed.controlplane_config import ADMIN, KUBELET
from testbed.errors import TestbedError
from testbed.scripted import stamp


class Pace:
    """Ends one run after another on nodes whose first run, of an H100, is over.

    `wait_idle` waits until the operator has dealt with all pods.
    """

    def __init__(
        self,
        population: Population,
        record: Record,
        *,
        policy: Policy,
        namespace: str,
        wait_idle: Callable[[], Awaitable[None]],
    ) -> None:
        self._population = population
        self._record = record
        self._policy = policy
        self._namespace = namespace
        self._wait_idle = wait_idle
        self._runs: dict[str, int] = {}

    async def prepare(self, nodes: Sequence[NodeView]) -> dict[str, NodeView]:
        """The pods of the next run on each of these nodes, running; from pod to node."""
        for node in nodes:
            self._runs[node.name] = self._runs.get(node.name, 1) + 1
        at = stamp()
        pods = await self._population.pods(
            nodes,
            policy=self._policy,
            namespace=self._namespace,
            status=lambda *_: objects.running_status(at),
        )
        await self._population.quiet()
        return pods

    async def run(self, pods: dict[str, NodeView], *, rate: float) -> Latency:
        """End the pods, `rate` a second.  `TestbedError` when a node did not get its new labels."""
        self._record.mark()
        offered = await self._end_all(pods, rate=rate)
        await self._wait_idle()
        writes = self._record.since_mark(ADMIN, KUBELET)
        result = latencies(
            [one for one in writes if one.user == KUBELET and one.kind == "patch pods/status"],
            [one for one in writes if one.user == ADMIN and one.kind == "patch nodes"],
            node_of={pod: node.name for pod, node in pods.items()},
        )
        if len(result) != len(pods):
            raise TestbedError(f"{len(result)} of {len(pods)} nodes got new labels")
        return latency_of(list(result.values()), rate=offered)

    async def _end_all(self, pods: dict[str, NodeView], *, rate: float) -> float:
        """End one pod after another; the rate that was reached."""
        started = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for location, (pod, node) in enumerate(pods.items()):
                await asyncio.sleep(started + location / rate - time.monotonic())
                group.create_task(self._end(pod, node))
            seconds = time.monotonic() - started
        return len(pods) / seconds

    async def _end(self, pod: str, node: NodeView) -> None:
        number = self._runs[node.name]
        status = objects.finished_status(node, machine(number), pod=pod)
        await self._population.set_status(pod, namespace=self._namespace, status=status)


def machine(number: int) -> Result:
    """What the run of that number measures: by turns an H100 and a DGX-1."""
    return h100() if number % 2 else objects.other_boards()
