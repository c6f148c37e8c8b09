"""What one GPU answers, as lines of the driver's state file (`statefile`)."""

import hashlib
import uuid
from collections.abc import Iterable

from testbed.hardware.machine import SWITCH, UNKNOWN, Machine
from testbed.profiles.model import FAR_SWITCH, Model
from testbed.profiles.pcitree import cpu_numbers

NAMESPACE = uuid.UUID("8d1b5a4e-6f0a-4c58-9a3e-2f6d1c0b7a11")
MIB = 1 << 20
AMPERE, ADA, HOPPER = 7, 8, 9
"""NVML_DEVICE_ARCH_*."""
NVLINK5 = 7
"""NVML_NVLINK_VERSION_5_0, whose errors are counted by other fields."""

LINK_CAPABILITIES = 0b101111
"""NVML_NVLINK_CAP_*: P2P, system memory, atomics of both, valid; no SLI bridge."""

EVENTS = 0x1 | 0x2 | 0x4 | 0x8 | 0x10
"""nvmlEventType*: single and double bit ECC errors, P-state, Xid, clock."""

REASONS = 0x1FF
"""The mask of supported clocks event reasons."""

FAN, WHAT = ("idle", "full", "rpm"), ("corrected", "uncorrected")
MEMORY = ("total", "reserved", "used")
PCIE_COUNTERS = (
    *("replays", "replay_rollovers", "recoveries", "correctable", "naks_received", "receiver_errors"),
    *("bad_tlp", "naks_sent", "bad_dllp", "non_fatal", "fatal", "unsupported", "lcrc", "lane"),
)
LINK_COUNTERS = {
    False: ("replays", "recoveries", "crc_flit", "crc_data", "ecc_data"),
    True: (
        *("malformed", "overruns", "receive", "receive_remote", "receive_general", "integrity", "discards"),
        *("recovered", "recovery_failed", "recoveries5"),
        *("effective", "effective_ber", "symbol", "symbol_ber"),
    ),
}
"""Error counters of links up to the fourth generation and of the fifth, named as in driver/src/fields.c."""

Lines = dict[str, object]


def gpu_uuid(seed: str, address: str) -> str:
    return f"GPU-{uuid.uuid5(NAMESPACE, f'{seed}/{address}')}"


def gpu_lines(machine: Machine, number: int, *, seed: str) -> Lines:
    gpu, model, host = machine.gpus[number], machine.profile.model, machine.profile.host
    function = machine.pci[gpu.address]
    node = next(node for node in host.nodes if node.id == function.numa)
    cpus = _text(cpu_numbers(node.cpus))
    reported, fabric = host.numa_reported, machine.fabric
    digits = int.from_bytes(hashlib.sha256(f"{seed}/{gpu.address}".encode()).digest()[:8], "big")
    lines: Lines = {
        "uuid": gpu_uuid(seed, gpu.address),
        "serial": f"{digits % 10**13:013d}" if model.serial else None,
        "pci": gpu.address,
        "pci.device_id": _combined(function.kind.device, function.kind.vendor),
        "pci.subsystem_id": _combined(function.kind.subsystem[1], function.kind.subsystem[0]),
        "minor": gpu.minor,
        "module": gpu.module,
        "cpus": cpus,
        "cpus.socket": cpus,
        "memory_nodes": _text([node.id]) if reported else None,
    }
    if number in machine.handles:
        lines["handle"] = f"!{machine.handles[number]}"
    lines |= {f"fabric.{name}": getattr(fabric, name) for name in fabric.__struct_fields__} if fabric else {}
    lines |= _model(model) | _memory_errors(model) | _telemetry(machine, number)
    return lines | _links(machine, number)


def _model(model: Model) -> Lines:
    return {
        "name": model.name,
        "brand": model.brand,
        "architecture": model.architecture,
        "compute.major": model.compute[0],
        "compute.minor": model.compute[1],
        "vbios": model.vbios,
        "multi_gpu_board": 0,
        "compute_mode": 0,
        "virtualization": model.virtualization,
        "persistence": model.persistence,
        "mig.current": model.mig_enabled if model.mig else None,
        "mig.pending": model.mig_enabled if model.mig else None,
        **({f"memory.{n}": getattr(model.memory, f"{n}_mib") * MIB for n in MEMORY} if model.memory else {}),
        "recovery_action": 0 if model.recovery_action else None,
        "events": EVENTS,
        "repair.channel": 0 if model.architecture >= ADA else None,
        "repair.tpc": 0 if model.architecture >= ADA else None,
        "repair.unrepairable": 0 if model.architecture >= HOPPER else None,
        "fans": model.fans.count if model.fans else 0,
        **({f"fan.{name}": getattr(model.fans, name) for name in FAN} if model.fans else {}),
        **({"c2c.links": model.c2c.links, "c2c.mbps": model.c2c.mbps, "c2c.state": 1} if model.c2c else {}),
    }


