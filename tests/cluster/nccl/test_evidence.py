"""What bandwidth makes of a node: evidence, withdrawal, taints, and what writing that costs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

import support.nccl_results as nccl
from nodegauge_contract import ArmName
from support.cluster_under_test import OURS
from support.results import phb
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster

OPERATOR = "nodegauge-operator"
PROBES = {
    "health": {"interval": "12h", "deadline": "30s", "window": "1s"},
    "nccl": {"interval": "12h", "deadline": "60s", "recheck": "1s"},
    "load": {"enabled": False},
}
AT_ONCE = {"enterRuns": 2, "leaveRuns": 1, "dwell": "1s", "probationAfter": []}
CONTRADICTING = nccl.h100(22.0, gather=16.0, ring=20.0, host=21.0)
"""What PCIe and the host's memory give, on a machine that says it has NVLink."""


def writes(audit: Any) -> list[Any]:
    """What the operator wrote since the test began, but for policies' status and what was refused."""
    result = audit.writes(user_agent=OPERATOR)
    return [w for w in result if "gpuvalidationpolicies" not in w.resource and w.code < 300]


def test_bandwidth_that_contradicts_the_driver_withdraws_the_interconnect(rig: Any) -> None:
    """NVLink in name only: its labels and the bandwidth's go, the report keeps both, a good run restores."""
    node = rig.add_node()
    rig.add_policy(probes=PROBES)
    with rig.kubelet(), rig.operator():
        rig.wait_nccl(node)
        rig.wait_labels(node, {"interconnect": "nvlink", OURS + "interconnect-evidence": "measured"})
        rig.machine.nccl = CONTRADICTING
        rig.ask_for_run(node)
        gone = dict.fromkeys(("interconnect", OURS + "interconnect", OURS + "interconnect-evidence"))
        rig.wait_labels(node, {**gone, OURS + "busbw-allreduce": None})
        status = rig.report(node)["status"]
        assert status["bandwidth"]["allReduce"] == 22
        interconnect = status["interconnect"]
        assert (interconnect["class"], interconnect["reported"]) == ("", "nvlink")
        assert interconnect["reason"] == "Contradicted"
        [finding] = [f for f in rig.probe(node)["findings"] if f["code"] == "interconnect-contradicted"]
        assert "22" in finding["message"]
        assert "450 GB/s" in finding["message"]
        wait_for(lambda: rig.counts().get("contradicted") == 1, what="the policy's count")
        rig.machine.nccl = nccl.h100()
        number = rig.nccl_run(node)["number"]
        rig.ask_for_run(node)
        rig.wait_nccl(node, more_than=number)
        rig.wait_labels(node, {"interconnect": "nvlink", OURS + "interconnect-evidence": "measured"})


def test_a_machine_of_pcie_that_is_as_slow_is_right(rig: Any) -> None:
    """With and without peer access alike, where pairs are PHB: nothing contradicts anything."""
    node = rig.add_node()
    rig.offer(node, 2)
    rig.machine.health, rig.machine.nccl = phb(), nccl.phb(6.0, host=6.0)
    rig.add_policy(probes=PROBES)
    with rig.kubelet(), rig.operator():
        rig.wait_nccl(node)
        rig.wait_labels(node, {"interconnect": "pcie", OURS + "busbw-allreduce": "6"})
        codes = {finding["code"] for finding in rig.probe(node).get("findings", [])}
    assert "interconnect-contradicted" not in codes


def test_twice_too_slow_taints_and_good_runs_lift_it(rig: Any) -> None:
    """One bad run is not enough; the second is asked for soon, and so are those that lift it."""
    node = rig.add_node()
    rig.machine.nccl = nccl.h100(300.0, gather=200.0, ring=190.0)
    rig.add_policy(probes=PROBES, hysteresis=AT_ONCE)
    with rig.kubelet(), rig.operator():
        rig.wait_nccl(node)
        wait_for(lambda: rig.taints(node) == ["unhealthy=busbw:NoSchedule"], what="the taint")
        assert rig.nccl_run(node)["number"] >= 2
        wait_for(lambda: "Tainted" in {event["reason"] for event in rig.events(node)}, what="the event")
        rig.machine.nccl = nccl.h100()
        wait_for(lambda: not rig.taints(node), what="the taint off")


