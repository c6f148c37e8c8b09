"""Nodes, policies, CRDs and the API server come and go; two operators run by mistake."""

from __future__ import annotations

from typing import Any

import pytest

from support.cluster_under_test import GROUP, answering, delete_crds, install_crds
from support.results import dgx1, h100
from testbed.scripted import create_node
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster

NAMES = ("gpuvalidationpolicies.nodegauge.dev", "nodereports.nodegauge.dev")


def test_two_operators_at_once_do_no_harm(rig: Any) -> None:
    """Every run has one pod and is judged once, and the node ends as with one operator."""
    nodes = [rig.add_node() for _ in range(6)]
    rig.add_policy()
    with rig.kubelet() as kubelet, rig.operator(name="one"), rig.operator(name="two"):
        for node in nodes:
            rig.wait_up_to_date(node, 1)
        for node in nodes:
            rig.ask_for_run(node)
        for node in nodes:
            state = rig.wait_up_to_date(node, 2)
            assert state["labels"]["interconnect"] == "nvlink"
            probe = rig.report(node)["status"]["probes"][0]
            assert (probe["lastRun"]["number"], probe["streak"]) == (2, 2)
            wait_for(lambda n=node: len(rig.events(n)) == 1, what=f"the event of {node}")
        assert len(kubelet.ended) == len(set(kubelet.ended)) == 2 * len(nodes)


def test_a_node_deleted_and_recreated_is_measured_anew(rig: Any) -> None:
    """The old report goes with its node; another machine under its name starts with run 1, its own UID and
    its own labels."""
    node = rig.add_node()
    rig.add_policy()
    machine = {"now": h100()}
    with rig.kubelet(lambda pod: answering(machine["now"])(pod)), rig.operator():
        rig.wait_up_to_date(node, 1)
        rig.ask_for_run(node)
        rig.wait_up_to_date(node, 2)
        assert rig.ours(node)["nodegauge.dev/nvlink-gbps"] == "450"
        old = rig.node(node)["metadata"]["uid"]
        machine["now"] = dgx1()
        rig.api.delete(f"/api/v1/nodes/{node}")
        create_node(rig.api, node, labels={"test": rig.mark})
        new = rig.node(node)["metadata"]["uid"]
        assert new != old

        def measured() -> bool:
            report = rig.report(node)
            owners = report.get("metadata", {}).get("ownerReferences", [{}])
            return owners[0].get("uid") == new and rig.last_run(node).get("number") == 1

        wait_for(measured, what="a report of the new node")
        rig.wait_up_to_date(node, 1)
        assert rig.ours(node)["nodegauge.dev/nvlink-gbps"] == "150"


def test_a_report_of_an_earlier_node_counts_as_absent(rig: Any) -> None:
    """A report left by a node of the same name is replaced, never read."""
    node = rig.add_node()
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": "00000000-0000-0000-0000-000000000000"}
    body = {
        "apiVersion": "nodegauge.dev/v1alpha1",
        "kind": "NodeReport",
        "metadata": {"name": node, "ownerReferences": [owner]},
        "spec": {},
    }
    rig.api.create(f"{GROUP}/nodereports", body)
    rig.add_policy()
    with rig.kubelet(), rig.operator():
        rig.wait_up_to_date(node, 1)
    assert rig.report(node)["metadata"]["ownerReferences"][0]["uid"] == rig.node(node)["metadata"]["uid"]


def test_an_api_server_restarted_in_the_middle_of_a_run_loses_nothing(rig: Any, control_plane: Any) -> None:
    """The run that was going on is judged once the API server is back."""
    node = rig.add_node()
    rig.add_policy()
    hold = {"answer": False}
    with (
        rig.kubelet(lambda pod: answering(h100())(pod) if hold["answer"] else None) as kubelet,
        rig.operator() as operator,
    ):
        wait_for(lambda: rig.pods(), what="the probe pod")
        control_plane.restart_apiserver()
        hold["answer"] = True
        rig.wait_up_to_date(node, 1)
        assert operator.running()
        assert len(kubelet.ended) == 1
    assert rig.ours(node)["interconnect"] == "nvlink"


def test_a_node_that_went_while_the_api_server_was_away_is_forgotten(
    rig: Any, control_plane: Any, fault_proxy: Any
) -> None:
    """No watch ever says so; the full list after the gap does, long before the next regular one."""
    node, other = rig.add_node(), rig.add_node()
    rig.add_policy()
    away = rig.operator(kubeconfig=fault_proxy.kubeconfig(), NODEGAUGE_RELIST_INTERVAL="1h")
    with rig.kubelet(), away as operator:
        rig.wait_up_to_date(node)
        rig.wait_up_to_date(other)
        count = operator.metric("nodegauge_nodes")
        fault_proxy.pause()  # the operator's connections are cut before the node goes
        rig.api.delete(f"/api/v1/nodes/{node}")
        control_plane.restart_apiserver()  # and its watches' revisions are too old afterwards
        fault_proxy.resume()
        wait_for(lambda: operator.metric("nodegauge_nodes") == count - 1, what="the node forgotten")
        wait_for(lambda: not rig.report(node), what="its report collected")
        assert operator.running()


