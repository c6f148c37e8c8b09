"""Labels, condition, summary and report of one node say the same about it, whichever probe found what; and an
edit of a policy's numbers strips nothing."""

from typing import Any

import pytest

import support.nccl_results as nccl
import support.results as made
from nodegauge_contract import ArmName, Result
from nodegauge_judge import Verdict
from nodegauge_operator import names
from support.nccl_nodes import FAST, IMAGE, NODE, WRONG, NcclNode, nccl_node
from support.objects import (
    BUSY,
    INTERVAL,
    LOST,
    NOW,
    STALE,
    APolicy,
    AReport,
    make_node,
    make_policy,
    make_report,
    read,
)

EVIDENCE = "nodegauge.dev/interconnect-evidence"
BUSBW = (
    "nodegauge.dev/busbw-allreduce",
    "nodegauge.dev/busbw-allgather",
    "nodegauge.dev/busbw-reducescatter",
)
REFUSED = made.with_pair(made.h100(), 0, 1, nvlink=4, read=4, write=4)
DEGRADED = made.without_links(made.h100(), 3, count=9)
WRONG_WITHOUT_P2P = nccl.swapped(
    FAST, ArmName.P2P_OFF, cells=[nccl.cell("all_reduce", 1 << 28, 28.0, ranks=8, wrong=3)]
)
MEASURED = nccl_node().measured(FAST)


def labels(report: NcclNode) -> dict[str, str]:
    keys = (names.LABEL_INTERCONNECT, EVIDENCE, *BUSBW)
    return {key: report.status.desired.labels.get(key, "") for key in keys}


NOTHING = dict.fromkeys((names.LABEL_INTERCONNECT, EVIDENCE, *BUSBW), "")


@pytest.mark.parametrize(
    "report",
    [
        pytest.param(MEASURED.healthy(result=REFUSED, at=NOW + 900), id="p2p-refused"),
        pytest.param(MEASURED.healthy(result=DEGRADED, at=NOW + 900), id="links-lost"),
        pytest.param(nccl_node().measured(WRONG_WITHOUT_P2P), id="wrong-data"),
    ],
)
def test_what_takes_the_evidence_away_takes_the_bandwidth_with_it(report: NcclNode) -> None:
    assert labels(report) == NOTHING
    assert report.status.bandwidth.all_reduce is not None


def test_bandwidth_expires_with_the_interconnect() -> None:
    """Health runs fail for as long as the policy says: neither label stands on what nobody can read."""
    report = MEASURED.after(LOST, node=NODE, at=NOW + INTERVAL, nccl_image=IMAGE)
    report = report.seen(node=NODE, at=NOW + STALE + 1, nccl_image=IMAGE)
    assert labels(report) == NOTHING


def test_bandwidth_returns_only_when_the_gate_is_left() -> None:
    report = MEASURED
    for n in (1, 2):
        report = report.healthy(result=REFUSED, at=NOW + n * INTERVAL)
    for n in (3, 4):
        report = report.healthy(at=NOW + n * INTERVAL)
        assert labels(report) == NOTHING | {names.LABEL_INTERCONNECT: "nvlink", EVIDENCE: "reported"}
    assert labels(report.healthy(at=NOW + 5 * INTERVAL)) == labels(MEASURED)


@pytest.mark.parametrize(
    ("health", "measured", "verdict"),
    [
        (made.h100(), WRONG, Verdict.FAIL),
        (made.h100(), nccl.h100(count=7), Verdict.WARN),
        (DEGRADED, FAST, Verdict.FAIL),
        (made.h100(), FAST, Verdict.PASS),
    ],
)
def test_one_verdict_over_all_probes(health: Result, measured: Result, verdict: Verdict) -> None:
    report = nccl_node()
    for n in (1, 2):
        report = report.healthy(result=health, at=NOW + n * INTERVAL)
        report = report.measured(measured, at=NOW + n * INTERVAL + 60)
    status, desired = report.status, report.status.desired
    assert (status.verdict, desired.labels[names.LABEL_HEALTH]) == (verdict, verdict.value)
    assert desired.condition == ("False" if verdict is Verdict.FAIL else "True")
    for text in (status.summary, desired.message):
        assert (": healthy" in text) == (verdict is Verdict.PASS), text
        assert text.startswith("NCCL probe") == (verdict is not Verdict.PASS and health is not DEGRADED)


@pytest.mark.parametrize(
    ("report", "parts"),
    [
        (MEASURED, ("OOMKilled", "pass")),
        (nccl_node().healthy(result=REFUSED), ("OOMKilled", "fail")),
        (NcclNode(name="node-1", uid="", resource_version="1", node_uid="node-1-uid"), ("Not read yet",)),
    ],
)
def test_an_unreadable_node_is_not_called_healthy(report: NcclNode, parts: Any) -> None:
    lost = report.after(LOST, node=NODE, at=NOW + INTERVAL, nccl_image=IMAGE)
    for now in (NOW + INTERVAL, NOW + STALE + 1):
        summary = lost.seen(node=NODE, at=now, nccl_image=IMAGE).status.summary
        assert ": healthy" not in summary
        assert all(part in summary for part in parts), summary


MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
PLAIN = make_node()
SHORTER: dict[str, dict[str, Any]] = {
    "interval": {"probes": {"health": {"interval": "5m"}}},
    "number of intervals": {"probes": {"health": {"interval": "12h"}}, "staleAfterIntervals": 2},
    "both": {"probes": {"health": {"interval": "5s", "deadline": "4s"}}, "staleAfterIntervals": 2},
    "switched off": {"probes": {"health": {"interval": "5m", "enabled": False}}},
}
"""Edits of a policy of three intervals of 12 hours."""


def daily(**spec: Any) -> APolicy:
    return make_policy().of({"probes": {"health": {"interval": "12h"}}} | spec)


def keys_of(report: AReport) -> set[str]:
    return set(report.status.desired.labels)


def titan(policy: APolicy) -> AReport:
    return make_report().after(read(made.titan()), node=PLAIN, policy=policy)


@pytest.mark.parametrize("edit", SHORTER.values(), ids=SHORTER)
def test_a_reading_that_runs_fail_to_renew_outlives_the_edit(edit: dict[str, Any]) -> None:
    report = titan(daily())
    before = keys_of(report)
    for hour in (12.0, 12.1, 12.5, 14.0, 18.0):
        report = report.after(LOST, node=PLAIN, policy=daily(), at=NOW + hour * HOUR)
    for hour in (18.0, 19.0, 30.0):
        assert keys_of(report.seen(node=PLAIN, policy=make_policy().of(edit), at=NOW + hour * HOUR)) == before


def test_a_failed_run_after_the_edit_goes_by_the_new_numbers() -> None:
    report = titan(daily()).after(LOST, node=PLAIN, policy=daily(), at=NOW + 12 * HOUR)
    quick, edited = make_policy().of(SHORTER["interval"]), NOW + 14 * HOUR
    assert keys_of(report.seen(node=PLAIN, policy=quick, at=edited)) == keys_of(titan(daily()))
    after = report.after(LOST, node=PLAIN, policy=quick, at=edited + MINUTE)
    assert keys_of(after.seen(node=PLAIN, policy=quick, at=edited + 2 * MINUTE)) == set()


def test_a_reading_that_waits_outlives_the_edit() -> None:
    monthly = make_policy().of({"probes": {"health": {"interval": "720h"}}})
    report = titan(monthly).after(BUSY, node=PLAIN, policy=monthly, at=NOW + DAY)
    edited = report.seen(node=PLAIN, policy=make_policy(), at=NOW + 8 * DAY)
    assert keys_of(edited) == keys_of(titan(monthly))


def test_a_bandwidth_outlives_the_edit() -> None:
    report = nccl_node().measured(FAST)
    before = keys_of(report)
    for day in (1, 2):
        report = report.measured(LOST, at=NOW + day * DAY)
    hourly = make_policy().of({"probes": {"nccl": {"interval": "1h"}}})
    edited = report.seen(node=NODE, policy=hourly, at=NOW + 2.1 * DAY, nccl_image=IMAGE)
    assert "nodegauge.dev/busbw-allgather" in before
    assert {key for key in before if "busbw" in key} <= keys_of(edited)


def test_a_lowered_number_of_bad_runs_taints_with_the_next_of_them_only() -> None:
    """One bad run was too few; the edit that makes it enough sets no taint, and neither does a good run."""
    strict = make_policy().of({"hysteresis": {"enterRuns": 1}})
    refused = read(made.with_pair(made.h100(), 0, 1, nvlink=4, read=4, write=4))
    report = make_report().after(refused, node=PLAIN)
    assert [gate.bad for gate in report.status.gates] == [1]
    edited = report.seen(node=PLAIN, policy=strict, at=NOW + MINUTE)
    assert edited.status.desired.taints == []
    good = edited.after(read(made.h100()), node=PLAIN, policy=strict, at=NOW + HOUR)
    assert good.status.desired.taints == []
    again = edited.after(refused, node=PLAIN, policy=strict, at=NOW + HOUR)
    assert [taint.value for taint in again.status.desired.taints] == ["p2p"]


def test_a_longer_interval_counts_at_once() -> None:
    quick = make_policy().of(SHORTER["interval"])
    report = titan(quick).after(LOST, node=PLAIN, policy=quick, at=NOW + 5 * MINUTE)
    assert keys_of(report.seen(node=PLAIN, policy=quick, at=NOW + HOUR)) == set()
    assert keys_of(report.seen(node=PLAIN, policy=daily(), at=NOW + HOUR)) == keys_of(titan(daily()))
    assert names.LABEL_HEALTH in keys_of(report)
