"""The NCCL probe as a user has it: the chart with its NCCL image, on the nodes of the slice.

Everything is real but the GPUs and NCCL, which is simulated; a job on a simulated node preempts it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.cluster_under_test import GROUP, OURS, Object
from testbed.audit import service_account
from testbed.cluster import Testbed
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster

NAMESPACE = "nodegauge"
VALUES: Object = {
    "nccl": {"enabled": True},
    "policy": {
        "spec": {
            "probes": {
                "health": {"interval": "12h", "deadline": "2m", "window": "500ms"},
                "nccl": {"interval": "12h", "deadline": "5m", "recheck": "5s"},
            },
            "budget": {"concurrentProbes": "100%", "concurrentNcclProbes": 2, "gatedNodesPerHour": "100%"},
        }
    },
}
EVIDENCE = OURS + "interconnect-evidence"
ALL_REDUCE = OURS + "busbw-allreduce"
BROKEN = "gpu-dgx1"
"""The driver reports its NVLinks as up, and they carry no data."""


@pytest.fixture(scope="module")
def installed(shared_slice: Any) -> Iterator[Any]:
    """The slice, installed anew with the NCCL probe on, once every node has had an NCCL run."""
    if shared_slice.installed():
        shared_slice.uninstall()
    for node in shared_slice.nodes:
        shared_slice.testbed.hardware(node).heal()
    shared_slice.testbed.hardware(BROKEN).fault("nvlink-down-in-fact")
    before = shared_slice.values.read_text()
    shared_slice.values.write_text(json.dumps(json.loads(before) | VALUES))
    try:
        shared_slice.install()
        for node in shared_slice.nodes:
            wait_for(lambda node=node: measured(shared_slice, node), what=f"an NCCL run of {node}")
        yield shared_slice
    finally:
        shared_slice.values.write_text(before)
        shared_slice.uninstall()
        shared_slice.testbed.hardware(BROKEN).heal()


def measured(installed: Any, node: str) -> Object:
    """The NCCL probe's part of the report, once it has a result."""
    probes = installed.report(node).get("status", {}).get("probes") or []
    result = next((p for p in probes if p["name"] == "nccl"), {})
    return result if result.get("readAt") else {}


def report_on_node(installed: Any, node: str) -> Object:
    """The report's status, once the node's labels are those of the report."""

    def agree() -> Object | None:
        status: Object = installed.report(node)["status"]
        wanted = {k: v for k, v in status["desired"]["labels"].items() if k != OURS + "validated-at"}
        return status if installed.ours(node) == wanted else None

    result: Object = wait_for(agree, what=f"{node} as its report says")
    return result


def test_bandwidth_confirms_what_the_driver_reports(installed: Any) -> None:
    """GB/s by collective as labels, evidence measured, and the comparison in the report."""
    status = report_on_node(installed, "gpu-h100")
    labels = installed.ours("gpu-h100")
    assert (labels["interconnect"], labels[EVIDENCE]) == ("nvlink", "measured")
    assert 440 <= int(labels[ALL_REDUCE]) <= 490
    assert 300 <= int(labels[OURS + "busbw-allgather"]) <= 400
    assert status["bandwidth"]["agreement"] == "confirmed"
    assert status["bandwidth"]["p2pOff"] < 60
    assert status["verdict"] == "pass"
    assert labels[ALL_REDUCE] == str(status["bandwidth"]["allReduce"])
    titan = report_on_node(installed, "gpu-titan")["bandwidth"]
    assert (titan["allReduce"], titan["p2pOff"]) == (pytest.approx(40, abs=1), pytest.approx(4.0, rel=0.05))


def test_nvlink_that_carries_no_data_loses_its_label(installed: Any) -> None:
    """The finding names both numbers; PCIe pairs that are as slow keep their label."""
    status = report_on_node(installed, BROKEN)
    labels = installed.ours(BROKEN)
    assert not {"interconnect", OURS + "interconnect", EVIDENCE, OURS + "nvlink-gbps"} & labels.keys()
    assert (status["interconnect"]["class"], status["interconnect"]["reported"]) == ("", "nvlink")
    findings = measured(installed, BROKEN)["findings"]
    [message] = [f["message"] for f in findings if f["code"] == "interconnect-contradicted"]
    assert str(status["bandwidth"]["allReduce"]) in message
    assert "NVLink" in message
    report_on_node(installed, "gpu-phb")
    assert installed.ours("gpu-phb")["interconnect"] == "pcie"
    codes = {finding["code"] for finding in measured(installed, "gpu-phb").get("findings", [])}
    assert "interconnect-contradicted" not in codes


