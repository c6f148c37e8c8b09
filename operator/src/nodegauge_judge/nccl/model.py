"""What a graded NCCL run says about its node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum

from msgspec import Struct

from nodegauge_judge.model import Answer, Finding, Verdict

Peers = Callable[[str], Sequence[float]]
"""By fingerprint: all_reduce busbw (GB/s at 1 GiB) of the other nodes with that fingerprint."""


def no_peers(_fingerprint: str) -> Sequence[float]:
    """No peers are known."""
    return ()


class Agreement(StrEnum):
    """Whether the measured bandwidth agrees with the interconnect that NVML reports.

    `unsure`: nothing confirms or contradicts it (no floor applies, one GPU, P2P disabled by the policy); the
    evidence label then stays `reported`.
    """

    CONFIRMED = "confirmed"
    CONTRADICTED = "contradicted"
    UNSURE = "unsure"


class NcclJudgement(Struct, frozen=True, kw_only=True):
    """The judgement of one NCCL run.

    `readable`: something was measured and could be graded.  `message`: one sentence on `agreement`, with the
    numbers behind it.  `busbw`: whole GB/s, rounded down, by collective at the size that labels use (1 GiB;
    smaller only if a finding says so).  `p2p_off`: all_reduce GB/s with P2P disabled.  `answers`: by code of
    each gated finding of the NCCL probe.  `again`: another run should follow soon (a first run below the
    floor, runs that disagree, a first hang).  `record`: text for the report, which `regrade` reads.
    `fingerprint`: equal for comparable nodes.  `reason`: PascalCase, why the run was unreadable or skipped.
    """

    verdict: Verdict
    readable: bool
    summary: str
    findings: list[Finding]
    answers: dict[str, Answer]
    agreement: Agreement
    message: str
    busbw: dict[str, int]
    p2p_off: float | None
    ranks: int
    expected: int
    again: bool
    record: str
    fingerprint: str
    reason: str = ""
