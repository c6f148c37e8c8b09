"""What a node lends to the pods that run on it, and the times that a kubelet keeps.

Plain data and one protocol; nothing here acts.  The clock is a field, so that whoever reads a timestamp knows
where it came from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import aiohttp

from testbed.kubelet.api import Api
from testbed.kubelet.devices import Devices
from testbed.kubelet.images import Image

Object = dict[str, Any]


class Hardware(Protocol):
    """What is plugged into a node; `testbed.hardware.Hardware` is one."""

    @property
    def gpu_count(self) -> int: ...

    @property
    def gpu_product(self) -> str: ...

    @property
    def gpu_capacity(self) -> int:
        """How many nvidia.com/gpu the device plugin tells: more than GPUs where they are shared."""
        ...

    @property
    def node_labels(self) -> Mapping[str, str]:
        """Labels of GPU feature discovery beside the usual ones, or instead of them."""
        ...

    def env(self) -> dict[str, str]:
        """LD_LIBRARY_PATH and NODEGAUGE_SIM_HARDWARE (the driver), NODEGAUGE_SYSFS and NODEGAUGE_PROCFS."""
        ...


@dataclass(frozen=True, kw_only=True)
class RecordedHardware:
    """Hardware that another process plugged: what it said, passed on as data."""

    gpu_count: int
    gpu_product: str
    environment: Mapping[str, str]
    node_labels: Mapping[str, str] = field(default_factory=dict)
    plugin_count: int | None = None
    """What the device plugin counts, where it is not the number of GPUs."""

    @property
    def gpu_capacity(self) -> int:
        return self.gpu_count if self.plugin_count is None else self.plugin_count

    def env(self) -> dict[str, str]:
        """The recorded environment."""
        return dict(self.environment)


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """Pauses in seconds that double from `first` to `most`."""

    first: float
    most: float

    def pause(self, attempt: int) -> float:
        """The pause after attempt 0, 1, 2, ..."""
        return min(self.most, self.first * float(1 << min(attempt, 30)))


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds between the things a kubelet does.

    A kubelet's own values are lease 10, status 300, crash and pull 10 doubling to 300.  The shorter ones here
    keep a test or a demonstration from waiting; pass others to see the real pace.
    """

    lease: float = 10.0
    status: float = 30.0
    devices: float = 0.5
    """How often the device plugin is asked, which has a stream of its own in life."""
    crash: Backoff = field(default_factory=lambda: Backoff(first=1.0, most=10.0))
    pull: Backoff = field(default_factory=lambda: Backoff(first=1.0, most=10.0))
    unready_check: float = 1.0
    """Longest period of a readiness or startup check while it has not succeeded yet."""


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)


def timestamp(moment: datetime) -> str:
    """RFC 3339 in whole seconds, as metav1.Time has it."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, kw_only=True)
class NodeContext:
    """Everything that a pod's worker needs of its node."""

    name: str
    api: Api
    http: aiohttp.ClientSession
    images: Mapping[str, Image]
    directory: Path
    hardware: Hardware | None
    timing: Timing = field(default_factory=Timing)
    now: Callable[[], datetime] = utc_now
    devices: Devices = field(default_factory=lambda: Devices(None))
    address: str = "127.0.0.1"
    """Address of the node and of all its pods: they share the host's network."""
