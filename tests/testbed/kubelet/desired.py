"""Which simulated nodes there should be: a file, written by whoever plugs and read by the kubelets' host.

A file and not a socket: it survives its readers, its path may be long, several programs may change it (under
a lock), and a person can read it.  The host answers in a second file, `observed.json`, with the revision that
it has carried out and what came of each node.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, Self

from testbed.kubelet.context import Hardware, RecordedHardware
from testbed.kubelet.errors import KubeletError

Object = dict[str, Any]


class Power(Enum):
    """Whether a node's kubelet runs."""

    ON = "on"
    OFF = "off"


@dataclass(frozen=True, kw_only=True)
class NodeSpec:
    """One node as it should be. A higher `generation` restarts it."""

    profile: str | None = None
    power: Power = Power.ON
    generation: int = 1
    hardware: RecordedHardware | None = None

    def restarted(self) -> Self:
        """The same node, to be started anew."""
        return replace(self, generation=self.generation + 1)

    def dump(self) -> Object:
        """As JSON."""
        return {**asdict(self), "power": self.power.value}

    @classmethod
    def load(cls, document: Object) -> Self:
        """From JSON."""
        hardware = document["hardware"]
        return cls(
            **{
                **document,
                "power": Power(document["power"]),
                "hardware": RecordedHardware(**hardware) if hardware else None,
            }
        )


def record(hardware: Hardware) -> RecordedHardware:
    """What another process needs to know of plugged hardware."""
    return RecordedHardware(
        gpu_count=hardware.gpu_count,
        gpu_product=hardware.gpu_product,
        environment=hardware.env(),
        node_labels=dict(hardware.node_labels),
        plugin_count=hardware.gpu_capacity,
    )


@dataclass(frozen=True, kw_only=True)
class Desired:
    """The whole file."""

    revision: int = 0
    nodes: Mapping[str, NodeSpec] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What the host has carried out; `nodes` has "running", "off" or what went wrong."""

    revision: int = 0
    nodes: Mapping[str, str] = field(default_factory=dict)


class DesiredFile:
    """`nodes.json` and `observed.json` in the host's directory."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "nodes.json"
        self.observed_path = directory / "observed.json"
        self._lock = directory / ".nodes.lock"

    def read(self) -> Desired:
        """What should be; empty when nothing was ever asked for."""
        try:
            document = json.loads(self.path.read_text())
        except FileNotFoundError:
            return Desired()
        return Desired(
            revision=document["revision"],
            nodes={name: NodeSpec.load(node) for name, node in document["nodes"].items()},
        )

    @contextlib.contextmanager
    def change(self) -> Iterator[dict[str, NodeSpec]]:
        """Edit the nodes under the lock; written, as a new revision, when the block ends without an error."""
        with self._locked():
            before = self.read()
            nodes = dict(before.nodes)
            yield nodes
            self._write(replace(before, revision=before.revision + 1, nodes=nodes))

    def observed(self) -> Observed:
        """What has been carried out so far."""
        try:
            return Observed(**json.loads(self.observed_path.read_text()))
        except FileNotFoundError:
            return Observed()

    def report(self, observed: Observed) -> None:
        """The host's answer."""
        _replace(self.observed_path, json.dumps(asdict(observed), indent=1))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        if not self._lock.parent.is_dir():
            raise KubeletError(f"there is no testbed in {self._lock.parent.parent}: start it first")
        with self._lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _write(self, desired: Desired) -> None:
        document = {
            "revision": desired.revision,
            "nodes": {name: node.dump() for name, node in desired.nodes.items()},
        }
        _replace(self.path, json.dumps(document, indent=1))


def _replace(path: Path, text: str) -> None:
    """Readers see the old file or the new one, never a part."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text)
    fresh.replace(path)
