"""Promise 3: a restart at any moment loses nothing and doubles nothing."""

from __future__ import annotations

import re
from typing import Any

import pytest

from testbed.wait import wait_for

pytestmark = pytest.mark.cluster

OPERATOR = "nodegauge-operator"
GRACE_SECONDS = 30.0
"""Of the operator's pod, as the chart has it: after it the kubelet kills."""
POINTS = {
    "1 create pod": ("POST", r"/api/v1/namespaces/[^/]+/pods$"),
    "2 patch node": ("PATCH", r"/api/v1/nodes/[^/]+$"),
    "3 patch report": ("PATCH", r"/nodereports/[^/]+/status$"),
    "4 condition": ("PATCH", r"/api/v1/nodes/[^/]+/status$"),
    "4 event": ("POST", r"/events$"),
    "5 delete pod": ("DELETE", r"/api/v1/namespaces/[^/]+/pods/[^/]+$"),
}
"""The writes of one validation, in their order."""


def test_killed_at_every_write_and_started_again_ends_as_an_undisturbed_run(
    rig: Any, fault_proxy: Any
) -> None:
    """SIGKILL right before and after each write of one validation: the same end, one pod, one judgement.

    tests/unit/test_operator_crashes.py kills at one write at a time, in every combination.
    """
    undisturbed = rig.add_node()
    rig.add_policy()
    with rig.kubelet(), rig.operator(name="undisturbed"):
        expected = rig.wait_up_to_date(undisturbed)
    rig.clean()
    node = rig.add_node()
    rig.add_policy()
    killed: list[str] = []
    with rig.kubelet() as kubelet, rig.operator(kubeconfig=fault_proxy.kubeconfig()) as operator:
        for point, (method, path) in POINTS.items():
            for moment in ("before", "after"):

                def kill(*_: Any, point: str = f"{moment} {point}") -> None:
                    killed.append(point)
                    operator.kill()

                fault_proxy.on(method=method, path=re.compile(path), when=moment, times=1, do=kill)
        for number in range(1, 2 * len(POINTS) + 1):
            wait_for(lambda number=number: len(killed) >= number, what=f"the kill after {killed}")
            wait_for(lambda: not operator.running(), what="the operator's end")
            operator.start()
        state = rig.wait_up_to_date(node)
        ended = list(kubelet.ended)
    assert state == expected
    run = rig.last_run(node)
    assert run["number"] == 1
    assert ended == [run["podUID"]], "one pod, judged once"


def test_a_calm_restart_writes_nothing(rig: Any, audit: Any) -> None:
    """An operator that starts on a validated cluster has nothing to do but to hold its Lease."""
    node = rig.add_node()
    rig.add_policy()
    with rig.kubelet():
        with rig.operator() as operator:
            rig.wait_up_to_date(node)
            wait_for(lambda: rig.counts()["validated"] == 1, what="the policy's status")
            assert operator.stop(within=GRACE_SECONDS) == 0, "SIGTERM ends it before it is killed"
            assert "Traceback" not in operator.output()
        before = len(audit.writes(user_agent=OPERATOR))
        with rig.operator(name="again") as operator:
            operator.wait_ready()
            operator.wait_passes(3)
        kept = ("/events", "/leases/")
        written = [
            w for w in audit.writes(user_agent=OPERATOR)[before:] if not any(part in w.path for part in kept)
        ]
    assert not written, written
    assert not audit.writes(user_agent="kopf")
