"""One node, one policy and one operator, for tests that follow a node from run to run.

Everything runs when a test says so: `support.operator` without a loop.
"""

from __future__ import annotations

from typing import Any

from nodegauge_operator.kube.errors import KubeError
from support.cluster import NODES, REPORTS
from support.operator import Operator, World


class OneNode:
    """A process that has listed; every run ends as the node's machine says."""

    def __init__(self, **labels: str) -> None:
        self.world = World()
        self.cluster = self.world.cluster
        self.cluster.add_node(**labels)
        self.cluster.add_policy()
        self.operator = Operator(self.cluster)
        self.operator.list()

    def run(self, message: str | None = None) -> None:
        """One whole run; the probe leaves `message`, or the document of its machine."""
        self.operator.settle()
        (pod,) = self.cluster.pods()
        self.world.end(pod, self.world.result(pod) if message is None else message)
        self.settle()

    def settle(self) -> None:
        """What the operator does about what has happened."""
        self.operator.deliver()
        self.operator.settle()
        self.operator.deliver()

    def refuse(self, method: str, path: str, error: KubeError) -> None:
        """The API server answers with this error."""
        self.operator.client.refuse = lambda verb, asked: error if (verb, asked) == (method, path) else None

    def heal(self) -> None:
        """It answers again."""
        self.operator.client.refuse = lambda verb, path: None

    def restart(self) -> None:
        """The process is another one."""
        self.operator.die()
        self.operator = Operator(self.cluster)
        self.operator.list()

    @property
    def labels(self) -> dict[str, str]:
        """What the node carries."""
        found: dict[str, str] = self.cluster.objects[NODES]["node-1"]["metadata"]["labels"]
        return found

    @property
    def status(self) -> dict[str, Any]:
        """Of the report."""
        found: dict[str, Any] = self.cluster.objects[REPORTS]["node-1"]["status"]
        return found

    @property
    def probe(self) -> dict[str, Any]:
        """The health probe in the report."""
        found: dict[str, Any] = self.status["probes"][0]
        return found
