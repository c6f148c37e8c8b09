"""The environment of a container: what the pod says, and what a container runtime adds to it."""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from testbed.kubelet.context import ADDRESS, Hardware, NodeContext, pod_address
from testbed.kubelet.devices import VISIBLE_DEVICES, requested
from testbed.kubelet.errors import NotSimulated
from testbed.kubelet.images import SYSTEM_PATH
from testbed.rest import Object

TERMINATION_LOG = "NODEGAUGE_TERMINATION_LOG"
DRIVER_VARIABLES = ("LD_LIBRARY_PATH", "NODEGAUGE_SIM_HARDWARE")
NO_DEVICES = frozenset({"", "void", "none"})
"""Values of NVIDIA_VISIBLE_DEVICES that add nothing (on a real node `none` adds the libraries)."""

REFERENCE = re.compile(r"\$(?:\$|\(([^()\s]+)\))")


def expand(text: str, env: Mapping[str, str]) -> str:
    """Replace `$(NAME)` as the API defines it: `$$` is a dollar sign, an unknown name stays as written."""
    return REFERENCE.sub(lambda m: "$" if m[1] is None else env.get(m[1], m[0]), text)


def system_environment(node: NodeContext, *, hostname: str, home: Path) -> dict[str, str]:
    server = urlsplit(node.api.server)
    return {
        "PATH": f"{Path(sys.executable).parent}:{SYSTEM_PATH}",
        "HOME": str(home),
        "TMPDIR": str(home),
        "HOSTNAME": hostname,
        "KUBERNETES_SERVICE_HOST": server.hostname or "",
        "KUBERNETES_SERVICE_PORT": str(server.port or 443),
    }


def pod_environment(
    container: Object, pod: Object, node: NodeContext, *, known: Mapping[str, str]
) -> dict[str, str]:
    """The pod's `env`; `known` are variables that `$(NAME)` may refer to."""
    if "envFrom" in container:
        raise NotSimulated("the simulated kubelet does not know envFrom")
    result: dict[str, str] = {}
    for entry in container.get("env", []):
        if source := entry.get("valueFrom"):
            if "fieldRef" not in source:
                raise NotSimulated(f"env {entry['name']}: not simulated: {', '.join(source)}")
            value = field_value(source["fieldRef"]["fieldPath"], pod, node)
        else:
            value = expand(entry.get("value", ""), {**known, **result})
        result[entry["name"]] = value
    return result


def field_value(path: str, pod: Object, node: NodeContext) -> str:
    metadata, spec = pod["metadata"], pod["spec"]
    values = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": node.name,
        "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
        "status.podIP": pod_address(metadata["uid"]),
        "status.hostIP": ADDRESS,
    }
    if path not in values:
        raise NotSimulated(f"the simulated kubelet does not know the field {path}")
    return str(values[path])


def sees_driver(container: Object, pod: Object, env: Mapping[str, str]) -> bool:
    """As where the NVIDIA runtime is the default: for GPUs, or NVIDIA_VISIBLE_DEVICES naming devices."""
    if requested(container):
        return True
    chosen = pod["spec"].get("runtimeClassName")
    if chosen is not None and "nvidia" not in chosen:
        return False
    return env.get(VISIBLE_DEVICES, "") not in NO_DEVICES


def hook_environment(
    hardware: Hardware | None, *, driver: bool, env: Mapping[str, str], termination_log: Path
) -> dict[str, str]:
    result = {TERMINATION_LOG: str(termination_log)}
    if hardware is None:
        return result
    for name, value in hardware.environment.items():
        if name not in DRIVER_VARIABLES:
            result[name] = value
        elif driver:
            before = env.get(name) if name == "LD_LIBRARY_PATH" else None
            result[name] = os.pathsep.join([value, before]) if before else value
    return result
