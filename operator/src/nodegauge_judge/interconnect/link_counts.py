"""Does each GPU have as many NVLinks as it should?

Behind switches, siblings of the same model must have equal counts; on any node, a GPU must keep the count of
earlier runs.  Two comparisons would mislead: with the architecture's maximum (A800, H800 and H100 NVL have
fewer links by design), and pair with pair (a healthy mesh is uneven).
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
    """GPU `gpu_index` has `have` active links instead of `expected`."""

    gpu_index: int
    have: int
    expected: int
    against: Against

    @property
    def ratio(self) -> float:
        """Share of the expected links that is there."""
        return self.have / self.expected


def shortfalls(case: Case) -> list[Shortfall]:
    """Every GPU with fewer links than expected; none while MIG is on or its links are unclear."""
    if case.lanes.mig:
        return []
    return [
        short
        for gpu_index in range(len(case.lanes.sums))
        if (short := _shortfall(case, gpu_index)) is not None
    ]


def failed(case: Case) -> list[Shortfall]:
    """The shortfalls below the policy's share of the expected links, which remove the interconnect label."""
    return [short for short in shortfalls(case) if short.ratio < case.thresholds.nvlink_sum_ratio]


def uncertain(case: Case) -> frozenset[int]:
    """GPUs whose link sum is uncertain, because some of their links could not be resolved.

    A GPU with every link down is certain: zero is a fact.
    """
    return frozenset(doubt.gpu for doubt in case.lanes.unresolved if doubt.doubt is not Doubt.SILENT)


def _shortfall(case: Case, gpu_index: int) -> Shortfall | None:
    gpu, have = case.result.gpus[gpu_index], case.lanes.sums[gpu_index]
    if gpu.error is not None or case.result.problem is not None or gpu_index in uncertain(case):
        return None
    siblings, past = _siblings(case, gpu_index), _in_history(case, gpu_index)
    expected, against = max((siblings, Against.SIBLINGS), (past, Against.HISTORY), key=lambda e: e[0])
    return (
        Shortfall(gpu_index=gpu_index, have=have, expected=expected, against=against)
        if have < expected
        else None
    )


def _siblings(case: Case, gpu_index: int) -> int:
    """The largest sum among GPUs of the same model; 0 without switches, which make them equal."""
    if not case.lanes.switched:
        return 0
    name = case.result.gpus[gpu_index].name
    alike = (i for i, gpu in enumerate(case.result.gpus) if isinstance(name, str) and gpu.name == name)
    return max((case.lanes.sums[i] for i in alike), default=0)


def _in_history(case: Case, gpu_index: int) -> int:
    """The link sum of earlier runs; 0 if a peer is missing, since its links are gone with it."""
    past = case.past(gpu_index)
    if past is None or not (case.lanes.switched or is_complete(case)):
        return 0
    return past.links.sum
