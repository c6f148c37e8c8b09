"""The parts of /sys and /proc that a probe reads, laid out as the kernel does.  Only what differs is touched,
each file in one step.  A GPU off the bus keeps its folder: the kernel remembers ids and class; the rest reads
as all ones.  Paths are text: with pathlib, to plug a machine of 1,400 files took four times as long."""

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from testbed.hardware.machine import Machine, PciPresence
from testbed.hardware.statefile import write
from testbed.profiles.hostmodel import HwmonChip, Nic
from testbed.profiles.pcitree import PciFunction, cpu_numbers

RATES = ("2.5", "5.0", "8.0", "16.0", "32.0", "64.0")
"""GT/s by generation of PCIe, from the first."""
CONFIG_BYTES = 64
"""What the kernel shows of the configuration space to those without privilege."""

ALL_ONES = b"\xff" * CONFIG_BYTES
SENSOR_FILES = ("alarm", "min", "max", "lcrit", "crit")
PORT_COUNTERS = (
    *("link_downed", "port_rcv_errors", "port_xmit_discards", "symbol_error", "link_error_recovery"),
    *("local_link_integrity_errors", "excessive_buffer_overrun_errors"),
)
VENDOR_COUNTERS = ("local_ack_timeout_err", "rnr_nak_retry_err")


def write_sysfs(at: Path, machine: Machine, *, errors: Mapping[tuple[int, str], int]) -> None:
    root, gpus = str(at), {gpu.address: number for number, gpu in enumerate(machine.gpus)}
    shown = machine.pci.values() if machine.profile.host.pci_visible else ()
    for function in shown:
        link = f"{root}/bus/pci/devices/{function.address}"
        if machine.presence.get(function.address) is PciPresence.GONE:
            with suppress(FileNotFoundError):
                os.unlink(link)
            shutil.rmtree(f"{root}/devices/{function.path}", ignore_errors=True)
        elif function.address in gpus or not os.path.islink(link):  # of a hundred others, none changes
            _write_function(root, function, machine, gpu=gpus.get(function.address))
    for number, nic in enumerate(machine.profile.host.nics):
        files = {file: text for (port, file), text in machine.ports.items() if port == number}
        steps = {name: count for (port, name), count in errors.items() if port == number}
        _write_nic(root, machine.pci[nic.address], nic, number=number, files=files, steps=steps)
    for number, chip in enumerate(machine.profile.host.hwmon):
        changed = {(name, file): n for (c, name, file), n in machine.sensors.items() if c == number}
        _write_chip(root, chip, number=number, changed=changed)
    for number, name in enumerate(machine.profile.host.disks):
        _write_disk(root, name, number=number)
    nodes = f"{root}/devices/system/node"
    for node in machine.profile.host.nodes:
        _files(f"{nodes}/node{node.id}", {"cpulist": node.cpus})
    _files(nodes, {"online": _ranges([node.id for node in machine.profile.host.nodes])})


def write_procfs(root: Path, *, boot_id: str) -> None:
    _files(f"{root}/sys/kernel/random", {"boot_id": boot_id})
    _files(f"{root}/self", {"mountinfo": "25 1 259:0 / / rw - ext4 /dev/nvme0n1 rw"})


def _write_function(root: str, function: PciFunction, machine: Machine, *, gpu: int | None) -> None:
    folder = f"{root}/devices/{function.path}"
    kind, host = function.kind, machine.profile.host
    node = next(node for node in host.nodes if node.id == function.numa)
    _files(
        folder,
        {
            "class": kind.class_,
            "vendor": kind.vendor,
            "device": kind.device,
            "subsystem_vendor": kind.subsystem[0],
            "subsystem_device": kind.subsystem[1],
            "numa_node": str(function.numa if host.numa_reported else -1),
            "local_cpulist": node.cpus if host.numa_reported else _every_cpu(*(n.cpus for n in host.nodes)),
            **_link(function, machine, gpu),
        },
    )
    lost = machine.presence.get(function.address) is PciPresence.ALL_ONES
    _bytes(f"{folder}/config", ALL_ONES if lost else _config(function))
    if driver := kind.driver or ("" if gpu is None else "nvidia"):
        _symlink(f"{folder}/driver", f"{root}/bus/pci/drivers/{driver}")
    _symlink(f"{root}/bus/pci/devices/{function.address}", folder)


@cache
def _every_cpu(*lists: str) -> str:
    return _ranges(sorted(number for cpus in lists for number in cpu_numbers(cpus)))


def _link(function: PciFunction, machine: Machine, gpu: int | None) -> dict[str, str]:
    speed, width = function.kind.speed, function.kind.width
    now = {"current_link_speed": speed, "current_link_width": str(width)}
    if gpu is not None:
        generation, lanes = machine.pcie(gpu)
        now = {"current_link_speed": f"{RATES[generation - 1]} GT/s PCIe", "current_link_width": str(lanes)}
    if machine.presence.get(function.address) is PciPresence.ALL_ONES:
        now = {"current_link_speed": "Unknown", "current_link_width": "63"}
    return {"max_link_speed": speed, "max_link_width": str(width), **now} if speed else {}


