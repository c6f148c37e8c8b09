"""The first steps: the node is Ready, and a pod that has nothing to do with nodegauge works on it."""

from __future__ import annotations

from e2e import join_gate
from e2e.cluster import WORKLOADS, Cluster, terminated
from nodegauge_operator.names import TAINT_UNVALIDATED

CLOSED = [{"key": TAINT_UNVALIDATED, "operator": "Exists"}]
"""For pods that run before the node has passed."""


def node_ready(cluster: Cluster) -> None:
    """The kubelet registers under its own user, closed; the node turns Ready, and keeps that taint alone."""
    cluster.node.start_kubelet(cluster.plane.node_kubeconfig())

    def ready() -> bool:
        node = cluster.find(f"/api/v1/nodes/{cluster.node.name}")
        if node is None:
            return False
        states = {c["type"]: c["status"] for c in node["status"].get("conditions", [])}
        known = [taint["key"] for taint in node["spec"].get("taints") or ()]
        return states.get("Ready") == "True" and known == [TAINT_UNVALIDATED]

    cluster.until(ready, what=f"the node to be Ready, with {TAINT_UNVALIDATED} alone")
    registered = cluster.node_object()["metadata"]["labels"]
    cluster.must_be(join_gate.LABELS.items() - registered.items(), set(), what="labels that are missing")
    info = cluster.node_object()["status"]["nodeInfo"]
    cluster.say(
        f"node {cluster.node.name} is Ready and closed: kubelet {info['kubeletVersion']},"
        f" {info['containerRuntimeVersion']}"
    )


def trivial_pod(cluster: Cluster) -> None:
    """A pod's last words arrive, and from inside it the API server answers on the service's address."""
    cluster.make_namespace(WORKLOADS)
    code = (
        "import json, os, ssl, urllib.request as u\n"
        "d = '/var/run/secrets/kubernetes.io/serviceaccount/'\n"
        "c = ssl.create_default_context(cafile=d + 'ca.crt')\n"
        "h = os.environ['KUBERNETES_SERVICE_HOST'] + ':' + os.environ['KUBERNETES_SERVICE_PORT']\n"
        "t = {'Authorization': 'Bearer ' + open(d + 'token').read()}\n"
        "r = u.Request(f'https://{h}/version', headers=t)\n"
        "v = json.load(u.urlopen(r, context=c, timeout=5))['gitVersion']\n"
        "open('/dev/termination-log', 'w').write(f'{h} {v}')\n"
    )
    body = {
        "metadata": {"name": "trivial"},
        "spec": {"restartPolicy": "Never", "tolerations": CLOSED, "containers": [container(code)]},
    }
    cluster.api.create(f"/api/v1/namespaces/{WORKLOADS}/pods", body)
    cluster.until(lambda: terminated(cluster.pod("trivial")), what="the trivial pod's end")
    output = terminated(cluster.pod("trivial"))
    wanted = f"10.0.0.1:443 {cluster.api.get('/version')['gitVersion']}"
    cluster.must_be(output.get("message"), wanted, what="the termination message")
    cluster.say(f"a pod reached the API server and said: {output['message']}")


def container(code: str, **more: object) -> dict[str, object]:
    """A container that runs Python code in the probe's image."""
    return {
        "name": "main",
        "image": "localhost/nodegauge/probe:0.1.0",
        "command": ["python", "-c", code],
        **more,
    }
