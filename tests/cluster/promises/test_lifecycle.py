"""CRDs come and go, and a node leaves the selection."""

from __future__ import annotations

from typing import Any

import pytest

from support.cluster_under_test import AT_ONCE, Machines, at_work, delete_crds, install_crds
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster

NAMES = ("gpuvalidationpolicies.nodegauge.dev", "nodereports.nodegauge.dev")


def test_crds_missing_at_start_deleted_and_made_again(rig: Any) -> None:
    """Without CRDs the operator waits and says which; it goes on when they come, survives their going, and
    watches them again when they come back, time after time."""
    node = rig.add_node()
    delete_crds(rig.api, *NAMES)
    with rig.kubelet(), rig.operator(NODEGAUGE_RELIST_INTERVAL="1h") as operator:
        wait_for(lambda: "CRDs missing" in operator.output(), what="the missing CRDs named")
        assert NAMES[0] in operator.output()
        assert operator.http("/readyz")[0] == 503
        for gone in (NAMES, NAMES[1:]):
            install_crds(rig.api)
            rig.add_policy()
            rig.wait_up_to_date(node)
            delete_crds(rig.api, *gone)
            wait_for(lambda: not rig.report(node), what="the report gone with its CRD")
        install_crds(rig.api)
        wait_for(lambda: operator.http("/readyz")[0] == 200, what="readiness")
        rig.wait_up_to_date(node)
        assert operator.running()


def test_where_crds_may_not_be_watched_a_missing_one_ends_the_start(rig: Any, control_plane: Any) -> None:
    """An account without rights on CRDs: exit code 1, and the missing CRD by its name."""
    delete_crds(rig.api, *NAMES)
    account = {"metadata": {"name": "weak"}}
    rig.api.create(f"/api/v1/namespaces/{rig.namespace}/serviceaccounts", account)
    token = control_plane.service_account_token(rig.namespace, "weak")
    kubeconfig = control_plane.user_kubeconfig(f"weak-{rig.mark}", token=token)
    try:
        with rig.operator(kubeconfig=kubeconfig) as operator:
            assert operator.wait() == 1
        assert NAMES[1] in operator.output()
        assert "crds/" in operator.output()
        assert "Traceback" not in operator.output()
    finally:
        install_crds(rig.api)


def test_a_node_that_leaves_the_server_side_selection_loses_its_taint(rig: Any) -> None:
    """A lost label arrives as a deletion: the node is there, so what we hold comes off."""
    node = rig.add_node(watched="yes")
    rig.add_policy(hysteresis=AT_ONCE)
    selector = f"test={rig.mark},watched=yes"
    with rig.kubelet(Machines(at_work(95))), rig.operator(NODEGAUGE_NODE_LABEL_SELECTOR=selector):
        rig.wait_up_to_date(node, 1)
        wait_for(lambda: rig.taints(node) == ["throttled=thermal:NoSchedule"], what="the taint")
        rig.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {"watched": None}}})
        wait_for(lambda: not rig.taints(node) and not rig.ours(node), what="nothing of ours left")
