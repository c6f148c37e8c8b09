"""CRDs come and go, a node leaves the selection, and people wait and overrule with kubectl."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from nodegauge_operator import names
from support.cluster_under_test import AT_ONCE, Machines, at_work, delete_crds, install_crds
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster

NAMES = (
    "gpuvalidationpolicies.nodegauge.dev",
    "nodereports.nodegauge.dev",
    "nodereadings.nodegauge.dev",
)


def test_crds_missing_at_start_deleted_and_made_again(rig: Any) -> None:
    """Without CRDs the operator waits and says which; it goes on when they come, survives their going, and
    watches them again when they come back, time after time."""
    node = rig.add_node()
    delete_crds(rig.api, *NAMES)
    with rig.kubelet(), rig.operator(NODEGAUGE_RELIST_INTERVAL="1h") as operator:
        wait_for(lambda: "CRDs missing" in operator.output(), what="the missing CRDs named")
        assert all(name in operator.output() for name in NAMES)
        assert operator.http("/readyz")[0] == 503
        assert (operator.http("/healthz")[0], operator.metric("nodegauge_ready")) == (200, 0)
        went: tuple[str, ...] = NAMES
        for gone in (NAMES, NAMES[1:], NAMES[2:]):
            install_crds(rig.api)
            if NAMES[0] in went:
                rig.add_policy()
            rig.wait_up_to_date(node)
            delete_crds(rig.api, *gone)
            wait_for(lambda: not rig.reading(node), what="the reading gone with its CRD")
            went = gone
        wait_for(lambda: "kopf ended" in operator.output(), what="the end of kopf")
        install_crds(rig.api)
        wait_for(lambda: operator.http("/readyz")[0] == 200, what="readiness")
        assert operator.metric("nodegauge_ready") == 1
        rig.ask_for_run(node)
        rig.wait_up_to_date(node, 2)
        assert rig.last_run(node)["outcome"] == "read"
        assert operator.running()
        assert "ERROR" not in operator.output()


@pytest.mark.parametrize("missing", [NAMES, NAMES[2:]], ids=["all", "readings"])
def test_where_crds_may_not_be_watched_a_missing_one_ends_the_start(
    rig: Any, control_plane: Any, missing: tuple[str, ...]
) -> None:
    """An account without rights on CRDs: exit code 1, and each missing CRD by its name."""
    delete_crds(rig.api, *missing)
    rig.api.create(f"/api/v1/namespaces/{rig.namespace}/serviceaccounts", {"metadata": {"name": "weak"}})
    token = control_plane.service_account_token(rig.namespace, "weak")
    kubeconfig = control_plane.user_kubeconfig(f"weak-{rig.mark}", token=token)
    try:
        with rig.operator(kubeconfig=kubeconfig) as operator:
            assert operator.wait() == 1
        assert f"install {' and '.join(missing)} (" in operator.output()
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


def test_kubectl_waits_for_a_fault_and_for_its_end(rig: Any) -> None:
    """A hot node, then a cool one: kubectl sees both by their conditions, and the history has each change."""
    name, machines = rig.add_node(), Machines(at_work(95))
    rig.add_policy(hysteresis=AT_ONCE)

    def wait(condition: str) -> None:
        rig.kubectl("wait", f"nodereport/{name}", f"--for=condition={condition}", "--timeout=300s")

    with rig.kubelet(machines), rig.operator():
        rig.wait_run(name, 1)
        wait("Validated=False")
        wait("Tainted")

        def dwelt() -> bool:
            """Whether the taint may leave with the next run, instead of some time after it."""
            entered = rig.report(name)["status"]["gates"][0]["enteredAt"]
            return datetime.now(UTC) > datetime.fromisoformat(entered) + timedelta(seconds=2)

        wait_for(dwelt, what="the end of the dwell")
        machines.now = at_work(60)
        rig.ask_for_run(name)
        wait("Validated")
        wait("Tainted=False")
    status = rig.report(name)["status"]
    assert {c["type"]: c["status"] for c in status["conditions"]} == {"Validated": "True", "Tainted": "False"}
    taints = [past for past in status["transitions"] if past["what"] == "taint throttled"]
    thermal = "thermal:NoSchedule"
    assert [(past.get("from", ""), past.get("to", "")) for past in taints] == [("", thermal), (thermal, "")]
    assert all(past["run"] and past["probe"] == "health" and past["why"] for past in taints)


def in_so_many(*, seconds: float) -> str:
    """That moment as an annotation has it."""
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_a_node_taken_as_healthy_takes_its_taint_again_by_the_clock(rig: Any) -> None:
    """With the runbook's command: tainted, overruled, shown with who and why, and tainted again by itself."""
    name = rig.add_node()
    rig.add_policy(hysteresis=AT_ONCE)

    def annotate(annotations: dict[str, str]) -> None:
        pairs = [f"{names.OVERRIDE}{key}={value}" for key, value in annotations.items()]
        rig.kubectl("annotate", "node", name, "--overwrite", *pairs)

    with rig.kubelet(Machines(at_work(95))), rig.operator():
        wait_for(lambda: rig.taints(name), what="the taint of a hot node")
        until = in_so_many(seconds=3600)
        annotate({"": "healthy", "-until": until, "-by": "ann", "-reason": "sensor is wrong"})
        wait_for(lambda: not rig.taints(name), what="no taint under the override")
        assert "healthy" in rig.kubectl("get", "nodereport", name).splitlines()[1].split()
        override = rig.report(name)["status"]["override"]
        assert override == {"kind": "healthy", "until": until, "by": "ann", "reason": "sensor is wrong"}
        annotate({"-until": in_so_many(seconds=5)})
        wait_for(lambda: rig.taints(name), what="the taint once the override is over")
        about = ("get", "events", "-A", "--field-selector", f"involvedObject.name={name}")
        for reason in ("OverrideSet", "OverrideEnded"):
            wait_for(lambda reason=reason: reason in rig.kubectl(*about), what=f"the event {reason}")
    annotated = rig.node(name)["metadata"]["annotations"]
    assert annotated[names.OVERRIDE] == "healthy", "a person's words stay"
