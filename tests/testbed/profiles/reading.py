"""Reading a profile from its file, and refusing one that contradicts itself."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from nodegauge_contract.nccl import GRADED
from testbed.errors import TestbedError
from testbed.profiles.model import Profile
from testbed.profiles.pcitree import TreeError, functions, long_address, shaped

FOLDER = Path(__file__).parent
LANES, P2P, SHM = 16, "P2P/direct pointer", "SHM/direct/direct"
"""Of a PCI link, and how NCCL joins GPUs, by NVLink or PCIe and through the host, where nothing is said."""
RUN = re.compile(r"(?:(\d+)x)?(.+)")
"""Links with the same far end, one after the other: `4x56`."""


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
        profile = msgspec.convert(_written_out(_whole(document) | {"name": name}), Profile)
        functions(profile.host)
    except (msgspec.DecodeError, msgspec.ValidationError, TreeError, ProfileError) as error:
        raise ProfileError(f"{name}.yaml: {error}") from error
    except KeyError as error:
        raise ProfileError(f"{name}.yaml: there is no {error}") from error
    return profile


def _whole(document: bytes) -> dict[str, Any]:
    own: dict[str, Any] = msgspec.yaml.decode(document, type=dict[str, Any])
    for group, value in own.items():
        if isinstance(value, dict) and (base := value.pop("extends", None)) is not None:
            own[group] = _over(_below(base)[group], value)
    if (base := own.pop("extends", None)) is not None:
        below = _below(base)
        sources = [*own.pop("sources", []), *below.pop("sources", [])]
        below.pop("recording", None)  # of the other machine, as it was
        own = _over(below, own) | {"sources": sources}
    return own


def _below(base: str) -> dict[str, Any]:
    if base not in names():
        raise ProfileError(f"extends: no hardware profile {base!r}: there are {', '.join(names())}")
    below: dict[str, Any] = msgspec.yaml.decode((FOLDER / f"{base}.yaml").read_bytes(), type=dict[str, Any])
    if "extends" in below:
        raise ProfileError(f"extends: {base} extends {below['extends']}: name that one")
    return below


def _written_out(whole: dict[str, Any]) -> dict[str, Any]:
    driver, host = whole["driver"], whole["host"]
    driver.setdefault("nvml", f"{driver['cuda'] // 1000}.{driver['version']}")
    shapes = host.pop("shapes", {})
    for root in host["roots"]:
        if (shape := root.pop("shape", None)) is not None:
            root["functions"] = shaped(shapes[shape], root.pop("at"))
    for kind in host["kinds"].values():
        kind |= {"width": LANES} | kind if "speed" in kind else {}
    for name, way in (whole.get("nccl") or {}).get("ways", {}).items():
        way.setdefault("transport", SHM if name == "host" else P2P)
        if (numbers := way["busbw"].pop("all", None)) is not None:
            way["busbw"] = dict.fromkeys(GRADED, numbers)
    for number, gpu in enumerate(whole["gpus"]):
        gpu.setdefault("minor", number)
        ends = [RUN.fullmatch(word) for word in gpu.pop("links", "").split()]
        far = [end[2] for end in ends if end for _ in range(int(end[1] or 1))]
        gpu["links"] = ["" if end == "-" else long_address(end, gpu["address"][:4]) for end in far]
    return whole


def _over(below: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    both = {
        key: _over(below[key], value)
        for key, value in own.items()
        if isinstance(value, dict) and isinstance(below.get(key), dict)
    }
    return {key: value for key, value in (below | own | both).items() if value is not None}
