"""Rules about what loaded GPUs computed: whether it is right, and as fast as elsewhere.

A wrong result is one that differs from what the same instructions gave before, or on the CPU.  Where every
GPU has the same unexpected checksum, the probe is more likely wrong than all of them; one GPU alone, too,
because its checksum is what most of its hundreds of warps agree on, and faults of a chip are not alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nodegauge_judge.case import identity, number, text
from nodegauge_judge.loadtest_rules.case import LoadCase, Loaded, LoadRule, Value, answered, positive
from nodegauge_judge.loadtest_rules.slowdown import is_slowed
from nodegauge_judge.model import Answer, Cause, Gate, GateKind, Scalar, Severity
from nodegauge_judge.peers import Standing, standing
from nodegauge_judge.rule import (
    DRAIN,
    DRIVER_LOG,
    REPORT,
    RESET,
    SAVE,
    SAVE_FIRST,
    VENDOR,
    Observation,
    Probe,
)


def corruption(case: LoadCase) -> Iterator[Observation]:
    """GPUs that computed or stored something wrong."""
    common = _common_checksum(case)
    for loaded in case.gpus:
        wrong, stored = number(loaded.load.mismatches) or 0, number(loaded.load.memory_mismatches) or 0
        other = _unexpected(loaded) and not common
        if wrong <= 0 and stored <= 0 and not other:
            continue
        parts = [f"{wrong:g} wrong results in {loaded.load.checks} checked launches"] if wrong > 0 else []
        parts += [f"{stored:g} pieces of memory (16 bytes) read back differently"] if stored > 0 else []
        parts += ["its checksum is not the one that the CPU computed"] if other and not wrong else []
        evidence: dict[str, Scalar] = {
            "mismatches": wrong,
            "memory_mismatches": stored,
            "checks": loaded.load.checks,
        }
        yield loaded.observed(
            Severity.FAIL,
            f"{'; '.join(parts)[0].upper()}{'; '.join(parts)[1:]}: this GPU corrupts data silently.",
            evidence,
            weight=wrong + stored,
        )


def checksum_unexpected(case: LoadCase) -> Iterator[Observation]:
    """All GPUs have the same checksum, and it is not the expected one."""
    if _common_checksum(case):
        yield Observation(
            severity=Severity.WARN,
            location="all GPUs",
            message=(
                "All GPUs agree on a checksum that the CPU did not compute: the kernel or the probe is wrong."
            ),
            evidence={
                "checksum": text(case.gpus[0].load.checksum),
                "expected": text(case.gpus[0].load.expected),
            },
        )


def slow_gpu(case: LoadCase) -> Iterator[Observation]:
    """GPUs that compute more slowly than their identical siblings, with no slowdown that explains it."""
    return _below_siblings(case, lambda loaded: positive(loaded.load.tflops), unit="TFLOPS", key="tflops")


def slow_memory(case: LoadCase) -> Iterator[Observation]:
    """GPUs whose memory is slower than that of their identical siblings."""
    return _below_siblings(
        case, lambda loaded: positive(loaded.load.memory_gbps), unit="GB/s", key="memory_gbps"
    )


def below_peers(case: LoadCase) -> Iterator[Observation]:
    """A node whose median GPU computes more slowly than those of comparable nodes."""
    own, among = case.tflops, _among_peers(case, case.tflops)
    confirmed = _was_below(case)
    severity = None if among is None else among.severity(confirmed=confirmed)
    if own is None or among is None or severity is None:
        return
    usual = among.group.median
    yield Observation(
        severity=severity,
        location="all GPUs",
        message=among.text(f"{own:.4g} TFLOPS", f"{usual:.4g} TFLOPS", confirmed=confirmed),
        evidence={
            "tflops": round(own, 1),
            "usual_tflops": round(usual, 1),
            "nodes": among.group.nodes,
            "short": round(among.short, 4),
        },
        gpus=tuple(identity(loaded.gpu) for loaded in case.gpus),
    )


def answer_peers(case: LoadCase) -> Answer:
    """What the run says of the node among its peers; a light load says nothing."""
    among = _among_peers(case, case.tflops)
    if among is None:
        return Answer.NO_LOAD if case.light else Answer.UNSURE
    return among.answer


def _among_peers(case: LoadCase, own: float | None) -> Standing | None:
    share, limits = case.thresholds.load_peers_share, case.thresholds
    return standing(case.peers, case.fingerprint, own=own or 0.0, far_share=share, limits=limits)


def _was_below(case: LoadCase) -> bool:
    """Whether the run before was unusual, too, by what is usual now."""
    fingerprint, tflops = case.previous or ("", 0.0)
    before = _among_peers(case, tflops) if fingerprint == case.fingerprint else None
    return before is not None and before.below


def _below_siblings(case: LoadCase, value: Value, *, unit: str, key: str) -> Iterator[Observation]:
    limits = case.thresholds
    for loaded, own, others, count in case.against_siblings(value):
        if own >= limits.load_slow_warn * others or is_slowed(case, loaded):
            continue
        share = own / others
        failed = share < limits.load_slow_fail
        limit = limits.load_slow_fail if failed else limits.load_slow_warn
        siblings = f"{count} like GPU{'s' if count > 1 else ''}"
        yield loaded.observed(
            Severity.FAIL if failed else Severity.WARN,
            f"{own:.4g} {unit}; the median of {siblings} is {others:.4g}: {share:.0%}, below {limit:.0%}.",
            {key: round(own, 1), f"siblings_{key}": round(others, 1), "share": round(share, 3)},
            weight=1 - share,
        )


def _unexpected(loaded: Loaded) -> bool:
    checksum, expected = text(loaded.load.checksum), text(loaded.load.expected)
    return bool(checksum and expected) and checksum != expected


def _common_checksum(case: LoadCase) -> bool:
    """All GPUs have the same unexpected checksum, and no mismatch."""
    sums = {text(loaded.load.checksum) for loaded in case.gpus}
    steady = all(not (number(loaded.load.mismatches) or 0) for loaded in case.gpus)
    return len(sums) == 1 and steady and all(_unexpected(loaded) for loaded in case.gpus)


def answer_corruption(case: LoadCase) -> Answer:
    """Good only if every GPU's results were checked; a light load shows wrong results too, but not all."""
    checked = all(
        loaded.load.checks > 0 and number(loaded.load.mismatches) is not None for loaded in case.gpus
    )
    return answered(
        case, bad=any(True for _ in corruption(case)), read=checked and not _common_checksum(case)
    )


