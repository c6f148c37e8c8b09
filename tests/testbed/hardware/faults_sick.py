"""Faults of the GPU as a whole and of the driver: lost, hidden, refused, hung, counters that begin anew.

Error numbers are nvmlReturn_t.
"""

from __future__ import annotations

from testbed.hardware.fault import Parameter, choice, fault, has_call, knows_field, needs, whole
from testbed.hardware.machine import Machine, PciPresence

INSUFFICIENT_POWER = 8
GPU_IS_LOST = 15
RESET_REQUIRED = 16
LIB_RM_VERSION_MISMATCH = 18
RECOVERY_ACTION_FIELD = 230
UNDERSIZED = 2
"""NVML_POWER_SOURCE_UNDERSIZED."""


@fault("gpu-lost")
def gpu_lost(machine: Machine, *, gpu: Parameter = 0, nvml: str = "error", pci: str = "all-ones") -> None:
    """A GPU has fallen off the bus (nvml: error or absent; pci: all-ones, gone or there)."""
    number = machine.gpu(gpu)
    if choice("nvml", nvml, {"error": 0, "absent": 1}):
        machine.visible = [visible for visible in machine.visible if visible != number]
    machine.handles[number] = GPU_IS_LOST
    machine.withdrawn.add(number)  # its Xid 79 tells the device plugin
    for link in machine.links(number):
        machine.cut(number, link)
    address = machine.gpus[number].address
    machine.presence[address] = choice("pci", pci, {presence.value: presence for presence in PciPresence})


@fault("reset-required")
def reset_required(machine: Machine, *, gpu: Parameter = 0) -> None:
    """A GPU answers every call with the error that it must be reset."""
    machine.handles[machine.gpu(gpu)] = RESET_REQUIRED


@fault("insufficient-power")
def insufficient_power(machine: Machine, *, gpu: Parameter = 0) -> None:
    """A GPU's external power cables are not properly attached."""
    machine.handles[machine.gpu(gpu)] = INSUFFICIENT_POWER


@fault("undersized-power-source")
def undersized_power_source(machine: Machine, *, gpu: Parameter = "") -> None:
    """The power source of a GPU, or of all, is too small for it."""
    needs(machine, has_call(machine, "nvmlDeviceGetPowerSource"), "driver that names the power source")
    for number in [machine.gpu(gpu)] if gpu != "" else range(len(machine.gpus)):
        machine.values[number, "power.source"] = str(UNDERSIZED)


@fault("recovery-action")
def recovery_action(machine: Machine, *, gpu: Parameter = 0, action: Parameter = 1) -> None:
    """The driver asks for recovery (1 reset, 2 reboot, 3 drain P2P, 4 drain and reset, 5 IMEX, 6 bus)."""
    reported = machine.profile.model.recovery_action and knows_field(machine, RECOVERY_ACTION_FIELD)
    needs(machine, reported, "recovery action (field 230)")
    machine.values[machine.gpu(gpu), "recovery_action"] = str(whole("action", action, least=0, most=7))


@fault("xid")
def xid(machine: Machine, *, gpu: Parameter = 0, number: Parameter = 79, per_second: Parameter = 20) -> None:
    """A GPU raises this Xid again and again; only clients registered for events receive it."""
    needs(machine, machine.profile.model.xid_events, "events: its driver delivers none")
    name = f"xid.{whole('number', number, least=1, most=1023)}"
    machine.steps[machine.gpu(gpu), name] = 1
    machine.rates[machine.gpu(gpu), name] = 1000 * whole("per_second", per_second, least=0)


@fault("driver-mismatch")
def driver_mismatch(machine: Machine) -> None:
    """The driver was upgraded below the running kernel module."""
    machine.init_error = LIB_RM_VERSION_MISMATCH


@fault("hung-call")
def hung_call(machine: Machine, *, call: str = "nvmlDeviceGetPowerUsage", gpu: Parameter = "") -> None:
    """An NVML call never returns, for one GPU or for all."""
    needs(machine, has_call(machine, call), f"NVML function {call}: name one that its driver has")
    machine.calls[machine.gpu(gpu) if gpu != "" else None, call] = "hang"


@fault("gpus-hidden")
def gpus_hidden(machine: Machine, *, visible: Parameter = "") -> None:
    """The container sees only the first GPUs (default: all but one), though all of them are on the bus."""
    count = len(machine.visible) - 1 if visible == "" else machine.gpu(visible)
    machine.visible = machine.visible[: max(count, 0)]


@fault("counters-restarted")
def counters_restarted(machine: Machine, *, kind: str = "driver-reload", gpu: Parameter = 0) -> None:
    """Counters restart at 0 (kind: driver-reload, gpu-reset, last-client: also when an idle GPU is free)."""
    everyone = range(len(machine.gpus))
    gpus = {"driver-reload": everyone, "gpu-reset": [machine.gpu(gpu)], "last-client": everyone}
    machine.restarts |= set(choice("kind", kind, gpus))
    if kind == "last-client":
        for number in everyone:
            machine.values[number, "persistence"] = "0"
            machine.values[number, "clients.restart"] = "1"


@fault("clock-step")
def clock_step(machine: Machine, *, seconds: Parameter = 3600) -> None:
    """The machine's wall clock is off by this much: NVML's timestamps jump, its counters do not."""
    machine.clock_step += whole("seconds", seconds)
