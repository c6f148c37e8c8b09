"""The objects that fill the cluster: GPU nodes as large as real ones, probe pods as the operator makes them.

The size is spent as on a real GPU node with node-feature-discovery and GPU feature discovery: some 60 labels,
the kubelet's list of 50 images (its own limit, nodeStatusMaxImages), five conditions; managedFields come from
the API server.  Pure: nothing here talks to anybody.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace

from nodegauge_contract import Result, encode_message
from nodegauge_operator import names
from nodegauge_operator.api.policy import Policy
from nodegauge_operator.api.report import Outcome, Report, Run, stamp
from nodegauge_operator.core.context import Context, Snapshot
from nodegauge_operator.core.desired_state import next_status
from nodegauge_operator.core.model import NodeView, ProbeDefaults
from nodegauge_operator.core.pod_outcome import RunEnd
from nodegauge_operator.core.probes.kind import EndedRun
from nodegauge_operator.core.probes.pod import probe_pod
from nodegauge_operator.core.probes.registry import KINDS
from nodegauge_operator.core.report_update import status_after
from nodegauge_operator.kube.reports import without_nulls
from support.results import dgx1
from testbed.kubelet.node import HEALTHY
from testbed.scripted import ended

Object = dict[str, Any]

SELECTED = {"load.example/fleet": "gpu"}
"""Label of the nodes that the policy of the NCCL run selects."""
POLICY = "loadtest"
IMAGES = 50
CPU_FLAGS = [f"AVX512F{number:02d}" for number in range(32)]
"""As many, and as long, as node-feature-discovery finds; their names do not matter."""


def node_body(name: str, *, labels: Mapping[str, str]) -> Object:
    """A Ready node with 8 GPUs, of about 20 KB once the API server has added managedFields."""
    free = {"cpu": "224", "memory": "2113411308Ki", "pods": "110", "nvidia.com/gpu": "8"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": _labels(name) | dict(labels), "annotations": _annotations()},
        "spec": {
            "providerID": f"metal:///zone-a/{name}",
            "taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}],
        },
        "status": {
            "capacity": free,
            "allocatable": free,
            "conditions": _conditions(),
            "addresses": [
                {"type": "InternalIP", "address": "10.9.8.7"},
                {"type": "Hostname", "address": name},
            ],
            "nodeInfo": _node_info(name),
            "images": [_image(location) for location in range(IMAGES)],
        },
    }


def _labels(name: str) -> dict[str, str]:
    features = {f"feature.node.kubernetes.io/cpu-cpuid.{flag}": "true" for flag in CPU_FLAGS}
    return features | {
        "kubernetes.io/hostname": name,
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": "gpu-8x-h100",
        "topology.kubernetes.io/region": "region-1",
        "topology.kubernetes.io/zone": "region-1-a",
        "feature.node.kubernetes.io/kernel-version.full": "6.8.0-52-generic",
        "feature.node.kubernetes.io/kernel-version.major": "6",
        "feature.node.kubernetes.io/memory-numa": "true",
        "feature.node.kubernetes.io/network-sriov.capable": "true",
        "feature.node.kubernetes.io/pci-10de.present": "true",
        "feature.node.kubernetes.io/pci-15b3.present": "true",
        "feature.node.kubernetes.io/system-os_release.ID": "ubuntu",
        "feature.node.kubernetes.io/system-os_release.VERSION_ID": "24.04",
        "nvidia.com/cuda.driver.major": "550",
        "nvidia.com/cuda.runtime.major": "12",
        "nvidia.com/gfd.timestamp": "1763712000",
        "nvidia.com/gpu.compute.major": "9",
        "nvidia.com/gpu.compute.minor": "0",
        "nvidia.com/gpu.count": "8",
        "nvidia.com/gpu.family": "hopper",
        "nvidia.com/gpu.machine": "8x-SXM",
        "nvidia.com/gpu.memory": "81559",
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/mig.capable": "true",
        "nvidia.com/mig.strategy": "single",
    }


def _annotations() -> dict[str, str]:
    features = ",".join(f"cpu-cpuid.{flag}" for flag in CPU_FLAGS)
    return {
        "nfd.node.kubernetes.io/feature-labels": features,
        "node.alpha.kubernetes.io/ttl": "0",
        "volumes.kubernetes.io/controller-managed-attach-detach": "true",
        "csi.volume.kubernetes.io/nodeid": '{"block.csi.example.com":"i-0123456789abcdef0"}',
    }


def _conditions() -> list[Object]:
    at = "2026-11-01T08:00:00Z"
    network = ("NetworkUnavailable", "False", "CiliumIsUp", "Cilium is running on this node")
    return [
        {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": at,
            "lastTransitionTime": at,
        }
        for kind, status, reason, message in (*HEALTHY, network)
    ]


def _node_info(name: str) -> Object:
    return {
        "machineID": _hex(name, 32),
        "systemUUID": _hex(name + "-system", 32),
        "bootID": _hex(name + "-boot", 32),
        "kernelVersion": "6.8.0-52-generic",
        "osImage": "Ubuntu 24.04.2 LTS",
        "containerRuntimeVersion": "containerd://1.7.27",
        "kubeletVersion": "v1.36.3",
        "kubeProxyVersion": "v1.36.3",
        "operatingSystem": "linux",
        "architecture": "amd64",
    }


def _image(location: int) -> Object:
    repository = f"registry.example.com/platform/training/pytorch-distributed-{location:02d}"
    names_ = [f"{repository}@sha256:{_hex(repository, 64)}", f"{repository}:2.7.1-cuda12.8-{location:02d}"]
    return {"names": names_, "sizeBytes": 9_000_000_000 - location}


def _hex(seed: str, length: int) -> str:
    return hashlib.sha256(seed.encode()).hexdigest()[:length]


def policy_body() -> Object:
    """A policy whose next run never comes by itself while the NCCL run lasts."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.POLICY_KIND,
        "metadata": {"name": POLICY},
        "spec": {
            "nodeSelector": {"matchLabels": SELECTED},
            "probes": {"health": {"interval": "24h"}, "load": {"enabled": False}},
            "budget": {"concurrentProbes": "100%"},
        },
    }


