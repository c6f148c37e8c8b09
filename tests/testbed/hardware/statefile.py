"""The state file that the simulated driver answers from: `key value` lines, see driver/src/state.h.

What NVML cannot read on this hardware has no line.  Written beside and moved into place, so that a reader
sees one state or the other.
"""

from __future__ import annotations

import hashlib
import os
import threading
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from testbed.driver.releases import abilities
from testbed.hardware.machine import Machine
from testbed.profiles.model import Model
from testbed.profiles.pcitree import cpu_numbers

NAMESPACE = uuid.UUID("8d1b5a4e-6f0a-4c58-9a3e-2f6d1c0b7a11")
MIB = 1 << 20

P2P_SUPPORTED, SYSMEM_ACCESS, P2P_ATOMICS, SYSMEM_ATOMICS, SLI_BRIDGE, VALID = (1 << bit for bit in range(6))
"""NVML_NVLINK_CAP_*."""

Schedule = Sequence[tuple[int, int]]
"""A number over time: (CLOCK_BOOTTIME in ns, value from then on)."""

Lines = dict[str, object]


def render(
    machine: Machine,
    *,
    seed: str,
    epochs: Sequence[int],
    loads: Sequence[Schedule],
    reasons: Mapping[tuple[int, str], Schedule],
) -> str:
    """The whole file.

    `epochs`: when each GPU's counters began to count.  `loads`: per cent.  `reasons`: per mille of the time
    for which (GPU, clocks event reason) holds.
    """
    lines = _driver(machine) | _pairs(machine)
    for number in range(len(machine.gpus)):
        own = _gpu(machine, number, seed) | _links(machine, number) | _fabric(machine)
        own |= {"epoch": epochs[number], "load": _schedule(loads[number])}
        own |= {f"reason.{name}": _schedule(s) for (gpu, name), s in reasons.items() if gpu == number}
        own |= {key: value for (gpu, key), value in machine.values.items() if gpu == number}
        lines |= {f"gpu.{number}.{key}": value for key, value in own.items() if value is not None}
    for (gpu, call), order in machine.calls.items():
        where = f"call.{call}" if gpu is None else f"gpu.{gpu}.call.{call}"
        lines[where] = order if isinstance(order, str) else f"!{order}"
    body = "".join(f"{key} {_text(value)}\n" for key, value in sorted(lines.items()))
    return f"nodegauge-hardware 1\n{body}end\n"


