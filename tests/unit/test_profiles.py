"""Hardware profiles say what was recorded: what can be derived from a recording is compared with it."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from msgspec.structs import replace

from nodegauge_judge import NodeFacts, Sharing
from testbed import profiles
from testbed.profiles.pcitree import Distance, cpu_numbers, distance, functions
from testbed.profiles.reading import FOLDER, ProfileError, parse

FIXTURES = Path(__file__).parents[1] / "fixtures"
OCI = ElementTree.parse(FIXTURES / "nccl-topo_oci_h100x8.xml").getroot()
P4D = ElementTree.parse(FIXTURES / "nccl-topo_aws-p4d_a100x8.xml").getroot()
NCV4 = ElementTree.parse(FIXTURES / "nccl-topo_azure-ncv4_a100pcie.xml").getroot()
CARD = ElementTree.parse(FIXTURES / "nvidia-smi-qx_a100-sxm4.xml").getroot()
STATUS = (FIXTURES / "nvidia-smi-nvlink-status_a100x8.txt").read_text()
INVENTED = "ffff:"
"""AWS's file puts switches that the guest does not see at such addresses."""
IDS = ("class", "vendor", "device", "subsystem_vendor", "subsystem_device")


def cpu_masks(topology: ElementTree.Element) -> dict[int, int]:
    """The CPUs of every NUMA node as a bit set."""
    return {int(cpu.attrib["numaid"]): int(cpu.attrib["affinity"].replace(",", ""), 16) for cpu in topology}


def own_masks(profile: profiles.Profile) -> dict[int, int]:
    return {node.id: sum(1 << cpu for cpu in cpu_numbers(node.cpus)) for node in profile.host.nodes}


@pytest.mark.parametrize("name", profiles.names())
def test_a_profile_names_its_sources(name: str) -> None:
    """A recording: published, in tests/fixtures, or read by whoever wrote the profile."""
    wheres = [source.where for source in profiles.load(name).sources]

    named = re.findall(r"tests/fixtures/(\S+?)[,.;]?(?=\s|$)", " ".join(wheres))
    assert named or any(re.search(r"\w/\S+ (issue|pull)s? \d+|^read on ", where) for where in wheres)
    assert [file for file in named if not (FIXTURES / file).is_file()] == []


def test_h100_links_lead_to_the_recorded_switches() -> None:
    """Each GPU has the recorded number of links to each NVSwitch, 18 in all."""
    recorded = {
        pci.attrib["busid"]: {link.attrib["target"]: int(link.attrib["count"]) for link in pci.iter("nvlink")}
        for pci in OCI.iter("pci")
        if pci.find("gpu") is not None
    }

    for gpu in profiles.load("h100-sxm-8").gpus:
        assert {far: gpu.links.count(far) for far in set(gpu.links)} == recorded[gpu.address]
        assert len(gpu.links) == 18


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


def test_h100_host_is_the_recorded_one() -> None:
    """CPU masks per NUMA node, and the network devices in NCCL's order with their cards."""
    host = profiles.load("h100-sxm-8").host
    nets = sorted(
        (int(net.attrib["dev"]), net.attrib["name"], pci.attrib["busid"][:-1], int(net.attrib["guid"], 16))
        for pci in OCI.iter("pci")
        for net in pci.findall("nic/net")
    )

    assert own_masks(profiles.load("h100-sxm-8")) == cpu_masks(OCI)
    assert [
        (n, nic.name, nic.address[:-1], int(nic.node_guid, 16)) for n, nic in enumerate(host.nics)
    ] == nets


@pytest.mark.parametrize(
    ("old", "new", "reported"),
    [
        ("minor: 0", "miner: 0", "miner"),
        ("version: 3, mbps: 25781", "version: 3, mbps: fast", "mbps"),
        ("0000:41:00.0 gpu", "0000:42:00.0 gpu", "no PCI function 0000:41:00.0"),
        ('links: ["0000:41:00.0", "0000:41:00.0"]', 'links: ["0000:41:00.0"]', "do not agree on the links"),
    ],
)
def test_a_profile_that_contradicts_itself_is_refused(old: str, new: str, reported: str) -> None:
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
    assert own_masks(profile) == cpu_masks(topology)


