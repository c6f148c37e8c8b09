"""A real Kueue beside a control plane, as one process: its controllers and its scheduler, without its
webhooks, which the API server could not reach by a Service: whoever creates a Job suspends it."""

import json
from pathlib import Path
from typing import Any

import trustme
import yaml

from testbed.binaries import KEPT, KUEUE_TOOL, build
from testbed.controlplane import ControlPlane
from testbed.loopback import LOOPBACK, reserve_port
from testbed.processes import Process, Running

NAMESPACE, SERVICE, SECRET = "kueue-system", "kueue-webhook-service", "kueue-webhook-server-cert"
API = "/apis/kueue.x-k8s.io/v1beta2"
CONVERSION = {
    "strategy": "Webhook",
    "webhook": {
        "clientConfig": {"service": {"namespace": NAMESPACE, "name": SERVICE, "path": "/convert"}},
        "conversionReviewVersions": ["v1"],
    },
}
"""Kueue waits until it has put its certificate there; with one version nothing is ever converted."""
CONVERTED = ("localqueues", "clusterqueues", "workloads", "cohorts", "multikueueclusters")


class Kueue(Running):
    def __init__(self, plane: ControlPlane, directory: Path) -> None:
        self._plane, self._directory, self._rest = plane, directory, plane.rest()
        self.log = directory / "kueue.log"
        self._process: Process | None = None

    def start(self) -> None:
        [program] = build(KUEUE_TOOL)
        kept = [yaml.safe_load(file.read_text("utf-8")) for file in (program.parent / KEPT).glob("*.yaml")]
        self._rest.define(*map(_stored_alone, kept))
        self._rest.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        self._rest.create(f"/api/v1/namespaces/{NAMESPACE}/secrets", {"metadata": {"name": SECRET}})
        environ = {"KUBECONFIG": str(self._plane.kubeconfig), "PATH": ""}
        command: list[str | Path] = [program, f"--config={self._config()}", "--zap-log-level=2"]
        self._process = Process("kueue", command, log=self.log, environ=environ, cwd=self._directory)
        self._process.start()

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop(grace=30.0)

    def _config(self) -> Path:
        certificates = self._directory / "certificates"
        certificates.mkdir(parents=True)
        own = trustme.CA().issue_cert(LOOPBACK)
        own.private_key_pem.write_to_path(certificates / "tls.key")
        for blob in own.cert_chain_pems:
            blob.write_to_path(certificates / "tls.crt", append=True)
        text = Path(__file__).with_name("kueue.yaml").read_text("utf-8")
        body = yaml.safe_load(text.replace("LOOPBACK", LOOPBACK))
        body["health"]["healthProbeBindAddress"] += f":{reserve_port()}"
        body["webhook"] |= {"port": reserve_port(), "certDir": str(certificates)}
        path = self._directory / "kueue.json"
        path.write_text(json.dumps(body))
        return path


def _stored_alone(crd: dict[str, Any]) -> dict[str, Any]:
    """The CRD with the version that is stored."""
    spec = crd["spec"]
    spec["versions"] = [version for version in spec["versions"] if version["storage"]]
    if spec["names"]["plural"] in CONVERTED:
        spec["conversion"] = CONVERSION
    return crd
