"""What a rule about feeding looks at: the window's numbers, checked, and who holds the GPUs.

A number that no machine can have (below zero, a share above one) counts as unread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

from msgspec import Struct

from nodegauge_contract import Result
from nodegauge_contract.feed import FeedDisk, FeedGroup, FeedHost, FeedPort, FeedResult
from nodegauge_judge.case import clip, number

ROUNDING = 1.05
"""A share of time may be so much above one: both ends of the window are read a moment apart."""
PAGE_MB = 4096 / 1e6
"""MB of one page of the page cache."""


class FeedPod(Struct, frozen=True, kw_only=True):
    """A pod that holds GPUs of the node."""

    uid: str
    """As the cluster names it."""
    name: str = ""
    """`NAMESPACE/NAME`, for people."""
    gpus: int = 1
    """GPUs that it holds."""


def amount(value: object) -> float | None:
    """The value if it is a number from zero on; else None."""
    read = number(value)
    return read if read is not None and 0 <= read < math.inf else None


def share(value: object) -> float | None:
    """The value if it is a share, at most 1; else None."""
    read = amount(value)
    return None if read is None or read > ROUNDING else min(1.0, read)


def most(values: Sequence[float | None]) -> float | None:
    """The largest that was read; None if none was."""
    return max((value for value in values if value is not None), default=None)


def is_same_uid(one: str, other: str) -> bool:
    """Whether both name one pod: a systemd slice writes the dashes of a UID as underscores."""
    return one.replace("_", "-") == other.replace("_", "-")


class FeedCase(Struct, frozen=True, kw_only=True, dict=True):
    """One window, and the pods that hold GPUs; None if nobody knows them."""

    result: Result
    feed: FeedResult
    pods: tuple[FeedPod, ...] | None = None

    @property
    def host(self) -> FeedHost:
        """The machine."""
        return self.feed.host

    @property
    def disks(self) -> list[FeedDisk]:
        """Local disks."""
        return self.feed.disks

    @property
    def ports(self) -> list[FeedPort]:
        """Network interfaces and RDMA ports."""
        return self.feed.ports

    @cached_property
    def groups(self) -> list[FeedGroup]:
        """Control groups of the pods that hold GPUs; of every pod that is seen if nobody knows which."""
        if self.pods is None:
            return self.feed.groups
        return [
            group
            for group in self.feed.groups
            if any(is_same_uid(group.pod_uid, pod.uid) for pod in self.pods)
        ]

    def name_of(self, group: FeedGroup) -> str:
        """A pod in words: its name, else its UID."""
        known = [pod.name for pod in self.pods or () if is_same_uid(group.pod_uid, pod.uid) and pod.name]
        return f"pod {clip(known[0])}" if known else f"the pod with UID {clip(group.pod_uid)}"

    @property
    def one_job(self) -> bool:
        """Whether all GPUs may belong to one job."""
        return self.pods is None or len(self.pods) == 1

    # what was read at all, for verdicts that need it

    @property
    def cpu_read(self) -> bool:
        """Whether the window says how busy the CPUs were, and who waited for one."""
        return amount(self.host.cpu_busy) is not None and amount(self.host.pressure.cpu) is not None

    @property
    def io_read(self) -> bool:
        """Whether it says who waited for I/O."""
        waits = (self.host.pressure.io, self.host.cpu_iowait, self.host.blocked)
        return any(amount(value) is not None for value in waits)

    @property
    def memory_read(self) -> bool:
        """Whether it says who waited for memory."""
        waits = (self.host.pressure.memory, self.host.refaults, self.host.reclaimed)
        return any(amount(value) is not None for value in waits)

    @cached_property
    def missing(self) -> list[str]:
        """What a named cause would need and the window does not have."""
        missing = [] if self.cpu_read else ["CPU use and pressure (/proc/stat, /proc/pressure/cpu)"]
        missing += [] if self.io_read else ["I/O pressure (/proc/pressure/io)"]
        missing += [] if self.memory_read else ["memory pressure (/proc/pressure/memory)"]
        missing += [] if self.disks else ["disk statistics (/proc/diskstats)"]
        if not self.groups:
            why = clip(self.feed.groups_unread) or "none of a pod with GPUs is seen"
            missing.append(f"control groups of pods ({why}): a CPU quota and memory limits of a pod")
        if all(amount(gpu.pcie_rx_mbps) is None for gpu in self.feed.gpus):
            missing.append("PCIe throughput")
        return missing
