"""The pods of an NCCL run: the NCCL probe holds every GPU of the node, its pull holds none."""

from __future__ import annotations

from typing import Any

import msgspec

from nodegauge_operator import names
from nodegauge_operator.core.context import Context
from nodegauge_operator.core.probes import whole_node
from nodegauge_operator.core.probes.pod import container

SHM_GIB = 4
"""NCCL's host buffers are in /dev/shm if seccomp forbids it cuMem (NCCL's misc/cudawrap.cc); a runtime's
default of 64 MiB is too small.  It counts as the pod's memory, so the memory limit includes it."""
PULL_REQUESTS = {"cpu": "10m", "memory": "64Mi"}
PULL_LIMITS = {"cpu": "1", "memory": "2Gi"}


def image(context: Context) -> str:
    """The image of NCCL runs: the policy's, or else the installation's; empty for no NCCL runs."""
    policy = context.policy.spec
    own = policy.pod_template.nccl_image or context.defaults.nccl_image
    return own if policy.probes.nccl.enabled else ""


def nccl_spec(context: Context, run: str, *, deadline: float) -> dict[str, Any]:
    """The parts of the pod spec of the NCCL probe."""
    probe = context.policy.spec.probes.nccl
    return whole_node.pod_parts(
        context,
        run,
        image=image(context),
        probe=names.PROBE_NCCL,
        args=[
            f"--engine={probe.engine.value}",
            f"--processes={probe.processes.value}",
            f"--deadline={deadline * whole_node.DEADLINE_SHARE:g}",
            f"--environment={msgspec.json.encode(probe.environment, order='sorted').decode()}",
        ],
        shm_gib=SHM_GIB,
    )


def pull_spec(context: Context, run: str) -> dict[str, Any]:
    """The parts of the pod spec of a pull; it sees no GPU, whatever its image's environment asks for."""
    body = container(context, run)
    body |= {
        "image": image(context),
        "command": ["python", "-m", "nodegauge_probes", names.PROBE_PULL],
        "args": [f"--engine={context.policy.spec.probes.nccl.engine.value}"],
        "env": [*body["env"], {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
        "resources": {"requests": PULL_REQUESTS, "limits": PULL_LIMITS},
        "volumeMounts": [*body["volumeMounts"], {"name": "tmp", "mountPath": "/tmp"}],
    }
    return {
        "containers": [body],
        "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": whole_node.TMP}}],
        "tolerations": whole_node.tolerations(context),
    }
