"""What is true of a machine right now: healthy from its profile, and what each fault that is on changed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from testbed.errors import TestbedError
from testbed.hardware.case import Case
from testbed.profiles.model import FAR_SWITCH, Fabric, Gpu, Profile
from testbed.profiles.pcitree import Distance, PciFunction, distance, functions
from testbed.simulated_nccl.machine import Trouble

NVSWITCH_CLASS = "0x068000"
GPU, SWITCH, UNKNOWN = 0, 2, 255
"""NVML_NVLINK_DEVICE_TYPE_*."""

CLOCK_SHARE = {"sw_power_cap": 97, "sw_thermal": 75, "hw_thermal": 50, "power_brake": 50, "hw_slowdown": 50}
"""Per cent of the loaded clock that is left while a reason holds.  Hardware slowdowns halve it (NVML's words:
"by a factor of 2 or more"), the driver steps down by less, the power cap trims; the numbers are made up."""

OK, NOT_SUPPORTED = 0, 5
"""NVML_P2P_STATUS_*."""


class HardwareError(TestbedError):
    """Something was asked of hardware that it does not have or cannot do; the message says what it can."""


class When(Enum):
    """While a clocks event reason may hold."""

    ALWAYS = "always"
    LOADED = "under load"


class PciPresence(Enum):
    """What the PCI bus shows of a function."""

    THERE = "there"
    ALL_ONES = "all-ones"
    """The kernel still lists it, but it answers nothing: every byte of its configuration space reads 0xff."""
    GONE = "gone"


@dataclass
class Machine:
    """`down`: (GPU, link) that are down.  `refused`: P2P status of (GPU, GPU, capability) that is not usual.
    `handles`: NVML error of GPUs that cannot be had.  `calls`: what a call does instead of answering, for one
    GPU or (None) for all: "hang" or an NVML error.  `values`: lines of the driver's state for (GPU, key) that
    replace the healthy ones.  `holds`: per mille of the time for which a clocks event reason holds on (GPU,
    reason), and while what.  `rates`: thousandths per second by which a counter (GPU, name) grows; `steps`:
    by how much at once, when a fault comes.  `restarts`: GPUs whose counters begin anew then.  `ports`: files
    of the port of (NIC, file) that replace the usual ones; `port_steps`: errors that come with a fault.
    `sensors`: hwmon files of (chip, sensor, file).  `clock_step`: seconds the wall clock is off. `load`: per
    cent of each GPU, as it is now.  `nccl`: what goes wrong in an NCCL run.  `withdrawn`: GPUs that the
    device plugin calls unhealthy.  `case`: supplies, fans and air."""

    profile: Profile
    visible: list[int] = field(default_factory=list)
    down: set[tuple[int, int]] = field(default_factory=set)
    refused: dict[tuple[int, int, str], int] = field(default_factory=dict)
    fabric: Fabric | None = None
    init_error: int | None = None
    handles: dict[int, int] = field(default_factory=dict)
    calls: dict[tuple[int | None, str], str | int] = field(default_factory=dict)
    values: dict[tuple[int, str], str] = field(default_factory=dict)
    holds: dict[tuple[int, str], tuple[int, When]] = field(default_factory=dict)
    rates: dict[tuple[int, str], int] = field(default_factory=dict)
    steps: dict[tuple[int, str], int] = field(default_factory=dict)
    restarts: set[int] = field(default_factory=set)
    ports: dict[tuple[int, str], str] = field(default_factory=dict)
    port_steps: dict[tuple[int, str], int] = field(default_factory=dict)
    sensors: dict[tuple[int, str, str], int] = field(default_factory=dict)
    clock_step: int = 0
    load: list[int] = field(default_factory=list)
    nccl: list[Trouble] = field(default_factory=list)
    withdrawn: set[int] = field(default_factory=set)
    case: Case = field(default_factory=Case)
    presence: dict[str, PciPresence] = field(default_factory=dict)
    pci: dict[str, PciFunction] = field(default_factory=dict)

    @classmethod
    def healthy(cls, profile: Profile) -> "Machine":
        count = len(profile.gpus)
        return cls(
            profile=profile,
            load=[0] * count,
            visible=list(range(count if profile.visible is None else profile.visible)),
            fabric=profile.fabric,
            pci=functions(profile.host),
        )

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return self.profile.gpus

    def gpu(self, number: int | str) -> int:
        known = {str(gpu): gpu for gpu in range(len(self.gpus))}
        if str(number) not in known:
            last = len(self.gpus) - 1
            raise HardwareError(f"{self.profile.name} has no GPU {number}: they are 0 to {last}")
        return known[str(number)]

    def links(self, gpu: int) -> dict[int, str]:
        return self._links[gpu]

    @cached_property
    def _links(self) -> list[dict[int, str]]:
        """Of every GPU; a profile does not change, and this is asked thousands of times for one state."""
        return [{number: far for number, far in enumerate(gpu.links) if far} for gpu in self.gpus]

    @cached_property
    def addresses(self) -> frozenset[str]:
        return frozenset(gpu.address for gpu in self.gpus)

    def peer(self, gpu: int, link: int) -> tuple[int, int] | None:
        mine = self.gpus[gpu].links
        for number, other in enumerate(self.gpus):
            if other.address == mine[link]:
                before = mine[:link].count(mine[link])
                back = [n for n, far in enumerate(other.links) if far == self.gpus[gpu].address]
                return number, back[before]
        return None

    def cut(self, gpu: int, link: int) -> None:
        self.down |= {(gpu, link)} | ({end} if (end := self.peer(gpu, link)) else set())

    def is_up(self, gpu: int, link: int) -> bool:
        there = link in self._links[gpu] and (gpu, link) not in self.down
        return there and not self.profile.model.mig_enabled

    def remote_type(self, gpu: int, link: int) -> int:
        far = self.gpus[gpu].links[link]
        if far in self.addresses:
            return GPU
        if far == FAR_SWITCH or self.pci[far].kind.class_ == NVSWITCH_CLASS:
            return SWITCH
        return UNKNOWN

    def holds_now(self, gpu: int) -> dict[str, int]:
        """Per mille for which each reason holds on a GPU at its present load."""
        return {
            name: per_mille
            for (number, name), (per_mille, when) in self.holds.items()
            if number == gpu and (when is When.ALWAYS or self.load[gpu] > 0)
        }

    def power_mw(self, gpu: int, *, slowed: Mapping[str, int] | None = None) -> int:
        """What a GPU draws at its load: less while it is slowed down (`slowed`: for further reasons)."""
        power, load = self.profile.model.power, self.load[gpu]
        share = 1.0
        for name, per_mille in [*self.holds_now(gpu).items(), *(slowed or {}).items()]:
            share = min(share, 1 - per_mille / 1000 * (1 - CLOCK_SHARE.get(name, 100) / 100))
        wanted = power.idle + (power.full - power.idle) * load / 100 * share
        limit = self.values.get((gpu, "power.enforced"), power.default)
        return round(max(power.idle, wanted if limit is None else min(wanted, int(limit))))

    def pcie(self, gpu: int) -> tuple[int, int]:
        pcie, busy = self.profile.model.pcie, self.load[gpu] > 0
        generation = pcie.max_generation if busy else pcie.idle_generation
        lanes = pcie.max_width if busy else pcie.idle_width
        return (
            min(generation, int(self.values.get((gpu, "pcie.generation"), generation))),
            min(lanes, int(self.values.get((gpu, "pcie.width"), lanes))),
        )

    def pairs(self) -> Iterator[tuple[int, int]]:
        count = range(len(self.gpus))
        return ((one, other) for one in count for other in count if one != other)

    def ancestor(self, one: int, other: int) -> Distance:
        return distance(*(self.pci[self.gpus[gpu].address] for gpu in (one, other)))

    def joined(self, one: int, other: int) -> bool:
        up = [[n for n in self.links(gpu) if self.is_up(gpu, n)] for gpu in (one, other)]
        if any(self.gpus[one].links[n] == self.gpus[other].address for n in up[0]):
            return True
        ends = zip((one, other), up, strict=True)
        return all(any(self.remote_type(gpu, n) == SWITCH for n in numbers) for gpu, numbers in ends)

    def p2p(self, one: int, other: int) -> dict[str, int]:
        by_pcie = self.profile.p2p.near if self.ancestor(one, other) <= Distance.PHB else self.profile.p2p.far
        joined = self.joined(one, other)
        usual = dict.fromkeys(("read", "write"), OK if joined else by_pcie) | {"pci": by_pcie}
        usual |= dict.fromkeys(("nvlink", "atomics"), OK if joined else NOT_SUPPORTED)
        return {name: self.refused.get((one, other, name), status) for name, status in usual.items()}
