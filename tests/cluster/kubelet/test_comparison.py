"""The simulated kubelet beside what a real one showed of the same pods."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from testbed.controlplane import ControlPlane
from testbed.kubelet_comparison import recorded
from testbed.kubelet_comparison.declared import complaints
from testbed.kubelet_comparison.facts import Facts
from testbed.kubelet_comparison.perform import again, perform
from testbed.kubelet_comparison.samples import SAMPLES
from testbed.pod_runner import pod_runner

pytestmark = pytest.mark.cluster


async def test_pods_show_what_they_show_on_a_real_kubelet(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    """Every difference is declared, and every declared difference is one."""

    def run(node: str) -> dict[str, Facts]:
        seen = perform(control_plane, node=node, samples=SAMPLES, namespace="default")
        wrong = {pod for pod, _ in complaints(recorded.differences(recorded.read(), seen))}
        return again(seen, wrong=wrong, plane=control_plane, node=node, namespace="default")

    async with pod_runner(control_plane.kubeconfig, tmp_path) as runner:
        seen = await asyncio.to_thread(run, runner.node)
    result = recorded.differences(recorded.read(), seen)
    assert complaints(result) == [], result
