"""Nodes of a running testbed: added, removed, and their hardware, from any process."""

import shutil
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from msgspec.structs import replace

from testbed.errors import TestbedError
from testbed.hardware import Hardware, attach, dra, plug
from testbed.kubelet import context
from testbed.kubelet.desired import DesiredFile, NodeSpec
from testbed.wait import wait_for

LOOK_SECONDS = 0.02


class Offer(Enum):
    """How a node offers its GPUs: by NVIDIA's device plugin and runtime, or by its DRA driver alone."""

    PLUGIN = "plugin"
    DRA = "dra"


class Nodes:
    def __init__(self, directory: Path) -> None:
        self._kubelets = directory / "kubelet"
        self._hardware = directory / "hardware"
        self.log = self._kubelets / "kubelet.log"
        self.pods = self._kubelets / "nodes"
        """Folder of every node's pods: NODE/pods/NAMESPACE_NAME_UID/CONTAINER."""
        self._file = DesiredFile(self._kubelets)

    def specs(self) -> Mapping[str, NodeSpec]:
        return self._file.read().nodes

    def spec(self, name: str) -> NodeSpec:
        known = self.specs()
        if name not in known:
            raise TestbedError(f"no node {name}: there are {', '.join(sorted(known)) or 'none'}")
        return known[name]

    def logs(self, namespace: str, pod: str) -> str:
        files = self.pods.glob(f"*/pods/{namespace}_{pod}*/*/*.log")
        oldest_first = sorted(files, key=lambda file: file.stat().st_ctime)
        return "".join(file.read_text(errors="replace") for file in oldest_first)

    def add(self, profiles: Mapping[str, str | None], *, offers: Offer = Offer.PLUGIN) -> None:
        if taken := profiles.keys() & self.specs().keys():
            raise TestbedError(f"node {', '.join(sorted(taken))} is there already: unplug it first")
        self._change(
            {
                name: NodeSpec(
                    profile=profile, hardware=self._plug(name, profile, offers) if profile else None
                )
                for name, profile in profiles.items()
            }
        )

    def remove(self, name: str) -> None:
        self.spec(name)
        self._change({name: None})
        shutil.rmtree(self._hardware / name, ignore_errors=True)

    def kubelet(self, name: str, *, stopped: bool) -> None:
        """Stop or start it: its containers end, and its node is no longer Ready."""
        self._change({name: replace(self.spec(name), stopped=stopped)})

    def hardware(self, name: str) -> Hardware:
        profile = self.spec(name).profile
        if profile is None:
            others = sorted(name for name, spec in self.specs().items() if spec.profile)
            raise TestbedError(f"node {name} has no GPUs: choose one of {', '.join(others)}")
        return attach(self._hardware / name)

    def _plug(self, name: str, profile: str, offers: Offer) -> context.Hardware:
        plugged = plug(profile, self._hardware / name)
        known = {one: getattr(plugged, one) for one in ("gpu_count", "gpu_product", "gpu_capacity")}
        labels = dict(plugged.profile.node.labels)
        by_dra = dra.devices(plugged) if offers is Offer.DRA else []
        return context.Hardware(environment=plugged.env(), node_labels=labels, devices=by_dra, **known)

    def _change(self, changes: Mapping[str, NodeSpec | None]) -> None:
        with self._file.change() as nodes:
            for name, spec in changes.items():
                if spec is None:
                    nodes.pop(name, None)
                else:
                    nodes[name] = spec
        revision = self._file.read().revision

        def done() -> bool:
            seen = self._file.observed()
            states = {seen.nodes.get(name, "running") for name in changes}
            return seen.revision >= revision and states <= {"running", "stopped"}

        wait_for(done, every=LOOK_SECONDS, what=f"nodes {', '.join(changes)}, see {self.log}")
