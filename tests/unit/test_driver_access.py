"""How pods reach the driver, by what the API serves and what a node offers."""

from typing import Any

import pytest
from msgspec.structs import replace

from nodegauge_operator import names
from nodegauge_operator.core.context import NextRun
from nodegauge_operator.core.devices import Device, current, slice_view
from nodegauge_operator.core.driver_access import DriverAccess, access_of, gap
from nodegauge_operator.core.probes.pod import probe_pod
from nodegauge_operator.core.probes.registry import KINDS
from nodegauge_operator.kube.errors import Refused
from support import api_server
from support.nccl_nodes import IMAGE
from support.objects import DEFAULTS, ANode, make_context, make_node, make_pod, make_policy
from support.operator import SteppedOperator, some_nodes

BARE = make_node("gpu-1")
DEFAULTS = replace(DEFAULTS, runtime_class_name="nvidia", nccl_image=IMAGE, instance="ng")


def devices(count: int = 8, kind: str = "gpu") -> tuple[Device, ...]:
    gpu = Device(driver=names.DRA_DRIVER, pool="n", name="", type=kind)
    return tuple(replace(gpu, name=f"{kind}-{number}") for number in range(count))


FOLDER = "/home/kubernetes/bin/nvidia/lib64"
BY_CLAIM = replace(BARE, devices=devices())
REMEMBERED = BARE.bearing({names.LABEL_DRIVER_ACCESS: names.BY_CLAIM})


def pod(kind: str, node: ANode, *, setting: str = "Auto") -> dict[str, Any]:
    defaults = replace(DEFAULTS, driver_access=setting, host_driver_folder=FOLDER)
    context = make_context(node=node, policy=make_policy(), defaults=defaults)
    spec: dict[str, Any] = probe_pod(context, KINDS[kind], NextRun(1, "1"))["spec"]
    return spec


@pytest.mark.parametrize(
    ("node", "access"),
    [
        (BARE, "Runtime"),
        (BARE.offering(8), "Runtime"),
        (BY_CLAIM, "DRA"),
        (BY_CLAIM.offering(0), "Runtime"),
        (REMEMBERED, "DRA"),
        (REMEMBERED.offering(8), "Runtime"),
    ],
)
def test_auto_follows_what_the_node_offers(node: ANode, access: str) -> None:
    assert access_of(node, "Auto") == access
    assert {access_of(node, fixed) for fixed in ("Runtime", "DRA")} == {"Runtime", "DRA"}


@pytest.mark.parametrize(
    ("node", "access", "refusal"),
    [
        (BARE, DriverAccess.RUNTIME, "offers neither nvidia.com/gpu nor devices of gpu.nvidia.com"),
        (BY_CLAIM, DriverAccess.RUNTIME, "driverAccess to Auto"),
        (BARE.offering(8), DriverAccess.RUNTIME, ""),
        (REMEMBERED, DriverAccess.DRA, "no ResourceSlice of gpu.nvidia.com"),
        (replace(BARE, devices=devices(kind="mig")), DriverAccess.DRA, "no whole GPU"),
        (BY_CLAIM, DriverAccess.DRA, ""),
    ],
)
def test_a_gap_is_said(node: ANode, access: DriverAccess, refusal: str) -> None:
    assert refusal in gap(node, access)
    assert bool(refusal) == bool(gap(node, access))


def test_a_health_pod_without_a_place_says_that_mig_divides_all_gpus() -> None:
    node = replace(BARE, devices=devices(kind="mig"))
    context = make_context(node=node, policy=make_policy(), defaults=DEFAULTS)
    waits = replace(make_pod(node), scheduled=False, created_at=context.now - 1e5)
    end = KINDS["health"].ending(waits, context)
    assert end is not None
    assert "list no whole GPU" in end.message


