"""A node whose GPUs come by DRA: its ResourceSlice."""

from collections.abc import Sequence

from support import results as made
from testbed.rest import Object, Rest

GROUP, DRIVER = "/apis/resource.k8s.io/v1", "gpu.nvidia.com"


def slice_body(node: str, *, uid: str = "", uuids: Sequence[str] = ()) -> Object:
    """What NVIDIA's DRA driver publishes of a node, whose probe reads `support.results` without `uuids`."""
    owner = [{"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}] if uid else []
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    devices = [
        {
            "name": f"gpu-{number}",
            "attributes": {
                "uuid": {"string": uuid},
                "type": {"string": "gpu"},
                "resource.kubernetes.io/pciBusID": {"string": made.pci(number)},
            },
        }
        for number, uuid in enumerate(uuids or [made.uuid(number) for number in range(8)])
    ]
    spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}
    return {"metadata": {"name": f"{node}-{DRIVER}", "ownerReferences": owner}, "spec": spec}


def rules_path(api: Rest) -> str:
    """Of DeviceTaintRules, in the version that the API server has."""
    return f"{api.served('resource.k8s.io', 'devicetaintrules')}/devicetaintrules"


def publish(api: Rest, node: str) -> None:
    """Its GPUs come by DRA from now on, and by nothing else."""
    none = {"nvidia.com/gpu": None}
    api.patch(f"/api/v1/nodes/{node}/status", {"status": {"capacity": none, "allocatable": none}})
    uid = api.get(f"/api/v1/nodes/{node}")["metadata"]["uid"]
    api.create(f"{GROUP}/resourceslices", slice_body(node, uid=uid))
