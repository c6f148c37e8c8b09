"""What a report keeps of one NCCL run: enough to grade it again in at most 2 KiB of text.

People and other versions of nodegauge can edit that text, so `Measurement.decode` returns None for anything
that it cannot trust.  What does not fit is dropped in a fixed order (`trimmed`): messages first, then small
sizes, then pairs.  The numbers behind labels and floors go last.  There are no rules here: `extract` fills a
Measurement, `judge` grades it.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from math import isfinite
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from nodegauge_contract import ArmName, Collective
from nodegauge_contract.nccl import busbw_factor
from nodegauge_judge.model import Answer, Finding, Verdict

VERSION = 1
NCCL_TESTS = "nccl-tests"
"""The engine in a result that was a log."""
GIB = 1 << 30
MIB = 1 << 20
RECORD_LIMIT = 2048
"""Bytes of JSON of a `Measurement`.  Chosen by this project, for a report below 8 KiB."""
MAX_GBPS = 1e6
"""GB/s above which a number is an error: a thousand times what any link carries."""
LANE_GBPS = {1: 0.25, 2: 0.5, 3: 0.984375, 4: 1.96875, 5: 3.9375, 6: 7.5625}
"""GB/s one way of one PCIe lane by generation.  Source: PCI-SIG's raw rates with their encoding; x16 carries
15.75 (3), 31.5 (4), 63 (5) and 121 (6)."""
_READ_LIMIT = 4 * RECORD_LIMIT

_Text = Annotated[str, Meta(max_length=128)]
_Count = Annotated[int, Meta(ge=0, le=2**53)]
_SmallCount = Annotated[int, Meta(ge=0, le=4096)]
_Gbps = Annotated[float, Meta(ge=0, le=MAX_GBPS)]


def busbw_gbps(collective: str, *, bytes: int, us: float, ranks: int) -> float:
    """Bus bandwidth in GB/s (1e9 bytes a second) of one call of `us` microseconds.

    `bytes` is the size that nccl-tests prints: the buffer for all_reduce, the total over all ranks for
    all_gather and reduce_scatter.  Raises ValueError unless `us` is positive.
    """
    if not us > 0:
        raise ValueError(f"{us} us: a call takes time")
    return bytes / us / 1e3 * busbw_factor(collective, ranks)


class MeasuredCell(Struct, frozen=True, array_like=True):
    """One collective at one size: microseconds per call, wrong elements (null: not checked), the algorithm
    that NCCL logged (empty: not logged), and whether the launch takes most of the call."""

    collective: Collective
    bytes: Annotated[int, Meta(ge=1, le=2**53)]
    us: Annotated[float, Meta(gt=0, le=1e12)]
    wrong: _Count | None = None
    algorithm: _Text = ""
    launch_bound: bool = False


class MeasuredArm(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One NCCL configuration and how its process ended; null or empty where a value could not be read."""

    name: _Text
    """An `ArmName`."""
    outcome: _Text = "done"
    """An `ArmOutcome`."""
    phase: _Text = ""
    """Where it was if it was ended, a `Phase`; else empty."""
    message: Annotated[str, Meta(max_length=512)] = ""
    """What NCCL, CUDA or the probe says about it."""
    start_ms: _Count | None = None
    """ms for communicators and kernels."""
    measure_ms: _Count | None = None
    """ms of measuring, with checks and pairs."""
    transport: _Text = ""
    """How NCCL connected the ranks, as it logged it."""
    nvls: bool | None = None
    """Whether NVLS channels were made."""
    cells: Annotated[tuple[MeasuredCell, ...], Meta(max_length=64)] = ()
    """What was measured, in the order of the result."""
    starts: _SmallCount = 1
    """How often it was started."""
    multicast: bool | None = None
    """Whether NCCL found what NVLS needs."""


class MeasuredPair(Struct, frozen=True, array_like=True):
    """Copies from one GPU to another, GB/s."""

    source: _Text
    target: _Text
    gbps: _Gbps


