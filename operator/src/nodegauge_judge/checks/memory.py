"""Findings about a GPU's memory: errors that happened, and repairs that wait or failed.

Errors are judged by growth since the last run.  A count alone is no failure: it may be older than anybody's
interest, and a driver that starts to report it would flip healthy nodes; so without an earlier reading it
only warns.  What stays marked on a board (rows, pages, thresholds) is judged as it stands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nodegauge_contract import Gpu
from nodegauge_judge.absent import has_none
from nodegauge_judge.case import Case, Hit, full_name, gather, number, short_name
from nodegauge_judge.findings import Code
from nodegauge_judge.history.growth import GpuGrowth
from nodegauge_judge.model import Finding, Scalar, Severity

SET = ON = 1
OFF = 0


def ecc(case: Case) -> Iterator[Finding]:
    """GPUs whose memory made errors since the last run, or since the driver was loaded."""
    gpus = zip(case.result.gpus, case.growth.gpus, strict=True)
    yield from gather(Code.ECC, [hit for gpu, grown in gpus for hit in _errors(gpu, grown)])


def row_remap(case: Case) -> Iterator[Finding]:
    """GPUs whose memory waits for a repair, or can no longer be repaired."""
    yield from gather(Code.ROW_REMAP, [hit for gpu in case.result.gpus for hit in _repairs(gpu)])


def ecc_read(case: Case) -> bool:
    """Whether some GPU counts errors, and for each that does it is known that none came."""
    pairs = zip(case.result.gpus, case.growth.gpus, strict=True)
    known = [
        grown.ecc_uncorrected is not None or gpu.ecc.volatile_uncorrected == 0
        for gpu, grown in pairs
        if gpu.ecc.mode != OFF and not has_none(gpu.ecc.mode)
    ]
    return bool(known) and all(known)


def row_remap_read(case: Case) -> bool:
    """Whether some GPU, and every one that can say so, said that nothing failed."""
    gpus = case.result.gpus
    return any(isinstance(_failed_repair(gpu), int) for gpu in gpus) and all(_told(gpu) for gpu in gpus)


def _told(gpu: Gpu) -> bool:
    """With MIG on a GPU has no rows to tell of, whatever it had before: then it has not told."""
    repair, others = _failed_repair(gpu), (gpu.repair.unrepairable, gpu.ecc.sram_threshold)
    told = isinstance(repair, int) or (has_none(repair) and gpu.mig != ON)
    return told and all(isinstance(value, int) or has_none(value) for value in others)


def _failed_repair(gpu: Gpu) -> object:
    """That of rows where the GPU remaps them, else the pages that older ones retire."""
    return gpu.repair.pages_pending if has_none(gpu.repair.rows_failed) else gpu.repair.rows_failed


def _errors(gpu: Gpu, grown: GpuGrowth) -> Iterator[Hit]:
    count = number(gpu.ecc.volatile_uncorrected)
    if grown.ecc_uncorrected:
        message = f"{_errors_in_words(grown.ecc_uncorrected, 'uncorrectable')} since the last run."
        yield _hit(gpu, Severity.FAIL, message, _evidence(gpu, grown), weight=grown.ecc_uncorrected)
    elif count and grown.ecc_uncorrected is None:
        words = _errors_in_words(int(count), "uncorrectable")
        message = f"{words} since the driver was loaded; whether any is new is not known: {_why(grown)}."
        yield _hit(gpu, Severity.WARN, message, _evidence(gpu, grown), weight=count)
    elif count:
        words = _errors_in_words(int(count), "uncorrectable")
        message = f"{words} since the driver was loaded, none since the last run."
        yield _hit(gpu, Severity.INFO, message, _evidence(gpu, grown), weight=count)
    if grown.ecc_corrected:
        message = f"{_errors_in_words(grown.ecc_corrected, 'corrected')} since the last run."
        yield _hit(gpu, Severity.WARN, message, _evidence(gpu, grown), weight=grown.ecc_corrected)


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


def _repairs(gpu: Gpu) -> Iterator[Hit]:
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
        yield _hit(gpu, Severity.FAIL, message, evidence | {"failed": ", ".join(failed)}, weight=len(failed))
    if pending:
        message = f"Waits for a reset: {', '.join(pending)}."
        yield _hit(
            gpu, Severity.WARN, message, evidence | {"pending": ", ".join(pending)}, weight=len(pending)
        )


def _named(flags: Sequence[tuple[str, object]]) -> list[str]:
    """Words of the flags that are set."""
    return [words for words, value in flags if value == SET]


def _hit(gpu: Gpu, severity: Severity, message: str, evidence: dict[str, Scalar], *, weight: float) -> Hit:
    return Hit(
        severity=severity,
        place=full_name(gpu),
        short=short_name(gpu),
        message=message,
        evidence=evidence,
        weight=weight,
    )
