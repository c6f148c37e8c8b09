"""A simulated node with DRA alone: a claim brings the driver, and nothing else does."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.cluster import Testbed
from testbed.controlplane import ControlPlane
from testbed.nodes import Offer
from testbed.rest import Rest
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster

NODE = "gpu-dra"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims"
ADMIN = {"resource.kubernetes.io/admin-access": "true"}
SAYS = "import os; print('driver', bool(os.environ.get('NODEGAUGE_SIM_HARDWARE')))"


@pytest.fixture
def testbed(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Testbed]:
    with Testbed(tmp_path, control_plane=control_plane) as testbed:
        testbed.nodes.add({NODE: "h100-sxm-8"}, offers=Offer.DRA)
        yield testbed
        testbed.nodes.remove(NODE)


def request(name: str, **more: Any) -> dict[str, Any]:
    exactly = {"deviceClassName": "gpu.nvidia.com", "allocationMode": "All", **more}
    requests = [{"name": "gpus", "exactly": exactly}]
    return {"metadata": {"name": name}, "spec": {"spec": {"devices": {"requests": requests}}}}


def message_of(testbed: Testbed, api: Rest, namespace: str, template: str = "") -> str:
    """What a pod on the node says, with a claim of this template or without any."""
    name = template or "none"
    main: dict[str, Any] = {"name": "main", "image": "python", "command": ["python", "-c", SAYS]}
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "nodeSelector": {"kubernetes.io/hostname": NODE},
        "containers": [main],
    }
    if template:
        main["resources"] = {"claims": [{"name": "gpus"}]}
        spec["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": template}]
    path = f"/api/v1/namespaces/{namespace}/pods"
    api.create(path, {"metadata": {"name": name}, "spec": spec})
    wait_for(
        lambda: api.get(f"{path}/{name}")["status"].get("phase") == "Succeeded", what=f"the end of pod {name}"
    )
    api.delete(f"{path}/{name}")
    return testbed.logs(namespace, name).strip()


def test_only_a_claim_brings_the_driver(testbed: Testbed, api: Rest, namespace: str) -> None:
    api.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": ADMIN}})
    templates = CLAIMS.format(namespace).replace("claims", "claimtemplates")
    for body in (request("admin", adminAccess=True), request("all")):
        api.create(templates, body)
    node = api.get(f"/api/v1/nodes/{NODE}")
    offered = {*node["status"]["capacity"], *node["metadata"]["labels"]}
    assert not [word for word in offered if word.startswith("nvidia.com/")]
    seen = {name: message_of(testbed, api, namespace, name) for name in ("admin", "all", "")}
    assert seen == {"admin": "driver True", "all": "driver True", "": "driver False"}
    wait_for(lambda: not api.get(CLAIMS.format(namespace))["items"], what="the claims to go with their pods")
