"""Promise 3: a restart at any moment loses nothing and doubles nothing."""

from __future__ import annotations

import re
from typing import Any

import pytest

from support.rig import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

OPERATOR = "nodegauge-operator"
POINTS = {
    "1 create pod": ("POST", r"/api/v1/namespaces/[^/]+/pods$"),
    "2 patch report": ("PATCH", r"/nodereports/[^/]+/status$"),
    "3 patch node": ("PATCH", r"/api/v1/nodes/[^/]+$"),
    "4 condition": ("PATCH", r"/api/v1/nodes/[^/]+/status$"),
    "4 event": ("POST", r"/events$"),
    "5 delete pod": ("DELETE", r"/api/v1/namespaces/[^/]+/pods/[^/]+$"),
}
"""The writes of one validation, in their order."""


@pytest.fixture(scope="module")
def calm() -> dict[str, Any]:
    """The end of a run that nobody disturbed; filled by the first test that needs it."""
    return {}


def calm_run(rig: Any, calm: dict[str, Any]) -> Any:
    """The state after one undisturbed run on a node of its own."""
    if not calm:
        node = rig.add_node()
        rig.add_policy()
        with rig.kubelet(), rig.operator(name="calm"):
            calm["state"] = rig.wait_settled(node)
        rig.clean()
    return calm["state"]


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_a_write_and_started_again_ends_as_a_calm_run(
    rig: Any, fault_proxy: Any, calm: dict[str, Any], point: str, moment: str
) -> None:
    """SIGKILL right before or right after each write: same labels, condition, report and events; one run."""
    expected = calm_run(rig, calm)
    node = rig.add_node()
    rig.add_policy()
    method, path = POINTS[point]
    killed: list[int] = []
    with rig.kubelet() as kubelet, rig.operator(kubeconfig=fault_proxy.kubeconfig()) as operator:

        def kill(*_: Any) -> None:
            killed.append(operator.pid)
            operator.kill()

        fault_proxy.on(method=method, path=re.compile(path), when=moment, times=1, do=kill)
        operator.wait(60)
        assert killed, "the operator was never at this point"
        operator.start()
        state = rig.wait_settled(node)
        ended = list(kubelet.ended)
    assert state == expected
    run = rig.last_run(node)
    assert run["number"] == 1
    assert ended == [run["podUID"]], "one pod, judged once"


def test_a_calm_restart_writes_nothing(rig: Any, audit: Any) -> None:
    """An operator that starts on a validated cluster has nothing to do."""
    node = rig.add_node()
    rig.add_policy()
    with rig.kubelet():
        with rig.operator() as operator:
            rig.wait_settled(node)
            eventually(lambda: rig.counts()["validated"] == 1, what="the policy's status")
            assert operator.stop() == 0
        before = len(audit.writes(user_agent=OPERATOR))
        with rig.operator(name="again") as operator:
            operator.wait_ready()
            begun = operator.metric("nodegauge_last_pass_timestamp_seconds")
            later = begun + 1.5  # seconds: three passes
            eventually(
                lambda: operator.metric("nodegauge_last_pass_timestamp_seconds") > later, what="more passes"
            )
        written = [w for w in audit.writes(user_agent=OPERATOR)[before:] if "/events" not in w.path]
    assert not written, written
    assert not audit.writes(user_agent="kopf")


def test_sigterm_ends_the_operator_with_exit_code_zero(rig: Any) -> None:
    """A pod that is being deleted goes quietly, and soon."""
    rig.add_policy()
    with rig.operator() as operator:
        operator.wait_ready()
        assert operator.stop() == 0
    assert "Traceback" not in operator.words()
