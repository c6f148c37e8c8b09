"""The machine around the GPUs: its clock and its disks."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Disk, Result, Unavailable
from support.judge_results import Row, Table, check, rows

CLOCK, DISK = "clock-unsynchronised", "disk-error"


def clock(synchronised: Any, error_us: Any) -> tuple[Result]:
    host = replace(made.phb().host, clock_synchronised=synchronised, clock_error_us=error_us)
    return (replace(made.phb(), host=host),)


def disk(**values: Any) -> tuple[Result]:
    well = Disk(name="nvme0", state="live", fatal=0, nonfatal=0, too_hot=0)
    return (replace(made.phb(), disks=[well, replace(well, name="nvme1", **values)]),)


TABLE: Table = {
    "a clock that nobody keeps is told once its error may be large": [
        (clock(False, 16_000_000), f"{CLOCK}/info", {"error_seconds": 16.0}),
        (clock(False, 15_999_999), ""),
        (clock(True, 16_000_000), ""),
        (clock(Unavailable("adjtimex"), 16_000_000), ""),
    ],
    "a disk that is gone, broken or hot warns": [
        (disk(state="dead"), f"{DISK}/warn", "disk nvme1", "The controller is dead"),
        (disk(fatal=1), f"{DISK}/warn", {"fatal": 1}),
        (disk(too_hot=1), f"{DISK}/warn", "warns of its temperature"),
    ],
    "one that starts, or had errors that it survived, is mentioned": [
        (disk(state="resetting"), f"{DISK}/info"),
        (disk(nonfatal=3), f"{DISK}/info", {"nonfatal": 3}),
    ],
    "what cannot be read accuses no disk": [
        (disk(), ""),
        (disk(state=Unavailable("x"), fatal=Unavailable("x"), too_hot=Unavailable("x")), ""),
    ],
}


@pytest.mark.parametrize("row", rows(TABLE))
def test_the_machine_is_judged(row: Row) -> None:
    results, expected, *facts = row
    assert check(results, expected, *facts).readable, "a machine's trouble hides no GPU"
