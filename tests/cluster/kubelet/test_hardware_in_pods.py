"""Plugged hardware as pods see it."""

from __future__ import annotations

import uuid
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from testbed.hardware import plug
from testbed.kubelet import Kubelet, NodeObject, RecordedHardware
from testbed.pod_runner import (
    PodRunner,
    end,
    wait_for,
)

pytestmark = pytest.mark.cluster


async def gpu_pod(runner: PodRunner, kubelet: Kubelet, **container: Any) -> str:
    """Run a pod that says how many GPUs the real pynvml sees on that node; its last words."""
    script = (
        "import os\n"
        "try:\n"
        "    import pynvml\n"
        "    pynvml.nvmlInit()\n"
        "    name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))\n"
        "    words = f'{pynvml.nvmlDeviceGetCount()} {name}'\n"
        "except pynvml.NVMLError as error:\n"
        "    words = type(error).__name__\n"
        "words += ' ' + os.environ.get('NODEGAUGE_SYSFS', 'no sysfs')\n"
        "open(os.environ['NODEGAUGE_TERMINATION_LOG'], 'w').write(words)"
    )
    name = await runner.run(script, nodeName=kubelet.name, container=container)
    message: str = end(await runner.ended(name))["message"]
    return message


async def test_plugged_hardware_reaches_the_real_pynvml(runner: PodRunner, tmp_path: Path) -> None:
    """A pod that asks for the driver finds the profile's GPUs, one that asks for some, as many; one that does
    neither, or says void, none."""
    hardware = plug("titan-rtx-nv2", tmp_path / "hardware")
    name = f"gpu-{uuid.uuid4().hex[:8]}"
    kubelet = Kubelet(name=name, server=runner.kubeconfig, directory=tmp_path / name, hardware=hardware)
    await kubelet.start()
    try:
        node = await runner.api.get(f"/api/v1/nodes/{name}")
        assert node["status"]["allocatable"]["nvidia.com/gpu"] == str(hardware.gpu_count)
        assert node["metadata"]["labels"]["nvidia.com/gpu.present"] == "true"
        sysfs = hardware.env()["NODEGAUGE_SYSFS"]
        visible = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}
        message = await gpu_pod(runner, kubelet, env=[visible])
        assert message == f"{hardware.gpu_count} {hardware.gpu_product} {sysfs}"
        for asked in (1, 2):
            requested = await gpu_pod(runner, kubelet, resources={"limits": {"nvidia.com/gpu": str(asked)}})
            assert requested == message.replace("2", str(asked), 1)
        for env in ([], [{**visible, "value": "void"}]):
            assert await gpu_pod(runner, kubelet, env=env) == f"NVMLError_LibraryNotFound {sysfs}"
    finally:
        await kubelet.stop(NodeObject.DELETE)


async def test_an_unhealthy_gpu_leaves_the_nodes_allocatable(runner: PodRunner, tmp_path: Path) -> None:
    """At once and not with the next heartbeat; capacity keeps it; healed, it is back."""
    hardware = plug("titan-rtx-nv2", tmp_path / "hardware")
    name = f"gpu-{uuid.uuid4().hex[:8]}"
    kubelet = Kubelet(name=name, server=runner.kubeconfig, directory=tmp_path / name, hardware=hardware)
    await kubelet.start()
    try:
        for change, left in ((lambda: hardware.fault("device-unhealthy", gpu=1), "1"), (hardware.heal, "2")):
            change()
            await wait_for(partial(tells, runner, name, "2", left))
    finally:
        await kubelet.stop(NodeObject.DELETE)


async def tells(runner: PodRunner, name: str, *counts: str) -> bool:
    """Whether capacity and allocatable of a node's GPUs are these."""
    status = (await runner.api.get(f"/api/v1/nodes/{name}"))["status"]
    return counts == tuple(status[part]["nvidia.com/gpu"] for part in ("capacity", "allocatable"))


async def test_the_boot_id_is_the_hardwares(runner: PodRunner, tmp_path: Path) -> None:
    """nodeInfo.bootID is what programs on the node read below their procfs."""
    boot = tmp_path / "proc/sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text("11111111-2222-3333-4444-555555555555\n")
    environment = {"NODEGAUGE_PROCFS": str(tmp_path / "proc")}
    hardware = RecordedHardware(gpu_count=2, gpu_product="NVIDIA Test", environment=environment)
    name = f"gpu-{uuid.uuid4().hex[:8]}"
    kubelet = Kubelet(name=name, server=runner.kubeconfig, directory=tmp_path / name, hardware=hardware)
    await kubelet.start()
    try:
        node = await runner.api.get(f"/api/v1/nodes/{name}")
        assert node["status"]["nodeInfo"]["bootID"] == "11111111-2222-3333-4444-555555555555"
        assert node["metadata"]["labels"]["nvidia.com/gpu.product"] == "NVIDIA-Test"
    finally:
        await kubelet.stop(NodeObject.DELETE)
