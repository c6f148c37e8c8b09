"""What is true of a machine right now: its profile, and everything that faults have changed about it.

A `Machine` is built afresh for every change: healthy from its profile, then each fault that is on does its
part. Nothing here touches files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from testbed.errors import TestbedError
from testbed.profiles.model import Fabric, Gpu, Profile
from testbed.profiles.pcitree import Distance, PciFunction, distance, functions

NVSWITCH_CLASS = "0x068000"
GPU, SWITCH, UNKNOWN = 0, 2, 255
"""NVML_NVLINK_DEVICE_TYPE_*."""

OK, NOT_SUPPORTED = 0, 5
"""NVML_P2P_STATUS_*."""

CAPABILITIES = ("read", "write", "nvlink", "atomics", "pci")


class HardwareError(TestbedError):
    """Something was asked of hardware that it does not have or cannot do; the message says what it can."""


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
    reason).
    """

    profile: Profile
    visible: list[int] = field(default_factory=list)
    down: set[tuple[int, int]] = field(default_factory=set)
    refused: dict[tuple[int, int, str], int] = field(default_factory=dict)
    fabric: Fabric | None = None
    init_error: int | None = None
    handles: dict[int, int] = field(default_factory=dict)
    calls: dict[tuple[int | None, str], str | int] = field(default_factory=dict)
    values: dict[tuple[int, str], str] = field(default_factory=dict)
    holds: dict[tuple[int, str], int] = field(default_factory=dict)
    presence: dict[str, PciPresence] = field(default_factory=dict)
    pci: dict[str, PciFunction] = field(default_factory=dict)

    @classmethod
    def healthy(cls, profile: Profile) -> Machine:
        """A machine as its profile says."""
        return cls(
            profile=profile,
            visible=list(range(len(profile.gpus))),
            fabric=profile.fabric,
            pci=functions(profile.host),
        )

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return self.profile.gpus

    def gpu(self, number: int | str) -> int:
        """A GPU's number, checked; HardwareError for one that is not there."""
        try:
            found = int(number)
        except ValueError:
            raise HardwareError(f"gpu is {number!r}: give a number from 0 to {len(self.gpus) - 1}") from None
        if not 0 <= found < len(self.gpus):
            raise HardwareError(f"{self.profile.name} has no GPU {found}: they are 0 to {len(self.gpus) - 1}")
        return found

    def links(self, gpu: int) -> dict[int, str]:
        """The links of a GPU that lead anywhere: number to the address of the far end."""
        return {number: far for number, far in enumerate(self.gpus[gpu].links) if far}

    def peer(self, gpu: int, link: int) -> tuple[int, int] | None:
        """The other end of a link, as (GPU, link); None when it leads to something else than a GPU.

        The n-th link from one GPU to another is the n-th link back: profiles do not say more.
        """
        mine = self.gpus[gpu].links
        for number, other in enumerate(self.gpus):
            if other.address == mine[link]:
                before = mine[:link].count(mine[link])
                back = [n for n, far in enumerate(other.links) if far == self.gpus[gpu].address]
                return number, back[before]
        return None

    def cut(self, gpu: int, link: int) -> None:
        """Take a link down, at both ends."""
        self.down |= {(gpu, link)} | ({end} if (end := self.peer(gpu, link)) else set())

    def is_up(self, gpu: int, link: int) -> bool:
        return link in self.links(gpu) and (gpu, link) not in self.down

    def remote_type(self, gpu: int, link: int) -> int:
        """NVML's type of what a link leads to."""
        far = self.gpus[gpu].links[link]
        if far in {other.address for other in self.gpus}:
            return GPU
        return SWITCH if self.pci[far].kind.class_ == NVSWITCH_CLASS else UNKNOWN

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Every ordered pair of GPUs."""
        count = range(len(self.gpus))
        return ((one, other) for one in count for other in count if one != other)

    def ancestor(self, one: int, other: int) -> Distance:
        return distance(self.pci[self.gpus[one].address], self.pci[self.gpus[other].address])

    def joined(self, one: int, other: int) -> bool:
        """Whether NVLinks that are up join two GPUs, directly or through switches."""
        up = [[n for n in self.links(gpu) if self.is_up(gpu, n)] for gpu in (one, other)]
        if any(self.gpus[one].links[n] == self.gpus[other].address for n in up[0]):
            return True
        ends = zip((one, other), up, strict=True)
        return all(any(self.remote_type(gpu, n) == SWITCH for n in numbers) for gpu, numbers in ends)

    def p2p(self, one: int, other: int) -> dict[str, int]:
        """NVML_P2P_STATUS_* of a pair by capability."""
        by_pcie = self.profile.p2p.near if self.ancestor(one, other) <= Distance.PHB else self.profile.p2p.far
        joined = self.joined(one, other)
        usual = {
            "read": OK if joined else by_pcie,
            "write": OK if joined else by_pcie,
            "nvlink": OK if joined else NOT_SUPPORTED,
            "atomics": OK if joined else NOT_SUPPORTED,
            "pci": by_pcie,
        }
        return {name: self.refused.get((one, other, name), status) for name, status in usual.items()}
