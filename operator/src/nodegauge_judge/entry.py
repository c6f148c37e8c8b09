"""One row of the findings catalogue: its codes and what a row must say."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from nodegauge_judge.model import Gate, Severity
from nodegauge_judge.rule import Effect, Probe


class Code(StrEnum):
    """Finding codes.  Values are stable: they stand in reports, metrics and alerts."""

    BUSBW_LOW = "busbw-low"
    BUSBW_BELOW_PEERS = "busbw-below-peers"
    BUSBW_DISAGREES = "busbw-disagrees"
    INTERCONNECT_CONTRADICTED = "interconnect-contradicted"
    PAIR_SLOW = "pair-slow"
    NCCL_WRONG_DATA = "nccl-wrong-data"
    NCCL_HANG = "nccl-hang"
    NCCL_FAILED = "nccl-failed"
    P2P_BROKEN = "p2p-broken"
    NVLS_BROKEN = "nvls-broken"
    SLOW_INIT = "slow-init"
    FEWER_GPUS = "fewer-gpus"
    NCCL_INCOMPLETE = "nccl-incomplete"
    NOT_GRADABLE = "not-gradable"


class Entry(Struct, frozen=True, kw_only=True):
    """One row: `title` is what is wrong in a few words, `when` says per severity what raises it, `gate` what
    a failure may put on the node and after how many runs in a row, `next_step` the first thing to do,
    `way_out` all of it in order (commands in backquotes)."""

    code: Code
    title: str
    meaning: str
    when: dict[Severity, str]
    next_step: str
    way_out: tuple[str, ...]
    gate: Gate | None = None
    effect: Effect = Effect.SEVERITY
    probe: Probe = Probe.HEALTH
