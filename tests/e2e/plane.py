"""The testbed's control plane where pods reach it: on port 443 of the `kubernetes` service's own address.

There is no kube-proxy.  The address is on the namespace's `lo`, so a pod's packets find it by the route that
the bridge gives them.  Differs from the testbed's otherwise only in that the kubelet is a node's own user,
held by the Node authorizer and NodeRestriction, and that a silent node is taken for lost soon.
"""

from __future__ import annotations

import csv
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

from testbed.binaries import Binaries
from testbed.controlplane import APISERVER, ControlPlane

SERVICE_ADDRESS = "10.0.0.1"
PORT = 443
NODE_GRACE_SECONDS = 14
EXTRA = {
    APISERVER: (
        f"--bind-address={SERVICE_ADDRESS}",
        f"--advertise-address={SERVICE_ADDRESS}",
        f"--secure-port={PORT}",
        "--authorization-mode=Node",  # besides RBAC: lists add up
        "--enable-admission-plugins=NodeRestriction",
    ),
    "kube-controller-manager": (
        f"--node-monitor-grace-period={NODE_GRACE_SECONDS}s",
        "--node-monitor-period=2s",
    ),
}
"""Flags that win over the testbed's, as the last ones given."""


class PodPlane(ControlPlane):
    """The control plane below `directory`, for the kubelet of the node `node`."""

    def __init__(
        self, directory: Path, *, node: str, binaries: Binaries, progress: Callable[[str], None]
    ) -> None:
        super().__init__(directory, binaries=binaries, progress=progress)
        self._node_user = f"system:node:{node}"

    @property
    def server(self) -> str:
        """The API server's URL, the same for pods and for everybody else."""
        return f"https://{SERVICE_ADDRESS}:{PORT}"

    def node_kubeconfig(self) -> Path:
        """The kubeconfig of the node's kubelet."""
        return self.user_kubeconfig(self._node_user, token=self._tokens()[self._node_user])

    def _write_files(self) -> None:
        super()._write_files()
        if self._node_user not in self._tokens():
            with self.layout.tokens.open("a", newline="", encoding="utf-8") as lines:
                row = [secrets.token_urlsafe(24), self._node_user, self._node_user, "system:nodes"]
                csv.writer(lines).writerow(row)

    def _start(self, name: str, program: Path, flags: Sequence[str]) -> None:
        super()._start(name, program, [*flags, *EXTRA.get(name, ())])