def _answer(check: Callable[[LoadCase], Iterator[Observation]], value: Value) -> Callable[[LoadCase], Answer]:
    def answer(case: LoadCase) -> Answer:
        bad = any(seen.severity is Severity.FAIL for seen in check(case))
        compared = len(list(case.against_siblings(value))) == len(case.finished)
        explained = any(is_slowed(case, loaded) for loaded in case.finished)
        return answered(case, bad=bad, read=compared and not explained)

    return answer


_WHEN_SLOW = {
    Severity.WARN: "below `loadSlowWarn` (0.92) of the median of its identical siblings",
    Severity.FAIL: "below `loadSlowFail` (0.8) of it",
}
_MEANING_SLOW = (
    "GPUs of the same model and power limit run the same kernel at the same time. No slowdown explains it, "
    "but this one"
)
_COMPARE = (
    "`nvidia-smi -q -d CLOCK,POWER,PERFORMANCE,ECC,ROW_REMAPPER -i INDEX`, and the same for another GPU."
)

RULES = (
    LoadRule(
        code="load-corruption",
        title="a GPU computes wrong results",
        meaning=(
            "The same instructions on the same data gave another result, or memory did not return what was "
            "written, and no error was raised: silent data corruption. Jobs on this GPU may train on "
            "garbage, crash or diverge."
        ),
        when={
            Severity.FAIL: (
                "any checked result or piece of memory differs, or the checksum is not the CPU's (unless "
                "all GPUs have the same)"
            )
        },
        next_step=f"drain the node; {SAVE_FIRST}. The GPU needs to be replaced.",
        way_out=(
            DRAIN,
            SAVE,
            DRIVER_LOG,
            RESET,
            "Repeat the load run (`spec.requestedAt`). A GPU with wrong results once is not to be trusted "
            "again: replace it through your vendor, with the serial number of this finding.",
            "Check what ran on the node since the last good load run.",
        ),
        probe=Probe.LOAD,
        gate=Gate(kind=GateKind.UNHEALTHY, cause=Cause.CORRUPTION, runs=1),
        check=corruption,
        answer=answer_corruption,
    ),
    LoadRule(
        code="load-slow-gpu",
        title="a GPU computes more slowly than the others",
        meaning=f"{_MEANING_SLOW} computes more slowly. The slowest GPU paces a job.",
        when=_WHEN_SLOW,
        next_step="compare its clocks, power and errors with those of another GPU of the node.",
        way_out=(_COMPARE, SAVE, DRAIN, RESET, VENDOR),
        probe=Probe.LOAD,
        gate=Gate(kind=GateKind.UNHEALTHY, cause=Cause.SLOW_GPU),
        check=slow_gpu,
        answer=_answer(slow_gpu, lambda loaded: positive(loaded.load.tflops)),
    ),
    LoadRule(
        code="load-slow-memory",
        title="a GPU's memory is slower than the others'",
        meaning=f"{_MEANING_SLOW} copies within its memory more slowly.",
        when=_WHEN_SLOW,
        next_step=(
            "compare its memory clock, ECC errors and remapped rows with those of another GPU of the node."
        ),
        way_out=(_COMPARE, SAVE, DRAIN, RESET, VENDOR),
        probe=Probe.LOAD,
        gate=Gate(kind=GateKind.UNHEALTHY, cause=Cause.SLOW_GPU),
        check=slow_memory,
        answer=_answer(slow_memory, lambda loaded: positive(loaded.load.memory_gbps)),
    ),
    LoadRule(
        code="load-below-peers",
        title="the node computes more slowly than comparable nodes",
        meaning=(
            "Nodes with the same number of the same GPUs, power limit, kernel, duration and driver "
            "branch reach more TFLOPS "
            "per GPU. Warm air, another BIOS or clock setting, or old boards slow a whole node."
        ),
        when={
            Severity.INFO: (
                "the median GPU is unusually slow for the first time; or a quarter of the comparable nodes "
                "are as slow. Unusually slow: below the median of at least eight comparable nodes by "
                "`peersWarn` (0.035) and by four of their standard deviations"
            ),
            Severity.WARN: (
                "unusually slow in two runs in a row; or, at once, below `loadPeersShare` (0.9) of the "
                "median of at least three comparable nodes, this one included"
            ),
            Severity.FAIL: "unusually slow in two runs in a row, and now by `peersFail` (0.07) or more",
        },
        next_step="compare clocks, power limit and temperatures with those of a comparable node.",
        way_out=(
            "`kubectl get nodereports -o jsonpath='{range .items[*]}{.metadata.name} "
            '{.status.load.tflops}{"\\n"}{end}\'`'
            " lists the nodes with their TFLOPS.",
            "`nvidia-smi -q -d CLOCK,POWER,TEMPERATURE,PERFORMANCE` on both.",
        ),
        probe=Probe.LOAD,
        gate=Gate(kind=GateKind.UNHEALTHY, cause=Cause.SLOW_GPU),
        check=below_peers,
        answer=answer_peers,
    ),
    LoadRule(
        code="load-checksum-unexpected",
        title="all GPUs agree on an unexpected checksum",
        meaning=(
            "Every GPU computed the same checksum, and it is not the CPU's. All GPUs broken alike is less "
            "likely than a kernel that this GPU or driver treats differently: nodegauge cannot check "
            "results here."
        ),
        when={Severity.WARN: "at least two GPUs, all with the same unexpected checksum"},
        next_step="report it to the project with the output of `python -m nodegauge_probes load`.",
        way_out=(REPORT, "Run the probe with another driver version, or on another node of the same model."),
        probe=Probe.LOAD,
        check=checksum_unexpected,
    ),
)
