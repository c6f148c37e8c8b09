"""Is a node fast enough: compared with its floor, with similar nodes, and with its own previous run?

A cell of 1 GiB has a floor from an expectation or from its link rates.  Without that size, the largest size
with an expectation is graded.  The policy's expectations are graded at every size that they name.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from nodegauge_contract import ArmName, Collective
from nodegauge_contract.nccl import GRADED
from nodegauge_judge.model import Answer, Cause, Gate, GateKind, InterconnectClass, Scalar, Severity
from nodegauge_judge.nccl import floors
from nodegauge_judge.nccl.floors import Floor
from nodegauge_judge.nccl.grading import (
    Grading,
    NcclRule,
    cell_text,
    compared_headline,
    effective_gbps,
    gbps_text,
    headline_arm,
    of_node,
    run_key,
    size_text,
)
from nodegauge_judge.nccl.measurement import GIB, MeasuredArm, MeasuredCell, Measurement
from nodegauge_judge.peers import Standing, standing
from nodegauge_judge.rule import OWN_RUN, REPORT, VENDOR, Observation, Probe

CFS_PERIOD_MS = 100
"""The most that one throttled period costs.  Source: the kernel's default cpu.cfs_period_us."""
FAR_BELOW = 0.5
"""Share of a floor below which a single log of nccl-tests fails: nodegauge cannot repeat that run, and runs
of one machine do not differ so much.  Chosen by this project."""
_WITHOUT_NVLINK_RING = (InterconnectClass.PCIE.value, InterconnectClass.NVLINK_PAIRS.value)

Candidate = tuple[MeasuredArm, MeasuredCell, Floor]


class GradedCell(Struct, frozen=True, kw_only=True):
    """One cell and its floor."""

    cell: MeasuredCell
    arm: MeasuredArm
    gbps: float
    floor: Floor

    @property
    def below(self) -> bool:
        """Whether it is too slow."""
        return self.gbps < self.floor.gbps

    @property
    def gates(self) -> bool:
        """Whether it is so slow that it may set a taint."""
        return self.gbps < self.floor.gates_below


def graded_cells(grading: Grading) -> list[GradedCell]:
    """Every cell with a floor, the farthest below it first."""
    graded: dict[tuple[str, str], GradedCell] = {}
    for arm, cell, floor in (*_policy_candidates(grading), *_headline_candidates(grading)):
        gbps = _effective_busbw(grading.measurement, arm, cell)
        if gbps is not None:
            key = (arm.name, run_key(cell))
            graded.setdefault(key, GradedCell(cell=cell, arm=arm, gbps=gbps, floor=floor))
    return sorted(graded.values(), key=lambda graded_cell: graded_cell.gbps / graded_cell.floor.gbps)


def busbw_low(grading: Grading) -> Iterator[Observation]:
    """Collectives below their floor."""
    yield from [_low(grading, graded_cell) for graded_cell in graded_cells(grading) if graded_cell.below]


def answer_busbw(grading: Grading) -> Answer:
    """Bad below a floor that a published machine reaches, unsure below any other; good if all_reduce is above
    its floor, or if no floor can exist."""
    graded = graded_cells(grading)
    gating = [graded_cell for graded_cell in graded if graded_cell.gates]
    if gating:
        return Answer.UNSURE if _cpu_throttled(gating[0].arm, grading.measurement) else Answer.BAD
    if any(graded_cell.below for graded_cell in graded):
        return Answer.UNSURE
    if any(graded_cell.cell.collective is Collective.ALL_REDUCE for graded_cell in graded):
        return Answer.GOOD
    return Answer.GOOD if has_no_floor(grading) else Answer.UNSURE


def has_no_floor(grading: Grading) -> bool:
    """Whether link rates give no floor: GPUs that communicate through the host depend on its CPUs."""
    measurement, arm = grading.measurement, headline_arm(grading.measurement)
    if Collective.ALL_REDUCE not in grading.headlines or arm is None:
        return False
    p2p = floors.uses_p2p(arm)
    through_host = p2p is False or (p2p is True and measurement.through_cpu)
    return measurement.p2p_disabled or (through_host and measurement.interconnect in _WITHOUT_NVLINK_RING)


def among_peers(grading: Grading) -> Standing | None:
    """The node among comparable nodes, by all_reduce at 1 GiB; None without that or without peers."""
    headline, limits = compared_headline(grading.headlines), grading.thresholds
    fingerprint, share = grading.measurement.fingerprint, limits.busbw_peers_share
    if headline is None:
        return None
    return standing(grading.peers, fingerprint, own=headline.gbps, far_share=share, limits=limits)


