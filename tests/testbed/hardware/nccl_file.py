"""The machine file of the simulated NCCL: what its profile says, and what NCCL would notice by itself."""

from msgspec.structs import replace

from nodegauge_contract.nccl import ArmName
from testbed.hardware.gpustate import gpu_uuid
from testbed.hardware.machine import SWITCH, Machine
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


def render(machine: Machine, *, seed: str) -> bytes:
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
                pairs=_row(machine, number, nccl),
                there=number not in machine.handles and number in machine.visible,
            )
            for number, gpu in enumerate(machine.gpus)
        ),
        ways=ways,
        nvls_from=nccl.nvls_from if nccl else 0,
        init_seconds=nccl.init_seconds if nccl else 0.0,
        load_seconds=nccl.load_seconds if nccl else 0.0,
        troubles=(*_refused(machine), *machine.nccl),
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


def _row(machine: Machine, one: int, nccl: NcclResult | None) -> tuple[float, ...]:
    if nccl is None:
        return tuple(-1.0 for _ in machine.gpus)
    return tuple(
        -1.0 if one == other else max(_joining(machine, one, other) * nccl.link_gbps, nccl.pcie_gbps)
        for other in range(len(machine.gpus))
    )


def _joining(machine: Machine, one: int, other: int) -> int:
    status = machine.p2p(one, other)
    if status["read"] or status["write"] or status["nvlink"]:
        return 0
    up = [[n for n in machine.links(gpu) if machine.is_up(gpu, n)] for gpu in (one, other)]
    direct = sum(machine.gpus[one].links[n] == machine.gpus[other].address for n in up[0])
    ends = zip((one, other), up, strict=True)
    switched = min(sum(machine.remote_type(gpu, n) == SWITCH for n in numbers) for gpu, numbers in ends)
    return direct + switched


def _refused(machine: Machine) -> list[Trouble]:
    refused = any(
        status and capability in ("read", "write") and machine.joined(one, other)
        for (one, other, capability), status in machine.refused.items()
    )
    arms = (ArmName.DEFAULT, ArmName.NVLS_OFF) if refused else ()
    return [Trouble(kind=FAILED, phase="init", arm=arm, message=REFUSED) for arm in arms]
