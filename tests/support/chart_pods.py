"""Pods of the chart on a control plane without a kubelet: each command is run, with its own account's rights.

A node is there for the scheduler.  Pods that have to end (the first policy's, the clean-up's, the test's) run
as processes of this machine, under a token of their service account; the operator's gets an address alone.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from support.chart_tools import NAMESPACE, ROOT, Object
from testbed.controlplane import ControlPlane
from testbed.rest import STRATEGIC
from testbed.scripted import ScriptedKubelet, create_node

NODE = "hooks"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
LOOPBACK = "127.0.0.1"
SAID = 2048
"""Bytes of a container's last words that a kubelet keeps with FallbackToLogsOnError."""


class ChartPods(ScriptedKubelet):
    """Runs the pods of the release's namespace.  `ran` has what each component's last pod said."""

    def __init__(self, plane: ControlPlane, *, directory: Path, server: str | None = None) -> None:
        """`server`: another way to the API server, for the pods."""
        super().__init__(plane.rest(), namespace=NAMESPACE, answer=self._look_at)
        self._plane, self._rest, self._directory, self._server = plane, plane.rest(), directory, server
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self.ran: dict[str, str] = {}

    def __enter__(self) -> ChartPods:
        create_node(self._rest, NODE)
        super().__enter__()
        return self

    def __exit__(self, *arguments: object) -> None:
        try:
            super().__exit__(*arguments)
        finally:
            for process in self._processes.values():
                process.kill()
                process.communicate()
            self._rest.delete(f"/api/v1/nodes/{NODE}")

    def _look_at(self, pod: Object) -> str | None:
        """What to do with a pod that is scheduled and has not ended; the operator's is left to live."""
        component = pod["metadata"]["labels"]["app.kubernetes.io/component"]
        if component == "operator":
            running = {"phase": "Running", "podIP": LOOPBACK, "podIPs": [{"ip": LOOPBACK}]}
            path = f"{PODS}/{pod['metadata']['name']}/status"
            self._rest.patch(path, {"status": running}, content_type=STRATEGIC)
            return None
        uid = pod["metadata"]["uid"]
        process = self._processes.get(uid)
        if process is None:
            self._processes[uid] = self._start(pod)
        elif process.poll() is not None:
            said, _ = self._processes.pop(uid).communicate()
            self.ran[component] = said
            code = process.returncode
            reason = "Error" if code else "Completed"
            self.finish(pod, said[-SAID:] if code else "", exit_code=code, reason=reason)
        return None

    def _start(self, pod: Object) -> subprocess.Popen[str]:
        (container,) = pod["spec"]["containers"]
        assert container["command"][0] == "python"
        arguments = [re.sub(r"\$\$", "$", word) for word in container["args"]]  # as a kubelet does
        account = pod["spec"]["serviceAccountName"]
        kubeconfig = self._plane.user_kubeconfig(
            f"pod-{pod['metadata']['uid']}",
            token=self._plane.service_account_token(NAMESPACE, account),
            server=self._server,
        )
        paths = os.pathsep.join([str(ROOT / "operator/src"), str(ROOT / "probes/src")])
        return subprocess.Popen(
            [sys.executable, *container["command"][1:], *arguments],
            env=os.environ | {"KUBECONFIG": str(kubeconfig), "PYTHONPATH": paths},
            cwd=self._directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
