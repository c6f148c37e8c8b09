"""The BMC reader's own loop and poller without a cluster.  `refuse`: what every call gets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from nodegauge_bmc.connection import Access
from nodegauge_bmc.inventory import Inventory
from nodegauge_contract.chassis import ChassisReading
from nodegauge_operator.bmc_reader import app
from nodegauge_operator.bmc_reader.app import Loop, by_protocol
from nodegauge_operator.bmc_reader.metrics import Metrics
from nodegauge_operator.bmc_reader.objects import NODES, PATH, Objects
from nodegauge_operator.bmc_reader.poller import Pace, Poller
from nodegauge_operator.bmc_reader.settings import Settings
from nodegauge_operator.kube.client import APPLY
from nodegauge_operator.kube.errors import KubeError, NotFound
from support.api_server import merged
from support.client import AnsweringClient, Call, Object


class Rig:
    def __init__(self, folder: Path, *, interval: float = 1.0, deadline: float = 5.0, timeout: float = 2.0):
        self.folder = folder
        self.nodes = {"gpu-1": "uid-1", "gpu-2": "uid-2"}
        self.objects: dict[str, Object] = {}
        self.refuse: KubeError | None = None
        self.active: dict[str, int] = {}
        self.most = 0
        """Reads of one BMC at a time, now by address and at most."""
        self.client = AnsweringClient(self._answer)
        self.metrics = Metrics()
        objects = Objects(self.client, instance="release")
        pace = Pace(interval=interval, deadline=deadline, concurrency=8)
        self.poller = Poller(
            read=self._read, objects=objects, metrics=self.metrics, pace=pace, clock=self.client.now
        )
        self.loop = Loop(
            objects=objects,
            poller=self.poller,
            inventory=Inventory(folder),
            metrics=self.metrics,
            settings=Settings(inventory=folder, timeout=timeout),
            client=self.client,
        )

    def file(self, name: str, **fields: Any) -> None:
        (self.folder / name).write_text(yaml.safe_dump(fields))

    async def look(self) -> None:
        self.loop._listed_at = -app.LIST_SECONDS
        await self.loop.one_pass()

    def status(self, node: str) -> Any:
        return self.objects.get(node, {}).get("status", {})

    async def until(self, condition: Any) -> None:
        end = asyncio.get_running_loop().time() + 600
        while not condition():
            known = {name: body.get("status", {}).get("problem") for name, body in self.objects.items()}
            assert asyncio.get_running_loop().time() < end, f"never came; problems of objects: {known}"
            await asyncio.sleep(0.1)

    async def _read(self, access: Access, deadline: float) -> ChassisReading:
        self.active[access.url] = self.active.get(access.url, 0) + 1
        self.most = max(self.most, *self.active.values())
        try:
            return await by_protocol(access, deadline)
        finally:
            self.active[access.url] -= 1

    def _answer(self, call: Call) -> Object:
        if self.refuse is not None:
            raise self.refuse
        if call.path == NODES:
            return {"items": [{"metadata": {"name": n, "uid": u}} for n, u in self.nodes.items()]}
        if call.path == PATH and call.method == "GET":
            return {"items": list(self.objects.values())}
        name = call.path.rpartition("/")[2] if call.path != PATH else call.body["metadata"]["name"]
        if call.method == "DELETE":
            return self.objects.pop(name)
        if call.content_type == APPLY or call.method == "POST":
            known = self.objects.get(name, {"metadata": {"uid": f"object-{name}"}})
            self.objects[name] = call.body | {"metadata": known["metadata"] | call.body["metadata"]}
        elif name not in self.objects:
            raise NotFound("no such object", status=404)
        elif call.method == "PATCH":
            self.objects[name] = merged(self.objects[name], call.body)
        return self.objects[name]


@asynccontextmanager
async def reader(folder: Path, **options: Any) -> AsyncIterator[Rig]:
    rig = Rig(folder, **options)
    try:
        yield rig
    finally:
        async with asyncio.timeout(30):
            await rig.poller.stop()
