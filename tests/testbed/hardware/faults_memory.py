"""Faults of memory, and of the PCIe link: what a driver counts, repairs, or cannot repair."""

from __future__ import annotations

from testbed.hardware.fault import Parameter, choice, fault, has_call, knows_field, needs, whole
from testbed.hardware.gpustate import ADA, AMPERE, HOPPER
from testbed.hardware.machine import Machine

PCIE_ERRORS = {
    "replays": ("replays",),
    "correctable": ("correctable", "receiver_errors"),
    "recoveries": ("recoveries",),
}
PCIE_FIELDS = {"replays": 94, "correctable": 173, "recoveries": 169}


@fault("ecc-uncorrectable")
def ecc_uncorrectable(
    machine: Machine, *, gpu: Parameter = 0, count: Parameter = 1, per_second: Parameter = 0
) -> None:
    """Memory errors that could not be corrected: some at once, and more over time."""
    _ecc(machine, machine.gpu(gpu), "uncorrected", count=count, per_second=per_second)


@fault("ecc-correctable")
def ecc_correctable(
    machine: Machine, *, gpu: Parameter = 0, count: Parameter = 1, per_second: Parameter = 50
) -> None:
    """Memory errors that were corrected: some at once, and more over time."""
    _ecc(machine, machine.gpu(gpu), "corrected", count=count, per_second=per_second)


@fault("sram-threshold")
def sram_threshold(machine: Machine, *, gpu: Parameter = 0) -> None:
    """Uncorrectable errors in caches have passed the driver's limit."""
    reported = has_call(machine, "nvmlDeviceGetSramEccErrorStatus")
    model = machine.profile.model
    needs(machine, reported and model.ecc and model.architecture >= AMPERE, "SRAM error status")
    machine.values[machine.gpu(gpu), "sram.threshold"] = "1"


@fault("row-remap")
def row_remap(machine: Machine, *, gpu: Parameter = 0, state: str = "pending") -> None:
    """A row of memory waits for a reset to be remapped, or could not be (state: pending, failed)."""
    needs(machine, machine.profile.model.remapped_row_banks is not None, "row remapping")
    number, key = machine.gpu(gpu), choice("state", state, {"pending": "pending", "failed": "failure"})
    if not machine.profile.model.mig_enabled:  # nobody can read it then
        machine.values[number, f"rows.{key}"] = "1"
        machine.values[number, "rows.uncorrected"] = str(machine.gpus[number].remapped_rows[1] + 1)


@fault("page-pending")
def page_pending(machine: Machine, *, gpu: Parameter = 0) -> None:
    """A page of memory waits for a reboot to be retired."""
    needs(machine, machine.profile.model.retired_pages, "page retirement")
    number = machine.gpu(gpu)
    machine.values[number, "retired_pages.pending"] = "1"
    machine.values[number, "retired_pages.uncorrected"] = str(machine.gpus[number].retired_pages[1] + 1)


@fault("repair-pending")
def repair_pending(machine: Machine, *, gpu: Parameter = 0, kind: str = "channel") -> None:
    """A repair of the memory or of the chip waits for a reset (kind: channel, tpc)."""
    reported = has_call(machine, "nvmlDeviceGetRepairStatus") and machine.profile.model.architecture >= ADA
    needs(machine, reported, "repair status")
    which = choice("kind", kind, {"channel": "channel", "tpc": "tpc"})
    machine.values[machine.gpu(gpu), f"repair.{which}"] = "1"


@fault("memory-unrepairable")
def memory_unrepairable(machine: Machine, *, gpu: Parameter = 0) -> None:
    """The driver says that a GPU's memory cannot be repaired any more."""
    call = "nvmlDeviceGetUnrepairableMemoryFlag_v1"
    reported = has_call(machine, call) and machine.profile.model.architecture >= HOPPER
    needs(machine, reported, "flag of unrepairable memory")
    machine.values[machine.gpu(gpu), "repair.unrepairable"] = "1"


@fault("pcie-replays")
def pcie_replays(
    machine: Machine, *, gpu: Parameter = 0, kind: str = "replays", per_second: Parameter = 50
) -> None:
    """A PCIe link repeats itself (kind: replays, correctable, recoveries)."""
    counters = choice("kind", kind, PCIE_ERRORS)
    needs(machine, knows_field(machine, PCIE_FIELDS[kind]), f"counter of PCIe {kind}")
    for counter in counters:
        name, number = f"pcie.{counter}", machine.gpu(gpu)
        machine.rates[number, name] = 1000 * whole("per_second", per_second, least=0)
        machine.steps[number, name] = 1


def _ecc(machine: Machine, gpu: int, what: str, *, count: Parameter, per_second: Parameter) -> None:
    needs(machine, machine.profile.model.ecc, "ECC")
    for when in ("volatile", "aggregate"):
        machine.steps[gpu, f"ecc.{when}.{what}"] = whole("count", count, least=0)
        machine.rates[gpu, f"ecc.{when}.{what}"] = 1000 * whole("per_second", per_second, least=0)
