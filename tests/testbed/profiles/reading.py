"""Reading a profile from its file, and refusing one that contradicts itself."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from testbed.errors import TestbedError
from testbed.profiles.model import Profile
from testbed.profiles.pcitree import TreeError, functions

FOLDER = Path(__file__).parent


class ProfileError(TestbedError):
    """A profile does not exist or contradicts itself; the message names the file and the field."""


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


@cache
def load(name: str) -> Profile:
    if name not in names():
        raise ProfileError(f"no hardware profile {name!r}: there are {', '.join(names())}")
    return parse((FOLDER / f"{name}.yaml").read_bytes(), name=name)


def parse(document: bytes, *, name: str) -> Profile:
    try:
        profile = msgspec.convert(_whole(document), Profile)
        functions(profile.host)
    except (msgspec.DecodeError, msgspec.ValidationError, TreeError, ProfileError) as error:
        raise ProfileError(f"{name}.yaml: {error}") from error
    if profile.name != name:
        raise ProfileError(f"{name}.yaml: name is {profile.name!r}")
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
