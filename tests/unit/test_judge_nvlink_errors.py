"""NVLinks that are up and make errors."""

from __future__ import annotations

import pytest

import support.results as made
from nodegauge_contract import LinkErrors, Result
from support.judge_results import Row, Table, check, rows


def with_errors(**errors: int) -> Result:
    return made.with_gpu(made.hgx_a100_4(), 2, link_errors=LinkErrors(**errors))


def grew(**counts: tuple[int, int]) -> tuple[Result, Result]:
    known = dict.fromkeys(("replay", "recovery", "crc_flit", "crc_data"), 0) if "replay" in counts else {}
    before, now = (with_errors(**known | {name: both[n] for name, both in counts.items()}) for n in (0, 1))
    return before, made.later(now)


MIG_ERRORS = made.with_gpu(made.later(with_errors(recovery_failed=3)), 0, mig=1)
TABLE: Table = {
    "new replays and CRC errors warn": [
        (grew(**{"replay": (5, 5), name: (5, 6)}), "nvlink-errors/warn", "GPU 2 (0000:11:00.0): ")
        for name in ("replay", "crc_flit", "crc_data")
    ],
    "so do effective errors": [(grew(effective=(1, 2)), "nvlink-errors/warn", "GPU 2 (0000:11:00.0): ")],
    "a new failed recovery fails": [
        (grew(recovery_failed=(0, 1)), "nvlink-errors/fail", "GPU 2 (0000:11:00.0): ")
    ],
    "a failed recovery without a past warns": (
        with_errors(recovery_failed=2),
        "nvlink-errors/warn",
        "2 NVLink recoveries failed since the driver was loaded",
    ),
    "old errors and corrected bits are what links live with": [
        (grew(**counts), "")
        for counts in ({"replay": (5, 5)}, {"recovery_failed": (1, 1)}, {"symbol": (9, 9000)})
    ],
    "with MIG on, links are not judged, whatever they count": [
        ((with_errors(recovery_failed=0), MIG_ERRORS), "")
    ],
}


@pytest.mark.parametrize("row", rows(TABLE))
def test_errors_of_links_are_judged(row: Row) -> None:
    """By the growth of their counters."""
    check(*row)
