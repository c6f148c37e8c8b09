"""An edit of a policy's numbers strips nothing: a fresh reading stays fresh until the next run."""

from __future__ import annotations

from typing import Any

import pytest

import support.nccl_nodes as nccl
import support.results as made
from nodegauge_operator import names
from support.objects import BUSY, LOST, NOW, APolicy, AReport, make_node, make_policy, make_report, read

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
NODE = make_node()
SHORTER: dict[str, dict[str, Any]] = {
    "interval": {"probes": {"health": {"interval": "5m"}}},
    "number of intervals": {"probes": {"health": {"interval": "12h"}}, "staleAfterIntervals": 2},
    "both": {"probes": {"health": {"interval": "5s", "deadline": "4s"}}, "staleAfterIntervals": 2},
    "switched off": {"probes": {"health": {"interval": "5m", "enabled": False}}},
}
"""Edits of a policy of three intervals of 12 hours."""


def daily(**spec: Any) -> APolicy:
    return make_policy().of({"probes": {"health": {"interval": "12h"}}} | spec)


def labels(report: AReport) -> set[str]:
    return set(report.status.desired.labels)


def titan(policy: APolicy) -> AReport:
    return make_report().after(read(made.titan()), node=NODE, policy=policy)


@pytest.mark.parametrize("edit", SHORTER.values(), ids=SHORTER)
def test_a_reading_that_runs_fail_to_renew_outlives_the_edit(edit: dict[str, Any]) -> None:
    """Runs have failed for hours: no label goes by the edit that would have stayed without it."""
    report = titan(daily())
    before = labels(report)
    for hour in (12.0, 12.1, 12.5, 14.0, 18.0):
        report = report.after(LOST, node=NODE, policy=daily(), at=NOW + hour * HOUR)
    for hour in (18.0, 19.0, 30.0):
        assert labels(report.seen(node=NODE, policy=make_policy().of(edit), at=NOW + hour * HOUR)) == before


def test_a_failed_run_after_the_edit_goes_by_the_new_numbers() -> None:
    """The first run under the shorter interval fails too, and more than three of it have passed."""
    report = titan(daily()).after(LOST, node=NODE, policy=daily(), at=NOW + 12 * HOUR)
    quick, edited = make_policy().of(SHORTER["interval"]), NOW + 14 * HOUR
    assert labels(report.seen(node=NODE, policy=quick, at=edited)) == labels(titan(daily()))
    after = report.after(LOST, node=NODE, policy=quick, at=edited + MINUTE)
    assert labels(after.seen(node=NODE, policy=quick, at=edited + 2 * MINUTE)) == set()


def test_a_reading_that_waits_outlives_the_edit() -> None:
    """It has waited for room for eight days, under a policy that believes it for ninety."""
    monthly = make_policy().of({"probes": {"health": {"interval": "720h"}}})
    report = titan(monthly).after(BUSY, node=NODE, policy=monthly, at=NOW + DAY)
    edited = report.seen(node=NODE, policy=make_policy(), at=NOW + 8 * DAY)
    assert labels(edited) == labels(titan(monthly))


def test_a_bandwidth_outlives_the_edit() -> None:
    report = nccl.nccl_node().measured(nccl.FAST)
    before = labels(report)
    for day in (1, 2):
        report = report.measured(LOST, at=NOW + day * DAY)
    hourly = make_policy().of({"probes": {"nccl": {"interval": "1h"}}})
    edited = report.seen(node=nccl.NODE, policy=hourly, at=NOW + 2.1 * DAY, nccl_image=nccl.IMAGE)
    assert "nodegauge.dev/busbw-allgather" in before
    assert {key for key in before if "busbw" in key} <= labels(edited)


def test_a_lowered_number_of_bad_runs_taints_with_the_next_of_them_only() -> None:
    """One bad run was too few; the edit that makes it enough sets no taint, and neither does a good run."""
    strict = make_policy().of({"hysteresis": {"enterRuns": 1}})
    refused = read(made.with_pair(made.h100(), 0, 1, nvlink=4, read=4, write=4))
    report = make_report().after(refused, node=NODE)
    assert [gate.bad for gate in report.status.gates] == [1]
    edited = report.seen(node=NODE, policy=strict, at=NOW + MINUTE)
    assert edited.status.desired.taints == []
    assert (
        edited.after(read(made.h100()), node=NODE, policy=strict, at=NOW + HOUR).status.desired.taints == []
    )
    again = edited.after(refused, node=NODE, policy=strict, at=NOW + HOUR)
    assert [taint.value for taint in again.status.desired.taints] == ["p2p"]


def test_a_longer_interval_counts_at_once() -> None:
    quick = make_policy().of(SHORTER["interval"])
    report = titan(quick).after(LOST, node=NODE, policy=quick, at=NOW + 5 * MINUTE)
    assert labels(report.seen(node=NODE, policy=quick, at=NOW + HOUR)) == set()
    assert labels(report.seen(node=NODE, policy=daily(), at=NOW + HOUR)) == labels(titan(daily()))
    assert names.LABEL_HEALTH in labels(report)
