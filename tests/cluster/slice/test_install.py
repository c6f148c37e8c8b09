"""`helm install` on four GPU nodes: what stands on them afterwards, and with which rights it got there."""

from __future__ import annotations

from typing import Any

import pytest

from nodegauge_contract import decode, render_matrix
from support.cluster_under_test import OURS, ROOT
from testbed.audit import service_account

pytestmark = pytest.mark.cluster

DEMANDED = {
    "gpu-h100": ("nvlink", "450", 8, "NVIDIA H100 80GB HBM3"),
    "gpu-dgx1": ("nvlink", "150", 8, "Tesla V100-SXM2-16GB"),
    "gpu-titan": ("nvlink", "50", 2, "TITAN RTX"),
    "gpu-phb": ("pcie", None, 2, "Tesla T4"),
}
"""Interconnect, nvlink-gbps, GPUs and product: 18 x 25, 6 x 25 and 2 x 25 GB/s one way, and none."""
RECORDED = {
    "gpu-dgx1": "topo-m_dgx1-v100x8_ib.txt",
    "gpu-titan": "topo-m_2gpu_nv2.txt",
    "gpu-phb": "topo-m_2gpu_phb.txt",
}
REFUSALS = (401, 403)


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


@pytest.mark.parametrize("node", RECORDED)
def test_the_reading_shows_the_recorded_matrix(cluster: Any, node: str) -> None:
    """Row by row, up to spacing, as nvidia-smi printed it on that machine."""
    recorded = (ROOT / "tests" / "fixtures" / RECORDED[node]).read_text()
    result = decode(cluster.reading(node)["health"]["reading"])
    assert rows(render_matrix(result)) == rows(recorded)
    known = [(gpu["uuid"], gpu["pci"]) for gpu in cluster.report(node)["status"]["gpus"]["items"]]
    assert [(gpu.uuid, gpu.pci) for gpu in result.gpus] == known


def rows(matrix: str) -> list[list[str]]:
    """The words of each line before the legend."""
    return [line.split() for line in matrix.partition("Legend")[0].splitlines() if line.strip()]


@pytest.fixture
def exercised(cluster: Any) -> Any:
    """The slice after labels were written, taken away by a fault and brought back."""
    labels = [w.body["metadata"].get("labels", {}) for w in cluster.account_writes(resource="nodes")]
    if not any(None in patch.values() for patch in labels):
        cluster.faulty("gpu-titan", "p2p-refused")
        cluster.healed("gpu-titan")
    return cluster


def test_helm_test_passes_and_its_log_can_be_read(cluster: Any) -> None:
    """As README says: the test's pod reaches the operator's, and `--logs` prints what it saw."""
    log = cluster.testbed.helm("test", "nodegauge", "--namespace", "nodegauge", "--logs")
    assert "Succeeded" in log
    assert "answers /healthz: ok" in log
    assert "answers /readyz: ok" in log


def test_the_operator_asks_only_for_what_its_own_account_may_have(exercised: Any) -> None:
    """Every call of operator and kopf is made by its service account, and none is ever refused."""
    entries = exercised.audit.entries()
    account = service_account("nodegauge", "nodegauge")
    by_it = [entry for entry in entries if entry.user == account]
    assert {"nodes", "pods", "nodereports", "gpuvalidationpolicies"} <= {e.resource for e in by_it}
    assert [entry for entry in by_it if entry.code in REFUSALS] == []
    programs = [entry for entry in entries if entry.user_agent.startswith(("nodegauge-operator", "kopf"))]
    hooks = {service_account("nodegauge", f"nodegauge-{hook}") for hook in ("policy", "cleanup")}
    assert {entry.user for entry in programs} <= {account} | hooks
    log = exercised.testbed.logs("nodegauge", exercised.operator_pod()["metadata"]["name"])
    assert "listening on port" in log
    assert "orbidden" not in log
    assert "Traceback" not in log
