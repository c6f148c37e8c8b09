"""The parts of /sys and /proc that a probe reads, laid out as the kernel does.  Only what differs is touched,
each file in one step.  A GPU off the bus keeps its folder: the kernel remembers ids and class; the rest reads
as all ones."""

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
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


def write_sysfs(root: Path, machine: Machine, *, errors: Mapping[tuple[int, str], int]) -> None:
    shown = machine.pci.values() if machine.profile.host.pci_visible else ()
    written = {path.name for path in (root / "bus/pci/devices").glob("*")} - machine.addresses
    for function in shown:
        if function.address in written:
            continue  # only GPUs change, and a machine has a hundred other functions
        if machine.presence.get(function.address) is PciPresence.GONE:
            (root / "bus/pci/devices" / function.address).unlink(missing_ok=True)
            shutil.rmtree(root / "devices" / function.path, ignore_errors=True)
        else:
            _write_function(root, function, machine)
    for number, nic in enumerate(machine.profile.host.nics):
        files = {file: text for (port, file), text in machine.ports.items() if port == number}
        steps = {name: count for (port, name), count in errors.items() if port == number}
        _write_nic(root, machine.pci[nic.address], nic, number=number, files=files, steps=steps)
    for number, chip in enumerate(machine.profile.host.hwmon):
        changed = {(name, file): n for (c, name, file), n in machine.sensors.items() if c == number}
        _write_chip(root, chip, number=number, changed=changed)
    for number, name in enumerate(machine.profile.host.disks):
        _write_disk(root, name, number=number)
    nodes = root / "devices/system/node"
    for node in machine.profile.host.nodes:
        _files(nodes / f"node{node.id}", {"cpulist": node.cpus})
    _files(nodes, {"online": _ranges([node.id for node in machine.profile.host.nodes])})


def write_procfs(root: Path, *, boot_id: str) -> None:
    _files(root / "sys/kernel/random", {"boot_id": boot_id})
    _files(root / "self", {"mountinfo": "25 1 259:0 / / rw - ext4 /dev/nvme0n1 rw"})


def _write_function(root: Path, function: PciFunction, machine: Machine) -> None:
    folder = root / "devices" / function.path
    kind, host = function.kind, machine.profile.host
    link = root / "bus/pci/devices" / function.address
    node = next(node for node in host.nodes if node.id == function.numa)
    every_cpu = _ranges(sorted(number for node in host.nodes for number in cpu_numbers(node.cpus)))
    _files(
        folder,
        {
            "class": kind.class_,
            "vendor": kind.vendor,
            "device": kind.device,
            "subsystem_vendor": kind.subsystem[0],
            "subsystem_device": kind.subsystem[1],
            "numa_node": str(function.numa if host.numa_reported else -1),
            "local_cpulist": node.cpus if host.numa_reported else every_cpu,
            **_link(function, machine),
        },
    )
    lost = machine.presence.get(function.address) is PciPresence.ALL_ONES
    _bytes(folder / "config", ALL_ONES if lost else _config(function))
    driver = kind.driver or ("nvidia" if function.address in machine.addresses else "")
    if driver:
        _symlink(folder / "driver", root / "bus/pci/drivers" / driver)
    _symlink(link, folder)


def _link(function: PciFunction, machine: Machine) -> dict[str, str]:
    speed, width = function.kind.speed, function.kind.width
    now = {"current_link_speed": speed, "current_link_width": str(width)}
    if function.address in machine.addresses:
        number = [gpu.address for gpu in machine.gpus].index(function.address)
        generation, lanes = machine.pcie(number)
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
    root: Path,
    function: PciFunction,
    nic: Nic,
    *,
    number: int,
    files: Mapping[str, str],
    steps: Mapping[str, int],
) -> None:
    """An RDMA device, and the verbs device whose number says when its driver registered it."""
    parent = root / "devices" / function.path
    device, verbs = parent / "infiniband" / nic.name, parent / "infiniband_verbs" / f"uverbs{number}"
    guid = f"{int(nic.node_guid, 16):016x}"
    _files(device, {"node_guid": ":".join(guid[n : n + 4] for n in range(0, 16, 4))})
    port = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": nic.rate, "link_layer": nic.link_layer}
    _files(device / "ports/1", {**port, **files})
    for group, counters in (("counters", PORT_COUNTERS), ("hw_counters", VENDOR_COUNTERS)):
        _files(device / "ports/1" / group, {name: str(steps.get(name, 0)) for name in counters})
    _files(verbs, {"ibdev": nic.name})
    for made, group in ((device, "infiniband"), (verbs, "infiniband_verbs")):
        _symlink(made / "device", parent)
        _symlink(root / "class" / group / made.name, made)


def _write_disk(root: Path, name: str, *, number: int) -> None:
    """An NVMe controller without errors, and its disk; that of the first one holds the root file system."""
    folder = root / "devices/virtual/nvme" / name
    _files(folder, {"state": "live", "model": "simulated"})
    errors = {"aer_dev_fatal": "TOTAL_ERR_FATAL 0", "aer_dev_nonfatal": "TOTAL_ERR_NONFATAL 0"}
    _files(folder / "device", errors | {"numa_node": "0"})
    _files(folder / "hwmon0", {"temp1_alarm": "0"})
    _symlink(root / "class/nvme" / name, folder)
    disk = folder / f"{name}n1"
    _files(disk / "queue", {"rotational": "0"})
    _files(disk / "slaves", {})
    _symlink(disk / "device", folder)
    _symlink(root / f"dev/block/259:{number}", disk)


def _write_chip(root: Path, chip: HwmonChip, *, number: int, changed: Mapping[tuple[str, str], int]) -> None:
    folder = root / "devices/virtual/hwmon" / f"hwmon{number}"
    files = {"name": chip.name}
    for sensor in chip.sensors:
        own = {"input": sensor.value, **{file: getattr(sensor, file) for file in SENSOR_FILES}}
        own |= {file: value for (name, file), value in changed.items() if name == sensor.name}
        own["input"] = own.pop("value", own["input"])
        files |= {f"{sensor.name}_{file}": str(value) for file, value in own.items() if value is not None}
        files |= {f"{sensor.name}_label": sensor.label} if sensor.label is not None else {}
    _files(folder, files)
    _symlink(root / "class/hwmon" / folder.name, folder)


def _ranges(numbers: list[int]) -> str:
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


def _files(folder: Path, contents: Mapping[str, str]) -> None:
    """Of a new folder the files are not compared: most of a plug's time was spent on asking."""
    if new := not folder.exists():
        folder.mkdir(parents=True)
    for name, text in contents.items():
        if new:
            (folder / name).write_text(f"{text}\n")
        else:
            _bytes(folder / name, f"{text}\n".encode())


def _bytes(path: Path, content: bytes) -> None:
    with suppress(FileNotFoundError):
        if path.read_bytes() == content:
            return
    write(path, content)


def _symlink(link: Path, target: Path) -> None:
    if not link.is_symlink():
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(target, link.parent))
