"""History and conditions of a report on the real API server, as kubectl waits for them."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from support.cluster_under_test import answering, at_work
from testbed.binaries import build_kubectl
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster

AT_ONCE = {"enterRuns": 1, "leaveRuns": 1, "dwell": "1s", "probationAfter": []}


def test_kubectl_waits_for_a_fault_and_for_its_end(rig: Any, control_plane: Any) -> None:
    """A hot node, then a cool one: kubectl sees both by their conditions, and the history has each change."""
    name, celsius = rig.add_node(), [95]
    rig.add_policy(hysteresis=AT_ONCE)

    def wait(condition: str) -> None:
        command = [str(build_kubectl()), "--kubeconfig", str(control_plane.kubeconfig), "wait"]
        command += [f"nodereport/{name}", f"--for=condition={condition}", "--timeout=300s"]
        subprocess.run(command, check=True, capture_output=True, text=True)

    with rig.kubelet(lambda pod: answering(at_work(celsius[0]))(pod)), rig.operator():
        rig.wait_run(name, 1)
        wait("Validated=False")
        wait("Tainted")

        def dwelt() -> bool:
            """Whether the taint may leave with the next run, instead of some time after it."""
            entered = rig.report(name)["status"]["gates"][0]["enteredAt"]
            return datetime.now(UTC) > datetime.fromisoformat(entered) + timedelta(seconds=2)

        wait_for(dwelt, what="the end of the dwell")
        celsius[0] = 60
        rig.ask_for_run(name)
        wait("Validated")
        wait("Tainted=False")
    status = rig.report(name)["status"]
    assert {c["type"]: c["status"] for c in status["conditions"]} == {"Validated": "True", "Tainted": "False"}
    taints = [past for past in status["transitions"] if past["what"] == "taint throttled"]
    assert [(past.get("from", ""), past.get("to", "")) for past in taints] == [
        ("", "thermal:NoSchedule"),
        ("thermal:NoSchedule", ""),
    ]
    assert all(past["run"] and past["probe"] == "health" and past["why"] for past in taints)
