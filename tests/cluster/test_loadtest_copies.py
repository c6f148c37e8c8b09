"""The load test's copies of nodes, on a real etcd and API server: nodes of their own that can be changed."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from msgspec import to_builtins

from fleet.load import copying, documents, loops, objects
from fleet.load.kubelets import Kubelets
from fleet.load.population import Population, pods_path
from fleet.load.stage import crds
from nodegauge_contract import decode
from nodegauge_operator import names
from nodegauge_operator.core.evidence import noted
from nodegauge_operator.core.model import ProbeDefaults
from nodegauge_operator.core.probes.watch import daemon_set
from nodegauge_operator.core.watch_pod import watch_view
from nodegauge_operator.kube.client import MERGE, connect
from nodegauge_operator.kube.reports import without_nulls
from testbed.controlplane import ControlPlane
from testbed.errors import ControlPlaneError
from testbed.etcd import Etcd
from testbed.operatorprocess import CHECKOUT

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

NAMESPACE, SEED = "nodegauge", "gpu-00000"
COPIES = ["gpu-00001", "gpu-00002", "gpu-00003"]


async def fill(plane: ControlPlane, population: Population) -> Kubelets:
    """A node whose watch container has reported once, and what the operator writes of that."""
    policy = await population.install(crds(CHECKOUT / "crds"))
    await population.namespace(NAMESPACE)
    (node,) = await population.nodes([SEED], labels=objects.SELECTED)
    watch_set = daemon_set(policy, ProbeDefaults(namespace=NAMESPACE, image=objects.IMAGE))
    await population.call("POST", f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets", body=watch_set)
    kubelets = Kubelets(population, NAMESPACE)
    await kubelets.run_containers(count=1, within=60, alive=lambda: None)
    message = kubelets.messages([SEED], documents.h100())[SEED]
    await kubelets.end(SEED, message)
    (after,) = objects.statuses(node, [decode(message)], policy=policy, now=time.time())
    assert after.evidence is not None
    (pod,) = kubelets.pods_of()
    view = watch_view(await population.call("GET", pods_path(NAMESPACE, pod)))
    assert view is not None
    status = noted(after.status, names.PROBE_HEALTH, after.evidence, node=SEED, now=time.time())
    plain = without_nulls(to_builtins(status))
    plain["probes"][0]["lastRun"].update(podName=view.name, podUID=view.identity)
    owner = {"apiVersion": "v1", "kind": "Node", "name": SEED, "uid": node.uid}
    head = {"apiVersion": names.API_VERSION, "metadata": {"name": SEED, "ownerReferences": [owner]}}
    await population.call("POST", loops.REPORTS, body=head | {"kind": names.REPORT_KIND, "spec": {}})
    path = f"{loops.REPORTS}/{SEED}/status"
    await population.call("PATCH", path, body={"status": plain}, content_type=MERGE)
    proof = {"probes": {names.PROBE_HEALTH: without_nulls(to_builtins(after.evidence))}}
    await population.call("POST", loops.EVIDENCE, body=head | {"kind": names.EVIDENCE_KIND} | proof)
    return kubelets


async def test_copies_are_nodes_that_the_api_server_reads_and_changes(tmp_path: Path) -> None:
    """Protobuf and JSON decode again; labels can be patched, and the copy's container can end.  A key that is
    there already is refused."""
    with ControlPlane(tmp_path / "control-plane") as plane:
        client = await connect(environ={"KUBECONFIG": str(plane.kubelet_kubeconfig)})
        try:
            population = Population(client)
            kubelets = await fill(plane, population)
            await copying.fill(plane, population, seeds=[SEED], wanted=COPIES, count=4, namespace=NAMESPACE)
            assert not plane.runs("kube-scheduler")
            await kubelets.adopt()
            assert sorted(kubelets.pods_of().values()) == [SEED, *COPIES]
            last = COPIES[-1]
            patch = {"metadata": {"labels": {"a": "b"}}}
            await population.call("PATCH", f"{loops.NODES}/{last}", body=patch, content_type=MERGE)
            node = await asyncio.to_thread(plane.rest().get, f"{loops.NODES}/{last}")
            assert node["metadata"]["labels"]["a"] == "b"
            assert node["metadata"]["labels"]["kubernetes.io/hostname"] == last
            assert node["status"]["nodeInfo"]["machineID"] == objects.machine_ids(last)[0]
            await kubelets.end(last, kubelets.messages([last], documents.h100())[last])
            (name,) = [pod for pod, of_node in kubelets.pods_of().items() if of_node == last]
            pod = await asyncio.to_thread(plane.rest().get, pods_path(NAMESPACE, name))
            assert pod["status"]["containerStatuses"][0]["restartCount"] == 2
            with plane.only_etcd() as url, pytest.raises(ControlPlaneError, match="has one of these keys"):
                Etcd(url).create([(f"/registry/minions/{last}".encode(), b"x")])
        finally:
            await client.close()
