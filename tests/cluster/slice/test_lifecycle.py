"""The slice over time: a fault and its repair, an upgrade, the uninstall."""

from __future__ import annotations

from typing import Any

import pytest

from support.cluster_under_test import GROUP, OURS
from testbed.audit import service_account
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


def test_an_upgrade_keeps_labels_and_reports(cluster: Any) -> None:
    """A new operator with other settings takes over what the old one left, and writes nothing to nodes."""
    old = cluster.operator_pod()["metadata"]["uid"]
    uids = {node: cluster.report(node)["metadata"]["uid"] for node in cluster.nodes}
    writes = len(cluster.account_writes(resource="nodes"))
    cluster.upgrade("operator.logLevel=debug")
    assert cluster.operator_pod()["metadata"]["uid"] != old
    run = cluster.measure("gpu-titan")
    assert run["outcome"] == "read"
    assert {node: cluster.report(node)["metadata"]["uid"] for node in cluster.nodes} == uids
    for node in cluster.nodes:
        assert cluster.seen(node) == cluster.calm[node]
    assert len(cluster.account_writes(resource="nodes")) == writes


def test_uninstalling_during_runs_leaves_nothing(cluster: Any) -> None:
    """While one probe hangs and others run: no label, condition, report, pod or right of ours remains."""
    cluster.testbed.hardware("gpu-titan").fault("hung-call")
    for node in cluster.nodes:
        cluster.ask_for_run(node)
    wait_for(lambda: "gpu-titan" in {probe.node for probe in cluster.probing()}, what="the probe that hangs")
    cluster.uninstall()
    for node in cluster.nodes:
        assert cluster.ours(node) == {}
        assert OURS + "validated-at" not in cluster.labels(node)
        assert cluster.condition(node) == {}
        assert cluster.report(node) == {}
    wait_for(lambda: not cluster.testbed.processes("nodegauge"), what="every process of ours ended")
    pods = "/api/v1/namespaces/nodegauge/pods"
    wait_for(lambda: cluster.api.get(pods)["items"] == [], what="every pod of ours gone")
    assert leftovers(cluster) == []
    cleaner = service_account("nodegauge", "nodegauge-cleanup")
    by_it = [entry for entry in cluster.audit.entries() if entry.user == cleaner]
    assert by_it
    assert [entry for entry in by_it if entry.code in (401, 403)] == []


def leftovers(cluster: Any) -> list[str]:
    """What the chart made that is still there; not the CRDs, which it keeps on purpose."""
    rbac, core = "/apis/rbac.authorization.k8s.io/v1", "/api/v1/namespaces/nodegauge"
    locations = [
        *(f"{rbac}/{kind}" for kind in ("clusterroles", "clusterrolebindings", "roles", "rolebindings")),
        "/apis/scheduling.k8s.io/v1/priorityclasses",
        "/apis/apps/v1/namespaces/nodegauge/deployments",
        "/apis/batch/v1/namespaces/nodegauge/jobs",
        *(f"{core}/{kind}" for kind in ("serviceaccounts", "services", "secrets")),
    ]
    named = [
        item["metadata"]["name"] for location in locations for item in cluster.api.get(location)["items"]
    ]
    policies = [
        item["metadata"]["name"] for item in cluster.api.get(f"{GROUP}/gpuvalidationpolicies")["items"]
    ]
    return [name for name in named if "nodegauge" in name] + policies
