"""Faults of benchmarks: each changes what the simulated NCCL does, nothing that NVML reads, and can be
healed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.machines import snapshot
from testbed import profiles
from testbed.driver.client import GPU, NvmlClient
from testbed.hardware import FAULTS, Hardware, HardwareError, plug
from testbed.hardware.plugged import NCCL_FILE
from testbed.simulated_nccl.machine import Machine

IN_NVML = {"gpu-in-use"}
"""Who computes on a GPU is read through NVML."""
OF_THE_PLUGIN = {"device-unhealthy"}
"""What the device plugin tells the kubelet: tests/unit/test_simulated_nccl_devices.py."""
NCCL_FAULTS = sorted(name for name, fault in FAULTS.items() if fault.module == "faults_nccl")


def nccl_machine(hardware: Hardware) -> Machine:
    """What a child of this machine would find."""
    return msgspec.json.decode((hardware.directory / NCCL_FILE).read_bytes(), type=Machine)


@pytest.fixture(scope="module")
def h100(tmp_path_factory: pytest.TempPathFactory) -> Hardware:
    """Eight of them; every test heals it."""
    return plug("h100-sxm-8", tmp_path_factory.mktemp("h100"))


@pytest.mark.parametrize("name", sorted({*NCCL_FAULTS} - IN_NVML - OF_THE_PLUGIN))
def test_a_fault_of_the_benchmark_shows_in_no_reading_and_heals(h100: Hardware, name: str) -> None:
    """NVML and sysfs answer as before, the machine file differs, and is as before once it is healed."""
    before, healthy = snapshot(h100), nccl_machine(h100)

    h100.fault(name)
    assert snapshot(h100) == before
    assert nccl_machine(h100).troubles != healthy.troubles
    h100.heal(name)
    assert nccl_machine(h100) == healthy


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("nccl-hang", {"phase": "spawn"}, "phase is 'spawn': choose one of init, load, measure"),
        ("nccl-crash", {"arm": "fast"}, "arm is 'fast': choose one of all, default, p2p-off, nvls-off"),
        ("slow-link", {"gpu": 2, "peer": 2}, "both 2: a link joins two"),
        ("nccl-slow", {"percent": 0}, "give a number from 1 to 100"),
    ],
)
def test_a_parameter_that_cannot_be_is_refused(
    h100: Hardware, name: str, parameters: dict[str, Any], message: str
) -> None:
    """With the words that there are."""
    with pytest.raises(HardwareError, match=message):
        h100.fault(name, **parameters)


@pytest.mark.parametrize(
    ("profile", "name", "message"),
    [
        ("t4-1", "nccl-hang", "has no second GPU"),
        ("rtx3060-1", "slow-link", "has no GPU 1"),
        ("a100-sxm-8", "nccl-nvls-broken", "has no NVLS"),
        ("pcie-phb-2", "nvlink-down-in-fact", "has no NVLinks"),
    ],
)
def test_hardware_refuses_a_fault_that_it_cannot_have(
    tmp_path: Path, profile: str, name: str, message: str
) -> None:
    """By name, before anything changes."""
    with pytest.raises(HardwareError, match=message):
        plug(profile, tmp_path).fault(name)


def test_links_that_are_down_take_their_bandwidth_along(tmp_path: Path) -> None:
    """One of 18: the ring loses a share, and so do copies from and to that GPU; host memory does not."""
    hardware = plug("h100-sxm-8", tmp_path)
    before = nccl_machine(hardware)
    hardware.fault("link-down", gpu=3, link=0)
    after = nccl_machine(hardware)

    assert after.ways["p2p"].busbw["all_reduce"]["8"] == pytest.approx(352 * 17 / 18)
    assert after.ways["host"] == before.ways["host"]
    assert [after.gpus[0].pairs[n] < before.gpus[0].pairs[n] for n in range(1, 8)] == [
        n == 3 for n in range(1, 8)
    ]


def test_refused_p2p_between_linked_gpus_fails_nccl_unless_p2p_is_off(tmp_path: Path) -> None:
    """As NCCL does (src/graph/paths.cc); a box without NVLink has nothing to refuse."""
    for profile, arms in (("titan-rtx-nv2", ["default", "nvls-off"]), ("pcie-phb-2", [])):
        hardware = plug(profile, tmp_path / profile)
        hardware.fault("p2p-refused")
        assert [trouble.arm for trouble in nccl_machine(hardware).troubles] == arms


@pytest.mark.parametrize(
    ("mode", "feature"),
    [(0, 0), (2, 1)],
)
def test_nvml_tells_of_vgpus_and_confidential_computing(tmp_path: Path, mode: int, feature: int) -> None:
    """As the profile says; a driver that cannot tell of confidential computing refuses."""
    result = profiles.load("h100-sxm-8")
    model = msgspec.structs.replace(result.model, virtualization=mode, confidential=feature)
    hardware = plug(msgspec.structs.replace(result, model=model), tmp_path / "h100")
    with NvmlClient(hardware.env()) as nvml:
        assert nvml.ask("nvmlDeviceGetVirtualizationMode", GPU(0)) == mode
        assert nvml.ask("nvmlSystemGetConfComputeState")["ccFeature"] == feature
