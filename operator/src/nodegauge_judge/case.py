"""What a health rule looks at, and the names that messages use for what it holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from functools import lru_cache, wraps
from typing import Any, Final, TypeVar, cast

from msgspec import Struct

from nodegauge_contract import Gpu, Result, Unavailable
from nodegauge_contract.chassis import ChassisReading
from nodegauge_contract.nvlink import Lanes
from nodegauge_judge import topology
from nodegauge_judge.history import growth, xids
from nodegauge_judge.history.model import GpuHistory, History, keys
from nodegauge_judge.interconnect.p2p import PairP2p
from nodegauge_judge.model import GpuIdentity, NodeFacts, Scalar, Severity
from nodegauge_judge.peers import Fleet, Peers, no_fleet, no_peers
from nodegauge_judge.rule import Observation, Rule
from nodegauge_judge.thresholds import Thresholds
from nodegauge_judge.topology import Topology

_NO_SUCH_VALUE = ("NOT_SUPPORTED", "FUNCTION_NOT_FOUND", "INVALID_ARGUMENT")
"""How NVML says that a GPU or its driver has no such value (the last one for unknown field
ids).  Source: nvml.h, nvmlReturn_t."""
COOLER_SHARE = 0.8
"""Share of its power limit to which a hot GPU is lowered.  Chosen by this project: it takes a fifth of the
heat away, and the GPU keeps most of its speed."""
TEXT_LIMIT = 200
"""Characters of foreign text (an NVML error, a GPU's name) that a message quotes."""


class Case(Struct, frozen=True, kw_only=True):
    """One judgement's inputs.  A `gpu_index` here and in the rules is a position in `result.gpus` (NVML's own
    index is `Gpu.index`)."""

    result: Result
    """What was read, with Xids of earlier reports that never arrived."""
    topology: Topology
    """What follows from the machine's wiring."""
    thresholds: Thresholds
    """Numbers to compare with."""
    history: History
    """What earlier runs left; empty on a first run."""
    node: NodeFacts
    """What the cluster knows about the node."""
    growth: growth.Growth
    """How much each counter grew since the last run."""
    keys: tuple[str | None, ...]
    """Key of each GPU in `history.gpus`; None for one without a UUID."""
    peers: Peers = no_peers
    """SM clocks of comparable nodes, MHz."""
    fleet: Fleet = no_fleet
    """What other nodes of the class run."""
    read_at: float = 0.0
    """When it was read, epoch seconds; 0 if unknown."""
    chassis: ChassisReading | None = None
    """What the node's BMC says, if it was read lately."""
    xids: xids.XidCounts = xids.XidCounts()
    """Those that the policy counts."""
    computed: dict[Hashable, Any] = {}
    """Answers of functions that are marked `once`."""

    @classmethod
    def from_result(
        cls,
        result: Result,
        *,
        thresholds: Thresholds,
        history: History,
        node: NodeFacts,
        interval: float,
        peers: Peers = no_peers,
        fleet: Fleet = no_fleet,
        chassis: ChassisReading | None = None,
        read_at: float = 0.0,
    ) -> Case:
        """The case of one result; `interval` is the policy's, in seconds."""
        result = xids.up_to_date(result, history)
        key = keys(gpu.uuid for gpu in result.gpus if isinstance(gpu.uuid, str))
        own = tuple(key[gpu.uuid] if isinstance(gpu.uuid, str) else None for gpu in result.gpus)
        return cls(
            result=result,
            topology=topology.build_topology(result),
            thresholds=thresholds,
            history=history,
            node=node,
            peers=peers,
            fleet=fleet,
            read_at=read_at,
            chassis=chassis,
            growth=growth.build_growth(result, history=history, thresholds=thresholds, interval=interval),
            keys=own,
            xids=xids.count(result, keys=own, history=history, windows=node.xid_windows, read_at=read_at),
        )

    @property
    def lanes(self) -> Lanes:
        """The NVLinks of each pair."""
        return self.topology.lanes

    @property
    def p2p(self) -> tuple[PairP2p, ...]:
        """The pairs with NVLinks."""
        return self.topology.p2p

    @property
    def known_xids(self) -> dict[str, Any]:
        """What the history keeps of Xids after this run."""
        known = xids.reported(self.result, self.history)
        return {"booted": self.xids.booted, "xids": self.xids.kept, "reported": known}

    def past(self, gpu_index: int) -> GpuHistory | None:
        """The history of one GPU; None for a GPU that is new or has no UUID."""
        key = self.keys[gpu_index]
        return self.history.gpus.get(key) if key is not None else None


Answering = TypeVar("Answering", bound=Callable[..., Any])
_NOT_YET: Final[Any] = object()


def once(function: Answering) -> Answering:
    """Compute a function's answer once for each case and arguments: several rules ask for the same, and for
    each GPU what all others are like.  The case is its first argument.  Its callers must leave the answer as
    it is."""

    @wraps(function)
    def answer(case: Case, /, *arguments: Hashable, **named: Hashable) -> Any:
        key = (function, *arguments, *named.values()) if arguments or named else function
        known = case.computed.get(key, _NOT_YET)
        if known is _NOT_YET:
            known = case.computed[key] = function(case, *arguments, **named)
        return known

    return cast(Answering, answer)


HealthRule = Rule[Case]
"""A rule about what a health run read."""


def short_name(gpu: Gpu) -> str:
    """`GPU 3`, by NVML's index."""
    return f"GPU {gpu.index}"


def full_name(gpu: Gpu) -> str:
    """`GPU 3 (0000:3b:00.0)`, or the index alone where the address could not be read."""
    return f"{short_name(gpu)} ({clip(gpu.pci)})" if isinstance(gpu.pci, str) else short_name(gpu)


def identity(gpu: Gpu) -> GpuIdentity:
    """What names this GPU."""
    return GpuIdentity(index=gpu.index, uuid=text(gpu.uuid), serial=text(gpu.serial), pci=text(gpu.pci))


def gpu_named(name: str) -> GpuIdentity:
    """The GPU that `full_name` has named, or the one with this UUID or start of one."""
    index, _, pci = name.removeprefix("GPU ").rstrip(")").partition(" (")
    if name.startswith("GPU ") and index.isascii() and index.isdigit():
        return GpuIdentity(index=int(index[:9]), pci=pci)
    return GpuIdentity(uuid=name)


def links_in_words(count: int) -> str:
    """`1 NVLink`, `18 NVLinks`."""
    return f"{count} NVLink{'' if count == 1 else 's'}"


def of_gpu(
    gpu: Gpu,
    severity: Severity,
    message: str,
    evidence: dict[str, Scalar],
    *,
    weight: float = 0.0,
    part: str = "",
) -> Observation:
    """An observation about one GPU, or about a part of it, such as `fan 1`."""
    of_part = f" {part}" if part else ""
    return Observation(
        severity=severity,
        location=f"{full_name(gpu)}{of_part}",
        short=f"{short_name(gpu)}{of_part}",
        message=message,
        evidence=evidence,
        weight=weight,
        gpus=(identity(gpu),),
    )


def lower_watts(gpu: Gpu) -> dict[str, Scalar]:
    """Evidence: the limit for `nvidia-smi -pl` that cools a GPU, in whole W: `COOLER_SHARE` of the limit in
    force, and no less than the driver allows.  Empty where that is unknown or no lower."""
    limit, least = number(gpu.power.enforced_limit_mw), number(gpu.power.min_limit_mw)
    watts = math.ceil(max(COOLER_SHARE * (limit or 0), least or 0) / 1000)
    return {"lower_watts": watts} if limit is not None and 0 < watts * 1000 < limit else {}


def of_pair(
    a: Gpu,
    b: Gpu,
    severity: Severity,
    message: str,
    evidence: dict[str, Scalar],
    *,
    weight: float = 0.0,
) -> Observation:
    """An observation about two GPUs, or what joins them."""
    return Observation(
        severity=severity,
        location=f"{full_name(a)} - {full_name(b)}",
        short=f"{a.index}-{b.index}",
        message=message,
        evidence=evidence,
        weight=weight,
        gpus=(identity(a), identity(b)),
    )


@lru_cache(maxsize=1024)
def clip(text: str, *, most: int = TEXT_LIMIT) -> str:
    """Foreign text on one line, of bounded length, and with nothing a terminal would obey."""
    line = " ".join(text.split())
    if not line.isprintable():
        line = "".join(char if char.isprintable() else "?" for char in line)
    return line if len(line) <= most else line[: most - 3] + "..."


def pascal(text: str) -> str:
    """`single-gpu` as SingleGpu: a condition's reason allows letters and digits only."""
    parts = "".join(char if char.isascii() and char.isalnum() else " " for char in text).split()
    return "".join(part[:1].upper() + part[1:] for part in parts)[:64] or "Unknown"


def number(value: object) -> float | None:
    """The value if it is a number, else None; True and False are none."""
    return value if type(value) is int or type(value) is float else None


def text(value: object) -> str:
    """The value, clipped, if it is a text; else an empty text."""
    return clip(value) if isinstance(value, str) else ""


def is_not_supported(value: object) -> bool:
    """Whether the hardware or its driver has no such value, as a GPU without ECC has no ECC errors.  That is
    an answer; a timeout is not."""
    return isinstance(value, Unavailable) and value.unavailable.endswith(_NO_SUCH_VALUE)


def all_answered(values: Iterable[object]) -> bool:
    """Whether at least one value was read, and every other one does not exist."""
    values = list(values)
    unread = [value for value in values if isinstance(value, Unavailable)]
    return len(unread) < len(values) and all(is_not_supported(value) for value in unread)
