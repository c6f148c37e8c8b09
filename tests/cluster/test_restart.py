"""An operator that comes again to a validated cluster has nothing to write."""

from typing import Any

import pytest

from testbed.wait import wait_for

pytestmark = pytest.mark.cluster

OPERATOR = "nodegauge-operator"
GRACE_SECONDS = 30.0
"""Of the operator's pod, as the chart has it: after it the kubelet kills."""


def test_a_calm_restart_writes_nothing(rig: Any, audit: Any) -> None:
    """It holds its Lease.  Crashes: tests/unit/test_operator_crashes.py, and `make faults`."""
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