def _memory_errors(model: Model) -> Lines:
    lines: Lines = {}
    if model.ecc:
        lines |= {"ecc.current": 1, "ecc.pending": 1}
        for when in ("volatile", "aggregate"):
            lines |= {f"{where}.{when}.{what}": 0 for where in ("ecc", "sram") for what in WHAT}
        lines |= {"sram.threshold": 0} if model.architecture >= AMPERE else {}
    if model.retired_pages:
        lines |= dict.fromkeys((f"retired_pages.{what}" for what in (*WHAT, "pending")), 0)
    if model.remapped_row_banks is not None and not model.mig_enabled:
        lines |= dict.fromkeys((f"rows.{what}" for what in (*WHAT, "pending", "failure")), 0)
        lines["rows.banks"] = model.remapped_row_banks
    return lines


def _telemetry(machine: Machine, number: int) -> Lines:
    model = machine.profile.model
    power, clocks, pcie = model.power, model.clocks, model.pcie
    lines: Lines = {f"power.{name}": getattr(power, name) for name in power.__struct_fields__}
    lines |= {"power.enforced": power.default, "power.limit": power.default, "power.source": 0}
    lines |= {"reasons.supported": REASONS, "violations": model.violations}
    lines["temperature.tau"] = machine.case.tau
    for part in ("temperature", "memory_temperature"):
        if sensor := getattr(model, part):
            lines |= {f"{part}.idle": sensor.idle, f"{part}.full": sensor.full}
    for kind, limits in (("threshold", model.thresholds), ("tlimit", model.tlimits)):
        for name in ("shutdown", "slowdown", "gpu_max", "memory_max") if limits else ():
            lines[f"{kind}.{name}"] = getattr(limits, name)
    if model.tlimits:
        lines["temperature.max_operating"] = model.tlimits.max_operating
    for domain in ("sm", "memory", "video"):
        clock = getattr(clocks, domain)
        lines |= {f"clock.{domain}.{when}": getattr(clock, when) for when in clock.__struct_fields__}
    lines |= {f"clock.{domain}.app": getattr(clocks, domain).max for domain in ("sm", "memory")}
    lines |= {"pstate.idle": clocks.pstate_idle, "pstate.loaded": clocks.pstate_loaded}
    lines |= {f"pcie.{name}": getattr(pcie, name) for name in pcie.__struct_fields__}
    generation, lanes = machine.pcie(number)
    lines |= {"pcie.now_generation": generation, "pcie.now_width": lanes}
    return lines | {f"pcie.{name}": 0 for name in PCIE_COUNTERS}


def _links(machine: Machine, number: int) -> Lines:
    chip = machine.profile.model.links
    if chip is None:
        return {}
    lines: Lines = {"links": chip.slots}
    for link in range(chip.slots):
        far = machine.links(number).get(link)
        up = machine.is_up(number, link)
        mine: Lines = {
            "state": up,
            "version": chip.version,
            "nominal_mbps": chip.mbps,
            "mbps": chip.mbps if up else 0,
        }
        if far:  # what NVML can tell of it need not be what is there
            kind = machine.remote_type(number, link)
            named = {"far": "hidden" if far == FAR_SWITCH else far, "own": machine.gpus[number].address}
            mine |= {
                "remote": named.get(chip.remote, "hidden"),
                "remote_type": kind if chip.remote_type_known else UNKNOWN,
                "switch": kind == SWITCH,
                **dict.fromkeys(LINK_COUNTERS[chip.version >= NVLINK5], 0),
            }
        mine["capabilities"] = LINK_CAPABILITIES if far else 0
        lines |= {f"link.{link}.{key}": value for key, value in mine.items()}
    return lines


def _combined(high: str, low: str) -> int:
    return int(high, 16) << 16 | int(low, 16)


def _text(numbers: Iterable[int]) -> str:
    bits = sum(1 << number for number in numbers)
    message = [bits >> shift & (1 << 64) - 1 for shift in range(0, max(bits.bit_length(), 1), 64)]
    return " ".join(f"{word:x}" for word in message)
