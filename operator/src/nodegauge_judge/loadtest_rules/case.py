"""What a rule about a load run looks at: each GPU while all of them worked, and which GPUs are alike.

Alike means the same model, power limit and kernel: other GPUs have another speed and another temperature.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from statistics import median

from msgspec import Struct

from nodegauge_contract import Gpu, Result
from nodegauge_contract.load import LoadEnd, LoadGpu, LoadResult
from nodegauge_judge.case import number, of_gpu, text
from nodegauge_judge.model import Answer, Scalar, Severity
from nodegauge_judge.peers import Peers, no_peers
from nodegauge_judge.rule import Observation, Rule
from nodegauge_judge.thresholds import Thresholds

MAX_TFLOPS = 1e5
"""More than any GPU computes.  Chosen by this project."""
UNFINISHED = (LoadEnd.FAILED, LoadEnd.HUNG)
"""Ends of a GPU's load after which its numbers say little."""


class Loaded(Struct, frozen=True, kw_only=True):
    """One GPU: who it is, and what it did under load."""

    gpu: Gpu
    load: LoadGpu

    @property
    def seconds(self) -> float | None:
        """Seconds under load; None if unread."""
        return positive(self.load.seconds)

    @property
    def power_share(self) -> float | None:
        """Power under load as a share of the limit; None if either is unread."""
        watts, limit = number(self.load.steady_mw), positive(self.load.limit_mw)
        return None if watts is None or watts < 0 or limit is None else watts / limit

    @property
    def make(self) -> tuple[str, float, str] | None:
        """What like GPUs share; None if unknown."""
        name, limit, kernel = text(self.gpu.name), positive(self.load.limit_mw), self.load.kernel
        return (name, limit, kernel) if name and limit and kernel else None

    def observed(
        self,
        severity: Severity,
        message: str,
        evidence: dict[str, Scalar],
        *,
        weight: float = 0.0,
    ) -> Observation:
        """An observation about this GPU."""
        return of_gpu(self.gpu, severity, message, evidence, weight=weight)


Value = Callable[[Loaded], float | None]


class LoadCase(Struct, frozen=True, kw_only=True, dict=True):
    """One judgement's inputs.  `peers`: TFLOPS of comparable nodes' GPUs; `previous`: fingerprint and TFLOPS
    of the run before."""

    result: Result
    load: LoadResult
    thresholds: Thresholds
    peers: Peers = no_peers
    previous: tuple[str, float] | None = None

    @cached_property
    def gpus(self) -> list[Loaded]:
        """GPUs that were loaded, in the order of the document."""
        known = {gpu.index: gpu for gpu in self.result.gpus}
        return [
            Loaded(gpu=known.get(load.index) or Gpu(index=load.index), load=load) for load in self.load.gpus
        ]

    @cached_property
    def finished(self) -> list[Loaded]:
        """GPUs whose load went on until the probe ended it."""
        return [loaded for loaded in self.gpus if loaded.load.ended not in UNFINISHED]

    @cached_property
    def light(self) -> list[Loaded]:
        """GPUs that drew too little for a load, or whose power is not known."""
        least = self.thresholds.load_power_share
        return [
            loaded for loaded in self.finished if loaded.power_share is None or loaded.power_share < least
        ]

    @property
    def expected(self) -> int:
        """GPUs that should have been loaded."""
        return max(self.load.expected, len(self.result.gpus))

    @property
    def stopped_by_heat(self) -> bool:
        """Whether the probe ended the load at its own temperature stop."""
        return self.load.ended == LoadEnd.TEMPERATURE or any(
            loaded.load.ended == LoadEnd.TEMPERATURE for loaded in self.gpus
        )

    @cached_property
    def complete(self) -> bool:
        """Whether every GPU was loaded to the end."""
        return self.result.problem is None and 0 < self.expected <= len(self.finished)

    def alike(self, loaded: Loaded) -> list[Loaded]:
        """The other GPUs that should do as well as this one."""
        return [
            other
            for other in self.finished
            if other is not loaded and other.make == loaded.make and loaded.make is not None
        ]

    def against_siblings(self, value: Value) -> Iterator[tuple[Loaded, float, float, int]]:
        """Each GPU with a value: its own, the median of its identical siblings, and how many those are."""
        for loaded in self.finished:
            own = value(loaded)
            others = [other for sibling in self.alike(loaded) if (other := value(sibling)) is not None]
            if own is not None and others:
                yield loaded, own, median(others), len(others)

    @property
    def fingerprint(self) -> str:
        """Nodes with the same one are comparable: GPUs, their model and limit, kernel, seconds, driver
        branch.
        Empty where the GPUs are not alike or were not loaded to the end."""
        makes = {loaded.make for loaded in self.gpus}
        seconds, driver = positive(self.load.seconds), text(self.result.system.driver).split(".")[0]
        make = makes.pop() if len(makes) == 1 else None
        if make is None or not self.complete or self.light or seconds is None or not driver:
            return ""
        return f"{len(self.gpus)}x {make[0]}|{make[1] / 1000:.0f} W|{make[2]}|{seconds:.0f} s|{driver}"

    @property
    def tflops(self) -> float | None:
        """Of the median GPU; None where the GPUs are not alike or one is unread."""
        read = [positive(loaded.load.tflops) for loaded in self.gpus]
        speeds = [speed for speed in read if speed is not None and speed <= MAX_TFLOPS]
        alike = len({loaded.make for loaded in self.gpus}) == 1
        return median(speeds) if alike and speeds and len(speeds) == len(self.gpus) else None


LoadRule = Rule[LoadCase]
"""A rule about a load run."""


def positive(value: object) -> float | None:
    """The value if it is a number above zero."""
    read = number(value)
    return read if read is not None and 0 < read < float("inf") else None


def answered(case: LoadCase, *, bad: bool, read: bool) -> Answer:
    """What the run says about one gate: good only if every GPU was loaded to the end and `read`; a light load
    shows nothing of the fault."""
    if bad:
        return Answer.BAD
    if case.light:
        return Answer.NO_LOAD
    return Answer.GOOD if read and case.complete else Answer.UNSURE
