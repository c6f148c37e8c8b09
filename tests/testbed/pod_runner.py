"""A simulated node to try pods on, for tests of the kubelet.  It asserts nothing."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from testbed.errors import ApiError, TestbedError
from testbed.kubelet.agent import Kubelet
from testbed.kubelet.api import Api
from testbed.kubelet.context import Hardware
from testbed.kubelet.node import delete_node
from testbed.wait import DEADLINE_SECONDS

Object = dict[str, Any]

PODS = "/api/v1/namespaces/default/pods"


class PodRunner:
    """An API session and one simulated node."""

    def __init__(self, api: Api, node: str, directory: Path) -> None:
        self.api = api
        self.node = node
        self._directory = directory

    async def run(self, script: str, *, container: Object | None = None, **spec: Any) -> str:
        """Create a pod on this node that runs a Python script; `spec` and `container` override; its name."""
        name = f"pod-{uuid.uuid4().hex[:8]}"
        main = {"name": "main", "image": "registry.example/python:3", "command": ["python", "-c", script]}
        usual = {"nodeName": self.node, "restartPolicy": "Never", "containers": [main | (container or {})]}
        await self.api.create(PODS, {"metadata": {"name": name}, "spec": usual | spec})
        return name

    async def until(self, name: str, reached: Callable[[Object], Any]) -> Object:
        """The pod, once `reached` is true of it; TestbedError with its status after the deadline."""
        end = time.monotonic() + DEADLINE_SECONDS
        while not reached(pod := await self.api.get(f"{PODS}/{name}")):
            if time.monotonic() > end:
                raise TestbedError(
                    f"pod {name}: not within {DEADLINE_SECONDS:g} s, seen last: {pod['status']}"
                )
            await asyncio.sleep(0.05)
        return pod

    async def last_words(self, name: str) -> str:
        """The termination message of the pod's first container, once the pod is over."""
        pod = await self.until(name, lambda pod: pod["status"]["phase"] in ("Succeeded", "Failed"))
        return str(pod["status"]["containerStatuses"][0]["state"]["terminated"]["message"])

    def files(self, name: str) -> Path:
        """The pod's folder."""
        [result] = self._directory.glob(f"pods/default_{name}_*")
        return result


@asynccontextmanager
async def pod_runner(
    kubeconfig: Path, directory: Path, *, hardware: Hardware | None = None
) -> AsyncIterator[PodRunner]:
    """A node that is there for a block, and its pods removed afterwards."""
    name = f"node-{uuid.uuid4().hex[:8]}"
    async with await Api.connect(kubeconfig, agent="tests") as api:
        try:
            async with Kubelet(name=name, server=kubeconfig, directory=directory / name, hardware=hardware):
                yield PodRunner(api, name, directory / name)
        finally:
            await delete_node(kubeconfig, name)
            for pod in (await api.get(PODS, fieldSelector=f"spec.nodeName={name}"))["items"]:
                with suppress(ApiError):  # the controllers may have been faster
                    await api.delete(f"{PODS}/{pod['metadata']['name']}", {"gracePeriodSeconds": 0})