def write(path: Path, content: bytes) -> None:
    """Put a file into place in one step."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    aside.write_bytes(content)
    aside.replace(path)


def gpu_uuid(seed: str, address: str) -> str:
    """A made-up UUID of the GPU at an address of the machine with this seed."""
    return f"GPU-{uuid.uuid5(NAMESPACE, f'{seed}/{address}')}"


def _serial(seed: str, address: str) -> str:
    digits = int.from_bytes(hashlib.sha256(f"{seed}/{address}".encode()).digest()[:8], "big")
    return f"{digits % 10**13:013d}"


def _text(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _schedule(schedule: Schedule) -> str:
    return " ".join(f"{since}:{value}" for since, value in schedule) or "0"


def _driver(machine: Machine) -> Lines:
    driver = machine.profile.driver
    can = abilities(driver.version)
    lines: Lines = {
        "driver.version": driver.version,
        "driver.nvml": driver.nvml,
        "driver.cuda": driver.cuda,
        "driver.fields_known": can.fields_known,
        "driver.counters_first": can.counters.first,
        "driver.constants_first": can.counters.constants[0],
        "driver.constants_last": can.counters.constants[1],
        "driver.fabric_struct": can.fabric_struct,
        "driver.max_links": can.max_links,
        "visible": " ".join(map(str, machine.visible)),
    }
    return lines if machine.init_error is None else lines | {"init": f"!{machine.init_error}"}


def _pairs(machine: Machine) -> Lines:
    lines: Lines = {f"pair.{n}.{n}.ancestor": 0 for n in range(len(machine.gpus))}
    for one, other in machine.pairs():
        lines[f"pair.{one}.{other}.ancestor"] = int(machine.ancestor(one, other))
        lines |= {f"pair.{one}.{other}.{name}": status for name, status in machine.p2p(one, other).items()}
    return lines


def _gpu(machine: Machine, number: int, seed: str) -> Lines:
    gpu, model, host = machine.gpus[number], machine.profile.model, machine.profile.host
    function = machine.pci[gpu.address]
    node = next(node for node in host.nodes if node.id == function.numa)
    cpus = _words(cpu_numbers(node.cpus))
    told = host.numa_reported
    lines: Lines = {
        "uuid": gpu_uuid(seed, gpu.address),
        "serial": _serial(seed, gpu.address) if model.serial else None,
        "pci": gpu.address,
        "pci.device_id": _combined(function.kind.device, function.kind.vendor),
        "pci.subsystem_id": _combined(function.kind.subsystem[1], function.kind.subsystem[0]),
        "minor": gpu.minor,
        "module": gpu.module,
        "cpus": cpus,
        "cpus.socket": cpus,
        "memory_nodes": _words([node.id]) if told else None,
    }
    if number in machine.handles:
        lines["handle"] = f"!{machine.handles[number]}"
    return lines | _model(model) | _telemetry(model)


def _model(model: Model) -> Lines:
    """What all GPUs of a model answer alike."""
    ecc: Lines = {"ecc.current": 1, "ecc.pending": 1} if model.ecc else {}
    if model.ecc:
        ecc |= {
            f"ecc.{when}.{what}": 0
            for when in ("volatile", "aggregate")
            for what in ("corrected", "uncorrected")
        }
    pages = ("corrected", "uncorrected", "pending") if model.retired_pages else ()
    rows = ("corrected", "uncorrected", "pending", "failure") if model.remapped_row_banks is not None else ()
    return {
        "name": model.name,
        "brand": model.brand,
        "architecture": model.architecture,
        "compute.major": model.compute[0],
        "compute.minor": model.compute[1],
        "vbios": model.vbios,
        "multi_gpu_board": 0,
        "compute_mode": 0,
        "persistence": model.persistence,
        "mig.current": 0 if model.mig else None,
        "mig.pending": 0 if model.mig else None,
        "memory.total": model.memory.total_mib * MIB,
        "memory.reserved": model.memory.reserved_mib * MIB,
        "memory.used": model.memory.used_mib * MIB,
        "recovery_action": 0 if model.recovery_action else None,
        "rows.banks": model.remapped_row_banks,
        **ecc,
        **{f"retired_pages.{name}": 0 for name in pages},
        **{f"rows.{name}": 0 for name in rows},
    }


def _telemetry(model: Model) -> Lines:
    """Power, temperatures, clocks and the PCIe link: the numbers between which the driver's model moves."""
    power, clocks, pcie = model.power, model.clocks, model.pcie
    lines: Lines = {f"power.{name}": getattr(power, name) for name in power.__struct_fields__}
    lines |= {"power.enforced": power.default, "power.limit": power.default, "power.source": 0}
    lines |= {"reasons.supported": model.reasons, "violations": model.violations}
    for part, sensor in (
        ("temperature", model.temperature),
        ("memory_temperature", model.memory_temperature),
    ):
        if sensor:
            lines |= {f"{part}.idle": sensor.idle, f"{part}.full": sensor.full}
    for kind, limits in (("threshold", model.thresholds), ("tlimit", model.tlimits)):
        for name in ("shutdown", "slowdown", "gpu_max", "memory_max") if limits else ():
            lines[f"{kind}.{name}"] = getattr(limits, name)
    if model.tlimits:
        lines["temperature.max_operating"] = model.tlimits.max_operating
    for domain in ("sm", "memory", "video"):
        clock = getattr(clocks, domain)
        lines |= {f"clock.{domain}.{when}": getattr(clock, when) for when in clock.__struct_fields__}
    lines |= {"pstate.idle": clocks.pstate_idle, "pstate.loaded": clocks.pstate_loaded}
    lines |= {f"pcie.{name}": getattr(pcie, name) for name in pcie.__struct_fields__}
    lines |= {"pcie.generation": pcie.max_generation, "pcie.width": pcie.max_width}
    return lines | {
        f"pcie.{name}": 0 for name in ("replays", "replay_rollovers", "recoveries", "correctable")
    }


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
        if far:
            mine |= {"remote": far, "remote_type": machine.remote_type(number, link)}
        mine["capabilities"] = (
            P2P_SUPPORTED | SYSMEM_ACCESS | P2P_ATOMICS | SYSMEM_ATOMICS | VALID if far else 0
        )
        lines |= {f"link.{link}.{key}": value for key, value in mine.items()}
    return lines


def _fabric(machine: Machine) -> Lines:
    fabric = machine.fabric
    return {f"fabric.{name}": getattr(fabric, name) for name in fabric.__struct_fields__} if fabric else {}


def _combined(high: str, low: str) -> int:
    return int(high, 16) << 16 | int(low, 16)


def _words(numbers: Iterable[int]) -> str:
    """A bit set as hexadecimal 64-bit words, the lowest first."""
    bits = sum(1 << number for number in numbers)
    words = [bits >> shift & (1 << 64) - 1 for shift in range(0, max(bits.bit_length(), 1), 64)]
    return " ".join(f"{word:x}" for word in words)
