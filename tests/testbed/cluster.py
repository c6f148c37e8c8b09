"""Control plane, simulated nodes and their hardware; all end with the program that holds them."""

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from testbed.controlplane import ControlPlane
from testbed.nodes import Nodes
from testbed.processes import Process, Running

STOP_SECONDS = 10.0
CONTROL_PLANE = "control-plane"
TESTS = Path(__file__).resolve().parents[1]
PROBES = TESTS.parent / "probes" / "src"
"""Of this checkout, whichever one is installed: result documents and what simulated NCCL is told."""


@dataclass(frozen=True, kw_only=True)
class PodProcess:
    node: str
    namespace: str
    pod: str
    pid: int


class Testbed(Running):
    """A control plane with simulated nodes below `directory`; start it with `with` or `start()`."""

    __test__ = False

    def __init__(
        self,
        directory: Path,
        *,
        nodes: Mapping[str, str | None] | None = None,
        control_plane: ControlPlane | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self.directory = directory.resolve()
        self._progress = progress or (lambda _: None)
        self._borrowed = control_plane is not None
        self.control_plane = control_plane or ControlPlane(
            self.directory / CONTROL_PLANE, progress=self._progress
        )
        self.nodes = Nodes(self.directory)
        self.hardware, self.logs = self.nodes.hardware, self.nodes.logs
        self.helm = self.control_plane.helm
        self._wanted = dict(nodes or {})
        self._kubelets: Process | None = None

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        if not self._borrowed:
            self.control_plane.start()
        self.nodes.log.parent.mkdir(exist_ok=True)
        where = (self.control_plane.kubelet_kubeconfig, self.nodes.log.parent)
        self._kubelets = Process(
            "the kubelets",
            [sys.executable, "-m", "testbed.kubelet.agent", *where],
            log=self.nodes.log,
            environ={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (TESTS, PROBES)))},
        )
        self._kubelets.start()
        if self._wanted:
            self._progress(f"plugging {len(self._wanted)} nodes")
            self.nodes.add(self._wanted)

    def stop(self) -> None:
        with contextlib.ExitStack() as stack:
            if not self._borrowed:
                stack.callback(self.control_plane.stop)
            if self._kubelets is not None:  # the containers end with them
                self._kubelets.stop(grace=STOP_SECONDS)

    def processes(self, namespace: str, pod: str = "") -> list[PodProcess]:
        result = []
        for file in sorted(self.nodes.pods.glob(f"*/pods/{namespace}_{pod}*/*/pid")):
            with contextlib.suppress(OSError, ValueError):  # it may have just ended
                name = file.parents[1].name.split("_")[1]
                pid, node = int(file.read_text()), file.parents[3].name
                result.append(PodProcess(node=node, namespace=namespace, pod=name, pid=pid))
        return result
