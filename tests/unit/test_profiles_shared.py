"""Machines that are not what they seem: moved counters, MIG, time-slicing, hidden GPUs, a virtual machine.

Asked through the real pynvml on the simulated library, and in the simulated sysfs.  Beside them: what hwmon
shows, and profiles that extend others.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from nodegauge_judge import NodeFacts, Sharing
from testbed.profiles import load
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
