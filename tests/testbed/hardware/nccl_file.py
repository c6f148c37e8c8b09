"""The machine file of the simulated NCCL: what its profile says, and what NCCL would notice by itself."""

from msgspec.structs import replace

from nodegauge_contract.nccl import ArmName
from testbed.hardware.gpustate import gpu_uuid
from testbed.hardware.machine import Machine, Peer, Peers
from testbed.profiles.model import NcclResult
from testbed.simulated_nccl import machine as simulated
from testbed.simulated_nccl.machine import Gpu, Trouble
from testbed.simulated_nccl.trouble import FAILED

NCCL, CUDA = "2.32.3", "12.9"
"""Versions in the project's own nccl image."""
LEAST = 0.05
"""What is left of a way whose links are all down: NCCL finds another one; made up."""
REFUSED = "P2P is disabled between NVLINK connected GPUs"
"""NCCL's words (src/graph/paths.cc 385-426, NVIDIA/nccl 5067397c)."""


def render(machine: Machine, peers: Peers, *, seed: str) -> bytes:
    nccl, left = machine.profile.nccl, _links_left(machine)
    ways = dict(nccl.ways if nccl else {})
    for name, way in ways.items():
        if name != "host":
            busbw = {of: {n: gbps * left for n, gbps in known.items()} for of, known in way.busbw.items()}
            ways[name] = replace(way, busbw=busbw)
    made = simulated.Machine(
        name=machine.profile.name,
        seed=seed,
        nccl=NCCL,
        cuda=CUDA,
        gpus=tuple(
            Gpu(
                uuid=gpu_uuid(seed, gpu.address),
                pairs=tuple(_gbps(peers.get((number, other)), nccl) for other in range(len(machine.gpus))),
                there=number not in machine.handles and number in machine.visible,
            )
            for number, gpu in enumerate(machine.gpus)
        ),
        ways=ways,
        nvls_from=nccl.nvls_from if nccl else 0,
        init_seconds=nccl.init_seconds if nccl else 0.0,
        load_seconds=nccl.load_seconds if nccl else 0.0,
        troubles=(*_refused(peers), *machine.nccl),
    )
    return simulated.encode(made)


def _links_left(machine: Machine) -> float:
    """The share of links of the worst GPU; those to a lost GPU do not count."""
    lost = {machine.gpus[gpu].address for gpu in machine.handles}
    shares = []
    for gpu in {*range(len(machine.gpus))} - machine.handles.keys():
        links = [number for number, far in machine.links(gpu).items() if far not in lost]
        if links and not machine.profile.model.mig_enabled:
            shares.append(sum(machine.is_up(gpu, link) for link in links) / len(links))
    return max(min(shares, default=1.0), LEAST)


def _gbps(peer: Peer | None, nccl: NcclResult | None) -> float:
    """From GPU to GPU; -1 from one to itself, and where nothing is known."""
    if peer is None or nccl is None:
        return -1.0
    refused = any(peer.p2p[capability] for capability in ("read", "write", "nvlink"))
    return max(0 if refused else peer.links * nccl.link_gbps, nccl.pcie_gbps)


def _refused(peers: Peers) -> list[Trouble]:
    refused = any(peer.links and (peer.p2p["read"] or peer.p2p["write"]) for peer in peers.values())
    arms = (ArmName.DEFAULT, ArmName.NVLS_OFF) if refused else ()
    return [Trouble(kind=FAILED, phase="init", arm=arm, message=REFUSED) for arm in arms]
