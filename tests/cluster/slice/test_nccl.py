"""The benchmark as a user has it: the chart, simulated nodes with a device plugin, and the whole probe.

Everything is real but the GPUs and NCCL, in whose place a program says what it would measure on the machine;
preemption is by a job of a simulated node's own.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.rig import OURS, ROOT, Object, Rig, eventually
from testbed.audit import AuditTrail, service_account
from testbed.cluster import Testbed

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

NAMESPACE = RELEASE = "nodegauge"
NODES = {
    "gpu-h100": "h100-sxm-8",
    "gpu-down": "h100-sxm-8",
    "gpu-seven": "h100-sxm-8",
    "gpu-titan": "titan-rtx-nv2",
    "gpu-phb": "pcie-phb-2",
}
VALUES: Object = {
    "operator": {"sweepInterval": "1s", "nodeSelector": {"kubernetes.io/hostname": "system-1"}},
    "policy": {
        "spec": {
            "probes": {
                "health": {"interval": "12h", "deadline": "20s", "window": "500ms"},
                "nccl": {"interval": "12h", "deadline": "90s", "recheck": "5s"},
            },
            "budget": {"concurrentProbes": "100%", "concurrentNcclProbes": 2},
        }
    },
}
EVIDENCE = OURS + "interconnect-evidence"
ALL_REDUCE = OURS + "busbw-allreduce"


class Installed(Rig):
    """The release on its testbed."""

    def __init__(self, testbed: Testbed) -> None:
        plane = testbed.control_plane
        super().__init__(
            plane.rest(), namespace=NAMESPACE, directory=testbed.directory, kubeconfig=plane.kubeconfig
        )
        self.testbed = testbed
        self.audit = AuditTrail(plane.audit_log, plane.rest())

    def install(self) -> None:
        """`helm install`, and wait until every node has been measured."""
        values = self.directory / "values.yaml"
        values.write_text(json.dumps(VALUES))
        chart = str(ROOT / "charts" / "nodegauge")
        where = ["--namespace", NAMESPACE, "--create-namespace", "--values", str(values)]
        self.testbed.helm("install", RELEASE, chart, *where, "--wait", "--timeout", "120s")
        for node in NODES:
            eventually(lambda node=node: self.measured(node), what=f"a benchmark of {node}", within=150)

    def measured(self, node: str) -> Object:
        """The status of its last benchmark, once that was read."""
        probes = self.report(node).get("status", {}).get("probes") or []
        found = next((p for p in probes if p["name"] == "nccl"), {})
        return found if found.get("readAt") else {}

    def settled(self, node: str) -> Object:
        """The report's status, once the node carries what it says."""

        def agree() -> Object | None:
            status: Object = self.report(node)["status"]
            wanted = {k: v for k, v in status["desired"]["labels"].items() if k != OURS + "validated-at"}
            return status if self.ours(node) == wanted else None

        found: Object = eventually(agree, what=f"{node} as its report says")
        return found

    def codes(self, node: str) -> set[str]:
        """The codes of what its last benchmark found."""
        return {finding["code"] for finding in self.measured(node)["findings"]}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """Five GPU nodes: one whose NVLinks are down in fact, one with a GPU that is given to nobody."""
    directory: Path = tmp_path_factory.mktemp("nccl") / "a path with spaces"
    with Testbed(directory, nodes={"system-1": None, **NODES}) as testbed:
        testbed.hardware("gpu-down").fault("nvlink-down-in-fact")
        testbed.hardware("gpu-seven").fault("device-unhealthy", gpu=3)
        found = Installed(testbed)
        found.install()
        yield found


def test_bandwidth_stands_on_the_nodes_and_confirms_what_the_driver_says(installed: Installed) -> None:
    """GB/s by collective, evidence measured, and the comparison in the report."""
    status = installed.settled("gpu-h100")
    labels = installed.ours("gpu-h100")
    assert (labels["interconnect"], labels[EVIDENCE]) == ("nvlink", "measured")
    assert 440 <= int(labels[ALL_REDUCE]) <= 490
    assert 300 <= int(labels[OURS + "busbw-allgather"]) <= 400
    assert status["bandwidth"]["agreement"] == "confirmed"
    assert status["bandwidth"]["p2pOff"] < 60
    assert status["verdict"] == "pass"
    assert labels[ALL_REDUCE] == str(status["bandwidth"]["allReduce"])
    titan = installed.settled("gpu-titan")["bandwidth"]
    assert (titan["allReduce"], titan["p2pOff"]) == (pytest.approx(40, abs=1), pytest.approx(4.0, rel=0.05))


def test_nvlink_in_name_only_loses_its_label(installed: Installed) -> None:
    """The finding says which number contradicted which; PHB pairs, as slow by right, keep theirs."""
    status = installed.settled("gpu-down")
    labels = installed.ours("gpu-down")
    assert not {"interconnect", OURS + "interconnect", EVIDENCE, OURS + "nvlink-gbps"} & labels.keys()
    assert (status["interconnect"]["class"], status["interconnect"]["reported"]) == ("", "nvlink")
    probe = installed.measured("gpu-down")
    [message] = [f["message"] for f in probe["findings"] if f["code"] == "interconnect-contradicted"]
    assert str(status["bandwidth"]["allReduce"]) in message
    assert "NVLink" in message
    installed.settled("gpu-phb")
    assert installed.ours("gpu-phb")["interconnect"] == "pcie"
    assert "interconnect-contradicted" not in installed.codes("gpu-phb")


