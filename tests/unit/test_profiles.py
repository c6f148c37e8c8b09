"""Hardware profiles say what was recorded: what can be derived from a recording is compared with it."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from testbed import profiles
from testbed.profiles.pcitree import cpu_numbers, functions
from testbed.profiles.reading import FOLDER, ProfileError, parse

FIXTURES = Path(__file__).parents[1] / "fixtures"
OCI = ElementTree.parse(FIXTURES / "nccl-topo_oci_h100x8.xml").getroot()
P4D = ElementTree.parse(FIXTURES / "nccl-topo_aws-p4d_a100x8.xml").getroot()
NCV4 = ElementTree.parse(FIXTURES / "nccl-topo_azure-ncv4_a100pcie.xml").getroot()
INVENTED = "ffff:"
"""AWS's file puts switches that the guest does not see at such addresses."""
IDS = ("class", "vendor", "device", "subsystem_vendor", "subsystem_device")


@pytest.mark.parametrize("name", profiles.names())
def test_a_profile_names_its_sources(name: str) -> None:
    """A recording: published, in tests/fixtures, or read by whoever wrote the profile."""
    wheres = [source.where for source in profiles.load(name).sources]

    named = re.findall(r"tests/fixtures/(\S+?)[,.;]?(?=\s|$)", " ".join(wheres))
    assert named or any(re.search(r"\w/\S+ (issue|pull)s? \d+|^read on ", where) for where in wheres)
    assert [file for file in named if not (FIXTURES / file).is_file()] == []


def test_h100_pci_functions_stand_where_they_were_recorded() -> None:
    """Every recorded PCI function is there with its ids and NUMA node, below its recorded switches."""
    there = functions(profiles.load("h100-sxm-8").host)

    def check(element: ElementTree.Element, above: tuple[str, ...], node: int) -> int:
        result = there[element.attrib["busid"]]
        kind = result.kind
        assert (kind.class_, kind.vendor, kind.device, kind.speed, str(kind.width)) == tuple(
            element.attrib[name] for name in ("class", "vendor", "device", "link_speed", "link_width")
        )
        assert result.numa == node
        assert [bridge for bridge in result.bridges if bridge in above] == list(above)
        below = element.findall("pci")
        return 1 + sum(check(child, (*above, result.address), node) for child in below)

    seen = sum(check(pci, (), int(cpu.attrib["numaid"])) for cpu in OCI for pci in cpu)
    assert seen == len(list(OCI.iter("pci")))


@pytest.mark.parametrize(
    ("old", "new", "reported"),
    [
        ("minor: 0", "miner: 0", "miner"),
        ("version: 3, mbps: 25781", "version: 3, mbps: fast", "mbps"),
        ("0000:41:00.0 gpu", "0000:41:00.0 gppu", "kinds has no 'gppu'"),
    ],
)
def test_a_profile_that_nobody_can_read_is_refused(old: str, new: str, reported: str) -> None:
    """The error names the file and what is wrong."""
    text = (FOLDER / "titan-rtx-nv2.yaml").read_text()
    with pytest.raises(ProfileError, match=f"(?s)titan-rtx-nv2.yaml.*{re.escape(reported)}"):
        parse(text.replace(old, new).encode(), name="titan-rtx-nv2")


@pytest.mark.parametrize(("name", "topology"), [("a100-sxm-8", P4D), ("ncv4-a100-pcie", NCV4)])
def test_cloud_machines_have_the_places_of_the_vendors_file(name: str, topology: ElementTree.Element) -> None:
    """GPUs and network cards with their addresses, ids and NUMA nodes, and every node's CPUs."""
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


def test_azure_links_name_their_own_gpu() -> None:
    """Twelve per GPU, all to itself in Azure's file, so NVML says so; behind them are bridges on pairs."""
    profile = profiles.load("ncv4-a100-pcie")
    reported = {pci.attrib["busid"]: list(pci.iter("nvlink")) for cpu in NCV4 for pci in cpu.iter("pci")}

    assert profile.model.links is not None
    assert profile.model.links.remote == "own"
    for gpu in profile.gpus:
        assert [(link.attrib["target"], link.attrib["count"]) for link in reported[gpu.address]] == [
            (gpu.address, str(len(gpu.links)))
        ]
        assert gpu.address not in gpu.links
    assert sorted(len(set(gpu.links)) for gpu in profile.gpus) == [1, 1, 1, 1]
