"""The simulated device plugin: what it advertises, which GPUs it gives, and who then computes on them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from testbed.driver.client import GPU, NvmlClient
from testbed.hardware import Hardware, plug
from testbed.kubelet.devices import VISIBLE_DEVICES, Devices
from testbed.kubelet.errors import StartFailed


def container(gpus: int, name: str = "main") -> dict[str, Any]:
    return {"name": name, "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}


@pytest.fixture
def titan(tmp_path: Path) -> Hardware:
    return plug("titan-rtx-nv2", tmp_path / "titan")


def given(devices: Devices, pod: str, gpus: int) -> list[str]:
    return devices.allocate(pod, container(gpus))[VISIBLE_DEVICES].split(",")


def test_a_gpu_is_given_to_one_pod_until_that_is_over(titan: Hardware) -> None:
    """The first free one each time, the same again to a container that starts again, and none twice."""
    devices = Devices(titan)
    first, second = titan.uuids

    assert given(devices, "a", 1) == given(devices, "a", 1) == [first]
    assert given(devices, "b", 1) == [second]
    with pytest.raises(StartFailed, match="Requested: 1, Available: 0, which is unexpected"):
        devices.allocate("c", container(1))
    devices.release("a")
    assert given(devices, "c", 1) == [first]


def test_nvml_tells_who_computes_while_the_process_lives(titan: Hardware) -> None:
    """On the GPUs that were given, until the pod is over; a process that has ended is not told."""
    devices = Devices(titan)
    devices.allocate("a", container(1))
    devices.allocate("b", container(1))

    def counted() -> list[int]:
        call = "nvmlDeviceGetComputeRunningProcesses_v2"
        with NvmlClient(titan.env()) as nvml:
            return [len(nvml.ask(call, GPU(gpu))) for gpu in (0, 1)]

    devices.computes("a", container(1), pid=os.getpid())
    devices.computes("b", container(1), pid=2**22 + 1)  # beyond every kernel's pid_max
    assert counted() == [1, 0]
    devices.release("a")
    assert counted() == [0, 0]
