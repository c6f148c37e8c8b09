"""Faults of GPUs by themselves and of the driver.  Error numbers are nvmlReturn_t."""

from testbed.hardware.fault import Parameter, choice, fault, has_call, knows_field, needs, share, whole
from testbed.hardware.gpustate import ADA, AMPERE, HOPPER
from testbed.hardware.machine import Machine, PciPresence, When

THERMAL = {"sw": "sw_thermal", "hw": "hw_thermal"}
MEMORY_MAX_UNKNOWN = 100
"""°C of hot memory where no limit of it is known."""
PCIE_ERRORS = {
    "replays": (94, ("replays",)),
    "correctable": (173, ("correctable", "receiver_errors")),
    "recoveries": (169, ("recoveries",)),
}
INSUFFICIENT_POWER, GPU_IS_LOST, RESET_REQUIRED, LIB_RM_VERSION_MISMATCH = 8, 15, 16, 18
RECOVERY_ACTION_FIELD = 230
COMPUTE_MODES = {"exclusive-process": 3, "prohibited": 2}
"""nvmlComputeMode_t."""
UNDERSIZED = 2
"""NVML_POWER_SOURCE_UNDERSIZED."""


def _set(machine: Machine, gpu: Parameter, **values: object) -> None:
    """Lines of the driver's state that replace the healthy ones; `__` stands for a dot."""
    number = machine.gpu(gpu)
    machine.values |= {(number, key.replace("__", ".")): str(value) for key, value in values.items()}


# Slowed down, or would be


@fault("thermal-slowdown")
def thermal_slowdown(machine: Machine, *, kind: str = "sw", gpu: Parameter = 0) -> None:
    """Heat slows a GPU down while it works (kind: sw, hw)."""
    machine.holds[machine.gpu(gpu), choice("kind", kind, THERMAL)] = 1000, When.LOADED


def _slowed(name: str, reason: str, when: When, does: str) -> None:
    @fault(name, does)
    def apply(machine: Machine, *, gpu: Parameter = 0) -> None:
        machine.holds[machine.gpu(gpu), reason] = 1000, when


_slowed("power-brake", "power_brake", When.ALWAYS, "The external power brake is asserted, also while idle.")
_slowed("hw-slowdown", "hw_slowdown", When.ALWAYS, "The hardware slowdown bit is set, without a counter.")
_slowed("sw-power-cap", "sw_power_cap", When.LOADED, "At work the power limit holds clocks, as is healthy.")


@fault("power-cap-low")
def power_cap_low(machine: Machine, *, gpu: Parameter = 0, percent: Parameter = 60) -> None:
    """Somebody set the power limit to this share of the default; the cap shows while the GPU works."""
    power = machine.profile.model.power
    needs(machine, power.default, "power limit")
    assert power.default is not None
    limit = power.default * share(percent) // 100
    _set(machine, gpu, power__enforced=limit, power__limit=limit)
    if power.full > limit:
        machine.holds[machine.gpu(gpu), "sw_power_cap"] = 1000, When.LOADED


@fault("slow-clock")
def slow_clock(machine: Machine, *, gpu: Parameter = 0, percent: Parameter = 60) -> None:
    """A GPU works at this share of its clock, and no reason is reported."""
    _set(machine, gpu, clock__share=10 * share(percent))


