"""What the judge says of a benchmark, and what it keeps of one so that it can be graded again.

Grading works on a `Measured` alone, which a report can hold: other expectations, thresholds or peers give
another grade of the same numbers without a new run.  No rules live here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from nodegauge_judge.model import Answer, Finding, Verdict

MEMORY_LIMIT = 2048
"""Bytes of JSON of a `Measured` (design: raw inputs of 2 KiB at most)."""


class Agreement(StrEnum):
    """Whether bandwidth agrees with what NVML reports of the interconnect.

    `unsure`: nothing that could confirm or contradict (no row, one GPU, P2P off by policy, busy); the label
    then stays `reported`.
    """

    CONFIRMED = "confirmed"
    CONTRADICTED = "contradicted"
    UNSURE = "unsure"


class Expectation(Struct, frozen=True, rename="camel", kw_only=True):
    """One row: what so many GPUs of a model reach in one collective at one size.

    `gpu`: a glob over NVML's product name, case-insensitive ("*H100*HBM3*"); `count`: GPUs of the node that
    take part; `bytes`: message size; `nvls`: whether NCCL ran NVLS, null for whichever; `link`: nvlink, pcie
    or empty for any; `busbw`: GB/s (1e9) bus bandwidth as nccl-tests defines it; `floor`: GB/s below which it
    is too low, 0 for `busbwExpectedShare` of `busbw`; `source`: where the number is from, for people.
    `kind`: measured; accept-floor (`busbw` is itself the floor); or one that is never a floor: complaint
    (somebody measured that little and asked why) and reference (host memory or a model, to compare with).
    """

    gpu: Annotated[str, Meta(min_length=1, max_length=128)]
    count: Annotated[int, Meta(ge=2, le=64)]
    collective: Annotated[str, Meta(pattern="^(all_reduce|all_gather|reduce_scatter)$")]
    bytes: Annotated[int, Meta(ge=1, le=2**40)]
    busbw: Annotated[float, Meta(gt=0, le=100_000)]
    nvls: bool | None = None
    link: Annotated[str, Meta(pattern="^(nvlink|pcie)?$")] = ""
    floor: Annotated[float, Meta(ge=0, le=100_000)] = 0.0
    kind: Annotated[str, Meta(pattern="^(measured|accept-floor|complaint|reference)$")] = "measured"
    source: Annotated[str, Meta(max_length=512)] = ""


Peers = Callable[[str], Sequence[float]]
"""By fingerprint: the all_reduce bus bandwidths (GB/s, at 1 GiB) of the other nodes that have it."""


def nobody(_: str) -> Sequence[float]:
    """No peers are known."""
    return ()


class NcclJudgement(Struct, frozen=True, kw_only=True):
    """All that one benchmark says about a node.

    `readable`: something was measured and could be graded.  `busbw`: whole GB/s (rounded down) by collective
    at the largest size that the labels take (1 GiB; smaller only where the finding says so).  `p2p_off`:
    all_reduce GB/s of the host-memory path.  `answers`: for the catalogue's rows whose probe is nccl.
    `again`: another run is wanted soon (first time below the floor, runs that disagree, a first hang).
    `memory`: text for the report, what `regrade` reads; `fingerprint`: what makes nodes comparable.
    `reason`: PascalCase, why it is not readable or was skipped.
    """

    verdict: Verdict
    readable: bool
    summary: str
    findings: list[Finding]
    answers: dict[str, Answer]
    agreement: Agreement
    message: str
    """One sentence on the agreement: which number confirms or contradicts what."""
    busbw: dict[str, int]
    p2p_off: float | None
    ranks: int
    expected: int
    again: bool
    memory: str
    fingerprint: str
    reason: str = ""
