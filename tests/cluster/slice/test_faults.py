"""What a fault of the hardware does to a node, and that its repair undoes it.

What is expected is what the driver's answers mean (nvml.h), not what the code prints: a wrong label sends a
training job to a node where NCCL ends at once, and a missing one only costs a placement.
"""

from __future__ import annotations

from typing import Any

import pytest

from support.cluster_under_test import OURS
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster


def test_refused_p2p_takes_the_interconnect_away_although_links_are_up(cluster: Any) -> None:
    """NCCL ends its init on such a pair: no interconnect under either key at once; fail with the taint."""
    node = "gpu-titan"
    before = cluster.reasons(node).count("FaultsFound")
    run = cluster.faulty(node, "p2p-refused")
    assert run["outcome"] == "read"
    assert cluster.ours(node) == {OURS + "health": "warn"}
    condition = cluster.condition(node)
    assert (condition["status"], condition["reason"]) == ("True", "Unconfirmed")
    finding = cluster.findings(node)["p2p-refused"]
    assert finding["severity"] == "fail"
    assert finding["evidence"]["links"] == 2, "the links themselves are up"
    assert all(word in finding["evidence"]["refused"] for word in ("READ", "WRITE", "NVLINK"))
    cluster.measure(node)
    assert cluster.ours(node) == {OURS + "health": "fail"}
    assert cluster.taints(node) == ["unhealthy=p2p:NoSchedule"]
    condition = cluster.condition(node)
    assert (condition["status"], condition["reason"]) == ("False", "FaultsFound")
    assert "p2p-refused" in condition["message"]
    assert cluster.report(node)["status"]["interconnect"]["class"] == ""
    wait_for(lambda: cluster.reasons(node).count("FaultsFound") == before + 1, what="the event")
    assert cluster.healed(node) == cluster.calm[node]


def test_runs_without_a_result_change_nothing_and_cause_one_event(cluster: Any) -> None:
    """Labels, condition and findings stay and the run says why; a readable run resets the count."""
    node = "gpu-titan"
    before = cluster.reasons(node).count("ProbeFailed")
    runs = (
        ("hung-call", "call-hung", "nvmlDeviceGetPowerUsage"),
        ("driver-mismatch", "driver-mismatch", "driver was upgraded"),
    )
    for unread, (fault, code, message) in enumerate(runs, start=1):
        cluster.testbed.hardware(node).heal()
        run = cluster.faulty(node, fault)
        assert run["outcome"] == "unknown"
        assert code in run["message"]
        assert message in run["message"]
        assert cluster.report(node)["status"]["probes"][0]["unread"] == unread
        assert cluster.seen(node) == cluster.calm[node]
        assert cluster.findings(node) == {}
    wait_for(lambda: cluster.reasons(node).count("ProbeFailed") == before + 1, what="the event")
    assert cluster.healed(node) == cluster.calm[node]
    assert not cluster.report(node)["status"]["probes"][0].get("unread")
