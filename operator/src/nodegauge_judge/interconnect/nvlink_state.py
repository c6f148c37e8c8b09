"""Does each GPU have as many NVLinks as it should, and may it use them?

Behind switches, siblings of the same model must have equal counts; on any node, a GPU must keep the count of
earlier runs.  What siblings and history cannot show is a fault that is there from the first run on; the table
of models knows what is whole: all links behind switches, every GPU of a whole mesh, and the links of a pair,
which are wired or bridged in fixed numbers (an A100 PCIe pair has 4, 8 or 12 links, never 11).  Two
comparisons would mislead: with the architecture's maximum (A800, H800 and H100 NVL have fewer links by
design), and pair with pair (a healthy mesh is uneven).

Which shortfall takes the label away (`Shortfall.takes_label`)?  One that is measured against a number that
does not move: the model's count or the GPU's own history.  The siblings' count falls when they lose links
too, and a label that it took away would come back with a lower bandwidth although the node got worse.  So a
GPU that is short of its siblings alone fails, and the label states what this weakest GPU has, unless it has
no link left.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from nodegauge_contract import NOT_READ, Gpu, Result
from nodegauge_contract.model import PASTED
from nodegauge_contract.nvlink import Doubt
from nodegauge_contract.values import Text
from nodegauge_judge.case import Case, once
from nodegauge_judge.gpu_models import Form, known_models
from nodegauge_judge.interconnect import board
from nodegauge_judge.interconnect.fabric import fabric_problem
from nodegauge_judge.visibility import is_complete


class Against(StrEnum):
    """What the expected sum comes from."""

    SIBLINGS = "siblings"
    HISTORY = "history"
    MODEL = "model"
    WIRING = "wiring"
    """Its board without switches, or whole bridges."""


class Shortfall(Struct, frozen=True, kw_only=True):
    """GPU `gpu_index` has `have` active links instead of `expected`; `model` and `past`: what its model and
    its history tell, 0 for nothing."""

    gpu_index: int
    have: int
    expected: int
    against: Against
    model: int
    past: int

    @property
    def ratio(self) -> float:
        """Share of the expected links that is there."""
        return self.have / self.expected

    def takes_label(self, limit: float) -> bool:
        """Whether the node loses its interconnect label; see the module's text."""
        fixed = max(self.model, self.past)
        return not self.have or (fixed > 0 and self.have / fixed < limit)


@once
def shortfalls(case: Case) -> list[Shortfall]:
    """Every GPU with fewer links than expected; none while NVML hides them or they are unclear."""
    if board.hides_links(case):
        return []
    return [
        short
        for gpu_index in range(len(case.lanes.sums))
        if (short := _shortfall(case, gpu_index)) is not None
    ]


def all_short(case: Case) -> int | None:
    """The links that the best GPU should have, if every GPU has fewer than its model has behind switches.

    One NVSwitch that is out takes the same links from all GPUs (two of twelve on HGX A100), so siblings
    agree.  The fabric manager either stops or routes around it (user guide, NVSWITCH_FAILURE_MODE); the
    counts do not tell which.
    """
    if not case.lanes.switched or not _countable(case) or board.may_be_partition(case):
        return None
    healthy = [board.links_behind_switch(gpu) for gpu in case.result.gpus]
    short = all(have < links for have, links in zip(case.lanes.sums, healthy, strict=True))
    return max(healthy) if short and not uncertain(case) else None


@once
def short_of_model(case: Case) -> frozenset[int]:
    """GPUs with fewer links than their model has: the history must not learn such a count as normal."""
    if all_short(case) is not None:
        return frozenset(range(len(case.lanes.sums)))
    return frozenset(short.gpu_index for short in shortfalls(case) if short.have < short.model)


def without_links(case: Case) -> list[int]:
    """GPUs without any active link that should have some, or could: modules, and boards of unknown form whose
    driver lists links that are down.

    A PCIe card without a bridge is healthy, however many links its driver lists.  A GPU whose shortfall or
    fabric has a finding of its own is left out, and so is the only GPU of a node: it has no peer.
    """
    if not _countable(case):
        return []
    explained = {short.gpu_index for short in shortfalls(case)} | uncertain(case)
    return [
        gpu_index
        for gpu_index, (gpu, have) in enumerate(zip(case.result.gpus, case.lanes.sums, strict=True))
        if not have and gpu_index not in explained and _could_have_links(gpu)
    ]