def _config(function: PciFunction) -> bytes:
    kind = function.kind
    config = bytearray(CONFIG_BYTES)
    config[0:2] = int(kind.vendor, 16).to_bytes(2, "little")
    config[2:4] = int(kind.device, 16).to_bytes(2, "little")
    config[9:12] = int(kind.class_, 16).to_bytes(3, "little")
    config[0x2C:0x2E] = int(kind.subsystem[0], 16).to_bytes(2, "little")
    config[0x2E:0x30] = int(kind.subsystem[1], 16).to_bytes(2, "little")
    return bytes(config)


def _write_nic(
    root: str,
    function: PciFunction,
    nic: Nic,
    *,
    number: int,
    files: Mapping[str, str],
    steps: Mapping[str, int],
) -> None:
    """An RDMA device, and the verbs device whose number says when its driver registered it."""
    parent = f"{root}/devices/{function.path}"
    made = {"infiniband": nic.name, "infiniband_verbs": f"uverbs{number}"}
    device, verbs = (f"{parent}/{group}/{name}" for group, name in made.items())
    guid = f"{int(nic.node_guid, 16):016x}"
    _files(device, {"node_guid": ":".join(guid[n : n + 4] for n in range(0, 16, 4))})
    port = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": nic.rate, "link_layer": nic.link_layer}
    _files(f"{device}/ports/1", {**port, **files})
    for group, counters in (("counters", PORT_COUNTERS), ("hw_counters", VENDOR_COUNTERS)):
        _files(f"{device}/ports/1/{group}", {name: str(steps.get(name, 0)) for name in counters})
    _files(verbs, {"ibdev": nic.name})
    for group, name in made.items():
        _symlink(f"{parent}/{group}/{name}/device", parent)
        _symlink(f"{root}/class/{group}/{name}", f"{parent}/{group}/{name}")


def _write_disk(root: str, name: str, *, number: int) -> None:
    """An NVMe controller without errors, and its disk; that of the first one holds the root file system."""
    folder = f"{root}/devices/virtual/nvme/{name}"
    _files(folder, {"state": "live", "model": "simulated"})
    errors = {"aer_dev_fatal": "TOTAL_ERR_FATAL 0", "aer_dev_nonfatal": "TOTAL_ERR_NONFATAL 0"}
    _files(f"{folder}/device", errors | {"numa_node": "0"})
    _files(f"{folder}/hwmon0", {"temp1_alarm": "0"})
    _symlink(f"{root}/class/nvme/{name}", folder)
    disk = f"{folder}/{name}n1"
    _files(f"{disk}/queue", {"rotational": "0"})
    _files(f"{disk}/slaves", {})
    _symlink(f"{disk}/device", folder)
    _symlink(f"{root}/dev/block/259:{number}", disk)


def _write_chip(root: str, chip: HwmonChip, *, number: int, changed: Mapping[tuple[str, str], int]) -> None:
    folder = f"{root}/devices/virtual/hwmon/hwmon{number}"
    files = {"name": chip.name}
    for sensor in chip.sensors:
        own = {"input": sensor.value, **{file: getattr(sensor, file) for file in SENSOR_FILES}}
        own |= {file: value for (name, file), value in changed.items() if name == sensor.name}
        own["input"] = own.pop("value", own["input"])
        files |= {f"{sensor.name}_{file}": str(value) for file, value in own.items() if value is not None}
        files |= {f"{sensor.name}_label": sensor.label} if sensor.label is not None else {}
    _files(folder, files)
    _symlink(f"{root}/class/hwmon/hwmon{number}", folder)


def _ranges(numbers: list[int]) -> str:
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


def _files(folder: str, contents: Mapping[str, str]) -> None:
    """Of a new folder the files are not compared: most of a plug's time was spent on asking."""
    if new := not os.path.exists(folder):
        os.makedirs(folder)
    for name, text in contents.items():
        (_create if new else _bytes)(f"{folder}/{name}", f"{text}\n".encode())


def _create(path: str, content: bytes) -> None:
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
    try:
        os.write(file, content)
    finally:
        os.close(file)


def _bytes(path: str, content: bytes) -> None:
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return _create(path, content)
    try:
        same = os.read(file, len(content) + 1) == content
    finally:
        os.close(file)
    if not same:
        write(Path(path), content)
    return None


def _symlink(link: str, target: str) -> None:
    if not os.path.islink(link):
        os.makedirs(folder := os.path.dirname(link), exist_ok=True)
        os.symlink(os.path.relpath(target, folder), link)
