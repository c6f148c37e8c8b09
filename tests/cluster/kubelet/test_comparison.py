"""The simulated kubelet beside what a real one showed of the same pods.

Readiness, liveness, tokens and volumes are seen on a real one by tests/e2e, GPUs that pods find by the demo.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.cluster import Testbed
from testbed.controlplane import ControlPlane
from testbed.kubelet_comparison import facts
from testbed.kubelet_comparison.perform import compared

pytestmark = pytest.mark.cluster

NODE = "kubelet-comparison"
DECLARED = {("no-such-program", "last words")}
"""Pod and aspect of every difference; tests/testbed/README.md says why."""
OTHER_COURSE = {("no-room", ""), ("root-refused", "")}
"""Pods that differ in any aspect."""


def test_pods_show_what_they_show_on_a_real_kubelet(control_plane: ControlPlane, tmp_path: Path) -> None:
    """Every difference is declared, and every declared difference is one."""
    known = DECLARED | OTHER_COURSE
    with Testbed(tmp_path, nodes={NODE: None}, control_plane=control_plane) as testbed:
        seen, _ = compared(control_plane, node=NODE, but=known)
        testbed.nodes.remove(NODE)
    changed = facts.differences(facts.read(), seen)
    assert {(pod, "") if (pod, "") in OTHER_COURSE else (pod, aspect) for pod, aspect in changed} == known, (
        changed
    )
