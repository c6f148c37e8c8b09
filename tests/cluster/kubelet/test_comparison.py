"""The simulated kubelet beside what a real one showed of the same pods."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.controlplane import ControlPlane
from testbed.kubelet_comparison import facts
from testbed.kubelet_comparison.perform import EVERY_POD, compared
from testbed.pod_runner import pod_runner

pytestmark = pytest.mark.cluster

DECLARED = {
    ("no-such-program", "last words"),
    (EVERY_POD, "fields of the status"),
    (EVERY_POD, "fields of a container's status"),
}
"""Pod and aspect of every difference; tests/testbed/README.md says why."""
OTHER_COURSE = {("no-room", ""), ("root-refused", "")}
"""Pods that differ in any aspect."""


def test_pods_show_what_they_show_on_a_real_kubelet(control_plane: ControlPlane, tmp_path: Path) -> None:
    """Every difference is declared, and every declared difference is one."""
    known = DECLARED | OTHER_COURSE
    with pod_runner(control_plane, tmp_path) as runner:
        seen, _ = compared(control_plane, node=runner.node, but=known)
    changed = facts.differences(facts.read(), seen)
    assert {(pod, "") if (pod, "") in OTHER_COURSE else (pod, aspect) for pod, aspect in changed} == known, (
        changed
    )