def below_peers(grading: Grading) -> Iterator[Observation]:
    """Slower than comparable nodes."""
    headline, among = compared_headline(grading.headlines), among_peers(grading)
    if headline is None or among is None:
        return
    throttled = _cpu_throttled(headline.arm, grading.measurement)
    confirmed = BUSBW_BELOW_PEERS.code in grading.measurement.bad_codes and not throttled
    severity = among.severity(confirmed=confirmed)
    if severity is None:
        return
    own = f"{cell_text(headline.cell)} reaches {gbps_text(headline.gbps)}"
    yield of_node(
        severity,
        among.text(own, gbps_text(among.group.median), confirmed=confirmed),
        evidence={
            "busbw_gbps": _rounded(headline.gbps),
            "median_gbps": _rounded(among.group.median),
            "nodes": among.group.nodes,
            "short": round(among.short, 4),
        },
    )


def may_be_confirmed(grading: Grading) -> bool:
    """Whether a second run like this one shows a straggler: not if the CPU limit slowed it down."""
    headline, among = compared_headline(grading.headlines), among_peers(grading)
    if headline is None or among is None or _cpu_throttled(headline.arm, grading.measurement):
        return False
    return among.below and not among.group.crowded


def answer_peers(grading: Grading) -> Answer:
    """What the run says of the node among its peers; unsure if the CPU limit may have slowed it down."""
    headline, among = compared_headline(grading.headlines), among_peers(grading)
    if headline is None or among is None:
        return Answer.UNSURE
    throttled = among.answer is Answer.BAD and _cpu_throttled(headline.arm, grading.measurement)
    return Answer.UNSURE if throttled else among.answer


def runs_disagree(grading: Grading) -> Iterator[Observation]:
    """Collectives whose last two runs disagree."""
    yield from (
        of_node(
            Severity.INFO,
            f"{cell_text(headline.cell)}: {gbps_text(headline.runs[0])} in the previous run, "
            f"{gbps_text(headline.runs[1])} now; a third run will decide.",
            evidence={"before_gbps": _rounded(headline.runs[0]), "now_gbps": _rounded(headline.runs[1])},
            location=collective.value,
            weight=abs(headline.runs[0] - headline.runs[1]),
        )
        for collective, headline in grading.headlines.items()
        if headline.runs_disagree
    )


def _effective_busbw(measurement: Measurement, arm: MeasuredArm, cell: MeasuredCell) -> float | None:
    """GB/s that count for the cell, over several runs if there were some; None in an arm with wrong data."""
    now = None if any(other.wrong for other in arm.cells) else measurement.busbw(cell)
    runs = measurement.runs.get(run_key(cell)) if arm is headline_arm(measurement) else None
    return effective_gbps(runs) if runs and now is not None else now


def _policy_candidates(grading: Grading) -> Iterator[Candidate]:
    """Cells that the policy has an expectation for.

    The arm with NVLS disabled is held only to expectations for `nvls: false`; others describe what NCCL
    reaches by default.
    """
    measurement = grading.measurement
    default = headline_arm(measurement)
    for arm in measurement.arms:
        for cell in arm.cells if arm is default or arm.name == ArmName.NVLS_OFF else ():
            floor = floors.by_expectation(measurement, cell, arm, criteria=grading.criteria, policy_only=True)
            if floor is not None and (arm is default or floor.nvls is False):
                yield arm, cell, floor


def _headline_candidates(grading: Grading) -> Iterator[Candidate]:
    """For each collective 1 GiB, or else the largest size with a floor; in a log also all sizes above, for
    each of them may be another run's."""
    measurement = grading.measurement
    arm = headline_arm(measurement)
    if arm is None:
        return
    for collective in GRADED:
        cells = [cell for cell in arm.cells if cell.collective is collective]
        for cell in sorted(cells, key=lambda cell: (cell.bytes != GIB, -cell.bytes)):
            floor = floors.lowest_floor(measurement, cell, arm, criteria=grading.criteria)
            if floor is not None:
                yield arm, cell, floor
                if not measurement.from_log or cell.bytes < GIB:
                    break


def _cpu_throttled(arm: MeasuredArm, measurement: Measurement) -> bool:
    """Whether the CPU limit throttled the pod during at least half of the arm, which moves the median."""
    throttled_ms = measurement.throttled * CFS_PERIOD_MS
    return throttled_ms > 0 and throttled_ms * 2 >= (arm.measure_ms or 0)


