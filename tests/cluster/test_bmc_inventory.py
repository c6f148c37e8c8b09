"""Role bmc_inventory: from an inventory to the BMC reader's Secret, on a real API server."""

import base64
from pathlib import Path
from typing import Any

import pytest
import trustme

from nodegauge_bmc.inventory import Inventory
from support.playbook import Ansible, Played
from testbed.binaries import build_kubectl
from testbed.controlplane import ControlPlane
from testbed.rest import Rest

pytestmark = pytest.mark.cluster

PASSWORD = "C0rrect-horse"
VARIABLES: dict[str, Any] = {
    "gpu-1": {"url": "https://10.0.0.1", "username": "reader", "password": PASSWORD, "ca": "bmc.pem"},
    "gpu-2": {
        "url": "ipmi://10.0.0.2",
        "username": "reader",
        "password": PASSWORD,
        "node": "node-2.example.com",
    },
    "web-1": {},
}


def run(ansible: Ansible, hosts: dict[str, Any], *flags: str, times: int = 1, **role: Any) -> Played:
    """The role on localhost, with these hosts in the inventory, so many times one after the other."""
    values = {
        "certificates": {"bmc.pem": trustme.CA().cert_pem.bytes().decode()},
        "hosts": "gpu-*,web-*",
    } | role
    task = {
        "name": "run",
        "ansible.builtin.include_role": {"name": "nodegauge.gpu.bmc_inventory"},
        "vars": {f"bmc_inventory_{name}": value for name, value in values.items()},
    }
    own = {
        name: {f"bmc_inventory_{field}": value for field, value in fields.items()}
        for name, fields in hosts.items()
    }
    play = {"hosts": "localhost", "gather_facts": False, "tasks": [task]}
    played = ansible.play([play] * times, own, *flags)
    again = played.tasks[len(played.tasks) // times :]
    assert [task for task in again if task.result.get("changed")] == []
    return played


def entries(data: dict[str, str], folder: Path) -> dict[str, Any]:
    """What the operator's BMC reader makes of the Secret's files: node to address, or why not."""
    folder.mkdir()
    for name, text in data.items():
        (folder / name).write_bytes(base64.b64decode(text))
    inventory = Inventory(folder)
    inventory.changed()
    names = [name for name in data if not name.endswith(".pem")]
    plan = inventory.plan(dict.fromkeys(names, "uid"), selected=frozenset(), timeout=5)
    assert (plan.problems, plan.unused) == ({}, [])
    return {node: (target.access.url, target.access.password) for node, target in plan.targets.items()}


def test_the_secret_follows_the_inventory(
    ansible: Ansible, control_plane: ControlPlane, api: Rest, namespace: str, tmp_path: Path
) -> None:
    """Check mode and second runs change nothing; another group keeps these entries; pruning removes them."""
    path = f"/api/v1/namespaces/{namespace}/secrets/nodegauge-bmc"
    cluster = {
        "apply": True,
        "namespace": namespace,
        "kubeconfig": str(control_plane.kubeconfig),
        "kubectl": str(build_kubectl()),
    }
    checked = run(ansible, VARIABLES, "--check", **cluster)
    assert checked.code == 0, checked.output
    assert checked.changed
    listed = api.get(f"/api/v1/namespaces/{namespace}/secrets")["items"]
    assert [one["metadata"]["name"] for one in listed] == []
    first = run(ansible, VARIABLES, "-vvv", "--diff", **cluster)
    assert first.code == 0, first.output
    assert PASSWORD not in first.output
    assert base64.b64encode(PASSWORD.encode()).decode()[:10] not in first.output
    assert entries(api.get(path)["data"], tmp_path / "first") == {
        "gpu-1": ("https://10.0.0.1", PASSWORD),
        "node-2.example.com": ("ipmi://10.0.0.2", PASSWORD),
    }
    other = {"gpu-3": VARIABLES["gpu-1"] | {"url": "https://10.0.0.3", "ca": None, "insecure": True}}
    certificates: dict[str, str] = {}
    assert run(ansible, other, times=2, certificates=certificates, **cluster).changed
    assert set(api.get(path)["data"]) == {"bmc.pem", "gpu-1", "gpu-3", "node-2.example.com"}
    assert run(ansible, other, certificates=certificates, prune=True, **cluster).changed
    assert set(api.get(path)["data"]) == {"gpu-3"}


def test_a_manifest_is_for_its_owner_alone(ansible: Ansible) -> None:
    """Without a cluster; the second run changes nothing, and a wrong variable is refused without a secret."""
    file = ansible.folder / "secret.yaml"
    certificate = {"bmc.pem": trustme.CA().cert_pem.bytes().decode()}
    pattern = {"url": "https://{short}-bmc", "username": "reader", "password": PASSWORD}
    played = run(ansible, VARIABLES, times=2, manifest=str(file), certificates=certificate, defaults=pattern)
    assert (played.code, bool(played.changed)) == (0, True), played.output
    assert file.stat().st_mode & 0o777 == 0o600
    assert "kind: Secret" in file.read_text()
    refused = run(ansible, {"gpu-1": VARIABLES["gpu-1"] | {"ca": "other.pem"}}, manifest=str(file))
    assert (refused.code, "gpu-1: bmc_inventory_ca cannot be used" in refused.output) == (2, True)
    assert PASSWORD not in refused.output
