"""A real Karpenter waits for a node that is not validated yet, and replaces one that never validates: what
docs/autoscaling.md says of taint keys."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodegauge_operator import names
from testbed.controlplane import ControlPlane
from testbed.karpenter import Karpenter
from testbed.wait import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(1800)]

KNOWN = "readiness.k8s.io/nodegauge-"
UNVALIDATED = {"key": f"{KNOWN}unvalidated", "effect": "NoSchedule"}
NEVER = {"value": "never-validated", "effect": "NoSchedule"}
JOB: dict[str, Any] = {
    "metadata": {"name": "job"},
    "spec": {
        "containers": [{"name": "c", "image": "x.example.com/x:1", "resources": {"requests": {"cpu": "1"}}}]
    },
}


@pytest.fixture
def karpenter(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Karpenter]:
    with Karpenter(control_plane, tmp_path / "karpenter") as karpenter:
        yield karpenter


def test_it_waits_for_an_unvalidated_node_and_replaces_one_that_never_validates(karpenter: Karpenter) -> None:
    """`unvalidated` is a taint of start-up, so it counts the node as the pod's; `unhealthy` is none, so it
    starts another node and lets the empty one go.  With a prefix of start-up it would wait for ever."""
    karpenter.add_pool([UNVALIDATED])
    rest = karpenter.rest
    rest.create("/api/v1/namespaces/default/pods", JOB)
    wait_for(lambda: len(karpenter.claims()) == 1, what="a NodeClaim for the job")
    [first] = karpenter.claims()
    wait_for(lambda: karpenter.reason(first, "Registered") == "Registered", what="its node registered")
    node = karpenter.claims()[first]["status"]["nodeName"]
    ready = {"type": "Ready", "status": "True", "reason": "Ready"}

    def taint(*taints: dict[str, str]) -> None:
        rest.patch(f"/api/v1/nodes/{node}", {"spec": {"taints": list(taints)}})
        rest.patch(f"/api/v1/nodes/{node}/status", {"status": {"conditions": [ready]}})

    taint(UNVALIDATED)
    wait_for(lambda: karpenter.reason(first) == "StartupTaintsExist", what="it waits for the taint to go")
    taint({"key": f"{KNOWN}unhealthy"} | NEVER)
    wait_for(lambda: karpenter.reason(first) == "KnownEphemeralTaintsExist", what="it waits for that too")
    assert [*karpenter.claims()] == [first]
    taint({"key": names.TAINT_UNHEALTHY} | NEVER)
    wait_for(lambda: karpenter.claims().keys() - {first}, what="another NodeClaim for the job")
    wait_for(lambda: first not in karpenter.claims(), what="the node that never validated goes", seconds=120)
    assert not rest.get("/api/v1/namespaces/default/pods/job")["spec"].get("nodeName")
