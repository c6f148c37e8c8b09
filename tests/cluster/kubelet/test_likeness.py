"""The simulated kubelet beside what a real one showed of the same pods."""

from __future__ import annotations

import asyncio

import pytest

from testbed.controlplane import ControlPlane
from testbed.lab import Lab
from testbed.likeness import recorded
from testbed.likeness.declared import complaints
from testbed.likeness.facts import Facts
from testbed.likeness.perform import again, perform
from testbed.likeness.samples import SAMPLES

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


async def test_pods_show_what_they_show_on_a_real_kubelet(lab: Lab, control_plane: ControlPlane) -> None:
    """Every difference is declared, and every declared difference is one."""

    def run() -> dict[str, Facts]:
        seen = perform(control_plane, node=lab.node, samples=SAMPLES, namespace="default")
        wrong = {pod for pod, _ in complaints(recorded.differences(recorded.read(), seen))}
        return again(seen, wrong=wrong, plane=control_plane, node=lab.node, namespace="default")

    found = recorded.differences(recorded.read(), await asyncio.to_thread(run))
    assert complaints(found) == [], found