def test_a_job_gets_the_gpus_of_an_nccl_run_and_labels_stay(installed: Any) -> None:
    """The probe ends on SIGTERM, not by SIGKILL, and its processes are gone.  While the job runs the next run
    finds no place; then the node is measured."""
    node = "gpu-h100"
    before = report_on_node(installed, node)
    labels, number = installed.ours(node), measured(installed, node)["lastRun"]["number"]
    installed.testbed.hardware(node).fault("nccl-in-real-time")
    installed.ask_for_run(node)
    family = wait_for(lambda: processes(installed.testbed, node), what="NCCL at work")
    container = {
        "name": "train",
        "image": "busybox",
        "command": ["sleep", "3600"],
        "resources": {"limits": {"nvidia.com/gpu": "8"}},
    }
    spec = {
        "nodeSelector": {"kubernetes.io/hostname": node},
        "containers": [container],
        "terminationGracePeriodSeconds": 0,
    }
    installed.api.create(
        "/api/v1/namespaces/default/pods",
        {"metadata": {"name": "train", "namespace": "default"}, "spec": spec},
    )
    path = "/api/v1/namespaces/default/pods/train"
    wait_for(lambda: installed.api.get(path)["status"].get("phase") == "Running", what="the job runs")
    wait_for(lambda: measured(installed, node)["lastRun"]["number"] > number, what="the NCCL run's end")
    run = measured(installed, node)["lastRun"]
    assert (run["outcome"], run["reason"]) == ("skipped", "Preempted")
    assert [pid for pid in family if Path(f"/proc/{pid}").exists()] == []
    assert 137 not in exit_codes(installed, run["podName"]), "it was killed when its grace was over"
    assert installed.ours(node) == labels
    assert installed.report(node)["status"]["bandwidth"] == before["bandwidth"]
    policy = f"{GROUP}/gpuvalidationpolicies/default"
    installed.api.patch(policy, {"spec": {"limits": {"notScheduled": "2s"}}})
    wait_for(
        lambda: measured(installed, node)["lastRun"]["reason"] == "NotScheduled", what="no place for a run"
    )
    assert "nvidia.com/gpu" in measured(installed, node)["lastRun"]["message"]
    assert installed.ours(node) == labels
    installed.api.patch(policy, {"spec": {"limits": None}})
    installed.api.delete(path, {"gracePeriodSeconds": 0})
    installed.testbed.hardware(node).heal()
    wait_for(lambda: measured(installed, node)["lastRun"]["outcome"] == "read", what="measured again")
    assert installed.ours(node) == labels


def exit_codes(installed: Any, pod: str) -> set[int]:
    """The exit codes that the kubelet wrote for the pod's container, from the audit log."""
    writes = installed.audit.writes(resource="pods/status", name=pod)
    statuses = [w.body.get("status", {}).get("containerStatuses") or [] for w in writes if w.body]
    ended = [one["state"].get("terminated") for containers in statuses for one in containers]
    result = {state["exitCode"] for state in ended if state}
    assert result, f"no end of pod {pod} in the audit log"
    return result


def processes(testbed: Testbed, node: str) -> list[int]:
    """The NCCL probe's processes on a node, once simulated NCCL is among them.

    Before that Python still starts, and a first process of a pod without a handler ignores SIGTERM.
    """
    result = [p.pid for p in testbed.processes(NAMESPACE, "nodegauge-nccl") if p.node == node]
    for pid in result:
        for file in Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                result += map(int, file.read_text().split())
    lines = []
    for pid in result:
        with contextlib.suppress(OSError):
            lines.append(Path(f"/proc/{pid}/cmdline").read_bytes())
    return result if any(b"--order" in line for line in lines) else []


def test_pods_of_the_nccl_probe_are_restricted(installed: Any) -> None:
    """From the audit log: no privileges, no volume but empty directories and the pod's own token; no call was
    refused."""
    account = service_account(NAMESPACE, NAMESPACE)
    assert not [w for w in installed.audit.entries() if w.user == account and w.code in (401, 403)]
    pods = [w.body for w in installed.audit.writes(user=account, resource="pods", verb="create")]
    by_probe: dict[str, list[Object]] = {}
    for pod in pods:
        by_probe.setdefault(pod["metadata"]["labels"][OURS + "probe"], []).append(pod)
    assert len(by_probe["pull"]) == len(installed.nodes), "one pull for each node and image"
    for pod in by_probe["nccl"]:
        spec = pod["spec"]
        [container] = spec["containers"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["priorityClassName"] == "nodegauge-nccl"
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        kinds = {kind for volume in spec["volumes"] for kind in volume if kind != "name"}
        assert kinds == {"emptyDir", "projected"}
        assert int(container["resources"]["limits"]["nvidia.com/gpu"]) in (2, 8)
