"""Findings about a GPU's memory: errors that happened, and repairs that wait or failed.

Errors are judged by growth since the last run.  A count alone is no failure: it may be older than anybody's
interest, and a driver that starts to report it would flip healthy nodes; so without an earlier reading it
only warns.  What stays marked on a board (rows, pages, thresholds) is judged as it stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from nodegauge_contract import Gpu
from nodegauge_judge.case import Case, HealthRule, is_not_supported, number, of_gpu
from nodegauge_judge.history.growth import GpuGrowth
from nodegauge_judge.model import Cause, Gate, GateKind, Scalar, Severity
from nodegauge_judge.rule import Observation
from nodegauge_judge.rules.steps import DRAIN, DRIVER_LOG, RESET, VENDOR

SET = ON = 1
OFF = 0


def ecc(case: Case) -> Iterable[Observation]:
    """GPUs whose memory made errors since the last run, or since the driver was loaded."""
    gpus = zip(case.result.gpus, case.growth.gpus, strict=True)
    return [hit for gpu, grown in gpus for hit in _errors(gpu, grown)]


def row_remap(case: Case) -> Iterable[Observation]:
    """GPUs whose memory waits for a repair, or can no longer be repaired."""
    return [hit for gpu in case.result.gpus for hit in _repairs(gpu)]


def ecc_read(case: Case) -> bool:
    """Whether some GPU counts errors, and for each that does it is known that none came."""
    pairs = zip(case.result.gpus, case.growth.gpus, strict=True)
    known = [
        grown.ecc_uncorrected is not None or gpu.ecc.volatile_uncorrected == 0
        for gpu, grown in pairs
        if gpu.ecc.mode != OFF and not is_not_supported(gpu.ecc.mode)
    ]
    return bool(known) and all(known)


def row_remap_read(case: Case) -> bool:
    """Whether some GPU, and every one that can say so, said that nothing failed."""
    gpus = case.result.gpus
    return any(isinstance(_failed_repair(gpu), int) for gpu in gpus) and all(_told(gpu) for gpu in gpus)


def _told(gpu: Gpu) -> bool:
    """With MIG on a GPU has no rows to tell of, whatever it had before: then it has not told."""
    repair, others = _failed_repair(gpu), (gpu.repair.unrepairable, gpu.ecc.sram_threshold)
    told = isinstance(repair, int) or (is_not_supported(repair) and gpu.mig != ON)
    return told and all(isinstance(value, int) or is_not_supported(value) for value in others)


def _failed_repair(gpu: Gpu) -> object:
    """That of rows where the GPU remaps them, else the pages that older ones retire."""
    return gpu.repair.pages_pending if is_not_supported(gpu.repair.rows_failed) else gpu.repair.rows_failed


def _errors(gpu: Gpu, grown: GpuGrowth) -> Iterator[Observation]:
    count = number(gpu.ecc.volatile_uncorrected)
    if grown.ecc_uncorrected:
        message = f"{_errors_in_words(grown.ecc_uncorrected, 'uncorrectable')} since the last run."
        yield of_gpu(gpu, Severity.FAIL, message, _evidence(gpu, grown), weight=grown.ecc_uncorrected)
    elif count and grown.ecc_uncorrected is None:
        words = _errors_in_words(int(count), "uncorrectable")
        message = f"{words} since the driver was loaded; whether any is new is not known: {_why(grown)}."
        yield of_gpu(gpu, Severity.WARN, message, _evidence(gpu, grown), weight=count)
    elif count:
        words = _errors_in_words(int(count), "uncorrectable")
        message = f"{words} since the driver was loaded, none since the last run."
        yield of_gpu(gpu, Severity.INFO, message, _evidence(gpu, grown), weight=count)
    if grown.ecc_corrected:
        message = f"{_errors_in_words(grown.ecc_corrected, 'corrected')} since the last run."
        yield of_gpu(gpu, Severity.WARN, message, _evidence(gpu, grown), weight=grown.ecc_corrected)


def _why(grown: GpuGrowth) -> str:
    return grown.why("ecc_uncorrected") or "there is no earlier reading to compare with"


def _errors_in_words(count: int, kind: str) -> str:
    return f"{count} {kind} memory error{'' if count == 1 else 's'}"


def _evidence(gpu: Gpu, grown: GpuGrowth) -> dict[str, Scalar]:
    values = {
        "uncorrected_growth": grown.ecc_uncorrected,
        "corrected_growth": grown.ecc_corrected,
        "volatile_uncorrected": number(gpu.ecc.volatile_uncorrected),
        "aggregate_uncorrected": number(gpu.ecc.aggregate_uncorrected),
    }
    return {name: value for name, value in values.items() if value is not None}


def _repairs(gpu: Gpu) -> Iterator[Observation]:
    repair = gpu.repair
    failed = _named(
        (
            ("a row remap failed", repair.rows_failed),
            ("memory that cannot be repaired", repair.unrepairable),
            ("errors in SRAM passed the driver's threshold", gpu.ecc.sram_threshold),
        )
    )
    pending = _named(
        (
            ("a row remap", repair.rows_pending),
            ("a page retirement", repair.pages_pending),
            ("a channel repair", repair.channels_pending),
            ("a TPC repair", repair.tpcs_pending),
        )
    )
    values = {
        "rows_corrected": repair.rows_corrected,
        "rows_uncorrected": repair.rows_uncorrected,
        "pages_single_bit": repair.pages_single_bit,
        "pages_double_bit": repair.pages_double_bit,
    }
    evidence: dict[str, Scalar] = {name: value for name, value in values.items() if isinstance(value, int)}
    if failed:
        message = f"The driver reports: {', '.join(failed)}."
        yield of_gpu(
            gpu, Severity.FAIL, message, evidence | {"failed": ", ".join(failed)}, weight=len(failed)
        )
    if pending:
        message = f"Waits for a reset: {', '.join(pending)}."
        yield of_gpu(
            gpu, Severity.WARN, message, evidence | {"pending": ", ".join(pending)}, weight=len(pending)
        )


def _named(flags: Sequence[tuple[str, object]]) -> list[str]:
    """Words of the flags that are set."""
    return [words for words, value in flags if value == SET]


ECC = HealthRule(
    code="ecc",
    title="memory errors (ECC)",
    meaning=(
        "The GPU's memory returned wrong bits. Corrected ones cost nothing but are a sign of wear; "
        "uncorrectable ones ended or corrupted whatever used that memory. Counts since the driver was "
        "loaded say little by themselves, so what counts is that they grew since the last run; on a "
        "first run, or after the counters restarted, a count is only a warning."
    ),
    when={
        Severity.INFO: (
            "uncorrectable errors since the driver was loaded, but none since the last run (the past is "
            "not judged again)"
        ),
        Severity.WARN: (
            "correctable errors since the last run; or uncorrectable ones since the driver was loaded "
            "with no earlier reading to compare with"
        ),
        Severity.FAIL: "uncorrectable errors since the last run",
    },
    gate=Gate(kind=GateKind.UNHEALTHY, cause=Cause.MEMORY, runs=1),
    next_step="drain the node if it failed, then `nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT`.",
    way_out=(
        "`nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT` on the node: which GPU, which memory.",
        DRIVER_LOG + " Xid 48, 94 and 95 are uncorrectable errors, 92 many correctable ones.",
        DRAIN,
        "A reset lets the driver take the bad memory out of use. " + RESET,
        VENDOR,
    ),
    check=ecc,
    readable=ecc_read,
)
ROW_REMAP = HealthRule(
    code="row-remap",
    title="GPU memory needs a repair",
    meaning=(
        "Bad memory is replaced by spare rows (Ampere and newer) or left out page by page (older), which "
        "takes effect with the next reset. While that is pending the GPU works with memory that is known "
        "to be bad. When no spare is left, or errors in on-chip memory (SRAM) passed the driver's own "
        "limit, no reset helps: the board has to go."
    ),
    when={
        Severity.WARN: "a row remap, page retirement, channel or TPC repair waits for a reset",
        Severity.FAIL: (
            "a row remap failed, memory cannot be repaired, or SRAM errors passed the driver's threshold"
        ),
    },
    gate=Gate(kind=GateKind.UNHEALTHY, cause=Cause.MEMORY),
    next_step="pending: drain the node and reset the GPU; failed: hand the board to your vendor.",
    way_out=(
        "`nvidia-smi -q -d ROW_REMAPPER,PAGE_RETIREMENT,ECC` on the node says pending or failed.",
        DRAIN,
        "Pending: " + RESET[0].lower() + RESET[1:],
        "Failed, or over the SRAM threshold: hand the board to your vendor with "
        "`nvidia-bug-report.sh` output.",
    ),
    check=row_remap,
    readable=row_remap_read,
)

RULES = (
    ECC,
    ROW_REMAP,
)
