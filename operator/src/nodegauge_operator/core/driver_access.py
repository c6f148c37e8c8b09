"""How a container reaches the GPU driver, and what that makes of a pod (ADR 0057).

`Runtime`: NVIDIA's container runtime brings it in, by the pod's environment or because the device plugin gave
the pod GPUs.  `DRA`: a claim of dynamic resource allocation brings it in.  `HostDriver`: folders of the node
are mounted.  The setting `Auto` chooses between the first two for each node.

One function turns the spec of a pod for the first way into that for another, so that no kind of probe knows
of it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from nodegauge_contract.access import ACCESS_VARIABLE, Access
from nodegauge_operator import names
from nodegauge_operator.core.model import NodeView, ProbeDefaults

TOLERATIONS = [{"operator": "Exists", "effect": effect} for effect in ("NoSchedule", "NoExecute")]
"""Of a claim for taints of devices: a bad GPU has to be measured, or its taint would never go.  Each effect
by itself: on 1.36.3 `{operator: Exists}` alone did not hold against NoExecute."""


HOST_DRIVER, LIBRARIES = "host-driver", "/usr/local/nvidia/lib64"
"""Name of the volume, which the admission policies know, and where the container sees it: where GKE's device
plugin mounts the driver for pods that hold GPUs (GoogleCloudPlatform/container-engine-accelerators,
cmd/nvidia_gpu)."""


class DriverAccess(StrEnum):
    """The setting `driverAccess`, and what it comes to on a node."""

    AUTO = "Auto"
    RUNTIME = Access.RUNTIME.value
    DRA = Access.CLAIM.value
    HOST_DRIVER = Access.HOST.value


class Needs(StrEnum):
    """What a container needs of the GPUs."""

    NOTHING = "nothing"
    DRIVER = "driver"
    """To read every GPU, whoever holds it."""
    GPUS = "gpus"
    """To hold every GPU."""


def access_of(node: NodeView, setting: str) -> DriverAccess:
    """How pods reach the driver on this node; never `AUTO`.

    A node that offers neither `nvidia.com/gpu` nor devices stays what our label says that it was: a kubelet
    removes the slices of a driver that has not come back half a minute after a restart.  One without a label
    is tried by the runtime, as a device plugin may only be down.
    """
    if setting != DriverAccess.AUTO:
        return DriverAccess(setting)
    if node.gpu_capacity:
        return DriverAccess.RUNTIME
    was = node.labels.get(names.LABEL_DRIVER_ACCESS, "")
    by_claim = bool(node.devices) or was == names.BY_CLAIM
    return DriverAccess.DRA if by_claim else DriverAccess.RUNTIME


def gap(node: NodeView, access: DriverAccess) -> str:
    """What the node lacks for this way to its GPUs, as a sentence; empty for nothing.  It explains a failed
    run, and hinders none."""
    if access is DriverAccess.DRA and not node.devices:
        return f"no ResourceSlice of {names.DRA_DRIVER} lists a device of this node"
    if access is DriverAccess.DRA and not node.whole_devices:
        return "the ResourceSlices of this node list no whole GPU, and claims of nodegauge ask for whole ones"
    if access is DriverAccess.DRA or node.gpu_capacity:
        return ""
    if node.devices:
        return "DRA hands out the GPUs of this node: set the chart's value driverAccess to Auto"
    return (
        f"this node offers neither {names.GPU_RESOURCE} nor devices of {names.DRA_DRIVER}: its device plugin "
        "or its DRA driver is down or missing"
    )


def claim_template(defaults: ProbeDefaults, *, needs: Needs) -> dict[str, Any]:
    """The ResourceClaimTemplate from which every pod with these needs gets a claim of its own: there is no
    template within a pod in resource.k8s.io/v1.

    Access for admins shares devices with whoever holds them (KEP-5018), so that it waits for nobody; the
    namespace needs a label for it.  Without it the claim is exclusive, and waits until all are free.
    """
    request: dict[str, Any] = {
        "deviceClassName": names.DRA_CLASS,
        "allocationMode": "All",
        "tolerations": TOLERATIONS,
    }
    if needs is Needs.DRIVER:
        request["adminAccess"] = True
    return {
        "apiVersion": names.DRA_API,
        "kind": "ResourceClaimTemplate",
        "metadata": {
            "name": names.claim_template(instance=defaults.instance, holds=needs is Needs.GPUS),
            "namespace": defaults.namespace,
            "labels": {
                "app.kubernetes.io/name": "nodegauge-probe",
                "app.kubernetes.io/instance": defaults.instance,
                "app.kubernetes.io/managed-by": "nodegauge",
            },
        },
        "spec": {"spec": {"devices": {"requests": [{"name": names.POD_CLAIM, "exactly": request}]}}},
    }


def with_access(
    spec: dict[str, Any], access: DriverAccess, defaults: ProbeDefaults, *, needs: Needs
) -> dict[str, Any]:
    """The spec of a pod with one container, made for `RUNTIME`, for another way to the driver."""
    if access is DriverAccess.DRA:
        return _by_claim(spec, defaults, needs=needs)
    return _by_host(spec, defaults, needs=needs) if access is DriverAccess.HOST_DRIVER else spec


def _by_claim(spec: dict[str, Any], defaults: ProbeDefaults, *, needs: Needs) -> dict[str, Any]:
    """What a claim brings in comes by CDI: the runtime must add nothing, and a node with DRA alone may lack
    its class."""
    without = {key: value for key, value in spec.items() if key != "runtimeClassName"}
    if needs is Needs.NOTHING:
        return without
    [body] = spec["containers"]
    access = {"name": ACCESS_VARIABLE, "value": Access.CLAIM.value}
    resources: dict[str, Any] = {
        part: {key: value for key, value in amounts.items() if key != names.GPU_RESOURCE}
        for part, amounts in body.get("resources", {}).items()
    }
    env = [variable for variable in body.get("env", ()) if not variable["name"].startswith("NVIDIA_")]
    resources["claims"] = [{"name": names.POD_CLAIM}]
    template = names.claim_template(instance=defaults.instance, holds=needs is Needs.GPUS)
    return without | {
        "containers": [body | {"env": [*env, access], "resources": resources}],
        "resourceClaims": [{"name": names.POD_CLAIM, "resourceClaimTemplateName": template}],
    }


def _by_host(spec: dict[str, Any], defaults: ProbeDefaults, *, needs: Needs) -> dict[str, Any]:
    """The driver's libraries from a folder of the node.  A container that holds no GPU may open none: the
    kernel refuses devices that the runtime did not give, unless it is privileged.  One that holds GPUs gets
    libraries and devices from the device plugin."""
    if needs is Needs.NOTHING:
        return spec
    [body] = spec["containers"]
    more = {"LD_LIBRARY_PATH": LIBRARIES, ACCESS_VARIABLE: Access.HOST.value}
    body = body | {"env": [*body["env"], *({"name": k, "value": v} for k, v in more.items())]}
    if needs is Needs.GPUS:
        return spec | {"containers": [body]}
    body |= {
        "securityContext": {"privileged": True, "readOnlyRootFilesystem": True},
        "volumeMounts": [
            *body.get("volumeMounts", ()),
            {"name": HOST_DRIVER, "mountPath": LIBRARIES, "readOnly": True},
        ],
    }
    volume = {"name": HOST_DRIVER, "hostPath": {"path": defaults.host_driver_folder, "type": "Directory"}}
    return spec | {"containers": [body], "volumes": [*spec.get("volumes", ()), volume]}
