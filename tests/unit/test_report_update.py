"""What one run changes in the report: a reading replaces, anything else only counts and explains."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Power, XidCount, Xids
from nodegauge_judge import History, Verdict
from nodegauge_operator import names
from nodegauge_operator.api.history import Change, Condition, Transition
from nodegauge_operator.api.report import Outcome, ProbeStatus, stamp
from nodegauge_operator.core import report_size
from nodegauge_operator.core.pod_outcome import RunEnd
from nodegauge_operator.names import Reason
from support.objects import (
    BUSY,
    INTERVAL,
    LOST,
    NOW,
    STALE,
    ANode,
    AReport,
    make_node,
    make_policy,
    make_report,
    read,
)
from support.properties import tried

NODE = make_node()
CAPPED = Power(usage_mw=60_000, enforced_limit_mw=350_000, default_limit_mw=400_000)
TITAN = made.titan()
GOOD, BELOW = read(TITAN), read(made.with_gpu(TITAN, 0, power=CAPPED))
REFUSED = read(made.with_pair(TITAN, 0, 1, nvlink=1))
"""P2P over NVLink is refused: two runs confirm it."""


def after(*ends: RunEnd, slot: bool = True) -> AReport:
    """The report after these runs, one an interval."""
    report = make_report()
    for n, end in enumerate(ends):
        report = report.after(end, node=NODE, at=NOW + n * INTERVAL, slot=slot)
    return report


def verdict(end: RunEnd, node: ANode = NODE, **spec: Any) -> Verdict:
    """Of one run, by a policy with this spec."""
    return make_report().after(end, node=node, policy=make_policy().of(spec)).status.verdict


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


@pytest.mark.parametrize("end", [LOST, BUSY, read(replace(TITAN, gpus=[]))], ids=["lost", "busy", "empty"])
def test_an_unread_run_changes_nothing_but_the_count(end: RunEnd) -> None:
    """Promise 1: verdict, findings, interconnect, GPUs and memory stay those of the last reading; only the
    summary says of a failed run that nothing is known now."""
    was, now = after(GOOD), after(GOOD, end)
    of_the_run: dict[str, Any] = {"probes": [], "change": None, "summary": ""}
    assert replace(now.status, **of_the_run) == replace(was.status, **of_the_run)
    counted = {"unread": 1, "failing_since": "" if end is BUSY else stamp(NOW + INTERVAL)}
    last = health(now).last_run
    assert health(now) == replace(health(was), **counted, last_run=last)
    assert (last.number, last.finished_at, last.outcome is Outcome.READ) == (2, stamp(NOW + INTERVAL), False)
    assert last.reason
    assert last.message


def test_the_memory_of_links_reaches_the_next_judgement() -> None:
    """A mesh that lost links is told by what the node had before, across runs."""
    report = after(*[read(made.dgx1())] * 2, read(made.with_links(made.dgx1(), 0, state=0)))
    assert "nvlink-degraded" in {f.code for f in health(report).findings}
    assert report.status.interconnect.klass == ""


@pytest.mark.parametrize("raw", ["{", "[]", '{"links": 3}', '{"junk":' + "[" * 2000, "\ud800", "x" * 2048])
def test_a_memory_that_cannot_be_read_is_started_anew(raw: str) -> None:
    """Another version wrote it, or a person did: that costs the memory, not the run."""
    before = after(GOOD)
    spoilt = replace(before, status=replace(before.status, probes=[replace(health(before), history=raw)]))
    again = spoilt.after(GOOD, node=NODE)
    assert again.status.verdict is Verdict.PASS
    assert health(again).history == health(before).history


def test_thresholds_of_the_policy_and_capacity_of_the_node_are_used() -> None:
    """The judge sees the policy's numbers and the node's own count of GPUs."""
    assert verdict(BELOW) is Verdict.WARN
    assert verdict(BELOW, thresholds={"powerCapRatio": 0.8}) is Verdict.PASS
    bare = make_policy().of({"powerInventory": {"gpus": [{"gpu": "*"}]}})
    report = make_report().after(BELOW, node=NODE, policy=bare)
    assert "cable-watts" in [finding.code for finding in health(report).findings]
    eight = replace(NODE, gpu_capacity="8")
    assert verdict(GOOD, eight) is Verdict.UNKNOWN
    for expected, found in ((2, Verdict.PASS), (3, Verdict.FAIL), (0, Verdict.UNKNOWN)):
        assert verdict(GOOD, eight, expectedGpus=expected) is found


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
    first, again = after(GOOD), after(GOOD, GOOD)
    assert (change(first).reason, change(first).type) == (Reason.VALIDATED, "Normal")
    assert change(again) == change(first)


def test_another_interconnect_under_the_same_verdict_is_worth_an_event() -> None:
    """Somebody took the bridge out: nothing is broken, and jobs care."""
    other = replace(made.mesh([[0, 0], [0, 0]], name="NVIDIA TITAN RTX", mbps=0), host=TITAN.host)
    other = replace(other, gpus=[replace(g, uuid=f"GPU-new-{g.index}") for g in other.gpus])
    report = after(GOOD, read(other))
    assert report.status.interconnect.klass == "pcie"
    assert change(report).reason in (Reason.INTERCONNECT_CHANGED, Reason.WARNINGS)
    assert "nvlink 50 GB/s -> pcie" in change(report).message


def test_the_first_failed_run_after_a_reading_is_worth_an_event_and_the_second_is_not() -> None:
    """A series of lost runs is told once."""
    lost = after(GOOD, LOST)
    assert change(lost).reason == Reason.PROBE_FAILED
    assert "OOMKilled" in change(lost).message
    assert change(after(GOOD, LOST, LOST)) == change(lost)


def test_the_answered_request_is_remembered_whatever_the_run_brought() -> None:
    """A request asks for one run, not for a good one."""
    asked = "2027-01-15T08:00:00Z"
    for end in (GOOD, LOST, BUSY):
        assert health(make_report().after(end, node=NODE, request=asked)).request == asked


def changes(report: AReport) -> list[tuple[str, str, str, int]]:
    """What changed, from what to what, and in which run."""
    return [(past.what, past.before, past.to, past.run) for past in report.status.transitions]


def condition(report: AReport, kind: str) -> Condition:
    """One condition of the report."""
    return next(known for known in report.status.conditions if known.type == kind)


def test_a_fault_and_its_repair_are_told_in_order() -> None:
    """Verdict, class and taint, each with its run; the taint says why it came and why it went."""
    report = after(GOOD, REFUSED, REFUSED, GOOD, GOOD, GOOD)
    assert changes(report)[:6] == [
        ("verdict", "unknown", "pass", 1),
        ("interconnect", "", "nvlink", 1),
        ("verdict", "pass", "warn", 2),
        ("interconnect", "nvlink", "", 2),
        ("verdict", "warn", "fail", 3),
        ("taint unhealthy", "", "p2p:NoSchedule", 3),
    ]
    taints = [past for past in report.status.transitions if past.what == "taint unhealthy"]
    assert [(past.before, past.to, past.run) for past in taints] == [
        ("", "p2p:NoSchedule", 3),
        ("p2p:NoSchedule", "", 6),
    ]
    assert "after 2 bad runs" in taints[0].why
    assert "enough good runs" in taints[1].why
    assert {past.probe for past in report.status.transitions} == {"health"}


def test_a_held_back_taint_says_so() -> None:
    """Without a slot the taint is held back; with one it comes, by no run."""
    report = after(GOOD, REFUSED, REFUSED, slot=False)
    assert ("taint unhealthy", "", "held back: p2p", 3) in changes(report)
    report = report.seen(node=NODE, at=NOW + 2 * INTERVAL + 60)
    assert changes(report)[-1] == ("taint unhealthy", "held back: p2p", "p2p:NoSchedule", 0)


def test_what_time_changes_names_no_run() -> None:
    """A reading that goes stale takes verdict and class away; nobody's run did that."""
    report = after(GOOD, LOST)
    stale = report.seen(node=NODE, at=NOW + INTERVAL + STALE)
    new = stale.status.transitions[len(report.status.transitions) :]
    assert {past.what for past in new} == {"verdict", "interconnect"}
    assert {(past.probe, past.run) for past in new} == {("", 0)}


