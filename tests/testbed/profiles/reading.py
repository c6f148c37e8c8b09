"""Reading a profile from its file, and refusing one that contradicts itself.

A profile may say `extends: OTHER` and state only what differs: groups are merged key by key, lists and texts
replaced, and the sources of both count.  `null` takes away what the other profile says, whatever it is.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from nodegauge_contract.nccl import Collective
from testbed.errors import TestbedError
from testbed.profiles.model import FAR_SWITCH, Profile
from testbed.profiles.ncclmodel import WAYS
from testbed.profiles.pcitree import TreeError, functions

FOLDER = Path(__file__).parent
SENSOR = re.compile(r"^(in|power|curr|fan|temp)\d+$")


class ProfileError(TestbedError):
    """A profile does not exist or contradicts itself; the message names the file and the field."""


def names() -> list[str]:
    """The profiles there are."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


@cache
def load(name: str) -> Profile:
    """The profile of this name; ProfileError when there is none, or when it contradicts itself."""
    if name not in names():
        raise ProfileError(f"no hardware profile {name!r}: there are {', '.join(names())}")
    return parse((FOLDER / f"{name}.yaml").read_bytes(), name=name)


def parse(document: bytes, *, name: str) -> Profile:
    """A profile from its text; ProfileError with every contradiction in it."""
    try:
        profile = msgspec.convert(_whole(document), Profile)
        result = contradictions(profile)
    except (msgspec.DecodeError, msgspec.ValidationError, TreeError, ProfileError) as error:
        raise ProfileError(f"{name}.yaml: {error}") from error
    if profile.name != name:
        result.append(f"name is {profile.name!r}")
    if result:
        raise ProfileError("\n".join(f"{name}.yaml: {problem}" for problem in result))
    return profile


def _whole(document: bytes) -> dict[str, Any]:
    """A profile's text as a mapping, laid over the profile that it extends."""
    own: dict[str, Any] = msgspec.yaml.decode(document, type=dict[str, Any])
    if (base := own.pop("extends", None)) is None:
        return own
    if base not in names():
        raise ProfileError(f"extends: no hardware profile {base!r}: there are {', '.join(names())}")
    below = msgspec.yaml.decode((FOLDER / f"{base}.yaml").read_bytes(), type=dict[str, Any])
    if "extends" in below:
        raise ProfileError(f"extends: {base} extends {below['extends']}: name that one")
    sources = [*own.pop("sources", []), *below.pop("sources", [])]
    below.pop("recording", None)  # of the other machine, as it was
    return _over(below, own) | {"sources": sources}


def _over(below: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    both = {
        key: _over(below[key], value)
        for key, value in own.items()
        if isinstance(value, dict) and isinstance(below.get(key), dict)
    }
    return {key: value for key, value in (below | own | both).items() if value is not None}


def contradictions(profile: Profile) -> list[str]:
    """What does not fit together in a profile, in words."""
    there = functions(profile.host)
    gpus = {gpu.address for gpu in profile.gpus}
    result = [f"gpus: no PCI function {gpu.address}" for gpu in profile.gpus if gpu.address not in there]
    result += [
        f"host.nics: no PCI function {nic.address}" for nic in profile.host.nics if nic.address not in there
    ]
    nodes = {node.id for node in profile.host.nodes}
    result += [
        f"host.roots: no NUMA node {root.numa}" for root in profile.host.roots if root.numa not in nodes
    ]
    slots = profile.model.links.slots if profile.model.links else 0
    for gpu in profile.gpus:
        if len(gpu.links) > slots:
            result.append(f"gpus: {gpu.address} has {len(gpu.links)} links, its model {slots} slots")
        far = {address for address in gpu.links if address not in ("", FAR_SWITCH)}
        result += [
            f"gpus: {gpu.address} has a link to {address}, not there"
            for address in sorted(far - there.keys())
        ]
        result += [
            f"gpus: {gpu.address} has a link to itself (say model.links.remote: own)"
            for _ in far & {gpu.address}
        ]
        for peer in profile.gpus:
            if peer.address in far & gpus and gpu.links.count(peer.address) != peer.links.count(gpu.address):
                result.append(
                    f"gpus: {gpu.address} and {peer.address} do not agree on the links between them"
                )
    return result + _unseen(profile) + _chips(profile) + _nccl(profile)


def _unseen(profile: Profile) -> list[str]:
    """What does not fit together in what is hidden."""
    result = []
    if profile.visible is not None and not 0 <= profile.visible <= len(profile.gpus):
        result.append(f"visible is {profile.visible}: there are {len(profile.gpus)} GPUs")
    if profile.host.nics and not profile.host.pci_visible:
        result.append("host.nics: without pci_visible nobody can see them")
    if profile.model.mig_enabled and not profile.model.mig:
        result.append("model.mig_enabled: the model has no mig")
    return result


def _nccl(profile: Profile) -> list[str]:
    """What nobody could measure with NCCL there."""
    if (nccl := profile.nccl) is None:
        return []
    result = [] if "host" in nccl.ways else ["nccl.ways: no host: every machine has host memory"]
    result += [
        f"nccl.ways: no way is called {name!r}: there are {', '.join(WAYS)}"
        for name in nccl.ways.keys() - set(WAYS)
    ]
    result += [
        f"nccl.ways.{name}.busbw: nobody measures {collective!r}"
        for name, way in nccl.ways.items()
        for collective in way.busbw.keys() - set(Collective)
    ]
    if ("nvls" in nccl.ways) != (nccl.nvls_from > 0):
        result.append("nccl.nvls_from: says from how many ranks on NVLS is used, where it is a way")
    return result + [
        f"nccl.ways.{name}.shape: sizes must ascend"
        for name, way in nccl.ways.items()
        if [size for size, _ in way.shape] != sorted({size for size, _ in way.shape})
    ]


def _chips(profile: Profile) -> list[str]:
    """hwmon names that the kernel would not give."""
    return [
        f"host.hwmon: {chip.name} has a sensor {sensor.name!r}: they are in0, power1, curr1, fan1, temp1"
        for chip in profile.host.hwmon
        for sensor in chip.sensors
        if not SENSOR.match(sensor.name)
    ]
