"""The simulated kubelet beside what a real one showed of the same pods."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from testbed.controlplane import ControlPlane
from testbed.kubelet_comparison import facts
from testbed.kubelet_comparison.facts import Facts
from testbed.kubelet_comparison.perform import EVERY_POD, again, perform
from testbed.kubelet_comparison.samples import SAMPLES
from testbed.pod_runner import pod_runner

pytestmark = pytest.mark.cluster

DECLARED = {
    ("no-such-program", "last words"),
    (EVERY_POD, "fields of the status"),
    (EVERY_POD, "fields of a container's status"),
}
"""Pod and aspect of every difference; tests/testbed/README.md says why."""
OTHER_COURSE = {"no-room", "root-refused"}
"""Pods that differ in any aspect."""


async def test_pods_show_what_they_show_on_a_real_kubelet(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    """Every difference is declared, and every declared difference is one."""

    def differences(seen: dict[str, Facts]) -> set[tuple[str, str]]:
        return {
            (pod, "any" if pod in OTHER_COURSE else at) for pod, at in facts.differences(facts.read(), seen)
        }

    def run(node: str) -> dict[str, Facts]:
        seen = perform(control_plane, node=node, samples=SAMPLES, namespace="default")
        wrong = {pod for pod, _ in differences(seen) - DECLARED} - OTHER_COURSE
        return again(seen, wrong=wrong, plane=control_plane, node=node, namespace="default")

    async with pod_runner(control_plane.kubeconfig, tmp_path) as runner:
        seen = await asyncio.to_thread(run, runner.node)
    expected = DECLARED | {(pod, "any") for pod in OTHER_COURSE}
    assert differences(seen) == expected, facts.differences(facts.read(), seen)
