"""Machines whose faults are known: the tables are the truth of the simulated world."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Repair, Result, Sensor, Temperature
from support.judge_results import SAMPLES, resting, span, working

NO_FAULT, UNREADABLE = "", "unreadable"
POWER_BRAKE_BIT = 0x80


@dataclass(frozen=True, kw_only=True)
class Kind:
    document: Callable[[], Result]
    interconnect: str
    gbps: int | None
    share: int
    immune: frozenset[str] = frozenset()
    """Faults that such a machine cannot have."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What a fault does to a node: the taint, after how many bad runs, whether only runs under load count,
    and whether the interconnect is unknown while it lasts."""

    taint: str
    runs: int = 2
    under_load: bool = False
    absent_when_idle: bool = False
    """An idle run is a good one."""
    hides_interconnect: bool = False

    @property
    def key(self) -> str:
        """`unhealthy` or `throttled`."""
        return self.taint.partition("=")[0]

    @property
    def cause(self) -> str:
        return self.taint.partition("=")[2]


WITHOUT_NVLINK = frozenset({"p2p", "nvlink"})
KINDS: dict[str, Kind] = {
    "8x H100": Kind(document=made.h100, interconnect="nvlink", gbps=450, share=6),
    "8x V100 (DGX-1V)": Kind(document=made.dgx1, interconnect="nvlink", gbps=150, share=2),
    "4x A100 SXM4": Kind(document=made.hgx_a100_4, interconnect="nvlink", gbps=300, share=12),
    "4x A100 PCIe, bridged": Kind(
        document=made.a100_bridged_pairs, interconnect="nvlink-pairs", gbps=None, share=12
    ),
    "2x TITAN RTX": Kind(document=made.titan, interconnect="nvlink", gbps=50, share=24),
    "2x RTX 3090": Kind(document=made.rtx3090, interconnect="nvlink", gbps=56, share=20),
    "2x RTX 4090": Kind(document=made.phb, interconnect="pcie", gbps=None, share=24, immune=WITHOUT_NVLINK),
}
FAULTS: dict[str, Fault] = {
    "gpu-lost": Fault(taint="unhealthy=gpu-lost", runs=1, hides_interconnect=True),
    "p2p": Fault(taint="unhealthy=p2p", hides_interconnect=True),
    "nvlink": Fault(taint="unhealthy=nvlink", hides_interconnect=True),
    "memory": Fault(taint="unhealthy=memory"),
    "psu": Fault(taint="unhealthy=psu"),
    "power-brake": Fault(taint="throttled=power-brake", absent_when_idle=True),
    "hot": Fault(taint="throttled=thermal", under_load=True),
}
OF_NODES = FAULTS | {UNREADABLE: Fault(taint="unhealthy=unreadable", runs=5)}
"""With what failed runs say of a node, whatever its machine has."""
OF_TAINT: dict[str, str] = {fault.taint: name for name, fault in OF_NODES.items()}


@cache
def template(kind: str, fault: str, loaded: bool) -> Result:
    """The document of a machine at work or at rest, with this fault or none."""
    well = made.every_gpu(made.instrumented(KINDS[kind].document()), **(working() if loaded else resting()))
    return _with_fault(well, fault, loaded=loaded)


def _with_fault(well: Result, fault: str, *, loaded: bool) -> Result:
    match fault:
        case "gpu-lost":
            return _without_last_gpu(well)
        case "p2p":
            return made.with_pair(well, 0, 1, read=made.NOT_SUPPORTED, write=made.NOT_SUPPORTED)
        case "nvlink":
            return made.without_links(well, 0, count=sum(len(g.links) for g in well.gpus[0].links))
        case "memory":
            broken = Repair(rows_pending=0, rows_failed=1, unrepairable=0, action=0)
            return made.with_gpu(well, 0, repair=broken)
        case "psu":
            alarm = Sensor(chip="acbel_fsg032", name="in1", label="vin", value=231_000, alarm=1)
            return replace(well, sensors=[alarm])
        case "power-brake" if loaded:
            return made.with_gpu(well, 0, **working(bits={POWER_BRAKE_BIT: SAMPLES}))
        case "hot" if loaded:
            heat: dict[str, Any] = working(temperature=span(93, 95))
            return made.with_gpu(well, 0, temperature=Temperature(gpu=94, shutdown=98), **heat)
    return well


def _without_last_gpu(well: Result) -> Result:
    left = made.shuffled(well, range(len(well.gpus) - 1))
    nics = replace(well.nics, to_gpu=[row[:-1] for row in well.nics.to_gpu])
    return replace(made.with_bus(left), nics=nics)


@dataclass(kw_only=True)
class Machine:
    name: str
    kind: str
    pool: str
    fault: str = NO_FAULT
    boot: int = 1
    booted_at: float = 0.0
    driver: int = 1
    idle: bool = False
    drained: bool = False
    trouble: str = ""
    """What becomes of probe pods here: full, crash, garbage, silent, preempt; empty for nothing special."""
    up: bool = True
    there: bool = True
    busy: set[str] = field(default_factory=set)
    """Disturbances under way here; no two of one kind at a time."""

    @property
    def loaded(self) -> bool:
        return not self.idle and not self.drained

    @property
    def visible_fault(self) -> str:
        fault = FAULTS.get(self.fault)
        return NO_FAULT if fault is not None and fault.absent_when_idle and not self.loaded else self.fault

    @property
    def boot_id(self) -> str:
        return f"{self.name}-boot-{self.boot}"

    def document(self, now: float) -> Result:
        result = template(self.kind, self.fault, self.loaded)
        host = replace(
            result.host, boot_id=self.boot_id, boottime_ms=round((now - self.booted_at) * 1000) + 60_000
        )
        return replace(result, host=host, system=replace(result.system, driver=f"550.54.{self.driver}"))