def test_a_pod_that_never_starts_is_ended_by_the_operator(rig: Any) -> None:
    """activeDeadlineSeconds never ends a Pending pod; the policy's limits do, and say what it waited for."""
    node = rig.add_node()
    rig.add_policy(limits={"notStarted": "2s", "notScheduled": "60s"})
    with rig.kubelet(lambda pod: None), rig.operator():
        run = rig.wait_run(node, 1)
    assert run["outcome"] == "unknown"
    assert "did not start" in run["message"]


def test_a_pod_that_finds_no_room_is_skipped_and_ages_nothing(rig: Any) -> None:
    """A full node is not a fault of the node."""
    node = rig.add_node()
    rig.api.patch(f"/api/v1/nodes/{node}/status", {"status": {"allocatable": {"cpu": "1m"}}})
    rig.add_policy(limits={"notStarted": "60s", "notScheduled": "8s"})

    def explained() -> bool:
        """Whether the scheduler had a look at the pod before the operator gave it up; if not, another run."""
        run = rig.wait_run(node, rig.last_run(node).get("number", 0) + 1)
        assert (run["outcome"], run["reason"]) == ("skipped", "NotScheduled")
        rig.ask_for_run(node)
        return "Insufficient cpu" in run["message"]

    with rig.kubelet(), rig.operator():
        assert any(explained() for _ in range(3)), rig.last_run(node)["message"]


def test_a_pod_that_somebody_deleted_is_unknown(rig: Any) -> None:
    """An evicted or deleted probe decides nothing: what was read before it stays."""
    node = rig.add_node()
    rig.add_policy()
    with rig.operator():
        with rig.kubelet():
            rig.wait_run(node, 1)
            before = wait_for(lambda: rig.ours(node), what="labels")
            wait_for(lambda: not rig.pods(), what="the first run's pod gone")
        with rig.kubelet(lambda pod: None):
            rig.ask_for_run(node)
            [pod] = wait_for(lambda: rig.pods(), what="the second run's pod")
            path = f"/api/v1/namespaces/{rig.namespace}/pods/{pod['metadata']['name']}"
            rig.api.delete(path)
            run = rig.wait_run(node, 2)
    assert (run["outcome"], run["reason"]) == ("unknown", "PodDeleted")
    assert rig.ours(node) == before


def test_a_refused_pod_is_unknown_with_the_refusal_and_backs_off(rig: Any) -> None:
    """A quota refuses the pod: the report says so, and the operator does not hammer."""
    node = rig.add_node()
    quota = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    rig.api.create(f"/api/v1/namespaces/{rig.namespace}/resourcequotas", quota)
    path = f"/api/v1/namespaces/{rig.namespace}/resourcequotas/none"
    wait_for(lambda: rig.api.get(path).get("status", {}).get("hard"), what="quota in force")
    rig.add_policy()
    with rig.kubelet(), rig.operator() as operator:
        run = rig.wait_run(node, 1)
        assert (run["outcome"], run["reason"]) == ("unknown", "CreateRefused")
        assert "quota" in run["message"]
        operator.wait_passes(4)
        assert operator.metric("nodegauge_pods_refused_total") == 1


def test_a_new_boot_takes_topology_labels_until_measured_again(rig: Any) -> None:
    """What was measured before the reboot is not believed after it; a new run starts at once."""
    node = rig.add_node()
    rig.add_policy()
    hold = {"answer": True}
    with rig.kubelet(lambda pod: answering(h100())(pod) if hold["answer"] else None), rig.operator():
        rig.wait_up_to_date(node)
        hold["answer"] = False
        rig.api.patch(f"/api/v1/nodes/{node}/status", {"status": {"nodeInfo": {"bootID": "boot-2"}}})
        wait_for(lambda: "interconnect" not in rig.labels(node), what="topology labels gone")
        hold["answer"] = True
        rig.wait_up_to_date(node, 2)
        assert rig.labels(node)["interconnect"] == "nvlink"


def test_the_policy_of_higher_priority_wins_and_the_other_says_so(rig: Any) -> None:
    """Two policies on one node: one is in force, the other's condition reports it."""
    node = rig.add_node()
    low = rig.add_policy(mode="Observe")
    high = rig.add_policy(priority=5)
    with rig.kubelet(), rig.operator():
        rig.wait_up_to_date(node)
        assert rig.report(node)["status"]["policy"] == high

        def reason() -> str:
            status = rig.api.get(f"{GROUP}/gpuvalidationpolicies/{low}").get("status", {})
            return next((c["reason"] for c in status.get("conditions", [])), "")

        wait_for(lambda: reason() == "Overridden", what="the condition Overridden")


def test_crds_missing_at_start_deleted_and_made_again(rig: Any) -> None:
    """Without CRDs the operator waits and says which; it goes on when they come, and survives their going."""
    node = rig.add_node()
    delete_crds(rig.api, *NAMES)
    with rig.kubelet(), rig.operator() as operator:
        wait_for(lambda: "CRDs missing" in operator.output(), what="the missing CRDs named")
        assert NAMES[0] in operator.output()
        assert operator.http("/readyz")[0] == 503
        install_crds(rig.api)
        rig.add_policy()
        rig.wait_up_to_date(node)
        delete_crds(rig.api, *NAMES)
        wait_for(lambda: not rig.ours(node), what="labels gone with their policy")
        assert operator.running()
        install_crds(rig.api)
        rig.add_policy()
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
