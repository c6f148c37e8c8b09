"""The machine around the GPUs: clock, disks, the kernel's log, and versions against those of its class."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Disk, Host, KernelEvent, KernelLog, Result, Unavailable
from nodegauge_judge import NodeFacts, judge_health
from nodegauge_judge.model import Versions
from support.judge_results import Row, Table, check, rows

DAY, NOW = 86_400, 200_000
SWITCH = {"kind": "sxid-fatal", "subject": "nvidia-nvswitch3", "code": 20034, "text": "SXid: 20034, Fatal"}
XID = {"kind": "xid", "subject": "0000:41:00", "code": 79, "text": "Xid 79"}
FAILED, UNREAD = "kernel-log", "kernel-log-unread"
CLOCK, DISK = "clock-unsynchronised", "disk-error"


def clock(synchronised: Any, error_us: Any) -> tuple[Result]:
    host = replace(made.phb().host, clock_synchronised=synchronised, clock_error_us=error_us)
    return (replace(made.phb(), host=host),)


def disk(**values: Any) -> tuple[Result]:
    well = Disk(name="nvme0", state="live", fatal=0, nonfatal=0, too_hot=0)
    return (replace(made.phb(), disks=[well, replace(well, name="nvme1", **values)]),)


def logged(*events: dict[str, Any], **log: Any) -> Result:
    """What a probe read of the log at NOW; an event that says no time came a second before."""
    times = {"first": NOW - 1, "last": NOW - 1}
    kept = [KernelEvent(**times | event) for event in events]
    host = Host(boot_id="b", boottime_ms=NOW * 1000)
    return replace(made.phb(), host=host, kernel_log=KernelLog(events=kept, **log))


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
def test_the_machine_is_judged(row: Row) -> None:
    assert check(*row).readable, "a machine's trouble hides no GPU"


@pytest.mark.parametrize(
    ("log", "more", "gap"),
    [(None, 0, []), (KernelLog(), 1, []), (KernelLog(unread="no"), 1, ["node: kernel log"])],
)
def test_the_log_is_part_of_what_a_pass_covers(log: KernelLog | None, more: int, gap: list[str]) -> None:
    plain, coverage = (judge_health(replace(made.phb(), kernel_log=kept)).coverage for kept in (None, log))
    assert coverage.of_subjects == plain.of_subjects + more
    assert coverage.subjects == plain.subjects + more - len(gap)
    assert coverage.gaps[len(plain.gaps) :] == gap


TODAY, WEEK = 1_800_000_000.0, 7.0 * DAY
OWN = Versions(driver="570", vbios="92", kernel="6.8", since=TODAY - WEEK)
NEWER = replace(OWN, driver="580")


def result() -> Result:
    """A node that runs what OWN says."""
    node = made.every_gpu(made.phb(), vbios="92")
    return replace(node, system=replace(node.system, driver="570"), host=replace(node.host, kernel="6.8"))


def subjects(*others: Versions, own: Versions = OWN) -> list[str]:
    judgement = judge_health(result(), node=NodeFacts(versions=own), fleet=lambda _: others, read_at=TODAY)
    return [finding.subject for finding in judgement.findings if finding.code == "fleet-drift"]


@pytest.mark.parametrize(
    ("others", "own", "expected"),
    [
        ([NEWER] * 3, OWN, ["driver"]),
        ([NEWER] * 2, OWN, []),
        ([OWN] * 3, OWN, []),
        ([NEWER] * 9 + [OWN], OWN, ["driver"]),
        ([NEWER] * 8 + [OWN] * 2, OWN, []),
        ([replace(NEWER, since=TODAY - WEEK + 1)] * 9, OWN, []),
        ([NEWER] * 9, replace(OWN, since=TODAY - WEEK + 1), []),
        ([NEWER] * 9, replace(OWN, kernel="6.7"), []),
        ([NEWER] * 9, Versions(), []),
        ([replace(OWN, vbios="96")] * 3, OWN, ["VBIOS"]),
        ([replace(OWN, kernel="6.9")] * 3, OWN, ["kernel"]),
        ([replace(OWN, kernel="")] * 3, OWN, []),
    ],
    ids=[
        *("three agree", "two do not prove it", "all alike", "one in ten is odd", "two in ten are odd"),
        *("the others changed within a week", "this one did", "it has just changed", "no history"),
        *("another VBIOS", "another kernel", "nobody tells the kernel"),
    ],
)
def test_a_node_differs_from_its_class(others: list[Versions], own: Versions, expected: list[str]) -> None:
    assert subjects(*others, own=own) == expected
