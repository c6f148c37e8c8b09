"""A while in which each node reports once an interval, nothing changes, and kubelets send heartbeats."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence

from fleet.load.figures import Steady
from fleet.load.kubelets import Kubelets
from fleet.load.measured import Measured
from fleet.load.population import Population
from fleet.load.writes import Record, by_whom, kinds
from nodegauge_contract import Result
from testbed.controlplane_config import ADMIN, KUBELET

HEARTBEAT_SECONDS = 300.0
"""A kubelet's nodeStatusReportFrequency: it writes the node's status as seldom as that if nothing changes."""


class SteadyState:
    """Of the nodes of one control plane."""

    def __init__(
        self, population: Population, kubelets: Kubelets, *, record: Record, operator: Measured
    ) -> None:
        self._population = population
        self._kubelets = kubelets
        self._record = record
        self._operator = operator

    async def run(
        self,
        every: Sequence[str],
        machines: Mapping[str, Result],
        *,
        times: Sequence[float],
        seconds: float,
        controllers: bool,
    ) -> Steady:
        """Reports at these times (seconds from now), each of a random node, whose machine has not changed.
        `controllers`: those of the cluster run, and their writes count."""
        chosen = random.Random(1).choices(every, k=len(times))
        messages = [self._kubelets.messages([node], machines[node])[node] for node in chosen]
        self._record.mark()
        began, cpu = time.monotonic(), self._operator.cpu()
        async with asyncio.TaskGroup() as group:
            beating = group.create_task(self._heartbeats(every))
            for at, node, message in zip(times, chosen, messages, strict=True):
                await asyncio.sleep(began + at - time.monotonic())
                group.create_task(self._kubelets.end(node, message))
            await asyncio.sleep(began + seconds - time.monotonic())
            beating.cancel()
        took, cpu = time.monotonic() - began, self._operator.cpu() - cpu
        writes = [
            one for one in self._record.since_mark() if one.kind != "patch nodes/status" or one.user == ADMIN
        ]
        counted = by_whom(writes, {KUBELET: "kubelets", ADMIN: "operator"}, others="controllers")
        if not controllers:
            del counted["controllers"]
        return Steady(
            seconds=took,
            reports=len(times) / took,
            writes={who: kinds(of, per=took) for who, of in counted.items()},
            cpu=cpu / took,
        )

    async def _heartbeats(self, every: Sequence[str]) -> None:
        """Until cancelled, as kubelets do."""
        began = time.monotonic()
        for beat in range(1_000_000):
            await asyncio.sleep(began + beat * HEARTBEAT_SECONDS / len(every) - time.monotonic())
            await self._population.heartbeat(every[beat % len(every)])
