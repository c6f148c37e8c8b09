"""Nodes, CRDs and the API server come and go."""

from __future__ import annotations

from typing import Any

import pytest

from support.cluster_under_test import Machines, delete_crds, install_crds
from support.results import h100
from testbed.proxy import Refuse, RequestInfo, ResponseInfo
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster

REFUSAL = Refuse(status=503, reason="ServiceUnavailable", message="etcd is away")
NAMES = ("gpuvalidationpolicies.nodegauge.dev", "nodereports.nodegauge.dev")


def test_a_node_that_went_while_the_api_server_was_away_is_forgotten(
    rig: Any, control_plane: Any, fault_proxy: Any
) -> None:
    """No watch ever says so; the full list after the gap does, long before the next regular one.  A run that
    goes on meanwhile on another node is judged once."""
    node, other = rig.add_node(), rig.add_node()
    rig.add_policy()
    machines = Machines(h100())
    away = rig.operator(kubeconfig=fault_proxy.kubeconfig(), NODEGAUGE_RELIST_INTERVAL="1h")
    with rig.kubelet(machines) as kubelet, away as operator:
        rig.wait_up_to_date(node)
        rig.wait_up_to_date(other)
        machines.of[other] = None
        rig.ask_for_run(other)
        wait_for(rig.pods, what="the probe pod of a second run")
        count = operator.metric("nodegauge_nodes")
        fault_proxy.pause()  # the operator's connections are cut before the node goes
        rig.api.delete(f"/api/v1/nodes/{node}")
        control_plane.restart_apiserver()  # and its watches' revisions are too old afterwards
        fault_proxy.resume()
        wait_for(lambda: operator.metric("nodegauge_nodes") == count - 1, what="the node forgotten")
        wait_for(lambda: not rig.report(node), what="its report collected")
        machines.of.clear()
        rig.wait_up_to_date(other, 2)
        assert len(kubelet.ended) == 3
        assert operator.running()


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


def test_an_api_server_that_says_503_is_waited_out(rig: Any, fault_proxy: Any) -> None:
    """At the start, and later past all of kopf's tries: not ready, alive, few lines; then it goes on."""
    node = rig.add_node()
    rig.add_policy()
    away = {"now": True}

    def refuse(_request: RequestInfo, _answer: ResponseInfo | None) -> Refuse | None:
        return REFUSAL if away["now"] else None

    fault_proxy.on(times=None, do=refuse)
    with rig.kubelet(), rig.operator(kubeconfig=fault_proxy.kubeconfig()) as operator:
        wait_for(lambda: "etcd is away" in operator.output(), what="the outage named")
        assert operator.http("/readyz")[0] == 503
        assert operator.metric("nodegauge_ready") == 0
        away["now"] = False
        rig.wait_up_to_date(node)
        operator.wait_ready()
        assert operator.metric("nodegauge_ready") == 1
        away["now"] = True
        fault_proxy.pause()
        fault_proxy.resume()
        wait_for(lambda: "kopf ended" in operator.output(), what="the end of kopf's tries")
        assert operator.http("/readyz")[0] == 503
        assert operator.http("/healthz")[0] == 200
        away["now"] = False
        other = rig.add_node()
        rig.wait_up_to_date(other)
        wait_for(lambda: operator.http("/readyz")[0] == 200, what="readiness")
        assert operator.running()
        assert operator.output().count("waiting for the API server") <= 5
        assert "ERROR" not in operator.output()
