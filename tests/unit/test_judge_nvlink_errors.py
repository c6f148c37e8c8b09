"""NVLinks that are up and make errors."""

from __future__ import annotations

import pytest

import support.results as made
from nodegauge_contract import LinkErrors, Result
from nodegauge_judge import Answer, Thresholds
from support.judge_results import Row, Table, check, judge, rows


def with_errors(known: int | None = 0, **errors: int) -> Result:
    """GPU 2 of four with these counters of links up to NVLink 4, the others at `known`; None: of NVLink 5."""
    older = {} if known is None else dict.fromkeys(("replay", "recovery", "crc_flit", "crc_data"), known)
    newer = dict.fromkeys(("recoveries", "received", "integrity", "effective"), 0) if known is None else {}
    return made.with_gpu(made.hgx_a100_4(), 2, link_errors=LinkErrors(**older | newer | errors))


def grew(known: int | None = 0, seconds: float = 900, **counts: tuple[int, int]) -> tuple[Result, Result]:
    before, now = (with_errors(known, **{name: both[n] for name, both in counts.items()}) for n in (0, 1))
    return before, made.later(now, seconds=seconds)


NVLINK5, MINUTES = None, 900
CRC = 100 * MINUTES
MIG_ERRORS = made.with_gpu(made.later(with_errors(recovery_failed=3)), 0, mig=1)
WARN, FAIL, FULL = "nvlink-errors/warn", "nvlink-errors/fail", "counter-saturated/warn"
GOOD, UNSURE = {"nvlink-errors": Answer.GOOD}, {"nvlink-errors": Answer.UNSURE}
GPU_2 = "GPU 2 (0000:11:00.0): "
TABLE: Table = {
    "a replay or recovery fails, as in DCGM": [
        (grew(replay=(5, 6)), FAIL, GPU_2, {"nvlink-errors": Answer.BAD, "link_replay": 6}),
        (judge(*grew(replay=(0, 9)), thresholds=Thresholds(nvlink_errors=10)), WARN),
        (grew(replay=(0, 5_000_000)), FAIL, "5000000 NVLink replays or recoveries since the last run"),
        (grew(recovery=(0, 1), crc_data=(0, 7)), f"{FAIL} {WARN}"),
    ],
    "CRC errors fail at 100 a second": [
        (grew(crc_flit=(0, 5_000_000)), FAIL, GPU_2, "5.56e+03 a second (fails from 100)"),
        (grew(crc_flit=(9, 9 + CRC // 2), crc_data=(0, CRC // 2)), FAIL, "100 a second"),
        (grew(crc_data=(0, CRC - 1)), WARN, GPU_2),
        (grew(crc_flit=(0, 1)), WARN),
        (judge(*grew(crc_data=(0, CRC)), thresholds=Thresholds(nvlink_crc_per_second=101)), WARN),
    ],
    "NVLink 5 has other counters, and corrects errors: none may get through": [
        *((grew(NVLINK5, **{name: (3, 4)}), FAIL, GPU_2) for name in ("recoveries", "received", "integrity")),
        (grew(recovery_failed=(0, 1)), FAIL, GPU_2),
        (grew(NVLINK5, effective=(1, 2)), FAIL, "1 NVLink errors after correction"),
    ],
    "totals without a past warn": [
        (with_errors(recovery_failed=2), WARN, "2 NVLink replays or recoveries since the driver was loaded"),
        (with_errors(replay=5_000_000), WARN, "some may be old: there is no earlier reading", UNSURE),
        (with_errors(NVLINK5, recoveries=505), WARN),
        (made.with_gpu(made.h100(), 1, link_errors=LinkErrors(recovery_failed=1)), WARN),
        (made.later(with_errors(crc_flit=5_000_000), seconds=MINUTES), WARN),
    ],
    "old errors and corrected bits are what links live with": [
        *((grew(**counts), "", GOOD) for counts in ({"replay": (5, 5)}, {"symbol": (9, 9000)})),
        (grew(recovery_failed=(1, 1)), ""),
        (with_errors(crc_flit=70), "", UNSURE),
        (with_errors(), "", GOOD),
    ],
    "a full counter cannot grow, which is said and clears nothing": [
        *(
            (grew(**{name: (full, full)}), FULL, GPU_2, "NVLink errors", UNSURE)
            for name in ("replay", "crc_flit", "recovery")
            for full in (65535, 12 * 65535, 2**32 - 1)
        ),
        (grew(replay=(65601, 65601), full=(1, 1)), FULL, UNSURE),
        (grew(NVLINK5, received=(65535, 65535)), FULL, UNSURE),
        (grew(replay=(65601, 65601), full=(0, 0)), "", GOOD),
        (grew(replay=(7, 65535)), f"{FAIL} {FULL}"),
    ],
    "a run too soon leaves it to a later one, and links with MIG on are not judged": [
        (grew(seconds=30, replay=(5, 9)), "", UNSURE),
        ((with_errors(recovery_failed=0), MIG_ERRORS), ""),
    ],
}


@pytest.mark.parametrize("row", rows(TABLE))
def test_errors_of_links_are_judged(row: Row) -> None:
    """By the growth of their counters, with DCGM's limits."""
    assert (check(*row).answers.get("nvlink-errors") is Answer.BAD) == (FAIL in row[1])
