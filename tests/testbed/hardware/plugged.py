"""A plugged machine: a folder with the condition (hardware.json), what the simulated driver and NCCL answer
from (driver.state, nccl.json), and sys/ and proc/. Changes are made under a file lock, and everything that
follows is written."""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from testbed import profiles
from testbed.driver.build import library_folder
from testbed.hardware import faults, nccl_file
from testbed.hardware.condition import ActiveFault, Condition, append
from testbed.hardware.fault import Parameter
from testbed.hardware.machine import HardwareError
from testbed.hardware.statefile import render, write
from testbed.hardware.sysfs import write_procfs, write_sysfs
from testbed.interruption import alone
from testbed.profiles import Profile, ProfileError
from testbed.simulated_nccl.machine import MACHINE_VARIABLE

CONDITION, STATE, LOCK = "hardware.json", "driver.state", ".lock"
NCCL_FILE = "nccl.json"
LOADS = f"{STATE}.loads"
"""Written by the simulated CUDA: what computes (`loads`)."""
DEVICES, PROCESSES = f"{STATE}.devices", f"{STATE}.processes"
"""Which GPUs the device plugin calls healthy, and, by the kubelet, who computes (testbed.kubelet.devices)."""
CLIENTS = f"{STATE}.clients"
"""Written by the driver: who uses it, and when idle GPUs were last taken up (driver/src/counters.c)."""

Clock = Callable[[], int]


def boottime_ns() -> int:
    """The clock that the driver counts by; it runs on through suspend."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def plug(
    profile: str | Profile, directory: Path, *, seed: str | None = None, clock: Clock = boottime_ns
) -> "Hardware":
    """Put a machine of this profile, healthy and idle, into an empty folder; `seed` makes up UUIDs."""
    try:
        result = profiles.load(profile) if isinstance(profile, str) else profile
    except ProfileError as error:
        raise HardwareError(str(error)) from error
    hardware = Hardware(directory, clock=clock)
    library_folder(result.driver.version)
    hardware.directory.mkdir(parents=True, exist_ok=True)
    hardware.begin(Condition.fresh(result, seed=seed or uuid.uuid4().hex, now=clock()))
    return hardware


def attach(directory: Path) -> "Hardware":
    hardware = Hardware(directory)
    hardware.condition()
    return hardware


class Hardware:
    def __init__(self, directory: Path, *, clock: Clock = boottime_ns) -> None:
        self.directory = directory.absolute()
        self._clock = clock

    def condition(self) -> Condition:
        path = self.directory / CONDITION
        try:
            return msgspec.json.decode(path.read_bytes(), type=Condition)
        except FileNotFoundError:
            raise HardwareError(f"no hardware is plugged into {self.directory}") from None

    @property
    def profile(self) -> Profile:
        return self.condition().profile

    @property
    def gpu_count(self) -> int:
        return len(self.profile.gpus)

    @property
    def gpu_product(self) -> str:
        return self.profile.model.name

    @property
    def gpu_capacity(self) -> int:
        node = self.profile.node
        return self.gpu_count if node.gpu_capacity is None else node.gpu_capacity

    @property
    def uuids(self) -> list[str]:
        return self.condition().uuids

    def env(self) -> dict[str, str]:
        return {
            "NODEGAUGE_SIM_HARDWARE": str(self.directory / STATE),
            "NODEGAUGE_SYSFS": str(self.directory / "sys"),
            "NODEGAUGE_PROCFS": str(self.directory / "proc"),
            MACHINE_VARIABLE: str(self.directory / NCCL_FILE),
            "LD_LIBRARY_PATH": str(library_folder(self.profile.driver.version)),
        }

    def fault(self, name: str, **parameters: Parameter) -> None:
        with self._changing() as condition:
            condition.add(ActiveFault(name, parameters), now=self._clock())

    def heal(self, name: str | None = None) -> None:
        if name is not None:
            faults.find(name)
        with self._changing() as condition:
            condition.faults = [active for active in condition.faults if name not in (None, active.name)]

    def faults(self) -> list[str]:
        return [active.name for active in self.condition().faults]

    def load(self, percent: int, *, gpu: int | None = None) -> None:
        if not 0 <= percent <= 100:
            raise HardwareError(f"a load is 0 to 100 per cent, not {percent}")
        self.load_each(dict.fromkeys(self.condition().chosen(gpu), percent))

    def load_each(self, percents: Mapping[int, int]) -> None:
        with self._changing() as condition:
            now = self._clock()
            for number, percent in percents.items():
                append(condition.pasts[number].load, now, percent)

    def reboot(self) -> None:
        """Restart: a new boot id, counters begin again, nothing runs; what is broken stays broken."""
        with self._changing() as condition:
            condition.boot_id = str(uuid.uuid4())
            condition.restart(condition.chosen(None), now=self._clock())
            for past in condition.pasts:
                past.load = []

    def begin(self, condition: Condition) -> None:
        with alone(self.directory / LOCK):
            if (self.directory / CONDITION).exists():
                raise HardwareError(f"{self.directory} has hardware plugged in: attach to it")
            self._write(condition)

    @contextmanager
    def _changing(self) -> Iterator[Condition]:
        self.condition()  # before a lock file is made in a folder without hardware
        with alone(self.directory / LOCK):
            condition = self.condition()
            yield condition
            self._write(condition)

    def _write(self, condition: Condition) -> None:
        machine = condition.machine()
        condition.settle(machine, self._clock())
        peers = machine.peers()
        state = render(machine, peers, seed=condition.seed, pasts=condition.pasts)
        write_sysfs(self.directory / "sys", machine, errors=condition.port_errors())
        write_procfs(self.directory / "proc", boot_id=condition.boot_id)
        devices = {uuid: number not in machine.withdrawn for number, uuid in enumerate(condition.uuids)}
        write(self.directory / DEVICES, msgspec.json.encode(devices))
        write(self.directory / NCCL_FILE, nccl_file.render(machine, peers, seed=condition.seed))
        write(self.directory / STATE, state.encode())
        write(self.directory / CONDITION, msgspec.json.format(msgspec.json.encode(condition)))
