"""Hardware profiles say what was recorded: what can be derived from a recording is compared with it."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from testbed import profiles
from testbed.profiles.pcitree import cpu_numbers, functions

FIXTURES = Path(__file__).parents[1] / "fixtures"
P4D = ElementTree.parse(FIXTURES / "nccl-topo_aws-p4d_a100x8.xml").getroot()
NCV4 = ElementTree.parse(FIXTURES / "nccl-topo_azure-ncv4_a100pcie.xml").getroot()
INVENTED = "ffff:"
"""AWS's file puts switches that the guest does not see at such addresses."""
IDS = ("class", "vendor", "device", "subsystem_vendor", "subsystem_device")


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
