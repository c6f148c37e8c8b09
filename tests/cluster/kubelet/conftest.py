"""A simulated node for each test of the kubelet, on the session's real control plane."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from testbed.controlplane import ControlPlane
from testbed.kubelet import Kubelet, NodeObject
from testbed.kubelet.api import Api
from testbed.kubelet.errors import ApiError
from testbed.pod_runner import PODS, PodRunner


@pytest.fixture
async def runner(control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[PodRunner]:
    """A node of its own for each test, and its pods removed afterwards."""
    name = f"node-{uuid.uuid4().hex[:8]}"
    kubelet = Kubelet(name=name, server=control_plane.kubeconfig, directory=tmp_path / name)
    async with await Api.connect(control_plane.kubeconfig, agent="tests") as api:
        await kubelet.start()
        try:
            yield PodRunner(api, kubelet, control_plane.kubeconfig, tmp_path)
        finally:
            await kubelet.stop(NodeObject.DELETE)
            pods = await api.get(PODS, fieldSelector=f"spec.nodeName={name}")
            for pod in pods["items"]:
                with contextlib.suppress(ApiError):  # the controllers may have been faster
                    await api.delete(f"{PODS}/{pod['metadata']['name']}", {"gracePeriodSeconds": 0})