class PairGroup(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """All pairs with the same number of NVLinks.

    `count`: directions measured; `median_gbps`: their median; `slowest`: the slowest of them;
    `nvlink_gbps`: what the NVLinks of such a pair carry one way, null where the rate could not be read.
    """

    nvlinks: _SmallCount
    count: _SmallCount
    median_gbps: _Gbps
    nvlink_gbps: _Gbps | None = None
    slowest: Annotated[tuple[MeasuredPair, ...], Meta(max_length=16)] = ()


class Measurement(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One NCCL run on one node."""

    version: int = msgspec.field(default=0, name="v")
    """Version of this record, `VERSION`; another one is not read."""
    engine: _Text = ""
    """What measured, such as nccl4py; `NCCL_TESTS` for a log."""
    nccl: _Text = ""
    """Version of NCCL; empty if unknown."""
    driver: _Text = ""
    """Branch of the driver, the first number of its version; empty if unknown."""
    gpu: _Text = ""
    """Product name of the GPUs, several joined with a plus sign."""
    gpu_set: _Text = ""
    """Digest of the UUIDs of the GPUs that took part."""
    sm: _SmallCount | None = None
    """Lowest compute capability as NCCL counts it (90 is 9.0); null if one is unknown."""
    ranks: _SmallCount = 0
    """GPUs that took part."""
    expected: _SmallCount = 0
    """GPUs that the node should have; 0 if unknown."""
    nodes: _Count = 1
    """Machines that took part; 0 if unknown."""
    interconnect: _Text = ""
    """Class that NVML reported in the same result, an `InterconnectClass`; empty if unknown."""
    nvlink_gbps: _Gbps | None = None
    """NVLink rate per GPU that NVML reported in the same result, GB/s one way."""
    link_counts: _Text = ""
    """Histogram of links per GPU ("18x8": eight GPUs with 18), most links first."""
    nvswitch: bool = False
    """Whether at least one link leads to an NVSwitch."""
    pcie_gbps: _Gbps | None = None
    """One-way rate of the slowest GPU's PCIe link at its best, GB/s; null if unknown."""
    through_cpu: bool = False
    """Traffic between some GPUs leaves the PCIe switches, or the topology is unknown."""
    p2p_disabled: bool = False
    """The policy's environment, or that in a log, disables P2P."""
    nvls_disabled: bool = False
    """The policy's environment, or that in a log, disables NVLS."""
    virtual: bool = False
    """GPUs were passed through to a virtual machine."""
    missing: Annotated[tuple[_Text, ...], Meta(max_length=64)] = ()
    """Names of GPUs that took no part."""
    arms: Annotated[tuple[MeasuredArm, ...], Meta(max_length=8)] = ()
    """Its configurations, in the order of the result."""
    pairs: Annotated[tuple[PairGroup, ...], Meta(max_length=64)] = ()
    """Copies between two GPUs, most NVLinks first."""
    cut: Annotated[tuple[_Text, ...], Meta(max_length=64)] = ()
    """What did not fit the budget, as in `NcclResult.cut`."""
    throttled: _Count = 0
    """Periods in which the CPU limit throttled the pod; 0 also if unread."""
    problem: Annotated[str, Meta(max_length=512)] = ""
    """Why the run ended early; empty if it did not."""
    runs: Annotated[
        dict[str, Annotated[tuple[_Gbps, ...], Meta(min_length=1, max_length=3)]], Meta(max_length=16)
    ] = {}
    """GB/s of busbw by "collective/bytes": one accepted value, two that disagree, or three (median)."""
    bad_codes: Annotated[tuple[_Text, ...], Meta(max_length=16)] = ()
    """Codes that the previous run answered with "bad", and a failed NCCL of it."""

    @property
    def from_log(self) -> bool:
        """Whether it comes from a log of nccl-tests, without anything from the driver."""
        return self.engine == NCCL_TESTS and not self.driver and not self.interconnect

    def arm(self, name: ArmName) -> MeasuredArm | None:
        """The arm of that name; None if it did not run."""
        return next((arm for arm in self.arms if arm.name == name), None)

    def busbw(self, cell: MeasuredCell) -> float | None:
        """Bus bandwidth in GB/s; None for impossible numbers."""
        if self.ranks < 2:
            return None
        gbps = busbw_gbps(cell.collective, bytes=cell.bytes, us=cell.us, ranks=self.ranks)
        return gbps if isfinite(gbps) and gbps <= MAX_GBPS else None

    @property
    def fingerprint(self) -> str:
        """Nodes with the same fingerprint are comparable: GPU, count, NVLinks or none, driver branch, NCCL
        version.  A node that lost a link stays a peer: that is what the comparison looks for."""
        counts = (part.partition("x")[0] for part in self.link_counts.split(","))
        links = "nvlink" if any(count not in ("", "0") for count in counts) else ""
        return "|".join((self.gpu, str(self.ranks), links, self.driver, self.nccl))

    def encode(self) -> str:
        """JSON of at most `RECORD_LIMIT` bytes."""
        return msgspec.json.encode(trimmed(self)).decode()

    @classmethod
    def decode(cls, text: str) -> Measurement | None:
        """What `encode` wrote; None for anything else, which then counts as no earlier run."""
        try:
            if not text or len(text.encode()) > _READ_LIMIT:
                return None
            measurement = msgspec.json.decode(text, type=cls)
        except (msgspec.MsgspecError, RecursionError, UnicodeError, ValueError):
            return None
        if measurement.version != VERSION or not _printable(msgspec.to_builtins(measurement)):
            return None
        return measurement


def _printable(value: object) -> bool:
    """Whether all text is printable: an edited report must not send control characters to a terminal."""
    if isinstance(value, str):
        return value.isprintable()
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    keys = value if isinstance(value, dict) else ()
    return all(_printable(part) for part in (*keys, *inner))


def trimmed(measurement: Measurement) -> Measurement:
    """As much of it as a report keeps."""
    for smaller in _shrinking(measurement):
        if len(msgspec.json.encode(smaller)) <= RECORD_LIMIT:
            return smaller
    return Measurement(version=VERSION)


def _shrinking(measurement: Measurement) -> Iterator[Measurement]:
    """The measurement, then ever smaller versions of it."""
    yield measurement
    for limit in (96, 32):
        arms = tuple(replace(arm, message=arm.message[:limit]) for arm in measurement.arms)
        measurement = replace(measurement, arms=arms, problem=measurement.problem[: 2 * limit])
        yield measurement
    measurement = _without_cells_below(measurement, MIB)
    measurement = replace(measurement, cut=measurement.cut[:4], missing=measurement.missing[:4])
    yield measurement
    for limit in (3, 1):
        groups = tuple(replace(group, slowest=group.slowest[:limit]) for group in measurement.pairs)
        measurement = replace(measurement, pairs=groups)
        yield measurement
    yield replace(measurement, pairs=measurement.pairs[:2])
    measurement = _without_cells_below(measurement, 64 * MIB)
    measurement = replace(measurement, pairs=(), cut=(), missing=(), problem="")
    yield measurement
    arms = tuple(replace(arm, message="", cells=arm.cells[:4]) for arm in measurement.arms)
    yield replace(measurement, arms=arms)


def _without_cells_below(measurement: Measurement, size: int) -> Measurement:
    """Drop small sizes, which measure latency and are never graded; cells with wrong data always stay."""
    arms = (
        replace(arm, cells=tuple(cell for cell in arm.cells if cell.bytes >= size or cell.wrong))
        for arm in measurement.arms
    )
    return replace(measurement, arms=tuple(arms))


class Agreement(StrEnum):
    """Whether the measured bandwidth agrees with the interconnect that NVML reports.

    `unsure`: nothing confirms or contradicts it (no floor applies, one GPU, P2P disabled by the policy); the
    evidence label then stays `reported`.
    """

    CONFIRMED = "confirmed"
    CONTRADICTED = "contradicted"
    UNSURE = "unsure"


class NcclJudgement(Struct, frozen=True, kw_only=True):
    """The judgement of one NCCL run."""

    verdict: Verdict
    """The worst finding; skipped or unknown if nothing could be graded."""
    readable: bool
    """Whether something was measured and could be graded."""
    summary: str
    """One sentence for people."""
    findings: list[Finding]
    """The worst first, one per code and severity."""
    answers: dict[str, Answer]
    """By code of each gated finding of the NCCL probe; empty if unreadable."""
    agreement: Agreement
    """Whether the bandwidth agrees with the interconnect that NVML reports."""
    message: str
    """One sentence on `agreement`, with the numbers behind it; why the run is unreadable, if it is."""
    busbw: dict[str, int]
    """Whole GB/s, rounded down, by collective at 1 GiB (smaller only if a finding says so, larger only in a
    log)."""
    p2p_off: float | None
    """all_reduce with P2P disabled, GB/s; None if not measured."""
    ranks: int
    """GPUs that took part."""
    expected: int
    """GPUs that the node should have; 0 if unknown."""
    again: bool
    """Whether another run should follow soon: a first one that is bad, or runs that disagree."""
    record: str
    """Text for the report, which `regrade` reads."""
    fingerprint: str
    """Equal for comparable nodes; empty if all_reduce was not measured at 1 GiB."""
    reason: str = ""
    """PascalCase, why the run was unreadable or skipped; empty if it was readable."""
    locations: list[Finding] = []
    """The findings, one per location."""
