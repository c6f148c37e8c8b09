"""The assembled testbed: control plane, simulated nodes and their hardware as one object.

    with Testbed(directory, nodes={"gpu-1": "h100-sxm-8", "system-1": None}) as testbed:
        testbed.helm("list")
        testbed.hardware("gpu-1").fault("p2p-refused")

It holds two things that run: the control plane's processes, and one process with all kubelets.  Both end with
the program that holds the testbed, however that ends.  Nothing here knows what nodegauge does.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from testbed.controlplane import ControlPlane
from testbed.hardware import Hardware
from testbed.nodes import Nodes
from testbed.running import Running

Object = dict[str, Any]

STOP_SECONDS = 10.0
TESTS = Path(__file__).resolve().parents[1]
PROBES = TESTS.parent / "probes" / "src"
"""Of this checkout, whichever one is installed: result documents and what simulated NCCL is told."""


@dataclass(frozen=True, kw_only=True)
class PodProcess:
    """A running container. `directory` has its log (N.log for the Nth restart), `pid` and `ports.json`."""

    node: str
    namespace: str
    pod: str
    container: str
    pid: int
    directory: Path


class Testbed(Running):
    """A control plane with simulated nodes below `directory`; start it with `with` or `start()`."""

    __test__ = False

    def __init__(
        self,
        directory: Path,
        *,
        nodes: Mapping[str, str | None] | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self.directory = directory.resolve()
        self._progress = progress or (lambda _: None)
        self.control_plane = ControlPlane(self.directory / "control-plane", progress=self._progress)
        self.nodes = Nodes(self.directory)
        self._wanted = dict(nodes or {})
        self._host: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def start(self) -> None:
        """Control plane, kubelets, nodes; returns when every node is registered."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.control_plane.start()
        self._start_host()
        if self._wanted:
            self._progress(f"plugging {len(self._wanted)} nodes")
            self.nodes.add(self._wanted)

    def stop(self) -> None:
        """End everything; harmless when nothing runs."""
        with contextlib.ExitStack() as stack:
            stack.callback(self.control_plane.stop)
            self._stop_host()

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.control_plane.kubeconfig

    def hardware(self, node: str) -> Hardware:
        """The hardware plugged into a node, to be heated, cut and healed."""
        return self.nodes.hardware(node)

    def helm(self, *arguments: str) -> str:
        """Run helm as administrator; its output. TestbedError with its words when it fails."""
        return self.control_plane.helm(*arguments)

    def processes(self, namespace: str, pod: str = "") -> list[PodProcess]:
        """The running containers of pods whose name starts with `pod`."""
        return list(find_processes(self.nodes.pods, namespace=namespace, pod=pod))

    def logs(self, namespace: str, pod: str) -> str:
        """The output of all containers and restarts of pods whose name starts with `pod`, oldest first."""
        return read_logs(self.nodes.pods, namespace=namespace, pod=pod)

    def _start_host(self) -> None:
        directory = self.directory / "kubelet"
        directory.mkdir(parents=True, exist_ok=True)
        with self.nodes.log.open("ab") as log:
            self._host = start_host(
                kubeconfig=self.control_plane.kubelet_kubeconfig, directory=directory, log=log
            )

    def _stop_host(self) -> None:
        host, self._host = self._host, None
        if host is None:
            return
        assert host.stdin is not None
        host.stdin.close()  # this ends it, and its end kills the containers
        try:
            host.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            host.kill()
            host.wait()


def start_host(*, kubeconfig: Path, directory: Path, log: IO[bytes]) -> subprocess.Popen[bytes]:
    """The process of all kubelets, in a session of its own: Ctrl-C reaches only the program that holds it."""
    command = [sys.executable, "-m", "testbed.kubelet"]
    return subprocess.Popen(
        [*command, "--kubeconfig", str(kubeconfig), "--directory", str(directory)],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (TESTS, PROBES)))},
    )


def find_processes(pods: Path, *, namespace: str, pod: str = "") -> list[PodProcess]:
    """The running containers below a folder NODE/pods/NAMESPACE_NAME_UID/CONTAINER."""
    result = []
    for file in sorted(pods.glob(f"*/pods/{namespace}_{pod}*/*/pid")):
        with contextlib.suppress(OSError, ValueError):  # it may have just ended
            pid = int(file.read_text())
            container = file.parent
            result.append(
                PodProcess(
                    node=container.parents[2].name,
                    namespace=namespace,
                    pod=container.parent.name.split("_")[1],
                    container=container.name,
                    pid=pid,
                    directory=container,
                )
            )
    return result


def read_logs(pods: Path, *, namespace: str, pod: str) -> str:
    """Every log of matching pods, oldest first."""
    files = sorted(pods.glob(f"*/pods/{namespace}_{pod}*/*/*.log"), key=lambda file: file.stat().st_ctime)
    return "".join(file.read_text(errors="replace") for file in files)