def test_wrong_data_taints_at_once(rig: Any) -> None:
    """One run suffices: nothing computed there can be believed."""
    node = rig.add_node()
    good = nccl.h100()
    assert good.nccl is not None
    cells = [replace(cell, wrong=12) for cell in good.nccl.arms[0].cells]
    rig.machine.nccl = nccl.swapped(good, ArmName.DEFAULT, cells=cells)
    rig.add_policy(probes=PROBES | {"nccl": PROBES["nccl"] | {"recheck": "1h"}})
    with rig.kubelet(), rig.operator():
        wait_for(lambda: rig.taints(node) == ["unhealthy=nccl:NoSchedule"], what="the taint")
        assert rig.nccl_run(node)["number"] == 1


def test_other_expectations_grade_again_without_another_run(rig: Any) -> None:
    """A row of the policy goes before the built-in ones, and holds for what was measured already."""
    node = rig.add_node()
    policy = rig.add_policy(probes=PROBES)
    row = {"gpu": "*H100*", "count": 8, "collective": "all_reduce", "bytes": 1 << 30, "busbw": 900}
    with rig.kubelet(), rig.operator():
        rig.wait_nccl(node)
        rig.wait_labels(node, {OURS + "busbw-allreduce": "462"})
        number = rig.nccl_run(node)["number"]
        path = f"/apis/nodegauge.dev/v1alpha1/gpuvalidationpolicies/{policy}"
        rig.api.patch(
            path,
            {
                "spec": {
                    "expectations": [row | {"source": "a wish"}],
                    "probes": PROBES | {"nccl": PROBES["nccl"] | {"recheck": "1h"}},
                }
            },
        )

        def result() -> list[str]:
            return [f["message"] for f in rig.probe(node).get("findings", []) if f["code"] == "busbw-low"]

        wait_for(result, what="the finding by the new row")
        assert "900" in result()[0]
        assert rig.nccl_run(node)["number"] == number


def test_an_nccl_run_that_changes_nothing_costs_three_writes(rig: Any, audit: Any) -> None:
    """Create pod, report status, delete pod; the first of a node adds a pull's three, its labels, no more."""
    node = rig.add_node()
    rig.add_policy(probes=PROBES)
    with rig.kubelet(), rig.operator():
        rig.wait_nccl(node)
        rig.wait_labels(node, {OURS + "interconnect-evidence": "measured"})
        rig.wait_up_to_date(node, 1)
        first = writes(audit)
        rig.ask_for_run(node)
        rig.wait_nccl(node, more_than=1)
        rig.wait_up_to_date(node, 2)
        second = writes(audit)[len(first) :]
    run = {"create pods": 1, "patch nodereports/status": 1, "delete pods": 1}
    kinds = Counter(f"{w.verb} {w.resource}" for w in second)
    assert kinds == Counter({kind: 2 * count for kind, count in run.items()}), "a health run and an NCCL run"
    on_nodes = [w for w in first if w.resource == "nodes"]
    assert len(on_nodes) == 2, "labels of the health run, then what the NCCL run adds"
    for write in on_nodes:
        assert set(write.body) <= {"metadata"}, write.body
        keys = set(write.body["metadata"]["labels"])
        assert all(key.startswith(OURS) or key == "interconnect" for key in keys), keys
    assert {OURS + "busbw-allreduce", OURS + "busbw-allgather", OURS + "busbw-reducescatter"} <= keys
    print("writes with the first NCCL run:", dict(Counter(f"{w.verb} {w.resource}" for w in first)))
