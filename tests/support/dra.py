"""GPUs that come by DRA: a node's ResourceSlice, and pods that claim one GPU each."""

from collections.abc import Sequence
from typing import Any

from support import results as made
from testbed.errors import ApiError
from testbed.rest import Rest

Object = dict[str, Any]

GROUP, DRIVER = "/apis/resource.k8s.io/v1", "gpu.nvidia.com"
IS_GPU = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'gpu'"


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
    for version in api.get("/apis/resource.k8s.io")["versions"]:
        resources = api.get(f"/apis/{version['groupVersion']}")["resources"]
        if any(resource["name"] == "devicetaintrules" for resource in resources):
            return f"/apis/{version['groupVersion']}/devicetaintrules"
    raise LookupError("this API server has no DeviceTaintRules")


def publish(api: Rest, node: str) -> None:
    """Its GPUs come by DRA from now on, and by nothing else."""
    none = {"nvidia.com/gpu": None}
    api.patch(f"/api/v1/nodes/{node}/status", {"status": {"capacity": none, "allocatable": none}})
    uid = api.get(f"/api/v1/nodes/{node}")["metadata"]["uid"]
    api.create(f"{GROUP}/resourceslices", slice_body(node, uid=uid))


def claims(api: Rest, namespace: str) -> None:
    """What a pod needs for `pod_body`."""
    made_of = {"name": DRIVER}
    request = {"name": "gpu", "exactly": {"deviceClassName": DRIVER, "count": 1}}
    for path, body in (
        ("deviceclasses", {"metadata": made_of, "spec": {"selectors": [{"cel": {"expression": IS_GPU}}]}}),
        (
            f"namespaces/{namespace}/resourceclaimtemplates",
            {"metadata": {"name": "one-gpu"}, "spec": {"spec": {"devices": {"requests": [request]}}}},
        ),
    ):
        try:
            api.create(f"{GROUP}/{path}", body)
        except ApiError as error:
            if error.status != 409:
                raise


def pod_body(name: str, node: str) -> Object:
    """A pod that waits for one GPU of the node."""
    container = {"name": "job", "image": "localhost/job", "resources": {"claims": [{"name": "gpu"}]}}
    return {
        "metadata": {"name": name},
        "spec": {
            "containers": [container],
            "nodeSelector": {"kubernetes.io/hostname": node},
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}],
        },
    }
