"""Rules about a GPU's memory: errors, and repairs that wait or failed.

Errors are judged by their growth since the last run.  A total may be old, and a driver that starts to report
it would fail healthy nodes, so without an earlier reading it only warns.  Marks on the board (rows, pages,
thresholds) are judged as they are.

Both rules have the cause `memory` but need different proof: an uncorrectable error counts at once (one run),
a mark is read again before the node is tainted (two runs).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nodegauge_contract import Gpu
from nodegauge_judge.case import Case, HealthRule, is_not_supported, number, of_gpu
from nodegauge_judge.history.growth import GpuGrowth
from nodegauge_judge.model import Cause, Gate, GateKind, Scalar, Severity
from nodegauge_judge.rule import DRAIN, DRIVER_LOG, RESET, SAVE, SAVE_FIRST, VENDOR, Observation

SET = ON = 1
OFF = 0


def ecc(case: Case) -> Iterator[Observation]:
    """GPUs whose memory made errors since the last run, or since the driver was loaded."""
    for gpu, growth in zip(case.result.gpus, case.growth.gpus, strict=True):
        yield from _errors(gpu, growth)


def row_remap(case: Case) -> Iterator[Observation]:
    """GPUs whose memory waits for a repair, or can no longer be repaired."""
    for gpu in case.result.gpus:
        yield from _repairs(gpu)


def ecc_read(case: Case) -> bool:
    """Whether at least one GPU counts errors, and every GPU that does is known to have no new ones."""
    pairs = zip(case.result.gpus, case.growth.gpus, strict=True)
    known = [
        growth.ecc_uncorrected is not None or gpu.ecc.volatile_uncorrected == 0
        for gpu, growth in pairs
        if gpu.ecc.mode != OFF and not is_not_supported(gpu.ecc.mode)
    ]
    return bool(known) and all(known)


def row_remap_read(case: Case) -> bool:
    """Whether at least one GPU reports repairs, and every GPU that supports it answered."""
    gpus = case.result.gpus
    return any(isinstance(_failed_repair(gpu), int) for gpu in gpus) and all(
        _repairs_read(gpu) for gpu in gpus
    )


def _repairs_read(gpu: Gpu) -> bool:
    """With MIG on, a GPU reports no rows although it has them: that is not an answer."""
    repair, others = _failed_repair(gpu), (gpu.repair.unrepairable, gpu.ecc.sram_threshold)
    answered = isinstance(repair, int) or (is_not_supported(repair) and gpu.mig != ON)
    return answered and all(isinstance(value, int) or is_not_supported(value) for value in others)


def _failed_repair(gpu: Gpu) -> object:
    """The flag of a failed row remap; on older GPUs, which retire pages, the pending pages."""
    return gpu.repair.pages_pending if is_not_supported(gpu.repair.rows_failed) else gpu.repair.rows_failed


def _errors(gpu: Gpu, growth: GpuGrowth) -> Iterator[Observation]:
    count = number(gpu.ecc.volatile_uncorrected)
    if growth.ecc_uncorrected:
        message = f"{_count(growth.ecc_uncorrected, 'uncorrectable')} since the last run."
        yield of_gpu(gpu, Severity.FAIL, message, _evidence(gpu, growth), weight=growth.ecc_uncorrected)
    elif count and growth.ecc_uncorrected is None:
        errors = _count(int(count), "uncorrectable")
        message = f"{errors} since the driver was loaded; some may be old: {_why(growth)}."
        yield of_gpu(gpu, Severity.WARN, message, _evidence(gpu, growth), weight=count)
    elif count:
        message = (
            f"{_count(int(count), 'uncorrectable')} since the driver was loaded, none since the last run."
        )
        yield of_gpu(gpu, Severity.INFO, message, _evidence(gpu, growth), weight=count)
    if growth.ecc_corrected:
        message = f"{_count(growth.ecc_corrected, 'corrected')} since the last run."
        yield of_gpu(gpu, Severity.WARN, message, _evidence(gpu, growth), weight=growth.ecc_corrected)


def _why(growth: GpuGrowth) -> str:
    return growth.why("ecc_uncorrected") or "there is no earlier reading to compare with"


def _count(count: int, kind: str) -> str:
    return f"{count} {kind} memory error{'' if count == 1 else 's'}"


def _evidence(gpu: Gpu, growth: GpuGrowth) -> dict[str, Scalar]:
    values = {
        "uncorrected_growth": growth.ecc_uncorrected,
        "corrected_growth": growth.ecc_corrected,
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
    """Names of the flags that are set."""
    return [name for name, value in flags if value == SET]


RULES = (
    HealthRule(
        code="ecc",
        title="memory errors (ECC)",
        meaning=(
            "The GPU's memory returned wrong bits. Corrected errors cost nothing, but they are a sign of "
            "ageing; uncorrectable errors ended or corrupted whatever used that memory. nodegauge judges "
            "how much the count grew since the last run, since the total may be old. On a first run, or "
            "after the counters restarted, a count only warns."
        ),
        when={
            Severity.INFO: "uncorrectable errors since the driver was loaded, but none since the last run",
            Severity.WARN: (
                "correctable errors since the last run; or uncorrectable ones since the driver was loaded "
                "with no earlier reading to compare with"
            ),
            Severity.FAIL: "uncorrectable errors since the last run",
        },
        next_step=(
            "`nvidia-smi -q -d ECC,ROW_REMAPPER -i INDEX` on the node shows which. If it failed, "
            f"{SAVE_FIRST}; then drain the node and reset the GPU."
        ),
        way_out=(
            "`nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT -i INDEX` on the node: which memory.",
            SAVE,
            DRIVER_LOG + " Xid 48, 94 and 95 are uncorrectable errors, 92 is many correctable ones.",
            DRAIN,
            "After a reset, the driver no longer uses the bad memory. " + RESET,
            VENDOR,
        ),
        gate=Gate(kind=GateKind.UNHEALTHY, cause=Cause.MEMORY, runs=1),
        check=ecc,
        readable=ecc_read,
    ),
    HealthRule(
        code="row-remap",
        title="GPU memory needs a repair",
        meaning=(
            "Ampere and newer GPUs replace bad memory with spare rows; older ones retire pages. Either takes "
            "effect at the next reset; until then the GPU works with memory that is known to be bad. A "
            "reset cannot help when no spare is left or when errors in on-chip memory (SRAM) passed the "
            "driver's own limit: replace the board."
        ),
        when={
            Severity.WARN: "a row remap, page retirement, channel or TPC repair waits for a reset",
            Severity.FAIL: (
                "a row remap failed, memory cannot be repaired, or SRAM errors passed the driver's threshold"
            ),
        },
        next_step=(
            f"{SAVE_FIRST}; then drain. Pending: `nvidia-smi --gpu-reset -i INDEX`. Failed, or over the "
            "SRAM threshold: replace the board."
        ),
        way_out=(
            "`nvidia-smi -q -d ROW_REMAPPER,PAGE_RETIREMENT,ECC -i INDEX` says pending or failed.",
            SAVE,
            DRAIN,
            "Pending: " + RESET[0].lower() + RESET[1:],
            "Failed, or over the SRAM threshold: send `nvidia-bug-report.sh` output to your vendor and "
            "replace the board.",
        ),
        gate=Gate(kind=GateKind.UNHEALTHY, cause=Cause.MEMORY),
        check=row_remap,
        readable=row_remap_read,
    ),
)
