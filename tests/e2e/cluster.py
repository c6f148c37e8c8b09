"""What every step uses: the run's clock, calls to the API server, pods and how they are watched."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from e2e.node import Node
from e2e.plane import PodPlane
from testbed.errors import ApiError, TestbedError
from testbed.hardware import Hardware
from testbed.rest import Rest
from testbed.wait import wait_for

Object = dict[str, Any]

NAMESPACE = "nodegauge"
WORKLOADS = "workloads"
REPORTS = "/apis/nodegauge.dev/v1alpha1/nodereports"


class Cluster:
    """One run: control plane, node, hardware.  `directory` is the run's folder; `record`: see Order."""

    def __init__(
        self,
        directory: Path,
        *,
        plane: PodPlane,
        node: Node,
        hardware: Hardware,
        images: tuple[Path, ...],
        record: bool = False,
    ) -> None:
        self.directory = directory
        self.plane = plane
        self.node = node
        self.hardware = hardware
        self.images = images
        self.record = record
        self.checkout = Path(__file__).resolve().parents[2]
        self.began = time.monotonic()
        self.asked = datetime.now(UTC)

    def say(self, message: str) -> None:
        """One line of progress."""
        print(f"[{time.monotonic() - self.began:6.1f} s] {message}", flush=True)

    @property
    def api(self) -> Rest:
        """Plain calls as administrator."""
        return self.plane.rest()

    until = staticmethod(wait_for)

    def must_be(self, seen: object, wanted: object, *, what: str) -> None:
        """Raises TestbedError unless both are equal."""
        if seen != wanted:
            raise TestbedError(f"{what} is {seen!r}, and must be {wanted!r}")

    def find(self, path: str) -> Object | None:
        """An object, or None where there is none."""
        try:
            return self.api.get(path)
        except ApiError as error:
            if error.status != 404:
                raise
            return None

    def node_object(self) -> Object:
        """The node as the API has it."""
        return self.api.get(f"/api/v1/nodes/{self.node.name}")

    def report(self) -> Object:
        """The status of the node's report; empty before there is one."""
        result = self.find(f"{REPORTS}/{self.node.name}")
        return {} if result is None else result.get("status") or {}

    def make_namespace(self, name: str, *, labels: dict[str, str] | None = None) -> None:
        """A namespace in which pods can be made."""
        metadata = {"name": name, "labels": labels or {}}
        self.api.create("/api/v1/namespaces", {"metadata": metadata})
        self.plane.await_objects(namespace=name)

    def pod(self, name: str, *, namespace: str = WORKLOADS) -> Object | None:
        """A pod, or None."""
        return self.find(f"/api/v1/namespaces/{namespace}/pods/{name}")


def terminated(pod: Object | None) -> Object:
    """How the pod's first container ended; empty while it has not."""
    statuses = (pod or {}).get("status", {}).get("containerStatuses") or [{}]
    result: Object = statuses[0].get("state", {}).get("terminated") or {}
    return result
