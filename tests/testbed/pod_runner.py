"""A simulated node to try pods on, for tests of the kubelet.  It asserts nothing."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from testbed.cluster import Testbed
from testbed.controlplane import ControlPlane
from testbed.errors import ApiError
from testbed.wait import wait_for

Object = dict[str, Any]

PODS = "/api/v1/namespaces/default/pods"


class PodRunner:
    """One simulated node, and calls as administrator."""

    def __init__(self, testbed: Testbed, node: str) -> None:
        self.api, self.node, self.testbed = testbed.control_plane.rest(), node, testbed

    def run(self, script: str, *, container: Object | None = None, **spec: Any) -> str:
        name = f"pod-{uuid.uuid4().hex[:8]}"
        main = {"name": "main", "image": "registry.example/python:3", "command": ["python", "-c", script]}
        usual = {"nodeName": self.node, "restartPolicy": "Never", "containers": [main | (container or {})]}
        self.api.create(PODS, {"metadata": {"name": name}, "spec": usual | spec})
        return name

    def until(self, name: str, reached: Callable[[Object], Any]) -> Object:
        def look() -> Object | None:
            pod = self.api.get(f"{PODS}/{name}")
            return pod if reached(pod) else None

        return wait_for(look, what=f"pod {name}") or {}

    def last_words(self, name: str) -> str:
        pod = self.until(name, lambda pod: pod["status"]["phase"] in ("Succeeded", "Failed"))
        return str(pod["status"]["containerStatuses"][0]["state"]["terminated"]["message"])

    def files(self, name: str) -> Path:
        [result] = self.testbed.nodes.pods.glob(f"{self.node}/pods/default_{name}_*")
        return result


@contextmanager
def pod_runner(plane: ControlPlane, directory: Path, *, profile: str | None = None) -> Iterator[PodRunner]:
    name = f"node-{uuid.uuid4().hex[:8]}"
    with Testbed(directory, nodes={name: profile}, control_plane=plane) as testbed:
        runner = PodRunner(testbed, name)
        yield runner
        testbed.nodes.remove(name)
    for pod in runner.api.get(f"{PODS}?fieldSelector=spec.nodeName={name}")["items"]:
        with suppress(ApiError):  # the controllers may have been faster
            runner.api.delete(f"{PODS}/{pod['metadata']['name']}", {"gracePeriodSeconds": 0})