@pytest.mark.parametrize(
    ("kind", "template"),
    [("health", "ng-gpus-admin"), ("nccl", "ng-gpus-all"), ("load", "ng-gpus-all"), ("pull", "")],
)
def test_by_dra_a_pod_gets_what_it_needs_from_a_claim_alone(kind: str, template: str) -> None:
    spec = pod(kind, BY_CLAIM)
    [body] = spec["containers"]
    claims = [{"name": "gpus", "resourceClaimTemplateName": template}] if template else []
    assert spec.get("resourceClaims", []) == claims
    assert body["resources"].get("claims", []) == [{"name": claim["name"]} for claim in claims]
    assert "runtimeClassName" not in spec
    assert "nvidia.com/gpu" not in str(body["resources"])
    shown = {e["name"]: e["value"] for e in body["env"] if e["name"].startswith("NVIDIA_VISIBLE")}
    assert shown == ({} if template else {"NVIDIA_VISIBLE_DEVICES": "void"})
    assert ({"name": "NODEGAUGE_DRIVER_ACCESS", "value": "DRA"} in body["env"]) == bool(template)
    if kind in ("nccl", "load"):
        assert {"name": "NODEGAUGE_GPUS", "value": "8"} in body["env"]


@pytest.mark.parametrize("kind", ["health", "nccl", "load", "pull"])
def test_by_the_runtime_a_pod_claims_nothing(kind: str) -> None:
    spec = pod(kind, BARE.offering(8))
    assert spec["runtimeClassName"] == "nvidia"
    assert "resourceClaims" not in spec
    assert ("nvidia.com/gpu" in str(spec["containers"])) == (kind in ("nccl", "load"))
    assert "NODEGAUGE_DRIVER_ACCESS" not in str(spec), "watch pods are as before, and are not replaced"


def test_by_the_host_only_what_reads_is_privileged_and_mounts_one_folder_read_only() -> None:
    spec = pod("health", BARE.offering(8), setting="HostDriver")
    [body] = spec["containers"]
    assert body["securityContext"] == {"privileged": True, "readOnlyRootFilesystem": True}
    assert {"name": "NODEGAUGE_DRIVER_ACCESS", "value": "HostDriver"} in body["env"]
    [mount] = [mount for mount in body["volumeMounts"] if mount["name"] == "host-driver"]
    assert mount["readOnly"]
    [volume] = [volume for volume in spec["volumes"] if "hostPath" in volume]
    assert volume["hostPath"]["path"] == "/home/kubernetes/bin/nvidia/lib64"
    [holding] = pod("nccl", BARE.offering(8), setting="HostDriver")["containers"]
    assert "privileged" not in holding["securityContext"]
    assert "nvidia.com/gpu" in str(holding["resources"])


def a_slice(name: str = "a", *, node: str = "node-1", generation: int = 1, gpus: int = 8) -> dict[str, Any]:
    attributes = {
        "uuid": {"string": "GPU-1"},
        "type": {"string": "gpu"},
        "resource.kubernetes.io/pciBusID": {"string": "0000:0f:00.0"},
        "gpu.nvidia.com/productName": {"string": "NVIDIA H100"},
    }
    each = [{"name": f"gpu-{i}", "attributes": attributes} for i in range(gpus)]
    pool = {"name": node, "generation": generation, "resourceSliceCount": 1}
    spec = {"driver": "gpu.nvidia.com", "nodeName": node, "pool": pool, "devices": each}
    return {"metadata": {"name": name, "resourceVersion": "7"}, "spec": spec}


def test_the_newest_generation_of_a_pool_counts() -> None:
    views = [slice_view(a_slice("a", generation=2, gpus=1)), slice_view(a_slice("b"))]
    [device] = current(view for view in views if view is not None)
    assert (device.uuid, device.pci, device.product) == ("GPU-1", "0000:0f:00.0", "NVIDIA H100")
    other = a_slice()
    other["spec"]["driver"] = "nic.example.com"
    assert slice_view(other) is None


def fleet(**spec: Any) -> SteppedOperator:
    """node-1 has DRA alone, and no label of GPU feature discovery; node-2 has a device plugin."""
    present = {names.GPU_PRESENT: "true"}
    watch = {"probes": {"health": {"mode": "Watch"}}, "nodeSelector": {"matchLabels": present}}
    operator = some_nodes("node-1", **(watch | spec))
    plugged = operator.cluster.add_node("node-2", **present)
    plugged["status"]["capacity"] = {"nvidia.com/gpu": "8"}
    operator.cluster._store(api_server.NODES, plugged, "MODIFIED")
    operator.cluster.create(api_server.SLICES, a_slice())
    operator.deliver()
    return operator


