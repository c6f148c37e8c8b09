"""Least rights: what the chart's roles allow is what their accounts did, says the audit log."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.chart import left_behind
from support.cluster_under_test import OURS
from support.slice import GPU_NODES, Slice
from testbed.audit import Entry, service_account
from testbed.cluster import Testbed
from testbed.controlplane import ControlPlane
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster

Right = tuple[str, str, str, str]
"""Account, group, resource and verb."""

PROGRAMS = ("nodegauge-operator", "kopf")
"""User agents of what these accounts are for."""
OPERATOR, CLEANUP, WRITER = "nodegauge", "nodegauge-cleanup", "nodegauge-policy"
PROBE = "nodegauge-probe"
DRA = "resource.k8s.io"
SELDOM: dict[Right, str] = {
    (OPERATOR, "", "nodes", "get"): "read again after a conflict, and before a node that left is released",
    (OPERATOR, "", "pods", "get"): "adopt the pod of a run whose creation nobody confirmed",
    (OPERATOR, "nodegauge.dev", "nodereports", "get"): "read again after a conflict",
    (OPERATOR, "nodegauge.dev", "nodereadings", "get"): "a pod ended before its reading was seen",
    **{
        (OPERATOR, "nodegauge.dev", "nodehistories", verb): "a day is over, a fault begins, or a node is gone"
        for verb in ("get", "list", "create", "patch", "delete")
    },
    (OPERATOR, "apps", "daemonsets", "create"): "a server-side apply, logged as patch",
    **{
        (OPERATOR, DRA, "devicetaintrules", verb): "a fault of one GPU where DRA hands out GPUs"
        for verb in ("get", "create", "patch", "delete")
    },
    **{
        (OPERATOR, DRA, "resourceclaimtemplates", verb): "a node with DRA comes or goes"
        for verb in ("create", "delete")
    },
    (OPERATOR, DRA, "resourceclaims", "get"): "a pod waits for a claim",
    (CLEANUP, DRA, "devicetaintrules", "delete"): "only where a fault of one GPU stands",
    (CLEANUP, DRA, "resourceclaimtemplates", "delete"): "only where a node has DRA",
    (CLEANUP, "", "nodes", "get"): "read again after a conflict",
    (CLEANUP, "nodegauge.dev", "nodehistories", "delete"): "only where a fault or a day was written",
    (CLEANUP, "", "pods", "delete"): "only runs that are under way at the uninstall",
    (WRITER, "nodegauge.dev", "gpuvalidationpolicies", "create"): "a server-side apply, logged as patch",
}
"""Rights that a calm cluster may never show in use, with what they are for."""


@pytest.fixture
def cluster(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Slice]:
    """An installed slice on a cluster without CRDs, where a hook makes the policy with its own account."""
    nodes = {"system-1": None, **GPU_NODES}
    with (
        Testbed(tmp_path / "a path with spaces", nodes=nodes, control_plane=control_plane) as testbed,
        Slice(testbed).released() as cluster,
    ):
        cluster.ready()
        yield cluster


def granted(cluster: Any) -> set[Right]:
    """What the release allows to which of its accounts; only its first revision has the policy's hook."""
    where = ("nodegauge", "--namespace", "nodegauge", "--revision", "1")
    texts = [cluster.testbed.helm("get", part, *where) for part in ("manifest", "hooks")]
    objects = [o for text in texts for o in yaml.safe_load_all(text) if o]
    rules = {
        (o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]): o["rules"]
        for o in objects
        if o["kind"] in ("ClusterRole", "Role")
    }
    return {
        (subject["name"], group, resource, verb)
        for o in objects
        if o["kind"] in ("ClusterRoleBinding", "RoleBinding")
        for subject in o["subjects"]
        for rule in rules[(o["roleRef"]["kind"], o["metadata"].get("namespace"), o["roleRef"]["name"])]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def entries(cluster: Any) -> list[tuple[str, Entry]]:
    """Calls of these accounts since the tests of the slice began, each with its account's name."""
    accounts = {service_account("nodegauge", name): name for name in (OPERATOR, CLEANUP, WRITER, PROBE)}
    return [(accounts[entry.user], entry) for entry in cluster.audit.entries() if entry.user in accounts]


def test_no_account_may_do_what_it_never_does(cluster: Any) -> None:
    """No call is refused, and the uninstall leaves nothing, although a probe hangs."""
    cluster.upgrade("operator.releaseGrace=0s")
    cluster.faulty("gpu-titan", "p2p-refused")
    cluster.healed("gpu-titan")
    cluster.read_by("Watch")
    wait_for(cluster.watch_sets, what="a DaemonSet in mode Watch")
    cluster.read_by("Periodic")
    wait_for(lambda: not cluster.watch_sets(), what="none in mode Periodic")
    cluster.read_by("Watch")
    wait_for(cluster.watch_sets, what="a DaemonSet for the uninstall")
    path, label = "/api/v1/nodes/gpu-phb", "nvidia.com/gpu.present"
    cluster.api.patch(path, {"metadata": {"labels": {label: None}}})
    wait_for(lambda: cluster.report("gpu-phb") == {}, what="the release of a node that left")
    cluster.api.patch(path, {"metadata": {"labels": {label: "true"}}})
    wait_for(lambda: cluster.last_run("gpu-phb"), what="its first run after it came back")
    cluster.testbed.hardware("gpu-titan").fault("hung-call")
    cluster.ask_for_run("gpu-titan")
    wait_for(lambda: "gpu-titan" in {probe.node for probe in cluster.probing()}, what="the probe that hangs")
    rights = granted(cluster)
    before = [(account, entry) for account, entry in entries(cluster) if account == OPERATOR]
    cluster.uninstall()
    calls = entries(cluster)
    cleaning = [(account, entry) for account, entry in calls if account == CLEANUP]
    assert [entry for _, entry in before + cleaning if entry.code in (401, 403)] == []
    assert {account for account, *_ in rights} == {OPERATOR, CLEANUP, WRITER, PROBE}
    used = {(account, entry.group, entry.resource, entry.verb) for account, entry in calls}
    assert rights - used - SELDOM.keys() == set()
    assert SELDOM.keys() - rights == set(), "a reason for a right that nobody has"
    programs = [e.user for e in cluster.audit.entries() if e.user_agent.startswith(PROGRAMS)]
    assert {user.rpartition(":")[2] for user in programs} <= {OPERATOR, CLEANUP, WRITER, PROBE}
    for node in cluster.nodes:
        assert (cluster.ours(node), cluster.condition(node), cluster.report(node)) == ({}, {}, {})
        assert OURS + "validated-at" not in cluster.labels(node)
    wait_for(lambda: not cluster.testbed.processes("nodegauge"), what="every process of ours ended")
    pods = "/api/v1/namespaces/nodegauge/pods"
    wait_for(lambda: cluster.api.get(pods)["items"] == [], what="every pod of ours gone")
    assert {kind for kind, _ in left_behind(cluster.api, of="nodegauge")} == {"CustomResourceDefinition"}
    assert cluster.watch_sets() == []
