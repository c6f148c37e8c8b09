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
OCI = "nccl-topo_oci_h100x8.xml"


@pytest.mark.parametrize("name", profiles.names())
def test_a_profile_names_its_sources(name: str) -> None:
    """A recording: published, in tests/fixtures, or read by whoever wrote the profile."""
    wheres = [source.where for source in profiles.load(name).sources]

    named = re.findall(r"tests/fixtures/(\S+?)[,.;]?(?=\s|$)", " ".join(wheres))
    assert named or any(re.search(r"\w/\S+ (issue|pull)s? \d+|^read on ", where) for where in wheres)
    assert [file for file in named if not (FIXTURES / file).is_file()] == []


@pytest.fixture(scope="module")
def oci() -> ElementTree.Element:
    return ElementTree.parse(FIXTURES / OCI).getroot()


def test_h100_links_lead_to_the_recorded_switches(oci: ElementTree.Element) -> None:
    """Each GPU has the recorded number of links to each NVSwitch, 18 in all."""
    recorded = {
        pci.attrib["busid"]: {link.attrib["target"]: int(link.attrib["count"]) for link in pci.iter("nvlink")}
        for pci in oci.iter("pci")
        if pci.find("gpu") is not None
    }

    for gpu in profiles.load("h100-sxm-8").gpus:
        assert {far: gpu.links.count(far) for far in set(gpu.links)} == recorded[gpu.address]
        assert len(gpu.links) == 18


def test_h100_pci_functions_stand_where_they_were_recorded(oci: ElementTree.Element) -> None:
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

    seen = sum(check(pci, (), int(cpu.attrib["numaid"])) for cpu in oci for pci in cpu)
    assert seen == len(list(oci.iter("pci")))


def test_h100_host_is_the_recorded_one(oci: ElementTree.Element) -> None:
    """CPU masks per NUMA node, and the network devices in NCCL's order with their cards."""
    host = profiles.load("h100-sxm-8").host
    masks = {int(cpu.attrib["numaid"]): cpu.attrib["affinity"].replace(",", "") for cpu in oci}
    nets = sorted(
        (int(net.attrib["dev"]), net.attrib["name"], pci.attrib["busid"][:-1], int(net.attrib["guid"], 16))
        for pci in oci.iter("pci")
        for net in pci.findall("nic/net")
    )

    assert {node.id: sum(1 << cpu for cpu in cpu_numbers(node.cpus)) for node in host.nodes} == {
        node: int(mask, 16) for node, mask in masks.items()
    }
    assert [
        (n, nic.name, nic.address[:-1], int(nic.node_guid, 16)) for n, nic in enumerate(host.nics)
    ] == nets


@pytest.mark.parametrize(
    ("old", "new", "reported"),
    [
        ("minor: 0", "miner: 0", "miner"),
        ("version: 3, mbps: 25781", "version: 3, mbps: fast", "mbps"),
        ("0000:41:00.0 gpu", "0000:42:00.0 gpu", "no PCI function 0000:41:00.0"),
        ("0000:41:00.0 gpu", "0000:41:00.0 gnu", "kinds has no 'gnu'"),
        ("  0000:41:00.0 gpu", "    0000:41:00.0 gpu", "indented too far"),
        ("0000:41:00.0 gpu", "0000:08:00.0 gpu", "there is such a function already"),
        ('links: ["0000:41:00.0", "0000:41:00.0"]', 'links: ["0000:41:00.0"]', "do not agree on the links"),
        ('links: ["0000:41:00.0", ', 'links: ["0000:08:00.0", ', "link to itself"),
        ('links: ["0000:41:00.0", ', 'links: ["0000:77:00.0", ', "link to 0000:77:00.0, not there"),
        ("slots: 2", "slots: 1", "1 slots"),
        ("numa: 0", "numa: 3", "no NUMA node 3"),
        ("name: titan-rtx-nv2", "name: titan", "name is 'titan'"),
    ],
)
def test_a_profile_that_contradicts_itself_is_refused(old: str, new: str, reported: str) -> None:
    """The error names the file and what is wrong."""
    text = (FOLDER / "titan-rtx-nv2.yaml").read_text()
    assert old in text

    with pytest.raises(ProfileError, match=re.escape(reported)) as caught:
        parse(text.replace(old, new).encode(), name="titan-rtx-nv2")

    assert "titan-rtx-nv2.yaml" in str(caught.value)
