"""Rules about what a board's memory has been through: retired pages, errors of its whole life, full counters.

Totals are judged here as totals, against the vendor's rules for replacing a board; `memory` judges growth.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodegauge_contract import Gpu
from nodegauge_judge.case import Case, HealthRule, all_answered, number, of_gpu
from nodegauge_judge.history.growth import full_links, saturated
from nodegauge_judge.model import Cause, Gate, GateKind, Scalar, Severity
from nodegauge_judge.rule import DRAIN, REPORT, VENDOR, Observation

PAGES_IN_A_MONTH = 5
"""Pages retired for double bit errors within 30 days for which NVIDIA replaces a board.  Source: RMA criteria
of Dynamic Page Retirement."""
DOUBLE_BIT_PAGES = 15
"""Pages retired for double bit errors, whenever.  Source: as above, and NVIDIA/DCGM
DCGM_LIMIT_MAX_RETIRED_PAGES_SOFT_LIMIT."""
PAGES = 60
"""Pages retired for any cause; a board has room for 64.  Source: NVIDIA/DCGM DCGM_LIMIT_MAX_RETIRED_PAGES,
which is 63 in newer versions."""
MONTH_MINUTES = 30 * 24 * 60
SRAM_ERRORS = 2
"""Uncorrectable SRAM errors that one address bank may have.  Source: NVIDIA GPU Memory Error Management, RMA
policy for L2 memory (more than 2, with parity 4).  The driver counts by bank; here only the sum is known."""
SPARE_ROWS, SPARE_PAGES = 512, 64
"""Repairs that memory has room for: rows from Ampere on, pages before.  Source: as above, row remapping."""


def memory_worn(case: Case) -> Iterator[Observation]:
    """One observation for each GPU whose memory has had uncorrectable errors in its life."""
    for gpu_index, gpu in enumerate(case.result.gpus):
        messages = [*_pages(case, gpu_index), *_errors(gpu)]
        if not messages:
            continue
        order = (Severity.FAIL, Severity.WARN, Severity.INFO)
        messages.sort(key=lambda message: order.index(message[0]))
        text = "; ".join(text for _, text in messages)
        yield of_gpu(
            gpu, messages[0][0], f"{text[0].upper()}{text[1:]}.", _evidence(gpu), weight=len(messages)
        )


def retired_pages_read(case: Case) -> bool:
    """Whether at least one GPU counts retired pages, and every GPU that does has answered."""
    return all_answered(gpu.repair.pages_double_bit for gpu in case.result.gpus)


def pages_then(case: Case, gpu_index: int) -> tuple[int | None, int]:
    """Double bit pages when the 30 days began that are being watched, and the minutes since.

    The time is that of the interval between runs: a time across reboots is not known and does not count.
    """
    past, now = case.past(gpu_index), number(case.result.gpus[gpu_index].repair.pages_double_bit)
    if past is None or past.pages is None:
        return (None if now is None else int(now)), 0
    interval = case.growth.interval
    passed = 0 if interval.seconds is None or not interval.counts else max(0, round(interval.seconds / 60))
    minutes = past.pages_minutes + passed
    if now is not None and (now < past.pages or minutes > MONTH_MINUTES):
        return int(now), 0
    return past.pages, min(minutes, MONTH_MINUTES + 1)


def counter_saturated(case: Case) -> Iterator[Observation]:
    """GPUs with an error counter that is at the largest number that it can hold."""
    for gpu in case.result.gpus:
        full = {name: f"{name} ({value})" for name, value in _counters(gpu).items() if saturated(value)}
        full |= {"NVLink errors": "NVLink errors"} if full_links(gpu.link_errors) else {}
        if full:
            names = ", ".join(full.values())
            yield of_gpu(
                gpu,
                Severity.WARN,
                f"At their maximum, so new errors cannot be seen: {names}.",
                evidence={"saturated": ", ".join(full)},
                weight=len(full),
            )


def _pages(case: Case, gpu_index: int) -> Iterator[tuple[Severity, str]]:
    """What the retired pages say; a newly retired page is also pending until the next reset (`row-remap`)."""
    repair = case.result.gpus[gpu_index].repair
    single, double = _count(repair.pages_single_bit), _count(repair.pages_double_bit)
    start, minutes = pages_then(case, gpu_index)
    recent = double - start if start is not None else 0
    if recent >= PAGES_IN_A_MONTH:
        days = max(1, round(minutes / (24 * 60)))
        yield (
            Severity.FAIL,
            f"{recent} pages retired for double bit errors within {days} day{'' if days == 1 else 's'} "
            f"(the vendor's limit is {PAGES_IN_A_MONTH} in 30)",
        )
    if double >= DOUBLE_BIT_PAGES:
        limit = f"(the vendor's limit is {DOUBLE_BIT_PAGES})"
        yield Severity.FAIL, f"{double} pages retired for double bit errors {limit}"
    elif double >= PAGES_IN_A_MONTH and recent < PAGES_IN_A_MONTH:
        limit = f"(the vendor's limit is {PAGES_IN_A_MONTH} in 30 days: compare their dates)"
        yield Severity.WARN, f"{double} pages retired for double bit errors {limit}"
    if single + double >= PAGES:
        yield Severity.FAIL, f"{single + double} pages retired (the vendor's limit is {PAGES})"


def _errors(gpu: Gpu) -> Iterator[tuple[Severity, str]]:
    """What the counts of uncorrectable errors over the board's life say."""
    sram, dram = _count(gpu.ecc.aggregate_sram), _count(gpu.ecc.aggregate_dram)
    every = _count(gpu.ecc.aggregate_uncorrected)
    unknown = not isinstance(gpu.ecc.sram_threshold, int)
    spare = SPARE_ROWS if isinstance(gpu.repair.rows_failed, int) else SPARE_PAGES
    life = "over the board's life"
    if sram > SRAM_ERRORS and unknown:
        why = f"(the vendor's limit is {SRAM_ERRORS} in one bank, and the driver does not judge it)"
        yield Severity.WARN, f"{sram} uncorrectable errors in SRAM {life} {why}"
    elif sram:
        yield Severity.INFO, f"{_uncorrectable(sram)} in SRAM {life}"
    if dram > spare:
        yield Severity.WARN, f"{dram} uncorrectable errors in DRAM {life}, which has room for {spare} repairs"
    elif dram:
        yield Severity.INFO, f"{_uncorrectable(dram)} in DRAM {life}"
    if every and not sram and not dram:
        yield Severity.INFO, f"{_uncorrectable(every)} {life}"


