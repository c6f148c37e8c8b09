"""`helm install` on four GPU nodes: what stands on them afterwards.

Mode Watch and NCCL are in the demo; faults, upgrades and `helm test` are seen on a real kubelet (tests/e2e).
"""

from __future__ import annotations

from typing import Any

import pytest

from support.cluster_under_test import OURS

pytestmark = pytest.mark.cluster

DEMANDED = {
    "gpu-h100": ("nvlink", "450", 8, "NVIDIA H100 80GB HBM3"),
    "gpu-dgx1": ("nvlink", "150", 8, "Tesla V100-SXM2-16GB"),
    "gpu-titan": ("nvlink", "50", 2, "TITAN RTX"),
    "gpu-phb": ("pcie", None, 2, "Tesla T4"),
}
"""Interconnect, nvlink-gbps, GPUs and product: 18 x 25, 6 x 25 and 2 x 25 GB/s one way, and none."""


@pytest.mark.parametrize("node", DEMANDED)
def test_a_node_carries_what_its_hardware_demands(cluster: Any, node: str) -> None:
    """Both interconnect keys, the evidence, the rate only with nvlink, health, and the condition True; the
    report says which GPUs were found, and which labels are held, without a finding."""
    interconnect, gbps, count, product = DEMANDED[node]
    wanted = {
        "interconnect": interconnect,
        OURS + "interconnect": interconnect,
        OURS + "interconnect-evidence": "reported",
        OURS + "health": "pass",
        **({OURS + "nvlink-gbps": gbps} if gbps else {}),
    }
    assert cluster.ours(node) == wanted
    assert cluster.labels(node)[OURS + "validated-at"].isdecimal()
    condition = cluster.condition(node)
    assert (condition["status"], condition["reason"]) == ("True", "Validated")
    status = cluster.report(node)["status"]
    assert (status["gpus"]["count"], status["gpus"]["product"]) == (count, product)
    assert len({gpu["uuid"] for gpu in status["gpus"]["items"]}) == count
    assert status["interconnect"]["class"] == interconnect
    assert status["interconnect"].get("nvlinkGbps") == (int(gbps) if gbps else None)
    assert status["verdict"] == "pass"
    assert cluster.findings(node) == {}
    assert status["desired"]["labels"].items() <= cluster.labels(node).items()
    assert "Validated" in cluster.reasons(node)
