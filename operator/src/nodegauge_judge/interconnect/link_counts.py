"""Has a GPU the NVLinks that it should have?

Behind switches its siblings of the same model must have as many; everywhere the same GPU must have as many as
it was seen with before (`history`).  Never compared: with the architecture's maximum (A800, H800 and H100 NVL
have fewer by design), nor pair with pair (healthy meshes are uneven).
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from nodegauge_contract.nvlink import Doubt
from nodegauge_judge.case import Case
from nodegauge_judge.visibility import is_complete


class Against(StrEnum):
    """What the expected sum comes from."""

    SIBLINGS = "siblings"
    HISTORY = "history"


class Shortfall(Struct, frozen=True, kw_only=True):
    """GPU `gpu_index` (position) has `have` active links instead of `expected`."""

    gpu_index: int
    have: int
    expected: int
    against: Against

    @property
    def ratio(self) -> float:
        """Share of the expected links that is there."""
        return self.have / self.expected


def shortfalls(case: Case) -> list[Shortfall]:
    """Every GPU with fewer links than expected; none while MIG is on or where links could not be told."""
    if case.lanes.mig:
        return []
    return [
        short
        for gpu_index in range(len(case.lanes.sums))
        if (short := _shortfall(case, gpu_index)) is not None
    ]


def failed(case: Case) -> list[Shortfall]:
    """Those below the policy's share of the expected links: the node has no interconnect to speak of."""
    return [short for short in shortfalls(case) if short.ratio < case.thresholds.nvlink_sum_ratio]


def uncertain(case: Case) -> frozenset[int]:
    """Positions of GPUs whose link sum is no fact: some of their links could not be told.

    A GPU whose links are all down although it is wired to switches is not among them: zero is a fact.
    """
    return frozenset(doubt.gpu for doubt in case.lanes.unresolved if doubt.doubt is not Doubt.SILENT)


def _shortfall(case: Case, gpu_index: int) -> Shortfall | None:
    gpu, have = case.result.gpus[gpu_index], case.lanes.sums[gpu_index]
    if gpu.error is not None or case.result.problem is not None or gpu_index in uncertain(case):
        return None
    siblings, remembered = _siblings(case, gpu_index), _remembered(case, gpu_index)
    expected, against = max((siblings, Against.SIBLINGS), (remembered, Against.HISTORY), key=lambda e: e[0])
    return (
        Shortfall(gpu_index=gpu_index, have=have, expected=expected, against=against)
        if have < expected
        else None
    )


def _siblings(case: Case, gpu_index: int) -> int:
    """The largest sum among GPUs of the same model; 0 where there are no switches to make them equal."""
    if not case.lanes.switched:
        return 0
    name = case.result.gpus[gpu_index].name
    alike = (i for i, gpu in enumerate(case.result.gpus) if isinstance(name, str) and gpu.name == name)
    return max((case.lanes.sums[i] for i in alike), default=0)


def _remembered(case: Case, gpu_index: int) -> int:
    """What this GPU has been seen with; 0 where its peers are not all there (their links went with them)."""
    memory = case.past(gpu_index)
    if memory is None or not (case.lanes.switched or is_complete(case)):
        return 0
    return memory.links.sum
