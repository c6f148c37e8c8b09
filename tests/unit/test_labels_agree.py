"""Labels, condition, summary and report of one node say the same about it, whichever probe found what."""

from __future__ import annotations

from typing import Any

import pytest

import support.nccl_results as nccl
import support.results as made
from nodegauge_contract import ArmName, Result
from nodegauge_judge import Verdict
from nodegauge_operator import names
from support.nccl_nodes import BUSY, FAST, IMAGE, NODE, WRONG, NcclNode, nccl_node
from support.objects import INTERVAL, LOST, NOW, STALE

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
REPORTED = NOTHING | {names.LABEL_INTERCONNECT: "nvlink", EVIDENCE: "reported"}


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        pytest.param(MEASURED.healthy(result=REFUSED, at=NOW + 900), NOTHING, id="p2p-refused"),
        pytest.param(MEASURED.healthy(result=DEGRADED, at=NOW + 900), NOTHING, id="links-lost"),
        pytest.param(nccl_node().measured(WRONG_WITHOUT_P2P), NOTHING, id="wrong-data"),
    ],
)
def test_what_takes_the_evidence_away_takes_the_bandwidth_with_it(
    report: NcclNode, expected: dict[str, str]
) -> None:
    assert labels(report) == expected
    assert report.status.bandwidth.all_reduce is not None


def test_bandwidth_expires_with_the_interconnect() -> None:
    """Health runs fail for as long as the policy says: neither label stands on what nobody can read."""
    report = MEASURED.after(LOST, node=NODE, at=NOW + INTERVAL, nccl_image=IMAGE)
    report = report.seen(node=NODE, at=NOW + STALE + 1, nccl_image=IMAGE)
    assert labels(report) == NOTHING


def test_bandwidth_returns_only_when_the_gate_is_left() -> None:
    """After the repair the class is back with the first run; the number waits for the third."""
    report = MEASURED
    for n in (1, 2):
        report = report.healthy(result=REFUSED, at=NOW + n * INTERVAL)
    for n in (3, 4):
        report = report.healthy(at=NOW + n * INTERVAL)
        assert labels(report) == REPORTED
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
    """In the label, the condition and the report; what is worse comes first in the summary."""
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
    """From the first failed run on, also once it is stale: the summary says why, and what was before."""
    lost = report.after(LOST, node=NODE, at=NOW + INTERVAL, nccl_image=IMAGE)
    for now in (NOW + INTERVAL, NOW + STALE + 1):
        summary = lost.seen(node=NODE, at=now, nccl_image=IMAGE).status.summary
        assert ": healthy" not in summary
        assert all(part in summary for part in parts), summary


def test_a_full_node_keeps_its_summary() -> None:
    after = MEASURED.after(BUSY, node=NODE, at=NOW + INTERVAL, nccl_image=IMAGE)
    assert after.status.summary == MEASURED.status.summary
