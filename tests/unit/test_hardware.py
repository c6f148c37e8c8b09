"""Plugged hardware: what NVML, sysfs and procfs say agrees with the profile, and with each other."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.machines import link_ends, sysfs
from testbed import profiles
from testbed.driver.client import GPU, NvmlClient
from testbed.hardware import HardwareError, plug
from testbed.profiles.pcitree import functions

NOT_SUPPORTED, DRIVER_NOT_LOADED = 3, 9


@pytest.mark.parametrize("name", profiles.names())
def test_nvml_lists_what_the_profile_has(tmp_path: Path, name: str) -> None:
    """Count, versions, names, addresses, memory, capability and limits come through pynvml as written."""
    profile = profiles.load(name)
    hardware = plug(name, tmp_path / name)

    with NvmlClient(hardware.env()) as nvml:
        assert nvml.ask("nvmlSystemGetDriverVersion") == profile.driver.version
        assert nvml.ask("nvmlSystemGetNVMLVersion") == profile.driver.nvml
        assert nvml.ask("nvmlSystemGetCudaDriverVersion_v2") == profile.driver.cuda
        shown = profile.gpus[: profile.visible]
        assert nvml.ask("nvmlDeviceGetCount") == len(shown)
        assert hardware.gpu_count == len(profile.gpus)
        for number, gpu in enumerate(shown):
            handle = GPU(number)
            assert nvml.ask("nvmlDeviceGetName", handle) == profile.model.name == hardware.gpu_product
            pci = nvml.ask("nvmlDeviceGetPciInfo", handle)
            assert pci["busId"] == f"0000{gpu.address}".upper()
            function = functions(profile.host)[gpu.address]
            assert f"0x{pci['pciDeviceId'] >> 16:04x}" == function.kind.device
            assert nvml.ask("nvmlDeviceGetMinorNumber", handle) == gpu.minor
            assert tuple(nvml.ask("nvmlDeviceGetCudaComputeCapability", handle)) == profile.model.compute
            power, memory = profile.model.power, profile.model.memory
            answers = {
                "nvmlDeviceGetMemoryInfo": memory and memory.total_mib << 20,
                "nvmlDeviceGetPowerManagementLimitConstraints": power.min and [power.min, power.max],
                "nvmlDeviceGetEnforcedPowerLimit": gpu.power_limit or power.default,
            }
            for call, expected in answers.items():
                if expected is None:
                    assert nvml.refusal(call, handle) == NOT_SUPPORTED
                else:
                    answer = nvml.ask(call, handle)
                    assert (answer["total"] if isinstance(answer, dict) else answer) == expected
        uuids = [nvml.ask("nvmlDeviceGetUUID", GPU(number)) for number in range(len(shown))]
        assert uuids == hardware.uuids[: len(shown)]


@pytest.mark.parametrize("name", profiles.names())
def test_links_resolve_both_ways(tmp_path: Path, name: str) -> None:
    """As many links lead from one GPU to another as back, and those to switches end at NVSwitches."""
    profile = profiles.load(name)
    chip = profile.model.links
    slots = chip.slots if chip and not profile.model.mig_enabled else 0
    addresses = [gpu.address for gpu in profile.gpus[: profile.visible]]
    hardware = plug(name, tmp_path / name)

    with NvmlClient(hardware.env()) as nvml:
        ends = {address: link_ends(nvml, number, slots) for number, address in enumerate(addresses)}

    for gpu in profile.gpus[: profile.visible]:
        named = {
            "far": ["" if far == "switch" else far for far in gpu.links],
            "own": [gpu.address] * len(gpu.links),
        }
        hidden = [""] * len(gpu.links)
        assert ends[gpu.address] == (named.get(chip.remote, hidden) if chip and slots else [])
        for peer in addresses:
            assert ends[gpu.address].count(peer) == ends[peer].count(gpu.address)
    everyone = {gpu.address for gpu in profile.gpus}
    for far in {end for result in ends.values() for end in result} - everyone - {""}:
        assert (sysfs(hardware) / "bus/pci/devices" / far / "class").read_text() == "0x068000\n"


@pytest.mark.parametrize("name", profiles.names())
def test_sysfs_has_every_function_where_the_tree_says(tmp_path: Path, name: str) -> None:
    """bus/pci/devices leads to the place in devices; ids, NUMA node and configuration space agree."""
    profile = profiles.load(name)
    root = sysfs(plug(name, tmp_path / name))

    shown = functions(profile.host) if profile.host.pci_visible else {}
    assert {path.name for path in root.glob("bus/pci/devices/*")} == shown.keys()
    for address, function in shown.items():
        result = root / "bus/pci/devices" / address
        assert os.path.relpath(os.path.realpath(result), os.path.realpath(root / "devices")) == function.path
        assert (result / "vendor").read_text().strip() == function.kind.vendor
        assert (result / "class").read_text().strip() == function.kind.class_
        node = int((result / "numa_node").read_text())
        assert node == (function.numa if profile.host.numa_reported else -1)
        config = (result / "config").read_bytes()
        assert int.from_bytes(config[:2], "little") == int(function.kind.vendor, 16)
        assert int.from_bytes(config[9:12], "little") == int(function.kind.class_, 16)
    for node in profile.host.nodes:
        assert (root / f"devices/system/node/node{node.id}/cpulist").read_text().strip() == node.cpus


def test_two_machines_of_a_kind_are_two_machines(tmp_path: Path) -> None:
    """UUIDs and boot ids differ; the same seed makes the same GPUs."""
    one, two = plug("pcie-phb-2", tmp_path / "1", seed="a"), plug("pcie-phb-2", tmp_path / "2")
    again = plug("pcie-phb-2", tmp_path / "3", seed="a")

    boots = {
        (Path(hw.env()["NODEGAUGE_PROCFS"]) / "sys/kernel/random/boot_id").read_text()
        for hw in (one, two, again)
    }
    assert len(boots) == 3
    assert not set(one.uuids) & set(two.uuids)
    assert one.uuids == again.uuids


def test_a_driver_is_reloaded_once_nobody_uses_it(tmp_path: Path) -> None:
    """As on a machine: no unload under an open session; another version afterwards, and counters anew."""
    hardware = plug("h100-sxm-8", tmp_path / "machine")
    boot_id = hardware.condition().boot_id
    with NvmlClient(hardware.env()) as nvml:
        assert nvml.ask("nvmlDeviceGetCount") == 8
        with pytest.raises(HardwareError, match="in use"):
            hardware.unload_driver()
    hardware.unload_driver()
    with NvmlClient(hardware.env(), initialise=False) as nvml:
        assert nvml.refusal("nvmlInit") == DRIVER_NOT_LOADED
    with pytest.raises(HardwareError, match="same release"):
        hardware.load_driver("580.65.06")
    hardware.load_driver("550.90.07")
    with NvmlClient(hardware.env()) as nvml:
        assert nvml.ask("nvmlSystemGetDriverVersion") == "550.90.07"
        assert nvml.ask("nvmlSystemGetNVMLVersion") == "12.550.90.07"
    assert hardware.condition().boot_id == boot_id
