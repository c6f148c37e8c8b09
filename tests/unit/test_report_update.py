"""What one run changes in the report: a reading replaces, anything else only counts and explains."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Power, XidCount, Xids
from nodegauge_judge import History, Verdict
from nodegauge_operator import names
from nodegauge_operator.api.history import Change
from nodegauge_operator.api.report import Outcome, ProbeStatus, stamp
from nodegauge_operator.core.pod_outcome import RunEnd
from nodegauge_operator.names import Reason
from support.objects import BUSY, INTERVAL, LOST, NOW, AReport, make_node, make_policy, make_report, read

NODE = make_node()
CAPPED = Power(usage_mw=60_000, enforced_limit_mw=350_000, default_limit_mw=400_000)


def health(report: AReport) -> ProbeStatus:
    """The status of the health probe."""
    return report.status.probe(names.PROBE_HEALTH)


def change(report: AReport) -> Change:
    """The last change worth an event."""
    assert report.status.change is not None
    return report.status.change


def test_a_reading_fills_the_report() -> None:
    """Verdict, interconnect, GPUs and the memory for the next judgement come from one run."""
    report = make_report().after(read(made.h100()), node=NODE)
    status, probe = report.status, health(report)
    assert (status.verdict, status.interconnect.klass, status.interconnect.nvlink_gbps) == (
        Verdict.PASS,
        "nvlink",
        450,
    )
    assert status.gpus.count == 8
    assert (probe.streak, probe.unread, probe.read_at, probe.boot_id) == (1, 0, stamp(NOW), "boot-1")
    memory = History.decode(probe.history)
    assert len(memory.gpus) == 8


@pytest.mark.parametrize(
    "end", [LOST, BUSY, read(replace(made.titan(), gpus=[]))], ids=["lost", "busy", "empty"]
)
def test_an_unread_run_changes_nothing_but_the_count(end: RunEnd) -> None:
    """Promise 1: verdict, findings, interconnect, GPUs and memory stay those of the last reading; only the
    summary says of a failed run that nothing is known now."""
    before = make_report().after(read(made.titan()), node=NODE)
    after = before.after(end, node=NODE, at=NOW + INTERVAL)
    of_the_run: dict[str, Any] = {"probes": [], "change": None, "summary": ""}
    assert replace(after.status, **of_the_run) == replace(before.status, **of_the_run)
    kept = ("verdict", "summary", "findings", "streak", "since", "read_at", "history", "boot_id")
    assert [getattr(health(after), f) for f in kept] == [getattr(health(before), f) for f in kept]
    assert health(after).unread == 1
    assert health(after).failing_since == ("" if end is BUSY else stamp(NOW + INTERVAL))
    last = health(after).last_run
    assert (last.number, last.finished_at, last.outcome is Outcome.READ) == (2, stamp(NOW + INTERVAL), False)
    assert last.reason
    assert last.message


def test_a_reading_clears_the_counts_of_unread_runs() -> None:
    """One good run ends a series of lost ones."""
    report = make_report().after(read(made.titan()), node=NODE).after(LOST, node=NODE).after(BUSY, node=NODE)
    assert (health(report).unread, health(report).failing_since) == (2, "")
    report = report.after(read(made.titan()), node=NODE, at=NOW + 99)
    assert (health(report).unread, health(report).failing_since, health(report).streak) == (0, "", 2)
    assert (health(report).since, health(report).read_at) == (stamp(NOW), stamp(NOW + 99))


def test_a_first_run_that_could_not_be_judged_shows_why() -> None:
    """Before the first reading, findings of an unreadable run are all there is to show."""
    report = make_report().after(read(replace(made.titan(), gpus=[])), node=NODE)
    assert report.status.verdict is Verdict.UNKNOWN
    assert [f.code for f in health(report).findings] == ["gpus-not-visible"]
    assert health(report).read_at == ""
    assert report.status.interconnect.klass == ""


def test_the_streak_starts_anew_with_another_verdict() -> None:
    """Streak and since count runs in a row with the same verdict."""
    report = make_report().after(read(made.titan()), node=NODE)
    capped = made.with_gpu(made.titan(), 0, power=CAPPED)
    report = report.after(read(capped), node=NODE, at=NOW + 10)
    assert (health(report).streak, health(report).since) == (1, stamp(NOW + 10))
    report = report.after(read(capped), node=NODE, at=NOW + 20)
    assert (health(report).streak, health(report).since) == (2, stamp(NOW + 10))


def test_the_memory_of_links_reaches_the_next_judgement() -> None:
    """A mesh that lost links is told by what the node had before, across runs."""
    report = make_report().after(read(made.dgx1()), node=NODE).after(read(made.dgx1()), node=NODE)
    cut = made.with_links(made.dgx1(), 0, state=0)
    report = report.after(read(cut), node=NODE)
    assert "nvlink-degraded" in {f.code for f in health(report).findings}
    assert report.status.interconnect.klass == ""


@pytest.mark.parametrize("raw", ["{", "[]", '{"links": 3}', '{"junk":' + "[" * 2000, "\ud800", "x" * 2048])
def test_a_memory_that_cannot_be_read_is_started_anew(raw: str) -> None:
    """Another version wrote it, or a person did: that costs the memory, not the run."""
    before = make_report().after(read(made.titan()), node=NODE)
    spoilt = replace(before, status=replace(before.status, probes=[replace(health(before), history=raw)]))
    after = spoilt.after(read(made.titan()), node=NODE)
    assert after.status.verdict is Verdict.PASS
    assert after.status.probes[0].history == before.status.probes[0].history


def test_thresholds_of_the_policy_and_capacity_of_the_node_are_used() -> None:
    """The judge sees the policy's numbers and the node's own count of GPUs."""
    capped = made.with_gpu(made.titan(), 0, power=CAPPED)
    lenient = make_policy().of({"thresholds": {"powerCapRatio": 0.8}})
    assert make_report().after(read(capped), node=NODE).status.verdict is Verdict.WARN
    assert make_report().after(read(capped), node=NODE, policy=lenient).status.verdict is Verdict.PASS
    bare = make_policy().of({"powerInventory": {"gpus": [{"gpu": "*"}]}})
    codes = [one.code for one in health(make_report().after(read(capped), node=NODE, policy=bare)).findings]
    assert "cable-watts" in codes
    eight = replace(NODE, gpu_capacity="8")
    assert make_report().after(read(made.titan()), node=eight).status.verdict is Verdict.UNKNOWN
    for expected, verdict in ((2, Verdict.PASS), (3, Verdict.FAIL), (0, Verdict.UNKNOWN)):
        intends = make_policy().of({"expectedGpus": expected})
        after = make_report().after(read(made.titan()), node=eight, policy=intends)
        assert after.status.verdict is verdict


def with_xids(up: int, *times: int) -> RunEnd:
    """The end of a run, so many seconds after boot, whose result has Xids 94 of GPU 1 at these times."""
    count = XidCount(count=len(times), first=times[0], last=times[-1])
    result = made.with_gpu(made.titan(), 1, xids=Xids(registered=True, seen=[94], counts=[count]))
    return read(replace(result, host=replace(result.host, boottime_ms=up * 1000)))


def test_xids_are_counted_over_runs_and_never_twice() -> None:
    """By the policy's rule; an operator that ends before it has written judges again and comes to the same,
    and a result that comes again adds nothing."""
    policy = make_policy().of({"xids": [{"codes": [94], "count": 3, "severity": "Fail"}]})
    report = make_report().after(with_xids(1000, 900, 950), node=NODE, policy=policy)
    assert report.status.verdict is Verdict.PASS
    again = report.after(with_xids(1000, 900, 950), node=NODE, policy=policy, at=NOW)
    assert again.status.verdict is Verdict.PASS
    assert History.decode(health(again).history).xids == History.decode(health(report).history).xids
    third, at = with_xids(1100, 1050), NOW + 100
    after = report.after(third, node=NODE, policy=policy, at=at)
    assert after == report.after(third, node=NODE, policy=policy, at=at)
    assert after.status.verdict is Verdict.FAIL
    (finding,) = health(after).findings
    assert finding.message.startswith("Xid 94 came 3 times within 24 h on GPU 1 (the policy's limit is 3).")


def test_a_kubelet_of_the_future_dates_no_xids() -> None:
    """They would be the newest for years, and never leave the window."""
    policy = make_policy().of({"xids": [{"codes": [94], "severity": "Warn"}]})
    future = replace(with_xids(1000, 900), finished_at=NOW + 1e8)
    report = make_report().after(future, node=NODE, policy=policy)
    (came,) = History.decode(health(report).history).xids.values()
    assert came.times == ((int(NOW) - 100, 1),)


def test_xids_of_a_result_that_could_not_be_judged_are_counted() -> None:
    """It shows fewer GPUs than the node has; nothing else of it is kept."""
    policy = make_policy().of({"xids": [{"codes": [94], "count": 3, "severity": "Warn"}]})
    eight = replace(NODE, gpu_capacity="8")
    report = make_report().after(with_xids(1000, 900, 950), node=eight, policy=policy)
    assert (report.status.verdict, health(report).read_at) == (Verdict.UNKNOWN, "")
    after = report.after(with_xids(1100, 1050), node=NODE, policy=policy, at=NOW + 100)
    assert [finding.code for finding in health(after).findings] == ["xid"]


def test_the_first_verdict_is_worth_an_event_and_the_same_again_is_not() -> None:
    """Events on change only."""
    first = make_report().after(read(made.titan()), node=NODE)
    assert (change(first).reason, change(first).type) == (Reason.VALIDATED, "Normal")
    again = first.after(read(made.titan()), node=NODE, at=NOW + INTERVAL)
    assert change(again) == change(first)


def test_a_worse_verdict_and_a_lost_interconnect_are_worth_an_event() -> None:
    """The event says what it was before and what it is now."""
    report = make_report().after(read(made.titan()), node=NODE)
    refused = report.after(read(made.with_pair(made.titan(), 0, 1, read=1)), node=NODE, at=NOW + INTERVAL)
    assert (change(refused).reason, change(refused).type) == (Reason.FAULTS_FOUND, "Warning")
    assert "nvlink 50 GB/s -> none" in change(refused).message
    assert change(refused).at == stamp(NOW + INTERVAL)


def test_another_interconnect_under_the_same_verdict_is_worth_an_event() -> None:
    """Somebody took the bridge out: nothing is broken, and jobs care."""
    report = make_report().after(read(made.titan()), node=NODE)
    other = replace(made.mesh([[0, 0], [0, 0]], name="NVIDIA TITAN RTX", mbps=0), host=made.titan().host)
    other = replace(other, gpus=[replace(g, uuid=f"GPU-new-{g.index}") for g in other.gpus])
    report = report.after(read(other), node=NODE, at=NOW + INTERVAL)
    assert report.status.interconnect.klass == "pcie"
    assert change(report).reason in (Reason.INTERCONNECT_CHANGED, Reason.WARNINGS)
    assert "nvlink 50 GB/s -> pcie" in change(report).message


def test_the_first_failed_run_after_a_reading_is_worth_an_event_and_the_second_is_not() -> None:
    """A series of lost runs is told once."""
    report = make_report().after(read(made.titan()), node=NODE)
    lost = report.after(LOST, node=NODE, at=NOW + 10)
    assert change(lost).reason == Reason.PROBE_FAILED
    assert "OOMKilled" in change(lost).message
    assert change(lost.after(LOST, node=NODE, at=NOW + 20)) == change(lost)


def test_a_failed_run_after_skipped_ones_is_still_the_first_failure() -> None:
    """A busy node that then cannot be read must not fail in silence."""
    report = make_report().after(read(made.titan()), node=NODE).after(BUSY, node=NODE, at=NOW + 5)
    assert change(report).reason == Reason.VALIDATED
    assert change(report.after(LOST, node=NODE, at=NOW + 10)).reason == Reason.PROBE_FAILED


def test_an_event_s_message_fits_the_api_whatever_was_read() -> None:
    """A note has at most 1,024 bytes, and hostile names are made of four-byte characters."""
    named = [replace(g, name="\U0001f600" * 120) for g in made.titan().gpus]
    liar = RunEnd(outcome=Outcome.UNKNOWN, reason="WrongRun", message="\U0001f600" * 500)
    for end in (read(replace(made.titan(), gpus=named)), liar):
        report = make_report().after(end, node=NODE)
        assert len(change(report).message.encode()) <= 1024


def test_the_answered_request_is_remembered_whatever_the_run_brought() -> None:
    """A request asks for one run, not for a good one."""
    asked = "2027-01-15T08:00:00Z"
    for end in (read(made.titan()), LOST, BUSY):
        assert health(make_report().after(end, node=NODE, request=asked)).request == asked
