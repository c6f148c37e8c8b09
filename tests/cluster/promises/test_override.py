"""A person overrules nodegauge on one node of a real cluster, with the runbook's command."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from nodegauge_operator import names
from support.cluster_under_test import answering, at_work
from testbed.binaries import build_kubectl
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster

AT_ONCE = {"enterRuns": 1, "leaveRuns": 1, "dwell": "1s", "probationAfter": []}


def in_so_many(*, seconds: float) -> str:
    """That moment as an annotation has it."""
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_a_node_taken_as_healthy_takes_its_taint_again_by_the_clock(rig: Any, control_plane: Any) -> None:
    """Tainted, overruled, shown by kubectl with who and why, and tainted again with no hand on it."""
    name = rig.add_node()
    rig.add_policy(hysteresis=AT_ONCE)

    def kubectl(*command: str) -> str:
        program = [str(build_kubectl()), "--kubeconfig", str(control_plane.kubeconfig)]
        return subprocess.run([*program, *command], check=True, capture_output=True, text=True).stdout

    def annotate(annotations: dict[str, str]) -> None:
        pairs = [f"{names.OVERRIDE}{key}={value}" for key, value in annotations.items()]
        kubectl("annotate", "node", name, "--overwrite", *pairs)

    def tainted() -> bool:
        taints = rig.node(name)["spec"].get("taints") or []
        return any(taint["key"] == names.TAINT_THROTTLED for taint in taints)

    with rig.kubelet(lambda pod: answering(at_work(95))(pod)), rig.operator():
        wait_for(tainted, what="the taint of a hot node")
        until = in_so_many(seconds=3600)
        annotate({"": "healthy", "-until": until, "-by": "ann", "-reason": "sensor is wrong"})
        wait_for(lambda: not tainted(), what="no taint under the override")
        assert "healthy" in kubectl("get", "nodereport", name).splitlines()[1].split()
        override = rig.report(name)["status"]["override"]
        assert override == {"kind": "healthy", "until": until, "by": "ann", "reason": "sensor is wrong"}
        annotate({"-until": in_so_many(seconds=5)})
        wait_for(tainted, what="the taint once the override is over")
        about = ("get", "events", "-A", "--field-selector", f"involvedObject.name={name}")
        for reason in ("OverrideSet", "OverrideEnded"):
            wait_for(lambda reason=reason: reason in kubectl(*about), what=f"the event {reason}")
    annotated = rig.node(name)["metadata"]["annotations"]
    assert annotated[names.OVERRIDE] == "healthy", "a person's words stay"
