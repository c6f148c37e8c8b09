"""`spec.probes` of a GPUValidationPolicy: per probe whether, how often and how long it runs."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

DURATION = r"^([0-9]+(ms|s|m|h))+$"
Duration = Annotated[str, Meta(pattern=DURATION, max_length=32)]


class HealthMode(StrEnum):
    """What brings health readings: a resident container on each node that writes a reading when something
    has changed (ADR 0035), or a pod per run."""

    WATCH = "Watch"
    PERIODIC = "Periodic"


class WatchSettings(Struct, frozen=True, rename="camel", kw_only=True):
    """The resident container: `interval` between two readings of a node where nothing changes."""

    interval: Duration = "2h"


class HealthProbe(Struct, frozen=True, rename="camel", kw_only=True):
    """The health probe: `interval` between runs, `deadline` of one run, `window` of sampling within it.

    `recheck`: time to the next run while a gate counts runs to be entered or left; at most `interval`.
    In mode Watch, `watch.interval` takes the place of `interval`.
    """

    enabled: bool = True
    mode: HealthMode = HealthMode.WATCH
    watch: WatchSettings = WatchSettings()
    interval: Duration = "15m"
    recheck: Duration = "1m"
    deadline: Duration = "60s"
    window: Duration = "3s"

    @property
    def period(self) -> str:
        """Time between two readings in this mode."""
        return self.watch.interval if self.mode is HealthMode.WATCH else self.interval


class Engine(StrEnum):
    """What makes the collectives: the nccl image's `nccl4py`, or an `all_reduce_perf` binary (`nccl-tests`)
    that the user's own nccl image brings."""

    NCCL4PY = "nccl4py"
    NCCL_TESTS = "nccl-tests"


class Processes(StrEnum):
    """How many processes drive the GPUs in an NCCL run: one per GPU as torchrun starts them, or one for all;
    `auto`: one per GPU if the engine can (nccl4py)."""

    AUTO = "auto"
    PER_GPU = "perGPU"
    ONE = "one"


class NcclProbe(Struct, frozen=True, rename="camel", kw_only=True):
    """The NCCL probe: `interval` between runs, `deadline` of one run.

    `recheck`: time to the next run where one asks for another (first time below the floor, runs that
    disagree, a gate that a good run would leave).  `environment`: NCCL_* variables for the arms; of the
    node's and the image's own none is ever inherited.  It runs only where the installation names a nccl
    image (chart: `nccl.image`).
    """

    enabled: bool = True
    interval: Duration = "24h"
    deadline: Duration = "15m"
    recheck: Duration = "10m"
    engine: Engine = Engine.NCCL4PY
    processes: Processes = Processes.AUTO
    environment: dict[str, str] = {}


class LoadProbe(Struct, frozen=True, rename="camel", kw_only=True):
    """The load probe: `interval` between runs, `duration` of the load, `deadline` of one run with everything
    before and after it.

    `recheck`: time to the next run while a gate of it is open, and after one that brought nothing.
    `stopBelow`: °C below the vendor's slowdown temperature at which the probe ends the load.  It draws full
    power, so first runs are spread over an interval (ADR 0027).
    """

    enabled: bool = True
    interval: Duration = "168h"
    duration: Duration = "30s"
    deadline: Duration = "10m"
    recheck: Duration = "30m"
    stop_below: Annotated[int, Meta(ge=1, le=40)] = 3


class BmcReadings(Struct, frozen=True, rename="camel", kw_only=True):
    """What the BMC reader writes: whether it is judged.  A reading counts for `staleAfterIntervals` of the
    reader's own interval, which the installation sets (chart: `bmc.interval`)."""

    enabled: bool = True


class Probes(Struct, frozen=True, rename="camel", kw_only=True):
    """Per probe: whether, how often and how long."""

    health: HealthProbe = HealthProbe()
    nccl: NcclProbe = NcclProbe()
    load: LoadProbe = LoadProbe()
    bmc: BmcReadings = BmcReadings()
