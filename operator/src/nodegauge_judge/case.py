"""What a check may look at, and how it says what it found.

`Case` holds the inputs of one judgement and nothing else.  A check yields `Hit`s, one per place; `gather`
makes of them one finding per severity, so that a node with sixteen hot GPUs still fits into a report.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from nodegauge_contract import Gpu, Result
from nodegauge_contract.nvlink import Lanes, lanes
from nodegauge_judge.findings import CATALOGUE, Code
from nodegauge_judge.history import growth
from nodegauge_judge.history.gpu_history import GpuMemory
from nodegauge_judge.history.node_history import History, keys
from nodegauge_judge.model import Finding, NodeFacts, Scalar, Severity
from nodegauge_judge.thresholds import Thresholds

TEXT_LIMIT = 200
"""Characters of foreign text (an NVML error, a GPU's name) that a message quotes."""
NAMES_LIMIT = 16
"""Places beside the worst that the evidence lists by name; the rest is a number."""


class Case(Struct, frozen=True, kw_only=True):
    """One judgement's inputs; `history` is empty on a first run.

    `growth`: how much counters grew since then.  `keys`: by position, under which a GPU is remembered; null
    for one without a UUID.  `busy` is what `load` has worked out so far.
    """

    result: Result
    lanes: Lanes
    thresholds: Thresholds
    history: History
    node: NodeFacts
    growth: growth.Growth
    keys: tuple[str | None, ...]
    busy: dict[int, float | None] = {}

    @classmethod
    def of(
        cls, result: Result, *, thresholds: Thresholds, history: History, node: NodeFacts, interval: float
    ) -> Case:
        """The case of one result; `interval` is the policy's, in seconds."""
        key = keys(gpu.uuid for gpu in result.gpus if isinstance(gpu.uuid, str))
        return cls(
            result=result,
            lanes=lanes(result),
            thresholds=thresholds,
            history=history,
            node=node,
            growth=growth.of(result, history=history, thresholds=thresholds, interval=interval),
            keys=tuple(key[gpu.uuid] if isinstance(gpu.uuid, str) else None for gpu in result.gpus),
        )

    def past(self, place: int) -> GpuMemory | None:
        """What is remembered of the GPU in that position."""
        key = self.keys[place]
        return self.history.gpus.get(key) if key is not None else None


class Hit(Struct, frozen=True, kw_only=True):
    """One place where a finding applies: `place` in full, `short` for lists, `weight` larger for worse."""

    severity: Severity
    place: str
    short: str
    message: str
    evidence: dict[str, Scalar]
    weight: float = 0.0


def gather(code: Code, hits: Iterable[Hit]) -> Iterator[Finding]:
    """One finding per severity that occurs, worst first: the worst place speaks, the others are named."""
    hits = list(hits)
    for severity in (Severity.FAIL, Severity.WARN, Severity.INFO):
        alike = sorted((h for h in hits if h.severity is severity), key=lambda hit: -hit.weight)
        if alike:
            worst = alike[0]
            others = [hit.short for hit in hits if hit.severity is severity and hit is not worst]
            yield Finding(
                code=code.value,
                severity=severity,
                subject=worst.place + (f" and {len(others)} more" if others else ""),
                message=f"{worst.message} Next: {CATALOGUE[code].next_step}",
                evidence=worst.evidence | ({"also": _names(others)} if others else {}),
            )


def _names(names: Sequence[str]) -> str:
    rest = len(names) - NAMES_LIMIT
    return ", ".join(names[:NAMES_LIMIT]) + (f" and {rest} more" if rest > 0 else "")


def short_name(gpu: Gpu) -> str:
    """`GPU 3`, by NVML's index."""
    return f"GPU {gpu.index}"


def full_name(gpu: Gpu) -> str:
    """`GPU 3 (0000:3b:00.0)`, or the index alone where the address could not be read."""
    return f"{short_name(gpu)} ({clip(gpu.pci)})" if isinstance(gpu.pci, str) else short_name(gpu)


def links_in_words(count: int) -> str:
    """`1 NVLink`, `18 NVLinks`."""
    return f"{count} NVLink{'' if count == 1 else 's'}"


def clip(text: str) -> str:
    """Foreign text on one line, of bounded length, and with nothing a terminal would obey."""
    line = "".join(char if char.isprintable() else "?" for char in " ".join(text.split()))
    return line if len(line) <= TEXT_LIMIT else line[: TEXT_LIMIT - 3] + "..."


def number(value: object) -> float | None:
    """The value where it is a number that was read, else None."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def text(value: object) -> str:
    """The value where it is a text that was read, clipped, else an empty one."""
    return clip(value) if isinstance(value, str) else ""
