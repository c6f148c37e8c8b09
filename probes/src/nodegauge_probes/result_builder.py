"""The result document while it is being measured: written value by value, so that nothing read is lost.

A call into the driver may hang and a pod may be ended at any moment; whatever was read until then is the
result.  So the readers write each value here as soon as they have it, and `result` turns the draft into a
document at any time, from another thread too: it copies, and a value that is not there yet is "not read".

It must not read, judge or format anything.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from nodegauge_contract import (
    Arm,
    ArmOutcome,
    Bus,
    Cell,
    Clocks,
    ClocksEvents,
    Counters,
    Ecc,
    Fabric,
    Fan,
    Gpu,
    Growth,
    Host,
    Int,
    LinkErrors,
    LinkGroup,
    NcclResult,
    Nics,
    Num,
    Pairs,
    Pcie,
    Port,
    Power,
    Problem,
    Repair,
    Result,
    Sensor,
    System,
    Temperature,
    Unavailable,
    Window,
    Xids,
)
from nodegauge_contract.values import NOT_READ

SELF = -1
"""The diagonal of the pair grids."""

Parts = dict[str, Any]


class GpuDraft:
    """One GPU: every attribute is a mapping from the contract's field names to values."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.own: Parts = {}
        self.pcie: Parts = {}
        self.fabric: Parts = {}
        self.temperature: Parts = {}
        self.power: Parts = {}
        self.clocks: Parts = {}
        self.events: Parts = {}
        self.counters: Parts = {}
        self.growth: Parts = {}
        self.link_errors: Parts = {}
        self.ecc: Parts = {}
        self.repair: Parts = {}
        self.xids: Parts = {}
        self.fans: list[Fan] = []
        self.links: list[tuple[int, Parts]] = []
        self.window: Window | None = None
        self.problem: Problem | None = None

    def gpu(self) -> Gpu:
        return Gpu(
            index=self.index,
            **dict(self.own),
            pcie=Pcie(**dict(self.pcie)),
            links=group_links(list(self.links)),
            fabric=Fabric(**dict(self.fabric)),
            temperature=Temperature(**dict(self.temperature)),
            power=Power(**dict(self.power)),
            clocks=Clocks(**dict(self.clocks)),
            events=ClocksEvents(**dict(self.events)),
            counters=Counters(**dict(self.counters)),
            link_errors=LinkErrors(**dict(self.link_errors)),
            ecc=Ecc(**dict(self.ecc)),
            repair=Repair(**dict(self.repair)),
            xids=Xids(**dict(self.xids)),
            fans=list(self.fans),
            window=self._window(),
            error=self.problem,
        )

    def _window(self) -> Window | None:
        growth = dict(self.growth)
        return self.window and replace(self.window, growth=Growth(**growth) if growth else None)


class Grids:
    """The square grids of `Pairs`, "not read" until a cell is set."""

    def __init__(self, size: int) -> None:
        self.cells: dict[str, list[list[Int]]] = {
            name: [[SELF if i == j else NOT_READ for j in range(size)] for i in range(size)]
            for name in ("ancestor", "read", "write", "nvlink")
        }

    def pairs(self) -> Pairs:
        return Pairs(**{name: [list(row) for row in grid] for name, grid in self.cells.items()})


class ArmDraft:
    """One arm of the benchmark; until somebody says how it ended, it was cut short."""

    def __init__(self, name: str) -> None:
        self.parts: Parts = {"name": name, "outcome": ArmOutcome.CUT}
        self.cells: list[Cell] = []
        self.pairs: list[list[Num]] = []

    def arm(self) -> Arm:
        return Arm(**dict(self.parts), cells=list(self.cells), pairs=[list(row) for row in self.pairs])


class NcclBuilder:
    """The benchmark; `parts` are the members of `NcclResult` that are no lists of what children said."""

    def __init__(self) -> None:
        self.parts: Parts = {}
        self.arms: list[ArmDraft] = []
        self.cut: list[str] = []

    def nccl(self) -> NcclResult:
        return NcclResult(**dict(self.parts), arms=[arm.arm() for arm in list(self.arms)], cut=list(self.cut))


class Draft:
    """Everything that one run has read so far."""

    def __init__(self, *, probe: str, run: str, node: str) -> None:
        self.probe, self.run, self.node = probe, run, node
        self.host: Parts = {}
        self.system: Parts = {}
        self.gpus: list[GpuDraft] = []
        self.grids = Grids(0)
        self.nics = Nics()
        self.ports: list[Port] = []
        self.bus = Bus()
        self.sensors: list[Sensor] = []
        self.late: list[str] = []
        """Members that were still being read when the run ended."""
        self.nccl: NcclBuilder | None = None
        self.problem: Problem | None = None
        """What a probe found out about its own work; how the run ended says more, and wins."""

    def result(self, *, duration_ms: int, problem: Problem | None = None) -> Result:
        return Result(
            probe=self.probe,
            run=self.run,
            node=self.node,
            duration_ms=duration_ms,
            host=Host(**dict(self.host)),
            system=System(**dict(self.system)),
            gpus=[gpu.gpu() for gpu in list(self.gpus)],
            pairs=self.grids.pairs(),
            nics=replace(self.nics, ports=list(self.ports)),
            bus=self.bus,
            sensors=list(self.sensors),
            problem=problem or self.problem,
            omitted=list(self.late),
            nccl=None if self.nccl is None else self.nccl.nccl(),
        )


def group_links(readings: list[tuple[int, Parts]]) -> list[LinkGroup]:
    """Links that answered alike, in the order of their lowest number."""
    groups: list[tuple[Parts, list[int]]] = []
    for link, answers in readings:
        alike = next((links for known, links in groups if known == answers), None)
        if alike is None:
            groups.append((dict(answers), [link]))
        else:
            alike.append(link)
    return [LinkGroup(links=links, **answers) for answers, links in groups]


def first_reason(values: list[Any], *, default: str) -> Unavailable:
    """The first reason among `values`, for a summary of readings of which none could be read."""
    return next((value for value in values if isinstance(value, Unavailable)), Unavailable(default))