def pod_body(node: NodeView, *, policy: Policy, report: Report, namespace: str) -> Object:
    """The operator's own pod of the report's next health run, as if the scheduler had placed it already."""
    context = _context(node, policy=policy, report=report, namespace=namespace)
    number = report.status.next_number(names.PROBE_HEALTH)
    pod = probe_pod(context, KINDS[names.PROBE_HEALTH], number=number)
    pod["spec"]["nodeName"] = node.name
    return pod


def running_status(at: str) -> Object:
    """The status a kubelet writes when the one container has started."""
    container = {
        "name": names.PROBE_CONTAINER,
        "image": "nodegauge/probe:loadtest",
        "imageID": "sha256:0",
        "ready": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": at}},
    }
    return {"phase": "Running", "startTime": at, "containerStatuses": [container]}


def finished_status(node: NodeView, result: Result, *, pod: str) -> Object:
    """The status a kubelet writes when the probe in the pod of that name has measured `result` and ended."""
    return ended("Succeeded", message(result, run=names.run_of_pod(pod), node=node.name), 0, "Completed")


def message(result: Result, *, run: str, node: str) -> str:
    """The termination message of a probe that measured `result` in this run."""
    return encode_message(replace(result, run=run, node=node))


def other_boards() -> Result:
    """A DGX-1 whose GPUs have never been seen: other labels than an H100's, and no fault.

    Under an H100's UUIDs it would have lost two thirds of its links, and be tainted for that.
    """
    match = dgx1()
    gpus = [
        replace(gpu, uuid=f"GPU-{location:08x}-2222-3333-4444-555555555555")
        for location, gpu in enumerate(match.gpus, 64)
    ]
    return replace(match, gpus=gpus)


def report_status(node: NodeView, result: Result, *, policy: Policy, now: float) -> Object:
    """The report's status after a first run: what a write of it carries."""
    end = RunEnd(outcome=Outcome.READ, reason="Read", result=result)
    run = Run(number=1, pod_name="pod", pod_uid=_hex(node.name, 36), started_at=stamp(now))
    report = Report(name=node.name, uid="", resource_version="", node_uid=node.uid)
    context = _context(node, policy=policy, report=report, now=now)
    status = status_after(context, KINDS[names.PROBE_HEALTH], EndedRun(run=run, end=end))
    plain: Object = without_nulls(to_builtins(next_status(context.after(status))))
    return plain


def _context(
    node: NodeView, *, policy: Policy, namespace: str = "", report: Report | None = None, now: float = 0.0
) -> Context:
    defaults = ProbeDefaults(namespace=namespace, image="nodegauge/probe:loadtest")
    context = Snapshot(node=node, policy=policy, report=report, now=now, defaults=defaults).context
    assert context is not None
    return context
