"""Faults of what joins GPUs: P2P, NVLinks and their errors, the fabric.  P2P and state numbers are NVML's."""

from __future__ import annotations

import msgspec

from testbed.hardware.fault import Parameter, choice, fault, needs, whole
from testbed.hardware.gpustate import NVLINK5
from testbed.hardware.machine import HardwareError, Machine

P2P_STATUS = {
    "chipset-not-supported": 1,
    "gpu-not-supported": 2,
    "topology-not-supported": 3,
    "disabled-by-regkey": 4,
    "not-supported": 5,
    "unknown": 6,
}
P2P_KINDS = {
    "all": ("read", "write", "nvlink"),
    "read": ("read",),
    "write": ("write",),
    "nvlink": ("nvlink",),
}
FABRIC_STATE = {"not-supported": 0, "not-started": 1, "in-progress": 2}
COMPLETED = 3
UNHEALTHY_SUMMARY = 2
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
def p2p_refused(
    machine: Machine, *, kind: str = "all", gpu: Parameter = "", status: str = "not-supported"
) -> None:
    """The driver refuses peer-to-peer (kind: all, read, write, nvlink) while every link stays up."""
    needs(machine, len(machine.gpus) > 1, "second GPU to refuse")
    gpus = [machine.gpu(gpu)] if gpu != "" else range(len(machine.gpus))
    for capability in choice("kind", kind, P2P_KINDS):
        for one, other in machine.pairs():
            if one in gpus or other in gpus:
                machine.refused[one, other, capability] = choice("status", status, P2P_STATUS)


@fault("link-down")
def link_down(machine: Machine, *, gpu: Parameter = 0, link: Parameter = 0) -> None:
    """One NVLink is down, at both ends."""
    number = machine.gpu(gpu)
    machine.cut(number, _link(machine, number, link))


@fault("gpu-links-down")
def gpu_links_down(machine: Machine, *, gpu: Parameter = 0) -> None:
    """All NVLinks of one GPU are down."""
    number = machine.gpu(gpu)
    if not (links := machine.links(number)):
        raise HardwareError(f"{machine.profile.name}: GPU {number} has no NVLinks")
    for link in links:
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
def fabric_not_completed(machine: Machine, *, state: str = "in-progress") -> None:
    """The GPUs have not joined the NVLink fabric (state: in-progress, not-started, not-supported)."""
    if machine.fabric is None:
        raise HardwareError(f"{machine.profile.name} has no GPU fabric")
    machine.fabric = msgspec.structs.replace(machine.fabric, state=choice("state", state, FABRIC_STATE))


@fault("fabric-failed")
def fabric_failed(machine: Machine, *, kind: str = "both", status: Parameter = 999) -> None:
    """The fabric is completed, but its status failed or a route is unhealthy (kind: status, health, both)."""
    if machine.fabric is None:
        raise HardwareError(f"{machine.profile.name} has no GPU fabric")
    reported = choice(
        "kind", kind, {"both": ("status", "health"), "status": ("status",), "health": ("health",)}
    )
    fabric = msgspec.structs.replace(machine.fabric, state=COMPLETED)
    if "status" in reported:
        fabric = msgspec.structs.replace(fabric, status=whole("status", status, least=1))
    if "health" in reported:
        mask = fabric.health_mask & ~ROUTE_MASK | ROUTE_UNHEALTHY
        fabric = msgspec.structs.replace(fabric, health_mask=mask, health_summary=UNHEALTHY_SUMMARY)
    machine.fabric = fabric


def _link(machine: Machine, gpu: int, link: Parameter) -> int:
    """A link's number, checked."""
    links = machine.links(gpu)
    if not str(link).isdecimal() or int(link) not in links:
        there = f"they are {', '.join(map(str, links))}" if links else "it has none"
        raise HardwareError(f"{machine.profile.name}: GPU {gpu} has no NVLink {link}: {there}")
    return int(link)