@given(ends=st.lists(st.sampled_from([GOOD, REFUSED, LOST]), min_size=1, max_size=40))
@tried(40)
def test_history_is_bounded_and_agrees_with_itself(ends: list[RunEnd]) -> None:
    """At most 20, in order of time, each fact's values join up, the last one is what stands; looking again
    writes nothing."""
    report = after(*ends)
    past = report.status.transitions
    assert len(past) <= report_size.MAX_TRANSITIONS
    assert [one.at for one in past] == sorted(one.at for one in past)
    last: dict[str, str] = {}
    for one in past:
        assert one.before != one.to
        assert last.get(one.what, one.before) == one.before
        last[one.what] = one.to
    assert last.get("verdict", report.status.verdict.value) == report.status.verdict.value
    at = NOW + (len(ends) - 1) * INTERVAL
    assert report.seen(node=NODE, at=at).status == report.status


@given(ends=st.lists(st.sampled_from([GOOD, REFUSED, LOST]), min_size=1, max_size=12), observe=st.booleans())
@tried(40)
def test_validated_agrees_with_the_condition_of_the_node(ends: list[RunEnd], observe: bool) -> None:
    """Its time moves only when its status does; in mode Observe it is there too."""
    policy = make_policy().observing() if observe else make_policy()
    report, since, status = make_report(), "", ""
    for n, end in enumerate(ends):
        at = NOW + n * INTERVAL
        report = report.after(end, node=NODE, at=at, policy=policy)
        known = condition(report, "Validated")
        wanted = report.status.desired
        assert observe or (known.status, known.reason) == (wanted.condition, wanted.reason)
        assert (known.last_transition_time == since) == (known.status == status)
        since, status = known.last_transition_time, known.status
        assert condition(report, "Tainted").status == ("True" if wanted.taints else "False")