def test_p4d_groups_share_a_host_bridge() -> None:
    """What AWS's file puts below one switch is one host bridge apart, everything else more."""
    profile = profiles.load("a100-sxm-8")
    there = functions(profile.host)
    groups = [[pci.attrib["busid"] for pci in switch] for cpu in P4D for switch in cpu]

    assert len(groups) == 4
    for location, group in enumerate(groups):
        assert {distance(there[a], there[b]) for a in group for b in group if a != b} == {Distance.PHB}
        for other in groups[location + 1 :]:
            assert distance(there[group[0]], there[other[0]]) > Distance.PHB


def test_a100_links_are_the_recorded_ones() -> None:
    """As many links per GPU as nvidia-smi nvlink -s lists, at its speed."""
    listed = re.findall(r"^\s+Link (\d+): (\d+) GB/s$", STATUS, re.MULTILINE)
    gpus = len(re.findall(r"^GPU \d+:", STATUS, re.MULTILINE))
    profile = profiles.load("a100-sxm-8")

    assert profile.model.links is not None
    assert gpus == len(profile.gpus)
    assert {int(speed) * 1000 for _, speed in listed} == {profile.model.links.mbps}
    assert len(listed) == sum(len(gpu.links) for gpu in profile.gpus)


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


def number(path: str) -> float:
    text = CARD.findtext(f"gpu/{path}")
    assert text is not None, path
    return float(text.split()[0])


@pytest.mark.parametrize("name", ["a100-sxm-8", "hgx-a100-4", "a100-pcie-4-pairs", "ncv4-a100-pcie"])
def test_a100_limits_are_the_recorded_ones(name: str) -> None:
    """Thresholds 92, 89 and 85, and 95 for the memory."""
    limits = profiles.load(name).model.thresholds

    assert limits is not None
    assert limits.shutdown == number("temperature/gpu_temp_max_threshold") == 92
    assert limits.slowdown == number("temperature/gpu_temp_slow_threshold") == 89
    assert limits.gpu_max == number("temperature/gpu_temp_max_gpu_threshold") == 85
    assert limits.memory_max == number("temperature/gpu_temp_max_mem_threshold") == 95


EXTENDING = """
extends: titan-rtx-nv2
name: other
title: another one
sources:
- {facts: persistence, where: made up}
model:
  persistence: true
  pcie: {idle_generation: 3}
  links: null
gpus:
- {address: "0000:08:00.0", minor: 0}
"""


def test_a_profile_states_only_what_differs() -> None:
    """Groups are merged key by key, lists replaced, null takes a group away; the sources of both count."""
    base, other = profiles.load("titan-rtx-nv2"), parse(EXTENDING.encode(), name="other")

    assert (other.name, other.title, len(other.gpus)) == ("other", "another one", 1)
    assert other.model == replace(
        base.model, persistence=True, pcie=replace(base.model.pcie, idle_generation=3), links=None
    )
    assert other.host == base.host
    assert [source.facts for source in other.sources] == [
        "persistence",
        *(source.facts for source in base.sources),
    ]


@pytest.mark.parametrize("name", ["h100-timesliced-8", "a100-mig-4"])
def test_capacity_of_a_shared_node_does_not_count_gpus(name: str) -> None:
    """nvidia.com/gpu is a multiple of the GPUs, and the node's labels say so."""
    profile = profiles.load(name)
    node, gpus = profile.node, len(profile.gpus)
    facts = NodeFacts.of(labels=node.labels, capacity={"nvidia.com/gpu": str(node.gpu_capacity)})

    assert node.gpu_capacity == 4 * gpus
    assert facts.sharing is Sharing.SHARED
    assert NodeFacts.of(labels={}, capacity={}).sharing is Sharing.EXCLUSIVE
    replicas = int(node.labels.get("nvidia.com/gpu.replicas", "1"))
    assert int(node.labels["nvidia.com/gpu.count"]) * replicas == node.gpu_capacity
