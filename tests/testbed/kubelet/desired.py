"""Which simulated nodes there should be: a file, written (under a lock) by whoever plugs and read by the
kubelets' host, which answers in `observed.json` with the revision that it has carried out."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct, json

from testbed.errors import TestbedError
from testbed.interruption import alone
from testbed.kubeconfig import write_private
from testbed.kubelet.context import Hardware


class NodeSpec(Struct, frozen=True, kw_only=True):
    profile: str | None = None
    hardware: Hardware | None = None
    stopped: bool = False
    """Its kubelet does not run, and so no container does; the node stays in the API."""


class Desired(Struct, frozen=True, kw_only=True):
    revision: int = 0
    nodes: dict[str, NodeSpec] = {}


class Observed(Struct, frozen=True, kw_only=True):
    revision: int = 0
    nodes: dict[str, str] = {}


class DesiredFile:
    def __init__(self, directory: Path) -> None:
        self.path = directory / "nodes.json"
        self._observed = directory / "observed.json"
        self._lock = directory / ".nodes.lock"

    def read(self) -> Desired:
        return json.decode(self.path.read_bytes() if self.path.exists() else b"{}", type=Desired)

    @contextlib.contextmanager
    def change(self) -> Iterator[dict[str, NodeSpec]]:
        """Written as a new revision when the block ends without an error."""
        if not self._lock.parent.is_dir():
            raise TestbedError(f"there is no testbed in {self._lock.parent.parent}: start it first")
        with alone(self._lock):
            before = self.read()
            nodes = dict(before.nodes)
            yield nodes
            _replace(self.path, Desired(revision=before.revision + 1, nodes=nodes))

    def observed(self) -> Observed:
        try:
            return json.decode(self._observed.read_bytes(), type=Observed)
        except FileNotFoundError:
            return Observed()

    def report(self, observed: Observed) -> None:
        _replace(self._observed, observed)


def _replace(path: Path, document: Struct) -> None:
    write_private(path, json.format(json.encode(document), indent=1).decode())
