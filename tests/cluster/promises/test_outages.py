"""The API server answers 503, at the operator's start and later; CRDs are deleted and created again."""

from __future__ import annotations

from typing import Any

import pytest

from support.cluster_under_test import delete_crds, install_crds
from testbed.proxy import Refuse, RequestInfo, ResponseInfo
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster

POLICIES, REPORTS = "gpuvalidationpolicies.nodegauge.dev", "nodereports.nodegauge.dev"
REFUSAL = Refuse(status=503, reason="ServiceUnavailable", message="etcd is away")


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


@pytest.mark.parametrize("gone", [[POLICIES], [REPORTS], [POLICIES, REPORTS]])
def test_a_crd_deleted_and_created_again_is_watched_again(rig: Any, gone: list[str]) -> None:
    """Time after time, as fast as the API server allows."""
    with rig.kubelet(), rig.operator(NODEGAUGE_RELIST_INTERVAL="1h") as operator:
        for _ in range(2):
            node = rig.add_node()
            rig.add_policy()
            rig.wait_up_to_date(node)
            delete_crds(rig.api, *gone)
            install_crds(rig.api)
        wait_for(lambda: operator.http("/readyz")[0] == 200, what="readiness")
        node = rig.add_node()
        rig.add_policy()
        rig.wait_up_to_date(node)
        assert operator.running()
