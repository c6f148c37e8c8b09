"""ECC that is off beside siblings with it, and compute modes that let nobody in."""

from __future__ import annotations

from typing import Any

import pytest

import support.results as made
from nodegauge_contract import Ecc, Result, Unavailable
from nodegauge_judge import Answer
from support.judge_results import Row, Table, check, rows

OFF, ON, UNREAD = Ecc(mode=0), Ecc(mode=1), Ecc(mode=Unavailable("NVML_ERROR_UNKNOWN"))
NO_ECC = Ecc(mode=Unavailable("NVML_ERROR_NOT_SUPPORTED"))
ECC_OFF, PROHIBITED = "ecc-off/warn", "compute-prohibited/fail"
BAD, GOOD, UNSURE = ({"compute-prohibited": answer} for answer in (Answer.BAD, Answer.GOOD, Answer.UNSURE))


def having(name: str, *values: Any) -> Result:
    """One H100 for each of these values."""
    result = made.h100(len(values))
    for gpu_index, value in enumerate(values):
        result = made.with_gpu(result, gpu_index, **{name: value})
    return result


OTHER_MODEL = made.with_gpu(having("ecc", ON, OFF), 1, name="NVIDIA TITAN V")
TABLE: Table = {
    "ECC off beside siblings with it is named": [
        (having("ecc", *[ON] * 3, OFF, *[ON] * 4), ECC_OFF, "GPU 3 (0000:12:00.0): ECC is off; 7 of the"),
        (having("ecc", OFF, *[ON] * 3, *[OFF] * 4), ECC_OFF, "GPU 0 (0000:0f:00.0) and 4 more: "),
        (having("ecc", OFF, *[UNREAD] * 6, ON), ECC_OFF, "1 of the node's 8"),
    ],
    "ECC off on all, or on the only one of its model, is a choice": [
        (having("ecc", *[OFF] * 8), ""),
        (having("ecc", OFF, NO_ECC), ""),
        (OTHER_MODEL, "mixed-gpus/info"),
    ],
    "a GPU that no process can use fails": [
        (having("compute_mode", 0, 0, 2, 0), PROHIBITED, "GPU 2 (0000:11:00.0): ", BAD),
        (having("compute_mode", 2, 2), PROHIBITED, "GPU 0 (0000:0f:00.0) and 1 more: "),
        (having("compute_mode", 2), PROHIBITED, "no process can use it"),
    ],
    "other modes let processes in, and one that was not read clears nothing": [
        (having("compute_mode", 0, 3, 1, 0), "", GOOD),
        (having("compute_mode", 0, Unavailable("NVML_ERROR_UNKNOWN")), "", UNSURE),
    ],
}


@pytest.mark.parametrize("row", rows(TABLE))
def test_settings_are_judged(row: Row) -> None:
    """A GPU that differs from its siblings is named; one that nobody can use fails."""
    assert (check(*row).answers["compute-prohibited"] is Answer.BAD) == (row[1] == PROHIBITED)
