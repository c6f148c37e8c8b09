"""Faults of what joins GPUs: P2P, NVLinks and their errors, the fabric.  P2P and state numbers are NVML's."""

import msgspec

from testbed.hardware.fault import Parameter, choice, fault, needs, whole
from testbed.hardware.gpustate import NVLINK5
from testbed.hardware.machine import HardwareError, Machine
from testbed.profiles.model import Fabric

P2P_NOT_SUPPORTED = 5
P2P_KINDS = {"all": ("read", "write", "nvlink")} | {one: (one,) for one in ("read", "write", "nvlink")}
FABRIC_IN_PROGRESS, FABRIC_COMPLETED, FABRIC_STATUS_FAILED, UNHEALTHY_SUMMARY = 2, 3, 999, 2
ROUTE_UNHEALTHY, ROUTE_MASK = 1 << 4, 0xF << 4
"""NVML_GPU_FABRIC_HEALTH_MASK_ROUTE_UNHEALTHY: TRUE, and its width at its shift."""
LINK_ERRORS = {
    "crc": (("crc_flit", "crc_data"), ("effective", "symbol")),
    "replay": (("replays",), ("receive",)),
    "recovery": (("recoveries",), ("recovered", "recoveries5")),
    "recovery-failed": ((), ("recovery_failed", "recoveries5")),
}
"""Which counters of a link grow, up to the fourth generation and in the fifth."""


@fault("p2p-refused")
def p2p_refused(machine: Machine, *, kind: str = "all", gpu: Parameter = "") -> None:
    """The driver refuses peer-to-peer (kind: all, read, write, nvlink) while every link stays up."""
    needs(machine, len(machine.gpus) > 1, "second GPU to refuse")
    gpus = [machine.gpu(gpu)] if gpu != "" else range(len(machine.gpus))
    for capability in choice("kind", kind, P2P_KINDS):
        for one, other in machine.pairs():
            if one in gpus or other in gpus:
                machine.refused[one, other, capability] = P2P_NOT_SUPPORTED


@fault("link-down")
def link_down(machine: Machine, *, gpu: Parameter = 0, link: Parameter = 0) -> None:
    """One NVLink is down, at both ends."""
    number = machine.gpu(gpu)
    machine.cut(number, _link(machine, number, link))


@fault("gpu-links-down")
def gpu_links_down(machine: Machine, *, gpu: Parameter = 0) -> None:
    """All NVLinks of one GPU are down."""
    number = machine.gpu(gpu)
    needs(machine, bool(machine.links(number)), "NVLinks")
    for link in machine.links(number):
        machine.cut(number, link)


@fault("nvlink-errors")
def nvlink_errors(
    machine: Machine,
    *,
    gpu: Parameter = 0,
    link: Parameter = 0,
    kind: str = "crc",
    per_second: Parameter = 50,
) -> None:
    """A link makes errors while it is up (kind: crc, replay, recovery; recovery-failed from NVLink 5 on)."""
    number = machine.gpu(gpu)
    where, chip = _link(machine, number, link), machine.profile.model.links
    assert chip is not None
    counters = choice("kind", kind, LINK_ERRORS)[chip.version >= NVLINK5]
    needs(machine, bool(counters), f"counter of {kind} errors: NVLink 5 has")
    for counter in counters:
        name, rate = f"link.{where}.{counter}", whole("per_second", per_second, least=0)
        machine.rates[number, name] = 1000 * rate
        machine.steps[number, name] = 1


@fault("fabric-not-completed")
def fabric_not_completed(machine: Machine) -> None:
    """The GPUs have not joined the NVLink fabric: it is in progress."""
    machine.fabric = msgspec.structs.replace(_fabric(machine), state=FABRIC_IN_PROGRESS)


@fault("fabric-failed")
def fabric_failed(machine: Machine) -> None:
    """The fabric is completed, but its status failed and a route is unhealthy."""
    fabric = _fabric(machine)
    machine.fabric = msgspec.structs.replace(
        fabric,
        state=FABRIC_COMPLETED,
        status=FABRIC_STATUS_FAILED,
        health_mask=fabric.health_mask & ~ROUTE_MASK | ROUTE_UNHEALTHY,
        health_summary=UNHEALTHY_SUMMARY,
    )


def _fabric(machine: Machine) -> Fabric:
    needs(machine, machine.fabric, "GPU fabric")
    assert machine.fabric is not None
    return machine.fabric


def _link(machine: Machine, gpu: int, link: Parameter) -> int:
    links = machine.links(gpu)
    if not str(link).isdecimal() or int(link) not in links:
        there = f"they are {', '.join(map(str, links))}" if links else "it has none"
        raise HardwareError(f"{machine.profile.name}: GPU {gpu} has no NVLink {link}: {there}")
    return int(link)
