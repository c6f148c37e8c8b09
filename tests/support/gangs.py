"""Nodes with eight GPUs and a class, for schedulers that place gangs; no kubelet runs on them."""

from collections.abc import Mapping
from typing import Any

from nodegauge_operator import names
from testbed.errors import ApiError
from testbed.rest import Object, Rest
from testbed.scripted import create_node

FULL, RING = "nvlink-h100sxm-full", "nvlink-h100sxm-ring"
NODES, PODS = "/api/v1/nodes", "/api/v1/namespaces/default/pods"


class GangNodes:
    def __init__(self, rest: Rest, classes: Mapping[str, str]) -> None:
        self.rest, self.classes = rest, classes
        for name, klass in classes.items():
            create_node(rest, name, labels={names.LABEL_CLASS: klass})

    def restore(self) -> None:
        for name, klass in self.classes.items():
            self.taint(name)
            self.label(name, **{names.LABEL_CLASS: klass, names.LABEL_HEALTH: None})

    def taint(self, name: str, *taints: Object) -> None:
        self.rest.patch(f"{NODES}/{name}", {"spec": {"taints": list(taints)}})

    def label(self, name: str, **labels: str | None) -> None:
        self.rest.patch(f"{NODES}/{name}", {"metadata": {"labels": labels}})

    def of(self, klass: str) -> list[str]:
        return [name for name, own in self.classes.items() if own == klass]

    def pods(self) -> list[Object]:
        items: list[Object] = self.rest.get(PODS)["items"]
        return items

    def without_going(self) -> bool:
        """Pods that are to go are gone, as kubelets would have it."""
        for pod in self.pods():
            if pod["metadata"].get("deletionTimestamp"):
                try:
                    self.rest.delete(f"{PODS}/{pod['metadata']['name']}", {"gracePeriodSeconds": 0})
                except ApiError as error:
                    if error.status != 404:  # a controller was quicker
                        raise
        return True

    def run(self, placed: Mapping[str, str]) -> None:
        """What their kubelets would say once the containers run."""
        ready: list[dict[str, Any]] = [
            {"type": kind, "status": "True"}
            for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        ]
        for pod in placed:
            self.rest.patch(f"{PODS}/{pod}/status", {"status": {"phase": "Running", "conditions": ready}})


def bound(nodes: GangNodes, count: int) -> dict[str, str]:
    """Node by pod once so many are bound; empty until then."""
    placed = {pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in nodes.pods()}
    return placed if len(placed) == count and all(placed.values()) else {}