def _low(grading: Grading, graded: GradedCell) -> Observation:
    measurement, floor = grading.measurement, graded.floor
    throttled = _cpu_throttled(graded.arm, measurement)
    repeated = BUSBW_LOW.code in measurement.bad_codes
    far_below = measurement.from_log and graded.gbps < FAR_BELOW * floor.gbps
    source = f" ({floor.source})" if floor.source else ""
    source += f"; the lowest that could apply, because {floor.assumed}" if floor.assumed else ""
    excuse = f" The CPU limit throttled the pod {measurement.throttled} times meanwhile." if throttled else ""
    where = graded.cell.collective.value
    where += f" at {size_text(graded.cell.bytes)}" if measurement.from_log else ""
    evidence: dict[str, Scalar] = {
        "collective": graded.cell.collective.value,
        "bytes": graded.cell.bytes,
        "ranks": measurement.ranks,
        "busbw_gbps": _rounded(graded.gbps),
        "floor_gbps": _rounded(floor.gbps),
        "floor": floor.basis,
        "arm": graded.arm.name,
    }
    if graded.cell.algorithm:
        evidence["algorithm"] = graded.cell.algorithm
    if floor.source:
        evidence["source"] = floor.source
    return of_node(
        Severity.FAIL if far_below or (repeated and graded.gates and not throttled) else Severity.WARN,
        f"{cell_text(graded.cell)} reaches {gbps_text(graded.gbps)} on {measurement.ranks} GPUs; the floor "
        f"is {gbps_text(floor.gbps)}: {floor.basis}{source}.{excuse}",
        evidence=evidence,
        weight=floor.gbps / max(graded.gbps, 1e-9),
        location=where,
    )


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


BUSBW_LOW = NcclRule(
    code="busbw-low",
    title="collectives are slower than they should be",
    meaning=(
        "A collective over all GPUs of the node is slower than its floor. The floor comes from an "
        "expectation of the policy or a [published one](expectations.md) for this GPU, count, size and "
        "algorithm, or else from a share of what the links can carry; the message says which. Every step of "
        "a training job waits for this."
    ),
    when={
        Severity.WARN: (
            "below the floor for the first time; or below it while the pod's CPU limit throttled the "
            "measurement for so long that it may be the cause; or below a floor from link rates that no "
            "published machine of this kind reaches, or that is derived from another size"
        ),
        Severity.FAIL: (
            "below any other floor in two runs in a row; or below half of any floor in a log of nccl-tests"
        ),
    },
    next_step="look for a slow pair, missing NVLinks or a low clock in the other findings.",
    way_out=(
        REPORT + " A `pair-slow` finding names the link; `nvlink-degraded`, `pcie-narrow` or a throttling "
        "finding is the usual cause.",
        "On the node: `nvidia-smi nvlink -s` (links that are down) and `nvidia-smi nvlink -e` (errors).",
        OWN_RUN,
        "If the floor does not fit this machine: add an entry to `spec.expectations` of the policy. The last "
        "result is graded again without a new run.",
        VENDOR,
    ),
    probe=Probe.NCCL,
    gate=Gate(kind=GateKind.UNHEALTHY, cause=Cause.BUSBW),
    check=busbw_low,
    answer=answer_busbw,
)
BUSBW_BELOW_PEERS = NcclRule(
    code="busbw-below-peers",
    title="collectives are slower than on comparable nodes",
    meaning=(
        "Nodes with the same GPUs, links, driver branch and NCCL version are faster. The node may still be "
        "above its floor, but equal machines should be equally fast, and the slowest one paces a job."
    ),
    when={
        Severity.INFO: (
            "all_reduce at 1 GiB is unusually slow for the first time, and another run follows; or a quarter "
            "of the comparable nodes are as slow. Unusually slow: below the median of at least eight "
            "comparable nodes by `peersWarn` (default 0.035) and by four of their standard deviations"
        ),
        Severity.WARN: (
            "unusually slow in two runs in a row; or, at once, below `busbwPeersShare` (default 0.85) of the "
            "median of at least three comparable nodes, this one included"
        ),
        Severity.FAIL: "unusually slow in two runs in a row, and now by `peersFail` (default 0.07) or more",
    },
    next_step="compare the node with a comparable one: clocks, power limit, BIOS settings, NVLink errors.",
    way_out=(
        "`kubectl get nodereports -o wide` lists the nodes with their numbers.",
        "`nvidia-smi -q -d CLOCK,POWER,PERFORMANCE` on both; `nvidia-smi nvlink -e` on both.",
        "BIOS version and settings and the fabric manager's version should be the same.",
    ),
    probe=Probe.NCCL,
    gate=Gate(kind=GateKind.UNHEALTHY, cause=Cause.BUSBW),
    check=below_peers,
    answer=answer_peers,
)
BUSBW_DISAGREES = NcclRule(
    code="busbw-disagrees",
    title="two NCCL runs disagree",
    meaning=(
        "A collective was clearly faster or slower than in the previous run. One of the two runs does not "
        "show what the node can do, so nodegauge asks for a third one and uses the median of the three. "
        "Until then the newest run counts."
    ),
    when={
        Severity.INFO: (
            "a collective differs from the previous run by more than `busbwDisagreement` (default 0.1) of "
            "the larger value"
        )
    },
    next_step="wait for the third run; nodegauge starts it by itself.",
    way_out=(
        REPORT,
        "If runs keep disagreeing, something else uses the machine (CPU load, another tenant, a throttling "
        "GPU). The health findings of the same hour say more.",
    ),
    probe=Probe.NCCL,
    check=runs_disagree,
)