def test_seven_of_eight_are_measured_and_said_to_be_seven(installed: Installed) -> None:
    """A GPU that the device plugin withdrew does not keep the others from being measured."""
    bandwidth = installed.settled("gpu-seven")["bandwidth"]
    assert (bandwidth["gpus"], bandwidth["of"]) == (7, 8)
    [finding] = [f for f in installed.measured("gpu-seven")["findings"] if f["code"] == "fewer-gpus"]
    missing = installed.testbed.hardware("gpu-seven").uuids[3]
    assert "7" in finding["message"]
    assert "GPU 3" in finding["message"] or missing[:12] in finding["message"]


def test_a_job_takes_the_gpus_at_once_and_labels_stay(installed: Installed) -> None:
    """The pod is gone before NCCL has said a word, its process too, and the node is measured later."""
    node = "gpu-h100"
    before = installed.settled(node)
    labels, number = installed.ours(node), installed.measured(node)["lastRun"]["number"]
    installed.testbed.hardware(node).fault("nccl-in-real-time")
    installed.ask_for_run(node)

    family = eventually(lambda: measuring(installed.testbed, node), what="NCCL at work")
    job = {
        "metadata": {"name": "train", "namespace": "default"},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "containers": [
                {
                    "name": "train",
                    "image": "busybox",
                    "command": ["sleep", "3600"],
                    "resources": {"limits": {"nvidia.com/gpu": "8"}},
                }
            ],
            "terminationGracePeriodSeconds": 0,
        },
    }
    asked = time.monotonic()
    installed.api.create("/api/v1/namespaces/default/pods", job)
    path = "/api/v1/namespaces/default/pods/train"
    eventually(lambda: installed.api.get(path)["status"].get("phase") == "Running", what="the job runs")
    waited = time.monotonic() - asked
    eventually(
        lambda: installed.measured(node)["lastRun"]["number"] > number, what="the end of the benchmark"
    )
    run = installed.measured(node)["lastRun"]
    assert (run["outcome"], run["reason"]) == ("skipped", "Preempted")
    assert [pid for pid in family if Path(f"/proc/{pid}").exists()] == []
    assert waited < 3, "an interrupted benchmark leaves at once, not when its grace is over"
    assert installed.ours(node) == labels
    assert installed.report(node)["status"]["bandwidth"] == before["bandwidth"]
    print(f"the job ran {waited:.1f} s after it was asked for")
    installed.api.delete(path, {"gracePeriodSeconds": 0})
    installed.testbed.hardware(node).heal()
    eventually(
        lambda: installed.measured(node)["lastRun"]["outcome"] == "read", what="measured again", within=120
    )
    assert installed.ours(node) == labels


def measuring(testbed: Testbed, node: str) -> list[int]:
    """The benchmark's processes on a node, once one of them stands in for NCCL: before, Python still starts,
    and what is told to end then is heard only when its grace is over (as by any first process of a pod)."""
    found = [p.pid for p in testbed.processes(NAMESPACE, "nodegauge-nccl") if p.node == node]
    for pid in found:
        for file in Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += map(int, file.read_text().split())
    told = []
    for pid in found:
        with contextlib.suppress(OSError):
            told.append(Path(f"/proc/{pid}/cmdline").read_bytes())
    return found if any(b"--order" in line for line in told) else []


def test_the_account_writes_only_our_keys_and_benchmarks_are_restricted(installed: Installed) -> None:
    """From the audit log: labels of ours alone on nodes, and pods that may do nothing but compute."""
    account = service_account(NAMESPACE, RELEASE)
    writes = installed.audit.writes(user=account)
    assert not [w for w in installed.audit.entries() if w.user == account and w.code in (401, 403)]
    for write in writes:
        if write.resource == "nodes" and write.code == 200:
            keys = set(write.body["metadata"].get("labels", {}))
            assert all(key.startswith(OURS) or key == "interconnect" for key in keys), keys
    pods = [w.body for w in installed.audit.writes(user=account, resource="pods", verb="create")]
    by_probe: dict[str, list[Object]] = {}
    for pod in pods:
        by_probe.setdefault(pod["metadata"]["labels"][OURS + "probe"], []).append(pod)
    assert len(by_probe["pull"]) == len(NODES), "one pull for each node and image"
    for pod in by_probe["nccl"]:
        spec = pod["spec"]
        [container] = spec["containers"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["priorityClassName"] == "nodegauge-nccl"
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert {kind for volume in spec["volumes"] for kind in volume if kind != "name"} == {"emptyDir"}
        assert int(container["resources"]["limits"]["nvidia.com/gpu"]) in (2, 7, 8)