def _uncorrectable(count: int) -> str:
    return f"{count} uncorrectable error{'' if count == 1 else 's'}"


def _count(value: object) -> int:
    """A count that can be believed; a saturated one has its own finding."""
    counted = number(value)
    return 0 if counted is None or counted < 0 or saturated(int(counted)) else int(counted)


def _counters(gpu: Gpu) -> dict[str, int]:
    counters = {
        "corrected memory errors": gpu.ecc.volatile_corrected,
        "uncorrectable memory errors": gpu.ecc.volatile_uncorrected,
        "corrected memory errors of the board's life": gpu.ecc.aggregate_corrected,
        "uncorrectable memory errors of the board's life": gpu.ecc.aggregate_uncorrected,
        "uncorrectable SRAM errors of the board's life": gpu.ecc.aggregate_sram,
        "uncorrectable DRAM errors of the board's life": gpu.ecc.aggregate_dram,
        "PCIe replays": gpu.pcie.replays,
        "correctable PCIe errors": gpu.pcie.correctable,
    }
    return {name: value for name, value in counters.items() if isinstance(value, int)}


def _evidence(gpu: Gpu) -> dict[str, Scalar]:
    values = {
        "pages_single_bit": gpu.repair.pages_single_bit,
        "pages_double_bit": gpu.repair.pages_double_bit,
        "aggregate_sram": gpu.ecc.aggregate_sram,
        "aggregate_dram": gpu.ecc.aggregate_dram,
        "aggregate_uncorrected": gpu.ecc.aggregate_uncorrected,
    }
    return {name: value for name, value in values.items() if isinstance(value, int)}


RULES = (
    HealthRule(
        code="memory-worn",
        title="GPU memory is worn out",
        meaning=(
            "Compares the retired pages and the uncorrectable errors over the board's life with the "
            "vendor's rules for replacing a board. Boards before Ampere retire pages; newer ones remap "
            "rows, and their driver says when no repair is left (row-remap). A few retired pages are "
            "normal; old errors are only information."
        ),
        when={
            Severity.INFO: "uncorrectable errors in the board's life, below the limits",
            Severity.WARN: (
                "5 pages or more retired for double bit errors, without their dates; more uncorrectable DRAM "
                "errors than repairs that the memory has room for (512 rows, 64 pages); more than 2 "
                "uncorrectable SRAM errors where the driver does not report the SRAM threshold"
            ),
            Severity.FAIL: (
                "5 pages or more retired for double bit errors within 30 days of runs, 15 or more of them at "
                "any time, or 60 or more pages retired for any cause"
            ),
        },
        next_step="failed: replace the board through your vendor; else compare the dates of the pages.",
        way_out=(
            "`nvidia-smi -q -d PAGE_RETIREMENT,ECC -i INDEX` on the node shows the counts, and `nvidia-smi "
            "--query-retired-pages=gpu_uuid,retired_pages.timestamp,retired_pages.cause --format=csv` "
            "the dates.",
            "If it failed: " + DRAIN[0].lower() + DRAIN[1:],
            VENDOR,
        ),
        gate=Gate(kind=GateKind.UNHEALTHY, cause=Cause.MEMORY),
        check=memory_worn,
        readable=retired_pages_read,
    ),
    HealthRule(
        code="counter-saturated",
        title="an error counter is full",
        meaning=(
            "An error counter is at the largest number that it can hold (65535, or all ones of its width). "
            "It cannot grow, so new errors of that kind stay invisible: no growth proves nothing."
        ),
        when={Severity.WARN: "an ECC, PCIe or NVLink error counter reads 65535 or all ones of 32 or 63 bits"},
        next_step="reset the counter (volatile ECC: `nvidia-smi -p 0 -i INDEX`), or reload the driver.",
        way_out=(
            "`nvidia-smi -q -d ECC -i INDEX` on the node; `nvidia-smi -p 0 -i INDEX` clears volatile counts, "
            "`-p 1` those of the board's life (root).",
            "NVLink: `nvidia-smi nvlink -e -i INDEX` shows the counters, `nvidia-smi nvlink -re -i INDEX` "
            "clears them.",
            "PCIe counters start again when the driver is loaded again.",
            REPORT,
        ),
        check=counter_saturated,
    ),
)