@fault("application-clocks")
def application_clocks(machine: Machine, *, gpu: Parameter = 0, percent: Parameter = 60) -> None:
    """Somebody set a GPU's application clock to this share of its clock at work; no reason is reported."""
    left, clock = share(percent), machine.profile.model.clocks.sm
    _set(machine, gpu, clock__sm__app=clock.loaded * left // 100, clock__share=10 * left)


@fault("compute-mode")
def compute_mode(machine: Machine, *, gpu: Parameter = 0, mode: str = "prohibited") -> None:
    """Somebody set a GPU's compute mode (mode: prohibited, exclusive-process)."""
    _set(machine, gpu, compute_mode=choice("mode", mode, COMPUTE_MODES))


@fault("hot")
def hot(machine: Machine, *, gpu: Parameter = 0, celsius: Parameter = 95) -> None:
    """A GPU's core has this temperature at any load."""
    needs(machine, machine.profile.model.temperature, "temperature sensor")
    _set(machine, gpu, temperature__now=whole("celsius", celsius))


@fault("hot-memory")
def hot_memory(machine: Machine, *, gpu: Parameter = 0, celsius: Parameter = "") -> None:
    """A GPU's memory has this temperature (default: its limit) at any load."""
    model = machine.profile.model
    needs(machine, model.memory_temperature, "memory temperature sensor")
    limit = model.thresholds.memory_max if model.thresholds else None
    shown = (limit or MEMORY_MAX_UNKNOWN) if celsius == "" else whole("celsius", celsius)
    _set(machine, gpu, memory_temperature__now=shown)


@fault("fan-stopped")
def fan_stopped(machine: Machine, *, gpu: Parameter = 0, fan: Parameter = 0) -> None:
    """A fan of the card does not turn, although it is told to."""
    fans = machine.profile.model.fans
    needs(machine, fans, "fans on its cards: they are cooled from outside")
    assert fans is not None
    _set(machine, gpu, **{f"fan.{whole('fan', fan, least=0, most=fans.count - 1)}.stopped": 1})


@fault("pcie-width-halved")
def pcie_width_halved(machine: Machine, *, gpu: Parameter = 0) -> None:
    """Half of the PCIe lanes of a GPU are gone."""
    lanes = machine.profile.model.pcie.max_width
    needs(machine, lanes > 1, "more than one PCIe lane")
    _set(machine, gpu, pcie__width=lanes // 2)


# What a driver counts, repairs, or cannot repair


def _ecc(name: str, what: str, per_second: int, does: str) -> None:
    usual = per_second

    @fault(name, does)
    def apply(
        machine: Machine, *, gpu: Parameter = 0, count: Parameter = 1, per_second: Parameter = usual
    ) -> None:
        needs(machine, machine.profile.model.ecc, "ECC")
        for when in ("volatile", "aggregate"):
            where = machine.gpu(gpu), f"ecc.{when}.{what}"
            machine.steps[where] = whole("count", count, least=0)
            machine.rates[where] = 1000 * whole("per_second", per_second, least=0)


_ecc("ecc-uncorrectable", "uncorrected", 0, "Uncorrectable memory errors: some at once, and more over time.")
_ecc("ecc-correctable", "corrected", 50, "Corrected memory errors: some at once, and more over time.")


@fault("sram-threshold")
def sram_threshold(machine: Machine, *, gpu: Parameter = 0) -> None:
    """Uncorrectable errors in caches have passed the driver's limit."""
    model, reported = machine.profile.model, has_call(machine, "nvmlDeviceGetSramEccErrorStatus")
    needs(machine, reported and model.ecc and model.architecture >= AMPERE, "SRAM error status")
    _set(machine, gpu, sram__threshold=1)


@fault("row-remap")
def row_remap(machine: Machine, *, gpu: Parameter = 0, state: str = "pending") -> None:
    """A row of memory waits for a reset to be remapped, or could not be (state: pending, failed)."""
    needs(machine, machine.profile.model.remapped_row_banks, "row remapping")
    key = choice("state", state, {"pending": "pending", "failed": "failure"})
    if not machine.profile.model.mig_enabled:  # nobody can read it then
        _set(machine, gpu, **{f"rows.{key}": 1}, rows__uncorrected=1)


@fault("page-pending")
def page_pending(machine: Machine, *, gpu: Parameter = 0) -> None:
    """A page of memory waits for a reboot to be retired."""
    needs(machine, machine.profile.model.retired_pages, "page retirement")
    _set(machine, gpu, retired_pages__pending=1, retired_pages__uncorrected=1)


@fault("repair-pending")
def repair_pending(machine: Machine, *, gpu: Parameter = 0, kind: str = "channel") -> None:
    """A repair of the memory or of the chip waits for a reset (kind: channel, tpc)."""
    reported = has_call(machine, "nvmlDeviceGetRepairStatus") and machine.profile.model.architecture >= ADA
    needs(machine, reported, "repair status")
    _set(machine, gpu, **{f"repair.{choice('kind', kind, {'channel': 'channel', 'tpc': 'tpc'})}": 1})


@fault("memory-unrepairable")
def memory_unrepairable(machine: Machine, *, gpu: Parameter = 0) -> None:
    """The driver says that a GPU's memory cannot be repaired any more."""
    there = has_call(machine, "nvmlDeviceGetUnrepairableMemoryFlag_v1")
    needs(machine, there and machine.profile.model.architecture >= HOPPER, "flag of unrepairable memory")
    _set(machine, gpu, repair__unrepairable=1)


@fault("pcie-replays")
def pcie_replays(
    machine: Machine, *, gpu: Parameter = 0, kind: str = "replays", per_second: Parameter = 50
) -> None:
    """A PCIe link repeats itself (kind: replays, correctable, recoveries)."""
    number, counters = choice("kind", kind, PCIE_ERRORS)
    needs(machine, knows_field(machine, number), f"counter of PCIe {kind}")
    for counter in counters:
        where = machine.gpu(gpu), f"pcie.{counter}"
        machine.rates[where] = 1000 * whole("per_second", per_second, least=0)
        machine.steps[where] = 1


# The GPU as a whole, and the driver


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


def _refuses(name: str, error: int, does: str) -> None:
    @fault(name, does)
    def apply(machine: Machine, *, gpu: Parameter = 0) -> None:
        machine.handles[machine.gpu(gpu)] = error


_refuses("reset-required", RESET_REQUIRED, "A GPU answers every call with the error that it must be reset.")
_refuses("insufficient-power", INSUFFICIENT_POWER, "The power cables of a GPU are not properly attached.")


@fault("undersized-power-source")
def undersized_power_source(machine: Machine, *, gpu: Parameter = "") -> None:
    """The power source of a GPU, or of all, is too small for it."""
    needs(machine, has_call(machine, "nvmlDeviceGetPowerSource"), "driver that names the power source")
    for number in [gpu] if gpu != "" else range(len(machine.gpus)):
        _set(machine, number, power__source=UNDERSIZED)


@fault("recovery-action")
def recovery_action(machine: Machine, *, gpu: Parameter = 0, action: Parameter = 1) -> None:
    """The driver asks for recovery (1 reset, 2 reboot, 3 drain P2P, 4 drain and reset, 5 IMEX, 6 bus)."""
    reported = machine.profile.model.recovery_action and knows_field(machine, RECOVERY_ACTION_FIELD)
    needs(machine, reported, "recovery action (field 230)")
    _set(machine, gpu, recovery_action=whole("action", action, least=0, most=7))


@fault("xid")
def xid(machine: Machine, *, gpu: Parameter = 0, number: Parameter = 79, per_second: Parameter = 20) -> None:
    """A GPU raises this Xid again and again; only clients registered for events receive it."""
    where = machine.gpu(gpu), f"xid.{whole('number', number, least=1, most=1023)}"
    machine.steps[where] = 1
    machine.rates[where] = 1000 * whole("per_second", per_second, least=0)


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
            _set(machine, number, persistence=0, clients__restart=1)


@fault("clock-step")
def clock_step(machine: Machine, *, seconds: Parameter = 3600) -> None:
    """The machine's wall clock is off by this much: NVML's timestamps jump, its counters do not."""
    machine.clock_step += whole("seconds", seconds)