def nodes_of(operator: SteppedOperator, name: str) -> list[dict[str, Any]]:
    spec = operator.cluster.objects[api_server.DAEMONSETS][name]["spec"]["template"]["spec"]
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    expressions: list[dict[str, Any]] = required["nodeSelectorTerms"][0]["matchExpressions"]
    return expressions


def test_nodes_with_dra_alone_are_selected_labelled_and_watched_by_a_daemon_set_of_their_own() -> None:
    operator = fleet()
    operator.keep_watch_sets()
    operator.look(granted=False)
    assert operator.labels[names.LABEL_DRIVER_ACCESS] == "dra", "before anything was read"
    sets = operator.cluster.objects[api_server.DAEMONSETS]
    assert sets.keys() == {"nodegauge-watch-default", "nodegauge-dra-watch-default"}
    by_label = {"key": names.LABEL_DRIVER_ACCESS, "values": ["dra"]}
    assert by_label | {"operator": "In"} in nodes_of(operator, "nodegauge-dra-watch-default")
    assert by_label | {"operator": "NotIn"} in nodes_of(operator, "nodegauge-watch-default")
    keys = [expression["key"] for expression in nodes_of(operator, "nodegauge-dra-watch-default")]
    assert names.GPU_PRESENT not in keys
    templates = operator.cluster.objects[api_server.TEMPLATES]
    asked = {name: made["spec"]["spec"]["devices"]["requests"][0] for name, made in templates.items()}
    shared = {name: request["exactly"].get("adminAccess", False) for name, request in asked.items()}
    assert shared == {"nodegauge-gpus-admin": True, "nodegauge-gpus-all": False}


def test_slices_that_go_for_a_while_change_nothing_and_a_device_plugin_ends_it() -> None:
    operator = fleet()
    operator.keep_watch_sets()
    operator.look(granted=False)
    operator.cluster.remove(api_server.SLICES, "a")
    operator.look(granted=False)
    assert operator.labels[names.LABEL_DRIVER_ACCESS] == "dra"
    assert operator.reconciler.watch_sets.due_in() > 0
    status = {
        "status": {"capacity": {"nvidia.com/gpu": "8"}},
        "metadata": {"labels": {names.GPU_PRESENT: "true"}},
    }
    operator.cluster.change(api_server.NODES, "node-1", status)
    operator.look(granted=False)
    assert names.LABEL_DRIVER_ACCESS not in operator.labels
    operator.keep_watch_sets()
    assert operator.cluster.objects[api_server.TEMPLATES] == {}
    assert operator.cluster.objects[api_server.DAEMONSETS].keys() == {"nodegauge-watch-default"}


def test_a_refused_template_starts_no_run_and_says_the_command() -> None:
    operator = fleet()
    refusal = (
        f"admin access to devices requires the `{names.ADMIN_ACCESS}: true` label on the containing namespace"
    )
    operator.refuse("POST", api_server.TEMPLATES, Refused(refusal))
    operator.keep_watch_sets()
    operator.cluster.pass_time(3600)
    operator.look()
    ready = operator.reconciler.obstacles.state("default")
    assert ready is not None
    assert ready[1] == "ClaimRefused"
    assert "kubectl label namespace nodegauge resource.kubernetes.io/admin-access=true" in ready[2]
    assert [pod["metadata"]["annotations"][names.POD_NODE] for pod in operator.cluster.pods()] == ["node-2"]
    operator.heal()
    operator.keep_watch_sets()
    operator.look()
    assert operator.reconciler.obstacles.state("default") is None


def test_mode_observe_reads_such_nodes_by_pods_and_changes_none() -> None:
    operator = fleet(mode="Observe")
    operator.keep_watch_sets()
    operator.look()
    assert names.LABEL_DRIVER_ACCESS not in operator.labels
    [pod] = operator.cluster.pods()
    assert pod["metadata"]["annotations"][names.POD_NODE] == "node-1"
    assert pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] == "nodegauge-gpus-admin"
