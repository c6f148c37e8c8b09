"""The kernel's log as a second witness: what NVML did not tell, and a log that cannot be read."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Host, KernelEvent, KernelLog, Result
from nodegauge_judge import judge_health
from support.judge_results import Row, Table, check, rows

DAY, NOW = 86_400, 200_000
SWITCH = {"kind": "sxid-fatal", "subject": "nvidia-nvswitch3", "code": 20034, "text": "SXid: 20034, Fatal"}
XID = {"kind": "xid", "subject": "0000:41:00", "code": 79, "text": "Xid 79"}
FAILED, UNREAD = "kernel-log", "kernel-log-unread"


def logged(*events: dict[str, Any], **log: Any) -> Result:
    """What a probe read of the log at NOW; an event that says no time came a second before."""
    times = {"first": NOW - 1, "last": NOW - 1}
    kept = [KernelEvent(**times | event) for event in events]
    host = Host(boot_id="b", boottime_ms=NOW * 1000)
    return replace(made.phb(), host=host, kernel_log=KernelLog(events=kept, **log))


TABLE: Table = {
    "an Xid of the hardware and an error of a switch warn": [
        ((logged(XID),), f"{FAILED}/warn", "Xid 79 (GPU has fallen off the bus)", {"code": 79}),
        ((logged(SWITCH),), f"{FAILED}/warn", "(SXid 20034)"),
        ((logged({"kind": "init-failed"}),), f"{FAILED}/warn", "The driver cannot initialise a GPU"),
    ],
    "an Xid of a program and the SXid that may be ignored are information": [
        ((logged(XID | {"code": 31}),), f"{FAILED}/info"),
        ((logged(SWITCH | {"kind": "sxid", "code": 22013}),), f"{FAILED}/info"),
    ],
    "a line counts for a day": [
        ((logged(XID | {"last": NOW - DAY}),), f"{FAILED}/warn", "24.0 h ago"),
        ((logged(XID | {"last": NOW - DAY - 1}),), ""),
    ],
    "what came before the probe is told so": (
        (logged(XID | {"before": True}),),
        f"{FAILED}/warn",
        "first look",
    ),
    "a log that was asked for and cannot be read is no silence": [
        ((logged(unread="Permission denied"),), f"{UNREAD}/warn", "Permission denied"),
        ((logged(lost=7),), f"{UNREAD}/info", {"lost": 7}),
        ((logged(dropped=2),), f"{UNREAD}/info", "2 events had no room"),
        ((logged(),), ""),
        ((replace(logged(XID), kernel_log=None),), ""),
    ],
}


@pytest.mark.parametrize("row", rows(TABLE))
def test_the_log_is_judged(row: Row) -> None:
    results, expected, *facts = row
    check(results, expected, *facts)


@pytest.mark.parametrize(
    ("log", "more", "gap"),
    [(None, 0, []), (KernelLog(), 1, []), (KernelLog(unread="no"), 1, ["node: kernel log"])],
)
def test_the_log_is_part_of_what_a_pass_covers(log: KernelLog | None, more: int, gap: list[str]) -> None:
    plain, coverage = (judge_health(replace(made.phb(), kernel_log=kept)).coverage for kept in (None, log))
    assert coverage.of_subjects == plain.of_subjects + more
    assert coverage.subjects == plain.subjects + more - len(gap)
    assert coverage.gaps[len(plain.gaps) :] == gap
