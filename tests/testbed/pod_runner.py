"""A simulated node and an API session to try pods on, for tests of the kubelet.

The steps that such tests repeat: run a script as a pod, wait for what the API says about it, find its
processes and files.  It asserts nothing.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from testbed.cluster import find_processes
from testbed.kubelet import Kubelet
from testbed.kubelet.api import Api
from testbed.kubelet.errors import ApiError
from testbed.kubelet.process import alive
from testbed.wait import DEADLINE_SECONDS

Object = dict[str, Any]

PODS = "/api/v1/namespaces/default/pods"
FOREVER = "import time; time.sleep(600)"
GRANDCHILD = f"child = subprocess.Popen([sys.executable, '-c', {FOREVER!r}], start_new_session=True)\n"
"""A line of Python that starts a process in a session of its own."""


def say(message: str) -> str:
    """Python that writes the termination message."""
    return f"import os; open(os.environ['NODEGAUGE_TERMINATION_LOG'], 'w').write({message!r}); "


class PodRunner:
    """An API session and one simulated node, with the few steps that the tests repeat."""

    def __init__(self, api: Api, kubelet: Kubelet, kubeconfig: Path, directory: Path) -> None:
        self.api = api
        self.kubelet = kubelet
        self.kubeconfig = kubeconfig
        self.directory = directory
        self.node = kubelet.name

    async def run(self, script: str, *, name: str = "", **spec: Any) -> str:
        """Create a pod on this node that runs a Python script; `spec` and `container` override; its name."""
        name = name or f"pod-{uuid.uuid4().hex[:8]}"
        container = {
            "name": "main",
            "image": "registry.example/python:3",
            "command": ["python", "-c", script],
            **spec.pop("container", {}),
        }
        body = {
            "metadata": {"name": name},
            "spec": {"nodeName": self.node, "restartPolicy": "Never", "containers": [container], **spec},
        }
        await self.api.create(PODS, body)
        return name

    async def pod(self, name: str) -> Object | None:
        """The pod as the API has it; None when it is gone."""
        try:
            return await self.api.get(f"{PODS}/{name}")
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def until(
        self, name: str, reached: Callable[[Object], Any], *, seconds: float = DEADLINE_SECONDS
    ) -> Object:
        """The pod, once `reached` is true of it."""
        pod: Object = await wait_for(lambda: self._if(name, reached), seconds=seconds)
        return pod

    async def _if(self, name: str, reached: Callable[[Object], Any]) -> Object | None:
        pod = await self.pod(name)
        return pod if pod is not None and reached(pod) else None

    async def ended(self, name: str, *, seconds: float = DEADLINE_SECONDS) -> Object:
        """The pod's status once it has Succeeded or Failed."""
        pod = await self.until(
            name, lambda pod: pod["status"]["phase"] in ("Succeeded", "Failed"), seconds=seconds
        )
        status: Object = pod["status"]
        return status

    async def running(self, name: str) -> Object:
        """The pod once its first container runs."""
        return await self.until(name, lambda pod: "running" in state(pod))

    async def gone(self, name: str, *, seconds: float = DEADLINE_SECONDS) -> None:
        """Wait until the API has no such pod."""

        async def absent() -> bool:
            return await self.pod(name) is None

        await wait_for(absent, seconds=seconds)

    def pids(self, name: str) -> list[int]:
        """First processes of the pod's containers."""
        return [result.pid for result in find_processes(self.directory, namespace="default", pod=name)]

    def files(self, name: str) -> Path:
        """The pod's folder."""
        [result] = self.directory.glob(f"*/pods/default_{name}_*")
        return result


async def wait_for(condition: Callable[[], Awaitable[Any]], *, seconds: float = DEADLINE_SECONDS) -> Any:
    """Poll until the condition gives something truthy; TimeoutError after `seconds`."""
    async with asyncio.timeout(seconds):
        while True:
            if result := await condition():
                return result
            await asyncio.sleep(0.02)


def state(pod: Object) -> Object:
    """State of the pod's first container; empty before the kubelet has written one."""
    result: Object = (pod["status"].get("containerStatuses") or [{}])[0].get("state", {})
    return result


def end(status: Object) -> Object:
    """How the first container ended."""
    result: Object = status["containerStatuses"][0]["state"]["terminated"]
    return result


async def all_dead(pids: list[int]) -> None:
    """Wait until none of the processes runs."""

    async def dead() -> bool:
        return not any(alive(pid) for pid in pids)

    await wait_for(dead)


async def armed(runner: PodRunner, name: str) -> None:
    """Wait until the script has printed that its handlers are in place."""
    await runner.running(name)
    log = runner.files(name) / "main" / "0.log"

    async def printed() -> bool:
        return "armed" in log.read_text()

    await wait_for(printed)


def condition(pod: Object, kind: str = "Ready") -> str:
    """Status of one of the pod's conditions."""
    result: dict[str, str] = {c["type"]: c["status"] for c in pod["status"].get("conditions", [])}
    return result.get(kind, "absent")
