"""The machine around the GPUs, versions against those of its class, and peers by statistics."""

from math import nan
from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from fleet import peers
from nodegauge_contract import Disk, Host, KernelEvent, KernelLog, Result, Unavailable
from nodegauge_judge import Answer, NodeFacts, Severity, Thresholds, judge_health
from nodegauge_judge.loadtest_rules.judge import LoadJudgement, judge_load
from nodegauge_judge.model import Versions
from nodegauge_judge.nccl.judge import judge_nccl
from nodegauge_judge.nccl.measurement import NcclJudgement
from nodegauge_judge.peers import standing
from support.judge_results import Row, Table, check, rows
from support.load_results import everywhere
from support.nccl_results import h100

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
    "what came before is told so": ((logged(XID | {"before": True}),), f"{FAILED}/warn", "first look"),
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


SOUND = [720.0 + n % 7 for n in range(59)]
"""Their median is 723."""


@pytest.mark.parametrize(
    ("own", "others", "severities"),
    [
        (675.0, SOUND, ("info", "warn")),
        (671.0, SOUND, ("info", "fail")),
        (600.0, SOUND[:4], ("warn", "warn")),
        (675.0, SOUND[:4], (None, None)),
        (675.0, [720.0] * 59, ("info", "warn")),
        (675.0, [675.0] * 20 + [720.0] * 40, ("info", "info")),
        (675.0, [675.0] * 30 + [720.0] * 30, (None, None)),
        (675.0, [675.0] * 59, (None, None)),
        (675.0, [nan, 0.0, -720.0, *SOUND[:2]], (None, None)),
        (nan, SOUND, (None, None)),
    ],
)
def test_a_second_run_confirms(
    own: float, others: list[float], severities: tuple[str | None, str | None]
) -> None:
    limits = Thresholds(peers_warn=0.035, peers_fail=0.07, peers_spread=0.007)
    among = standing(lambda _: others, "b200", own=own, far_share=0.85, limits=limits)
    seen = [among and among.severity(confirmed=confirmed) for confirmed in (False, True)]
    assert tuple(severity and Severity(severity).value for severity in seen) == severities


def of_nccl(*shares: float) -> tuple[str, Answer, bool]:
    """Runs at these shares of 480 GB/s, the peers' median; the CPU limit slows down a negative one."""
    record = ""
    for share in shares:
        result = h100(480 * abs(share))
        if share < 0 and result.nccl is not None:
            result = replace(result, nccl=replace(result.nccl, throttled_periods=1000))
        judgement = judge_nccl(result, previous=record, peers=lambda _: [479.0 + n % 3 for n in range(59)])
        record = judgement.record
    return severity(judgement, "busbw-below-peers"), judgement.answers["busbw-below-peers"], judgement.again


def of_load(*shares: float) -> tuple[str, Answer]:
    """The same of load runs, at 700 TFLOPS."""
    previous = None
    for share in shares:
        result = everywhere(tflops=700 * share)
        judgement = judge_load(result, previous=previous, peers=lambda _: [699.0 + n % 3 for n in range(59)])
        previous = (judgement.fingerprint, judgement.tflops or 0.0)
    return severity(judgement, "load-below-peers"), judgement.answers["load-below-peers"]


def severity(judgement: NcclJudgement | LoadJudgement, code: str) -> str:
    return next((finding.severity.value for finding in judgement.findings if finding.code == code), "")


USUAL, WARNS, ACTS = 0.97, 0.95, 0.925


@pytest.mark.parametrize(
    ("runs", "expected", "again"),
    [
        ((USUAL,), ("", Answer.GOOD), False),
        ((WARNS,), ("info", Answer.UNSURE), True),
        ((ACTS,), ("info", Answer.BAD), True),
        ((WARNS, WARNS), ("warn", Answer.UNSURE), False),
        ((WARNS, ACTS), ("fail", Answer.BAD), False),
        ((ACTS, ACTS), ("fail", Answer.BAD), False),
        ((ACTS, WARNS), ("warn", Answer.UNSURE), False),
        ((ACTS, USUAL), ("", Answer.GOOD), False),
        ((ACTS, USUAL, ACTS), ("info", Answer.BAD), True),
    ],
)
def test_information_then_a_failure_that_a_gate_counts(
    runs: tuple[float, ...], expected: tuple[str, Answer], again: bool
) -> None:
    assert of_nccl(*runs) == (*expected, again)
    assert of_load(*runs) == expected


def test_a_throttled_or_another_run_confirms_nothing() -> None:
    """A CPU limit slows NCCL down; TFLOPS at another power limit are another kind of run."""
    assert of_nccl(ACTS, -ACTS) == ("info", Answer.UNSURE, False)
    assert of_nccl(-ACTS, ACTS) == ("info", Answer.BAD, True)
    before = judge_load(everywhere(tflops=650.0, limit_mw=500_000))
    peers = [699.0 + n % 3 for n in range(59)]
    last = judge_load(everywhere(tflops=650.0), previous=(before.fingerprint, 650.0), peers=lambda _: peers)
    assert severity(last, "load-below-peers") == "info"


@pytest.mark.parametrize("probe", ["nccl", "load"])
def test_eight_of_sixty_are_found_and_sound_fleets_are_not_accused(probe: str) -> None:
    assert peers.stragglers(1, spread=0.005, probe=probe) == (8, 0)
    assert [peers.false_findings(seed, probe) for seed in range(3)] == [(0, 0)] * 3
