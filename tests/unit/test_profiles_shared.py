"""Machines that are not what they seem: moved counters, MIG, time-slicing, hidden GPUs, a virtual machine.

Asked through the real pynvml on the simulated library, and in the simulated sysfs.  Beside them: what hwmon
shows, and profiles that extend others.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from nodegauge_judge import NodeFacts, Sharing
from testbed.driver.client import GPU, NvmlClient, NvmlRefused
from testbed.hardware import plug
from testbed.profiles import ProfileError, load
from testbed.profiles.reading import parse

INVALID_ARGUMENT, NOT_SUPPORTED = 2, 3


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
    base, other = load("titan-rtx-nv2"), parse(EXTENDING.encode(), name="other")

    assert (other.name, other.title, len(other.gpus)) == ("other", "another one", 1)
    assert other.model == replace(
        base.model, persistence=True, pcie=replace(base.model.pcie, idle_generation=3), links=None
    )
    assert other.host == base.host
    assert [source.facts for source in other.sources] == [
        "persistence",
        *(source.facts for source in base.sources),
    ]


@pytest.mark.parametrize(
    ("base", "message"),
    [("titan", "no hardware profile 'titan'"), ("t4-1", "t4-1 extends pcie-phb-2"), ("other", "'other'")],
)
def test_a_profile_extends_one_that_stands_alone(base: str, message: str) -> None:
    """Neither one that does not exist, nor itself, nor one that extends another."""
    with pytest.raises(ProfileError, match=re.escape(message)):
        parse(EXTENDING.replace("titan-rtx-nv2", base).encode(), name="other")


def test_a_virtual_machine_shows_neither_bus_nor_switches(tmp_path: Path) -> None:
    """Every link is up and leads to nothing that NVML could name; sysfs has no PCI device."""
    hardware = plug("vm-hidden-pci-8", tmp_path)
    with NvmlClient(hardware.env()) as nvml:
        states = [nvml.ask("nvmlDeviceGetNvLinkState", GPU(0), link) for link in range(12)]
        p2p = [nvml.ask("nvmlDeviceGetP2PStatus", GPU(0), GPU(7), kind) for kind in (0, 1, 2)]
        try:
            far = nvml.ask("nvmlDeviceGetNvLinkRemotePciInfo", GPU(0), 0)["busId"]
        except NvmlRefused as refused:
            far = refused.code

    assert (states, p2p) == ([1] * 12, [0] * 3)
    assert far in ("", NOT_SUPPORTED)
    assert list(Path(hardware.env()["NODEGAUGE_SYSFS"]).rglob("*/class")) == []


def test_mig_takes_links_utilisation_and_row_remaps_away(tmp_path: Path) -> None:
    """With MIG on every link is reported down, and what NVML cannot attribute is not supported."""
    with NvmlClient(plug("a100-mig-4", tmp_path).env()) as nvml:
        assert nvml.ask("nvmlDeviceGetMigMode", GPU(3)) == [1, 1]
        assert {nvml.ask("nvmlDeviceGetNvLinkState", GPU(3), link) for link in range(12)} == {0}
        assert nvml.refusal("nvmlDeviceGetUtilizationRates", GPU(3)) == NOT_SUPPORTED
        assert nvml.refusal("nvmlDeviceGetRemappedRows", GPU(3)) == NOT_SUPPORTED


@pytest.mark.parametrize("name", ["h100-timesliced-8", "a100-mig-4"])
def test_capacity_of_a_shared_node_does_not_count_gpus(name: str) -> None:
    """nvidia.com/gpu is a multiple of the GPUs, and the node's labels say so."""
    profile = load(name)
    node, gpus = profile.node, len(profile.gpus)
    facts = NodeFacts.of(labels=node.labels, capacity={"nvidia.com/gpu": str(node.gpu_capacity)})

    assert node.gpu_capacity == 4 * gpus
    assert facts.sharing is Sharing.SHARED
    assert NodeFacts.of(labels={}, capacity={}).sharing is Sharing.EXCLUSIVE
    replicas = int(node.labels.get("nvidia.com/gpu.replicas", "1"))
    assert int(node.labels["nvidia.com/gpu.count"]) * replicas == node.gpu_capacity