def _countable(case: Case) -> bool:
    """Whether the counts are those of a whole node with several GPUs."""
    read = is_complete(case) and not without_table(case.result)
    return read and len(case.result.gpus) > 1 and not board.hides_links(case)


def _could_have_links(gpu: Gpu) -> bool:
    form = board.form(gpu)
    known = form is Form.MODULE or (form is Form.UNKNOWN and board.idle_links(gpu) > 0)
    return known and not fabric_problem(gpu)


@once
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
    wiring = _by_wiring(case, gpu_index)
    if have >= max(siblings, past, wiring):
        return None
    model = board.links_behind_switch(gpu) if siblings and not board.may_be_partition(case) else 0
    expected, against = max(
        (siblings, Against.SIBLINGS),
        (past, Against.HISTORY),
        (model, Against.MODEL),
        (wiring, Against.WIRING),
        key=lambda e: e[0],
    )
    return Shortfall(
        gpu_index=gpu_index,
        have=have,
        expected=expected,
        against=against,
        model=max(model, wiring),
        past=past,
    )


def _by_wiring(case: Case, gpu_index: int) -> int:
    """Links that this GPU must have without switches: all, on a whole board of its model that was read and on
    which any are up; else what completes each pair that has some.  0 where nothing tells: a link that is
    unclear has two ends, and a hypervisor may have left links of modules out."""
    gpu, pairs = case.result.gpus[gpu_index], case.lanes.pair[gpu_index]
    link = known_models().find(gpu.name).nvlink
    partition = board.form(gpu) is not Form.CARD and board.may_be_partition(case)
    unclear = case.lanes.switched or uncertain(case) or not any(case.lanes.sums)
    if link is None or partition or unclear:
        return 0
    alike = sum(other.name == gpu.name for other in case.result.gpus) if is_complete(case) else 0
    completed = sum(-(-links // link.pair) * link.pair for links in pairs) if link.pair else 0
    return max(completed, known_models().find(gpu.name).links_without_switch(alike))


def _siblings(case: Case, gpu_index: int) -> int:
    """The largest sum among GPUs of the same model; 0 without switches, which make them equal."""
    return _most_of_model(case, case.result.gpus[gpu_index].name) if case.lanes.switched else 0


@once
def _most_of_model(case: Case, name: Text) -> int:
    named = isinstance(name, str) or case.result.probe == PASTED  # GPUs of a table are alike unless named
    alike = (i for i, gpu in enumerate(case.result.gpus) if named and gpu.name == name)
    return max((case.lanes.sums[i] for i in alike), default=0)


def _in_history(case: Case, gpu_index: int) -> int:
    """The link sum of earlier runs; 0 if a peer is missing, since its links are gone with it."""
    past = case.past(gpu_index)
    if past is None or not (case.lanes.switched or is_complete(case)):
        return 0
    return past.links.sum


def without_table(result: Result) -> bool:
    """Whether this is a paste without `topo -m`, which says nothing about NVLinks."""
    return result.probe == PASTED and not result.pairs.ancestor


def not_pasted(result: Result) -> tuple[str, ...]:
    """Which of P2P and fabric a paste leaves open.  A fabric state of N/A is an answer: there is none."""
    p2p = all((result.pairs.read, result.pairs.write, result.pairs.nvlink))
    fabric = all(gpu.fabric.state != NOT_READ for gpu in result.gpus)
    return tuple(name for name, known in (("P2P", p2p), ("fabric", fabric)) if not known)


def pasted_evidence(result: Result) -> str:
    """What a class and findings from a paste rest on."""
    if not result.gpus:
        return "from pasted text"
    unknown = " and ".join(not_pasted(result))
    return f"from a pasted table: {unknown} not known" if unknown else "from pasted tables"