def test_a_report_without_space_loses_the_oldest_history_first() -> None:
    """What decides is not cut, and a UUID of a GPU outlasts an old reason."""
    past = [Transition(at=f"2026-01-01T00:00:{n:02d}Z", what="verdict", why="x" * 160) for n in range(20)]
    report = make_report().after(read(made.h100()), node=NODE)
    full = replace(report.status, transitions=past, psu="x" * 3500)
    fitted = report_size.fitted(full)
    assert report_size.size(fitted) <= report_size.LIMIT
    assert 0 < len(fitted.transitions) <= 20
    assert fitted.transitions[-1].at == past[-1].at
    assert fitted.gpus == full.gpus
    assert report_size.fitted(fitted) == fitted


def test_a_reading_clears_the_counts_of_unread_runs() -> None:
    """One good run ends a series of lost ones."""
    unread = health(after(GOOD, LOST, BUSY))
    assert (unread.unread, unread.failing_since) == (2, "")
    probe = health(after(GOOD, LOST, BUSY, GOOD))
    assert (probe.unread, probe.failing_since, probe.streak) == (0, "", 2)
    assert (probe.since, probe.read_at) == (stamp(NOW), stamp(NOW + 3 * INTERVAL))


def test_the_streak_starts_anew_with_another_verdict() -> None:
    """Streak and since count runs in a row with the same verdict."""
    for streak in (1, 2):
        probe = health(after(GOOD, *[BELOW] * streak))
        assert (probe.streak, probe.since) == (streak, stamp(NOW + INTERVAL))
