"""Reading a profile from its file, and refusing one that contradicts itself.

A profile may say `extends: OTHER` and state only what differs: groups are merged key by key, lists and texts
replaced, and the sources of both count.  `null` takes away what the other profile says, whatever it is.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from nodegauge_contract.nccl import Collective
from testbed.errors import TestbedError
from testbed.profiles.model import FAR_SWITCH, WAYS, Profile
from testbed.profiles.pcitree import TreeError, functions

FOLDER = Path(__file__).parent


class ProfileError(TestbedError):
    """A profile does not exist or contradicts itself; the message names the file and the field."""


def names() -> list[str]:
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
    there = functions(profile.host).keys()
    named = {f"gpus: no PCI function {gpu.address}" for gpu in profile.gpus if gpu.address not in there}
    named |= {
        f"host.nics: no PCI function {nic.address}" for nic in profile.host.nics if nic.address not in there
    }
    slots = profile.model.links.slots if profile.model.links else 0
    for gpu in profile.gpus:
        if len(gpu.links) > slots:
            named.add(f"gpus: {gpu.address} has {len(gpu.links)} links, its model {slots} slots")
        far = set(gpu.links) - {"", FAR_SWITCH}
        named |= {f"gpus: {gpu.address} has a link to {address}, not there" for address in far - there}
        if gpu.address in far:
            named.add(f"gpus: {gpu.address} has a link to itself (say model.links.remote: own)")
        named |= {
            f"gpus: {gpu.address} and {peer.address} do not agree on the links between them"
            for peer in profile.gpus
            if gpu.links.count(peer.address) != peer.links.count(gpu.address)
        }
    for name, way in profile.nccl.ways.items() if profile.nccl else ():
        if unknown := {name} - set(WAYS) | way.busbw.keys() - set(Collective):
            named.add(f"nccl.ways.{name}: nobody knows {', '.join(sorted(unknown))}")
    return sorted(named)
