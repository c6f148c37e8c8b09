"""The A100 profiles say what was recorded of such machines: places, links, limits."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from testbed import profiles
from testbed.profiles.pcitree import Distance, cpu_numbers, distance, functions

FIXTURES = Path(__file__).parents[1] / "fixtures"
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
