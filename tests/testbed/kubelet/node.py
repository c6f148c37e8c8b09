"""The Node object of a simulated node; what others put on it is left alone."""

import asyncio
import logging
import platform
import uuid
from datetime import UTC, datetime
from pathlib import Path

from testbed.binaries import KUBERNETES, release
from testbed.errors import ApiError
from testbed.kubelet import claims
from testbed.kubelet.api import Api, retry
from testbed.kubelet.context import ADDRESS, Hardware, NodeContext
from testbed.kubelet.devices import GPU_RESOURCE
from testbed.kubelet.status import condition
from testbed.rest import MERGE, Object
from testbed.scripted import stamp

log = logging.getLogger(__name__)

RENEW_SECONDS, STATUS_SECONDS = 10.0, 30.0
"""Between two renewals of the lease (as a kubelet's), and two statuses (a kubelet's: 300)."""
DEVICES_SECONDS = 0.5
"""How often the device plugin is asked, which has a stream of its own in life."""
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
CAPACITY = {"cpu": "64", "memory": "512Gi", "pods": "110", "ephemeral-storage": "1Ti"}
NODE_NAMESPACE = uuid.UUID("5b1d8f9e-6c0a-4b53-9d39-0a7f3f6c2d11")
"""Fixed, so that a node's machine id depends on its name alone and survives a restart, as in life."""

HEALTHY = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("Ready", "True", "KubeletReady", "simulated kubelet is posting ready status"),
)


def node_labels(name: str, hardware: Hardware | None) -> dict[str, str]:
    architecture = ARCHITECTURES.get(platform.machine(), platform.machine())
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": architecture,
        "beta.kubernetes.io/os": "linux",
        "beta.kubernetes.io/arch": architecture,
    }
    if hardware is not None and not hardware.devices:
        labels |= {
            "nvidia.com/gpu.present": "true",
            "nvidia.com/gpu.count": str(hardware.gpu_count),
            "nvidia.com/gpu.product": hardware.gpu_product.replace(" ", "-"),
            **hardware.node_labels,
        }
    return labels


def node_info(name: str, hardware: Hardware | None) -> Object:
    machine = uuid.uuid5(NODE_NAMESPACE, name)
    root = (hardware.environment.get("NODEGAUGE_PROCFS") if hardware else None) or "/proc"
    return {
        "machineID": machine.hex,
        "systemUUID": str(machine),
        "bootID": (Path(root) / "sys/kernel/random/boot_id").read_text().strip(),
        "kernelVersion": platform.release(),
        "osImage": "nodegauge testbed (simulated node)",
        "containerRuntimeVersion": "testbed://1",
        "kubeletVersion": f"v{KUBERNETES[release()]}",
        "kubeProxyVersion": "",
        "operatingSystem": "linux",
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
    }


def node_status(node: NodeContext, *, before: list[Object]) -> Object:
    capacity, allocatable = dict(CAPACITY), dict(CAPACITY)
    if (registered := node.devices.capacity()) is not None:
        capacity[GPU_RESOURCE] = str(registered)
        allocatable[GPU_RESOURCE] = str(node.devices.allocatable())
    now = stamp()
    conditions = [condition(*row, before=before, now=now) | {"lastHeartbeatTime": now} for row in HEALTHY]
    return {
        "capacity": capacity,
        "allocatable": allocatable,
        "conditions": conditions,
        "addresses": [{"type": "InternalIP", "address": ADDRESS}, {"type": "Hostname", "address": node.name}],
        "nodeInfo": node_info(node.name, node.hardware),
    }


class NodeAgent:
    def __init__(self, node: NodeContext) -> None:
        self._node = node
        self._api = node.api
        self._name = node.name
        self._labels = node_labels(node.name, node.hardware)
        self._told: object = None
        self._uid = ""
        self.path = f"/api/v1/nodes/{node.name}"

    async def register(self) -> None:
        metadata = {"name": self._name, "labels": self._labels}
        body = {"metadata": metadata, "status": self._status(before=[])}
        try:
            node = await retry(lambda: self._api.create("/api/v1/nodes", body))
        except ApiError as error:
            if error.status != 409:
                raise
            labels = {"metadata": {"labels": self._labels}}
            node = await retry(lambda: self._api.patch(self.path, labels, kind=MERGE))
            await self.post_status()
        self._uid = node["metadata"]["uid"]
        if self._node.hardware is not None and (devices := self._node.hardware.devices):
            await claims.publish(self._api, node=self._name, uid=self._uid, devices=devices)
        await self.renew_lease()

    async def post_status(self) -> None:
        node = await retry(lambda: self._api.get(self.path))
        status = self._status(before=node.get("status", {}).get("conditions", []))
        await retry(lambda: self._api.patch(f"{self.path}/status", {"status": status}))

    async def renew_lease(self) -> None:
        moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": self._name, "leaseDurationSeconds": 40, "renewTime": moment}
        try:
            await retry(lambda: self._api.patch(f"{LEASES}/{self._name}", {"spec": spec}, kind=MERGE))
        except ApiError as error:
            if error.status != 404:
                raise
            owner = {"apiVersion": "v1", "kind": "Node", "name": self._name, "uid": self._uid}
            lease: Object = {"metadata": {"name": self._name, "ownerReferences": [owner]}, "spec": spec}
            await retry(lambda: self._api.create(LEASES, lease))

    async def keep_ready(self) -> None:
        """Heartbeats until cancelled. A deleted node stays so: a kubelet registers only when it starts."""
        beats = 0
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            beats += 1
            try:
                await self.renew_lease()
                if beats % (STATUS_SECONDS // RENEW_SECONDS) == 0:
                    await self.post_status()
            except ApiError as error:
                log.warning("heartbeat of node %s refused: %s", self._name, error)

    async def follow_devices(self) -> None:
        """Tell at once when the device plugin tells something else (a kubelet looks every 10 s)."""
        while True:
            await asyncio.sleep(DEVICES_SECONDS)
            if self._node.devices.stamp() != self._told:
                try:
                    await self.post_status()
                except ApiError as error:
                    self._told = None  # and try again
                    log.warning("devices of node %s not told: %s", self._name, error)

    def _status(self, *, before: list[Object]) -> Object:
        self._told = self._node.devices.stamp()
        return node_status(self._node, before=before)


async def fall_silent(kubeconfig: Path, name: str) -> None:
    """Say at once what the node controller says after a grace of which the testbed has an hour."""
    row = ("Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")
    ready = condition(*row, before=[], now=stamp())
    async with await Api.connect(kubeconfig, agent="kubelet-testbed") as api:
        path = f"/api/v1/nodes/{name}/status"
        await retry(lambda: api.patch(path, {"status": {"conditions": [ready]}}))


async def delete_node(kubeconfig: Path, name: str) -> None:
    async with await Api.connect(kubeconfig, agent="kubelet-testbed") as api:
        try:
            await retry(lambda: api.delete(f"/api/v1/nodes/{name}"))
        except ApiError as error:
            if error.status != 404:
                raise
