"""What people do and see with kubectl on a real cluster: they wait for conditions, and overrule nodegauge."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from nodegauge_operator import names
from support.cluster_under_test import AT_ONCE, Machines, at_work
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster


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
