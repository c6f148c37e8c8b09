"""The objects that fill the cluster, as large as real ones: some 60 labels and 50 images a node.  Readings
are of machines at work without a fault: those of idle GPUs are smaller, and cheaper to judge."""

import hashlib
from functools import lru_cache
from pathlib import Path

from msgspec.structs import replace

from nodegauge_contract import Gpu, Result, Span, decode
from nodegauge_contract.reading import Part
from nodegauge_operator import names
from nodegauge_probes.delivery import part_of
from nodegauge_probes.identity import Identity
from support.results import dgx1
from testbed.binaries import KUBERNETES, release
from testbed.kubelet.node import HEALTHY
from testbed.rest import Object

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
COOL = Span(min=50, median=55, max=60)
UNTHROTTLED = dict.fromkeys(("sw_thermal_ns", "hw_thermal_ns", "power_brake_ns", "thermal_violation_ns"), 0)

SELECTED = {"load.example/fleet": "gpu"}
"""Label of the nodes that the policy selects."""
IMAGE = "nodegauge/probe:loadtest"
IMAGES = 50
FEATURES = [f"cpu-cpuid.AVX512F{number:02d}" for number in range(32)]
"""As many, and as long, as node-feature-discovery finds; their names do not matter."""
LABELS = 28


def node_body(name: str) -> Object:
    """A Ready node with 8 GPUs, of about 20 KB once the API server has added managedFields."""
    features = {f"feature.node.kubernetes.io/{feature}": "true" for feature in FEATURES}
    gpus = {f"nvidia.com/gpu.feature-{number:02d}": "NVIDIA-H100-80GB" for number in range(LABELS)}
    own = {"kubernetes.io/hostname": name, "nvidia.com/gpu.present": "true", **SELECTED}
    times = dict.fromkeys(("lastHeartbeatTime", "lastTransitionTime"), "2026-11-01T08:00:00Z")
    network = ("NetworkUnavailable", "False", "CiliumIsUp", "Cilium is running on this node")
    fields = ("type", "status", "reason", "message")
    free = {"cpu": "224", "memory": "2113411308Ki", "pods": "110", "nvidia.com/gpu": "8"}
    status = {
        "capacity": free,
        "allocatable": free,
        "conditions": [dict(zip(fields, one, strict=True)) | times for one in (*HEALTHY, network)],
        "nodeInfo": {"bootID": str(h100().host.boot_id), "kubeletVersion": f"v{KUBERNETES[release()]}"},
        "images": [_image(f"registry.example.com/platform/training/pytorch-{n:02d}") for n in range(IMAGES)],
    }
    annotations = {"nfd.node.kubernetes.io/feature-labels": ",".join(FEATURES)}
    metadata = {"name": name, "labels": features | gpus | own, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status}


def _image(repository: str) -> Object:
    tags = [f"{repository}@sha256:{_hex(repository, 64)}", f"{repository}:2.7.1-cuda12.8-ubuntu24.04"]
    return {"names": tags, "sizeBytes": 9_000_000_000}


def _hex(seed: str, length: int) -> str:
    return hashlib.sha256(seed.encode()).hexdigest()[:length]


def policy_body(settings: Object) -> Object:
    spec = {
        "nodeSelector": {"matchLabels": SELECTED},
        "probes": {"health": {"mode": "Watch"}, "load": {"enabled": False}},
        "budget": {"concurrentProbes": "100%"},
        "limits": {"notStarted": "12h"},
    }
    kind = {"apiVersion": names.API_VERSION, "kind": names.POLICY_KIND}
    return kind | {"metadata": {"name": "loadtest"}, "spec": spec | settings}


def running(at: str, *, container: str = names.PROBE_CONTAINER) -> Object:
    conditions = ("Ready", "ContainersReady", "PodReadyToStartContainers", "Initialized")
    own = {"name": container, "image": IMAGE, "imageID": f"{IMAGE}@sha256:{_hex(IMAGE, 64)}"}
    state = {"state": {"running": {"startedAt": at}}, "restartCount": 0, "ready": True, "started": True}
    return {
        "phase": "Running",
        "startTime": at,
        "hostIP": "10.9.8.7",
        "podIP": "10.0.3.4",
        "podIPs": [{"ip": "10.0.3.4"}],
        "conditions": [{"type": one, "status": "True", "lastTransitionTime": at} for one in conditions],
        "containerStatuses": [own | state],
    }


@lru_cache
def h100() -> Result:
    return _recorded("h100")


@lru_cache
def dgx2() -> Result:
    """16 V100 at work, in the boot of the others."""
    return replace(_recorded("dgx2"), host=h100().host)


@lru_cache
def other_boards() -> Result:
    """Boards that nobody has seen: under an H100's UUIDs a DGX-1 would have lost two thirds of its links."""
    match, links = h100(), dgx1()
    gpus = [
        replace(
            gpu,
            uuid=f"GPU-{number:08x}-2222-3333-4444-555555555555",
            serial=str(number),
            name=other.name,
            pci=other.pci,
            links=other.links,
            switch_links=other.switch_links,
        )
        for number, (gpu, other) in enumerate(zip(match.gpus, links.gpus, strict=True), 64)
    ]
    bus = replace(match.bus, gpus=[str(gpu.pci) for gpu in gpus])
    return replace(match, gpus=gpus, pairs=links.pairs, bus=bus)


def part(result: Result, *, identity: Identity, sequence: int, round_: int = 0) -> Part:
    """On boards of this node's own, a quarter of an hour later in each round; it has no time yet."""
    boottime = result.host.boottime_ms
    assert isinstance(boottime, int)
    host = replace(result.host, boottime_ms=boottime + round_ * 900_000)
    gpus = [_board(gpu, identity.node) for gpu in result.gpus]
    own = replace(result, run=identity.pod_uid, node=identity.node, host=host, gpus=gpus)
    return part_of(own, identity=identity, sequence=sequence, reason="due", at=0.0)


def uuids(node: str) -> list[str]:
    """Of the node's eight GPUs."""
    return [str(_board(gpu, node).uuid) for gpu in h100().gpus]


def _board(gpu: Gpu, node: str) -> Gpu:
    """The GPU under a UUID and a serial number that no other node has."""
    drawn = _hex(f"{node} {gpu.uuid}", 64)
    uuid = f"GPU-{drawn[:8]}-{drawn[8:12]}-{drawn[12:16]}-{drawn[16:20]}-{drawn[20:32]}"
    return replace(gpu, uuid=uuid, serial=str(10**12 + int(drawn[32:48], 16) % 10**12))


def _recorded(name: str) -> Result:
    """A golden document, without what makes a finding that leads to a taint."""
    text = (GOLDEN / f"result-1.1-{name}-busy.json").read_text(encoding="utf-8")
    result = decode(text)
    return replace(result, gpus=[_without_fault(gpu) for gpu in result.gpus])


def _without_fault(gpu: Gpu) -> Gpu:
    window, growth = gpu.window, gpu.window and gpu.window.growth
    assert window is not None
    assert growth is not None
    growth = replace(growth, **UNTHROTTLED)
    return replace(
        gpu,
        temperature=replace(gpu.temperature, gpu=COOL.max, memory=COOL.max, margin=25),
        xids=replace(gpu.xids, seen=[]),
        ecc=replace(gpu.ecc, volatile_uncorrected=0),
        counters=replace(gpu.counters, **UNTHROTTLED),
        events=replace(gpu.events, seen=[]),
        window=replace(window, temperature=COOL, memory_temperature=COOL, growth=growth),
    )
