"""Simulated hardware: profiles that say what was recorded, and a driver that is loaded anew."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from testbed import profiles
from testbed.driver.client import NvmlClient
from testbed.hardware import FAULTS, HardwareError, plug
from testbed.profiles.pcitree import cpu_numbers, functions

DRIVER_NOT_LOADED = 9
FIXTURES = Path(__file__).parents[1] / "fixtures"
P4D = ElementTree.parse(FIXTURES / "nccl-topo_aws-p4d_a100x8.xml").getroot()
NCV4 = ElementTree.parse(FIXTURES / "nccl-topo_azure-ncv4_a100pcie.xml").getroot()
INVENTED = "ffff:"
"""AWS's file puts switches that the guest does not see at such addresses."""
IDS = ("class", "vendor", "device", "subsystem_vendor", "subsystem_device")


def test_a_driver_is_reloaded_once_nobody_uses_it(tmp_path: Path) -> None:
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


def test_the_page_of_the_demo_counts_the_faults_right() -> None:
    page = (Path(__file__).parents[2] / "docs/demo.md").read_text("utf-8")
    assert f"the {len(FAULTS)} faults" in page


@pytest.mark.parametrize("name", profiles.names())
def test_a_profile_names_its_sources(name: str) -> None:
    wheres = [source.where for source in profiles.load(name).sources]

    named = re.findall(r"tests/fixtures/(\S+?)[,.;]?(?=\s|$)", " ".join(wheres))
    assert named or any(re.search(r"\w/\S+ (issue|pull)s? \d+|^read on ", where) for where in wheres)
    assert [file for file in named if not (FIXTURES / file).is_file()] == []


@pytest.mark.parametrize(("name", "topology"), [("a100-sxm-8", P4D), ("ncv4-a100-pcie", NCV4)])
def test_cloud_machines_have_the_places_of_the_vendors_file(name: str, topology: ElementTree.Element) -> None:
    profile = profiles.load(name)
    there = functions(profile.host)
    reported = {
        pci.attrib["busid"]: (int(cpu.attrib["numaid"]), *(pci.attrib[key] for key in IDS))
        for cpu in topology
        for pci in cpu.iter("pci")
        if not pci.attrib["busid"].startswith(INVENTED)
    }

    def own(address: str) -> tuple[object, ...]:
        kind = there[address].kind
        return (there[address].numa, kind.class_, kind.vendor, kind.device, *kind.subsystem)

    addresses = [gpu.address for gpu in profile.gpus] + [nic.address for nic in profile.host.nics]
    assert {address: own(address) for address in addresses if address in reported} == reported
    masks = {node.id: sum(1 << cpu for cpu in cpu_numbers(node.cpus)) for node in profile.host.nodes}
    assert masks == {
        int(cpu.attrib["numaid"]): int(cpu.attrib["affinity"].replace(",", ""), 16) for cpu in topology
    }
