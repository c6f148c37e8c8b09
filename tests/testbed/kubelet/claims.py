"""DRA on a simulated node: its GPUs as a ResourceSlice, and the claims of its pods.  As in life, a container
has the driver by a claim alone: CDI adds library, variables and the devices of the claim."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from testbed.errors import ApiError
from testbed.hardware.dra import API, DEVICE_CLASS, DRIVER
from testbed.kubelet.api import Api, retry
from testbed.kubelet.errors import ContainerWaits
from testbed.rest import Object


@dataclass(frozen=True, kw_only=True)
class Given:
    """Devices of a container's claims, by name; `exclusive`: nobody else has them."""

    devices: tuple[str, ...] = ()
    exclusive: bool = False


async def publish(api: Api, *, node: str, uid: str, devices: list[Object]) -> None:
    """The node's ResourceSlice, in place of one from before, and the class of an installed driver."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}
    metadata = {"name": f"{node}-{DRIVER}", "ownerReferences": [owner]}
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}
    await _unless(404, lambda: api.delete(f"{API}/resourceslices/{metadata['name']}"))
    await retry(lambda: api.create(f"{API}/resourceslices", {"metadata": metadata, "spec": spec}))
    await _unless(409, lambda: api.create(f"{API}/deviceclasses", DEVICE_CLASS))


async def prepare(pod: Object, container: Object, api: Api) -> Given:
    """What the container's claims give it.  ContainerWaits until each is reserved for the pod."""
    wanted = {claim["name"] for claim in container.get("resources", {}).get("claims", [])}
    names = {one["name"]: one.get("resourceClaimName", "") for one in pod["spec"].get("resourceClaims", [])}
    made = pod.get("status", {}).get("resourceClaimStatuses") or []
    names |= {one["name"]: one.get("resourceClaimName", "") for one in made}
    results: list[Object] = []
    for name in sorted(wanted):
        results += await _allocated(pod, names[name], api)
    ours = [result for result in results if result["driver"] == DRIVER]
    return Given(
        devices=tuple(dict.fromkeys(result["device"] for result in ours)),
        exclusive=any(not result.get("adminAccess") for result in ours),
    )


async def _allocated(pod: Object, claim: str, api: Api) -> list[Object]:
    path = f"{API}/namespaces/{pod['metadata']['namespace']}/resourceclaims/{claim}"
    answer = await _unless(404, lambda: api.get(path)) if claim else {}
    status = answer.get("status") or {}
    if pod["metadata"]["uid"] not in {user["uid"] for user in status.get("reservedFor") or []}:
        raise ContainerWaits(f"claim {claim} is not reserved for the pod", reason="ContainerCreating")
    results: list[Object] = status["allocation"]["devices"]["results"]
    return results


async def _unless(status: int, call: Callable[[], Awaitable[Object]]) -> Object:
    """What a call answers; nothing where it is refused with this status."""
    try:
        return await retry(call)
    except ApiError as error:
        if error.status != status:
            raise
        return {}
