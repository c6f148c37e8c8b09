"""What can be wrong with a machine, by name.  Faults compose: each changes its own part of a `Machine`.

A fault is a function with keyword parameters that all have defaults; values may be text, as they come from a
command line.  Error numbers are nvmlReturn_t.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from testbed.hardware.machine import HardwareError, Machine, PciPresence

INSUFFICIENT_POWER = 8
GPU_IS_LOST = 15
LIB_RM_VERSION_MISMATCH = 18

P2P_STATUS = {
    "chipset-not-supported": 1,
    "gpu-not-supported": 2,
    "topology-not-supported": 3,
    "disabled-by-regkey": 4,
    "not-supported": 5,
    "unknown": 6,
}
FABRIC_STATE = {"not-supported": 0, "not-started": 1, "in-progress": 2}
P2P_KINDS = {
    "all": ("read", "write", "nvlink"),
    "read": ("read",),
    "write": ("write",),
    "nvlink": ("nvlink",),
}

Parameter = str | int
Apply = Callable[..., None]
Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """`apply` changes a machine; `does` says what, in one line."""

    name: str
    does: str
    apply: Apply

    def parameters(self) -> dict[str, Parameter]:
        """The names of its parameters, with their defaults."""
        signature = inspect.signature(self.apply)
        return {name: p.default for name, p in signature.parameters.items() if p.kind is p.KEYWORD_ONLY}

    def on(self, machine: Machine, parameters: Mapping[str, Parameter]) -> None:
        """Do it; HardwareError for an unknown parameter, or hardware that cannot have this fault."""
        known = self.parameters()
        if unknown := sorted(parameters.keys() - known.keys()):
            raise HardwareError(
                f"{self.name} has no parameter {', '.join(unknown)}: it has {', '.join(known) or 'none'}"
            )
        self.apply(machine, **parameters)


FAULTS: dict[str, Fault] = {}
"""Every fault by its name."""


def fault(name: str) -> Callable[[Apply], Apply]:
    """Register a function as the fault of this name."""

    def register(apply: Apply) -> Apply:
        FAULTS[name] = Fault(name=name, does=inspect.getdoc(apply) or "", apply=apply)
        return apply

    return register


def find(name: str) -> Fault:
    """The fault of this name; HardwareError naming those that there are."""
    if name not in FAULTS:
        raise HardwareError(f"no fault {name!r}: there are {', '.join(sorted(FAULTS))}")
    return FAULTS[name]


@fault("p2p-refused")
def p2p_refused(
    machine: Machine, *, kind: str = "all", gpu: Parameter = "", status: str = "not-supported"
) -> None:
    """The driver refuses peer-to-peer (kind: all, read, write, nvlink) while every link stays up."""
    gpus = [machine.gpu(gpu)] if gpu != "" else range(len(machine.gpus))
    for capability in _choice("kind", kind, P2P_KINDS):
        for one, other in machine.pairs():
            if one in gpus or other in gpus:
                machine.refused[one, other, capability] = _choice("status", status, P2P_STATUS)


@fault("link-down")
def link_down(machine: Machine, *, gpu: Parameter = 0, link: Parameter = 0) -> None:
    """One NVLink is down, at both ends."""
    number = machine.gpu(gpu)
    links = machine.links(number)
    if not str(link).isdecimal() or int(link) not in links:
        there = f"they are {', '.join(map(str, links))}" if links else "it has none"
        raise HardwareError(f"{machine.profile.name}: GPU {number} has no NVLink {link}: {there}")
    machine.cut(number, int(link))


@fault("gpu-links-down")
def gpu_links_down(machine: Machine, *, gpu: Parameter = 0) -> None:
    """All NVLinks of one GPU are down."""
    number = machine.gpu(gpu)
    if not (links := machine.links(number)):
        raise HardwareError(f"{machine.profile.name}: GPU {number} has no NVLinks")
    for link in links:
        machine.cut(number, link)


@fault("fabric-not-completed")
def fabric_not_completed(machine: Machine, *, state: str = "in-progress") -> None:
    """The GPUs have not joined the NVLink fabric (state: in-progress, not-started, not-supported)."""
    if machine.fabric is None:
        raise HardwareError(f"{machine.profile.name} has no GPU fabric")
    machine.fabric = msgspec.structs.replace(machine.fabric, state=_choice("state", state, FABRIC_STATE))


@fault("gpu-lost")
def gpu_lost(machine: Machine, *, gpu: Parameter = 0, nvml: str = "error", pci: str = "all-ones") -> None:
    """A GPU has fallen off the bus (nvml: error or absent; pci: all-ones, gone or there)."""
    number = machine.gpu(gpu)
    if _choice("nvml", nvml, {"error": 0, "absent": 1}):
        machine.visible = [visible for visible in machine.visible if visible != number]
    machine.handles[number] = GPU_IS_LOST
    for link in machine.links(number):
        machine.cut(number, link)
    address = machine.gpus[number].address
    machine.presence[address] = _choice("pci", pci, {presence.value: presence for presence in PciPresence})


@fault("insufficient-power")
def insufficient_power(machine: Machine, *, gpu: Parameter = 0) -> None:
    """A GPU's external power cables are not properly attached."""
    machine.handles[machine.gpu(gpu)] = INSUFFICIENT_POWER


@fault("driver-mismatch")
def driver_mismatch(machine: Machine) -> None:
    """The driver was upgraded below the running kernel module."""
    machine.init_error = LIB_RM_VERSION_MISMATCH


@fault("hung-call")
def hung_call(machine: Machine, *, call: str = "nvmlDeviceGetPowerUsage", gpu: Parameter = "") -> None:
    """An NVML call never returns, for one GPU or for all."""
    machine.calls[machine.gpu(gpu) if gpu != "" else None, call] = "hang"


@fault("hot")
def hot(machine: Machine, *, gpu: Parameter = 0, celsius: Parameter = 95) -> None:
    """A GPU's core has this temperature, whatever it does."""
    try:
        machine.values[machine.gpu(gpu), "temperature.now"] = str(int(celsius))
    except ValueError:
        raise HardwareError(f"celsius is {celsius!r}: give a whole number") from None


@fault("gpus-hidden")
def gpus_hidden(machine: Machine, *, visible: Parameter = "") -> None:
    """The container sees only the first GPUs (default: all but one), though all of them are on the bus."""
    count = len(machine.visible) - 1 if visible == "" else machine.gpu(visible)
    machine.visible = machine.visible[:count]


def _choice(parameter: str, value: str, choices: Mapping[str, Value]) -> Value:
    if value not in choices:
        raise HardwareError(f"{parameter} is {value!r}: choose one of {', '.join(choices)}")
    return choices[value]
