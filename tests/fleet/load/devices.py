"""GPUs that come by DRA: how long it takes from a finding about one GPU to its DeviceTaintRule."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from fleet.load import objects
from fleet.load.figures import Rows, latencies, latency
from fleet.load.kubelets import in_flight
from fleet.load.release import OPERATOR, PROBES
from fleet.load.stage import RATE, READING, Stage
from nodegauge_contract import Result
from nodegauge_operator import names
from nodegauge_operator.core.device_rule import PLURAL
from nodegauge_operator.kube.client import MERGE
from support import dra
from support.judge_results import LOST
from support.results import with_gpu

NONE = {"nvidia.com/gpu": None}
SLOW_RATE = 5.0
"""Results a second that leave an API server on one core most of its time: no queue."""
HEX_AND_DASH = 11
"""Characters after the node in the name of a rule."""


def lost() -> Result:
    """One GPU of eight."""
    return with_gpu(objects.h100(), 3, error=LOST)


class DeviceStage(Stage):
    """The roll-out, then a lost GPU on each node.  All of them may be gated: what limits must be the operator
    itself.  Probes reach their driver as ever: nothing is measured before they run."""

    environment: ClassVar[Mapping[str, str]] = {
        "NODEGAUGE_MAX_GATED_NODES": "100%",
        "NODEGAUGE_DRIVER_ACCESS": "Runtime",
    }
    settings: ClassVar[Mapping[str, object]] = {
        "taints": {"devices": "NoSchedule"},
        "budget": {"concurrentProbes": "100%", "gatedDevices": "100%"},
        "breaker": {"nodes": 100_000, "share": "100%"},
    }

    async def run(self) -> Rows:
        self._install()
        self._say("creating nodes and their ResourceSlices")
        await self._kubelets.register(self._nodes)
        await in_flight(self._nodes, self._publish, at_a_time=16)
        try:
            await self._roll_out()
            with self._alone():
                half = len(self._nodes) // 2
                await self._lose(self._nodes[:half], rate=SLOW_RATE)
                await self._lose(self._nodes[half:], rate=RATE)
            self._operator.finish()
        finally:
            self._operator.kill()
        return self._rows

    async def _lose(self, nodes: Sequence[str], *, rate: float) -> None:
        await self._batch(f"one GPU is lost, {rate:g} results/s", nodes, lost(), rate=rate)
        self._show(latency(self._to_rules(), of=f"Reading written to device rule, {rate:g} results/s"))

    async def _publish(self, node: str) -> None:
        status = {"status": {"capacity": NONE, "allocatable": NONE}}
        path = f"/api/v1/nodes/{node}/status"
        await self._client.call("PATCH", path, body=status, content_type=MERGE)
        body = dra.slice_body(node, uuids=objects.uuids(node))
        await self._client.call("POST", f"{dra.GROUP}/resourceslices", body=body)

    def _to_rules(self) -> list[float]:
        written = [one for one in self._of(PROBES) if one.kind == READING]
        start, end = len(names.DEVICE_RULE_NAMES), -HEX_AND_DASH
        rules = [
            one._replace(name=one.name[start:end])
            for one in self._of(OPERATOR)
            if one.kind == f"create {PLURAL}"
        ]
        return list(latencies(written, rules).values())
