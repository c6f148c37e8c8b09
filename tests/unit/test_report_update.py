"""What one run changes in the report: a reading replaces, anything else only counts and explains.  And what
a report loses first where it would be too large."""

from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

import support.nccl_results as nccl
import support.results as made
from nodegauge_contract import Bus, Power, Repair, Result, Span, Window, XidCount, Xids
from nodegauge_judge import Finding, GpuIdentity, History, Severity, Verdict
from nodegauge_operator import names
from nodegauge_operator.api.history import Condition, Transition
from nodegauge_operator.api.report import Outcome, ProbeStatus
from nodegauge_operator.api.times import stamp
from nodegauge_operator.core import events, gates, report_size
from nodegauge_operator.core.pod_outcome import RunEnd
from nodegauge_operator.names import Reason
from support.judging import MARK, listening
from support.nccl_nodes import NODE as MEASURED_BY_NCCL
from support.nccl_nodes import nccl_node
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
    report = make_report()
    for n, end in enumerate(ends):
        report = report.after(end, node=NODE, at=NOW + n * INTERVAL, slot=slot)
    return report


def verdict(end: RunEnd, node: ANode = NODE, **spec: Any) -> Verdict:
    """Of one run, by a policy with this spec."""
    return make_report().after(end, node=node, policy=make_policy().of(spec)).status.verdict


def health(report: AReport) -> ProbeStatus:
    return report.status.probe[names.PROBE_HEALTH]


def test_a_reading_fills_the_report() -> None:
    report = make_report().after(read(made.h100()), node=NODE)
    status, probe = report.status, health(report)
    connection = (status.verdict, status.interconnect.klass, status.interconnect.nvlink_gbps)
    assert connection == (Verdict.PASS, "nvlink", 450)
    assert status.gpus.count == 8
    assert (probe.streak, probe.unread, probe.read_at, probe.boot_id) == (1, 0, stamp(NOW), "boot-1")
    assert len(History.decode(probe.history).gpus) == 8


@pytest.mark.parametrize("end", [LOST, BUSY, read(replace(TITAN, gpus=[]))], ids=["lost", "busy", "empty"])
def test_an_unread_run_changes_nothing_but_the_count(end: RunEnd) -> None:
    """Promise 1; only the summary says of a failed run, and not of a busy node, that nothing is known now."""
    was, now = after(GOOD), after(GOOD, end)
    of_the_run: dict[str, Any] = {"probes": [], "change": None, "summary": ""}
    assert replace(now.status, **of_the_run) == replace(was.status, **of_the_run)
    assert (now.status.summary == was.status.summary) is (end is BUSY)
    counted = {"unread": 1, "failing_since": "" if end is BUSY else stamp(NOW + INTERVAL)}
    last = health(now).last_run
    assert health(now) == replace(health(was), **counted, last_run=last)
    assert (last.number, last.finished_at, last.outcome is Outcome.READ) == (2, stamp(NOW + INTERVAL), False)
    assert last.reason
    assert last.message


def test_the_memory_of_links_reaches_the_next_judgement() -> None:
    report = after(*[read(made.dgx1())] * 2, read(made.with_links(made.dgx1(), 0, state=0)))
    assert "nvlink-degraded" in {f.code for f in health(report).findings}
    assert report.status.interconnect.klass == ""


@pytest.mark.parametrize("raw", ["{", "[]", '{"links": 3}', '{"junk":' + "[" * 2000, "\ud800", "x" * 2048])
def test_a_memory_that_cannot_be_read_is_started_anew(raw: str) -> None:
    before = after(GOOD)
    spoilt = replace(before, status=replace(before.status, probes=[replace(health(before), history=raw)]))
    again = spoilt.after(GOOD, node=NODE)
    assert again.status.verdict is Verdict.PASS
    assert health(again).history == health(before).history


def test_thresholds_of_the_policy_and_capacity_of_the_node_are_used() -> None:
    assert verdict(BELOW) is Verdict.WARN
    assert verdict(BELOW, thresholds={"powerCapRatio": 0.8}) is Verdict.PASS
    bare = make_policy().of({"powerInventory": {"gpus": [{"gpu": "*"}]}})
    report = make_report().after(BELOW, node=NODE, policy=bare)
    assert "cable-watts" in [finding.code for finding in health(report).findings]
    eight = replace(NODE, gpu_capacity="8")
    assert verdict(GOOD, eight) is Verdict.UNKNOWN
    for expected, outcome in ((2, Verdict.PASS), (3, Verdict.FAIL), (0, Verdict.UNKNOWN)):
        assert verdict(GOOD, eight, expectedGpus=expected) is outcome


def with_xids(up: int, *times: int) -> RunEnd:
    """The end of a run, so many seconds after boot, whose result has Xids 94 of GPU 1 at these times."""
    count = XidCount(count=len(times), first=times[0], last=times[-1])
    watched = made.every_gpu(made.titan(), xids=Xids(registered=True))
    result = made.with_gpu(watched, 1, xids=Xids(registered=True, seen=[94], counts=[count]))
    return read(replace(result, host=replace(result.host, boottime_ms=up * 1000)))


def test_a_kubelet_of_the_future_dates_no_xids() -> None:
    """They would be the newest for years, and never leave the window."""
    policy = make_policy().of({"xids": [{"codes": [94], "severity": "Warn"}]})
    future = replace(with_xids(1000, 900), finished_at=NOW + 1e8)
    report = make_report().after(future, node=NODE, policy=policy)
    (came,) = History.decode(health(report).history).xids.values()
    assert came.times == ((int(NOW) - 100, 1),)


def test_xids_of_a_result_that_could_not_be_judged_are_counted() -> None:
    policy = make_policy().of({"xids": [{"codes": [94], "count": 3, "severity": "Warn"}]})
    eight = replace(NODE, gpu_capacity="8")
    report = make_report().after(with_xids(1000, 900, 950), node=eight, policy=policy)
    assert (report.status.verdict, health(report).read_at) == (Verdict.UNKNOWN, "")
    after = report.after(with_xids(1100, 1050), node=NODE, policy=policy, at=NOW + 100)
    assert [finding.code for finding in health(after).findings] == ["xid"]


def test_the_first_verdict_is_worth_an_event_and_the_same_again_is_not() -> None:
    first, again = after(GOOD), after(GOOD, GOOD)
    assert (first.status.change.reason, first.status.change.type) == (Reason.VALIDATED, "Normal")
    assert again.status.change == first.status.change


def test_another_interconnect_under_the_same_verdict_is_worth_an_event() -> None:
    other = replace(made.mesh([[0, 0], [0, 0]], name="NVIDIA TITAN RTX", mbps=0), host=TITAN.host)
    other = replace(other, gpus=[replace(g, uuid=f"GPU-new-{g.index}") for g in other.gpus])
    report = after(GOOD, read(other))
    assert report.status.interconnect.klass == "pcie"
    assert report.status.change.reason in (Reason.INTERCONNECT_CHANGED, Reason.WARNINGS)
    assert "nvlink 50 GB/s -> pcie" in report.status.change.message


def test_the_answered_request_is_remembered_whatever_the_run_brought() -> None:
    asked = "2027-01-15T08:00:00Z"
    for end in (GOOD, LOST, BUSY):
        assert health(make_report().after(end, node=NODE, request=asked)).request == asked


def changes(report: AReport) -> list[tuple[str, str, str, int]]:
    """What changed, from what to what, and in which run."""
    return [(past.what, past.before, past.to, past.run) for past in report.status.transitions]


def condition(report: AReport, kind: str) -> Condition:
    return next(known for known in report.status.conditions if known.type == kind)


def test_condition_and_history_say_what_was_read() -> None:
    """A value that comes and goes costs the condition one write, not one with each run."""
    busy = Window(seconds=3.0, samples=12, utilization=Span(min=0, median=90, max=99))
    more = read(made.every_gpu(TITAN, window=busy))
    reports = [after(*ends) for ends in ([more], [more, GOOD], [more, GOOD, more])]
    six, seven = (f"Read: 2 of 2 GPUs, {count} of {count} subjects." for count in (6, 7))
    assert [f"Read: {health(report).coverage}." for report in reports] == [seven, six, seven]
    messages = [report.status.desired.message for report in reports]
    assert messages[0].endswith(seven)
    assert messages[1] == messages[2] == messages[0].replace(seven, six)
    assert all(past.why.startswith(seven) for past in reports[0].status.transitions)


def test_a_fault_and_its_repair_are_told_in_order() -> None:
    report = after(GOOD, REFUSED, REFUSED, GOOD, GOOD, GOOD)
    assert changes(report)[:6] == [
        ("verdict", "unknown", "pass", 1),
        ("interconnect", "", "nvlink", 1),
        ("verdict", "pass", "warn", 2),
        ("interconnect", "nvlink", "", 2),
        ("verdict", "warn", "fail", 3),
        ("taint unhealthy", "", "p2p:NoSchedule", 3),
    ]
    began, ended = [past for past in report.status.transitions if past.what == "taint unhealthy"]
    assert (ended.before, ended.to, ended.run) == ("p2p:NoSchedule", "", 6)
    assert "after 2 bad runs" in began.why
    assert "enough good runs" in ended.why
    assert {past.probe for past in report.status.transitions} == {"health"}


def test_a_held_back_taint_says_so() -> None:
    report = after(GOOD, REFUSED, REFUSED, slot=False)
    assert ("taint unhealthy", "", "held back: p2p", 3) in changes(report)
    report = report.seen(node=NODE, at=NOW + 2 * INTERVAL + 60)
    assert changes(report)[-1] == ("taint unhealthy", "held back: p2p", "p2p:NoSchedule", 0)


def test_what_time_changes_names_no_run() -> None:
    report = after(GOOD, LOST)
    stale = report.seen(node=NODE, at=NOW + INTERVAL + STALE)
    new = stale.status.transitions[len(report.status.transitions) :]
    assert {past.what for past in new} == {"verdict", "interconnect"}
    assert {(past.probe, past.run) for past in new} == {("", 0)}


@given(ends=st.lists(st.sampled_from([GOOD, REFUSED, LOST]), min_size=1, max_size=40))
@example(ends=[*[GOOD, REFUSED] * report_size.MAX_TRANSITIONS, GOOD])
@tried(40)
def test_history_is_bounded_and_agrees_with_itself(ends: list[RunEnd]) -> None:
    """Each fact's values join up, the last one is what stands; looking again writes nothing."""
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
    full = replace(report.status, transitions=past, psu="x" * 9500)
    fitted = report_size.fitted(full)
    assert report_size.size(fitted) <= report_size.LIMIT
    assert fitted.transitions == past[-10:]
    assert [gpu.uuid for gpu in fitted.gpus.items] == [gpu.uuid for gpu in full.gpus.items]
    assert report_size.fitted(fitted) == fitted


def test_a_reading_clears_the_counts_of_unread_runs() -> None:
    unread = health(after(GOOD, LOST, BUSY))
    assert (unread.unread, unread.failing_since) == (2, "")
    probe = health(after(GOOD, LOST, BUSY, GOOD))
    assert (probe.unread, probe.failing_since, probe.streak) == (0, "", 2)
    assert (probe.since, probe.read_at) == (stamp(NOW), stamp(NOW + 3 * INTERVAL))


def test_the_streak_starts_anew_with_another_verdict() -> None:
    for streak in (1, 2):
        probe = health(after(GOOD, *[BELOW] * streak))
        assert (probe.streak, probe.since) == (streak, stamp(NOW + INTERVAL))


MEMORY = "x" * 2000


def dgx2(codes: list[str]) -> Result:
    """Sixteen GPUs of which the judge says that these rows are bad."""
    machine = made.switched(16, name="Tesla V100-SXM3-32GB", links=6, mbps=25_781)
    machine = replace(machine, gpus=[replace(gpu, serial=f"0323718{gpu.index:06d}") for gpu in machine.gpus])
    return made.with_gpu(machine, 0, vbios=f"{MARK}{' '.join(f'{code}=b' for code in codes)};loaded;fault")


def with_cards(result: Result, count: int) -> Result:
    nics = made.with_ports(result, *["ACTIVE"] * count).nics
    cards = [["X" if i == j else "NODE" for j in range(count)] for i in range(count)]
    return replace(result, nics=replace(nics, to_nic=cards))


def ran(*results: Result, history: str = "") -> AReport:
    """The report after these runs, one each interval, the memory of the judge as given."""
    report = after(*(read(made.later(result, seconds=900 * n)) for n, result in enumerate(results)))
    worn = [replace(probe, history=history or probe.history) for probe in report.status.probes]
    report = replace(report, status=replace(report.status, probes=worn))
    return report.seen(node=NODE, policy=make_policy(), at=NOW + len(results) * INTERVAL)


def full(codes: list[str]) -> AReport:
    """The report of rows that were bad three times, its memory as large as it gets."""
    with listening():
        return ran(*[dgx2(codes)] * 3, history=MEMORY)


@pytest.mark.parametrize("count", [0, 1, 3, 6, 8])
def test_sixteen_gpus_and_many_bad_rows_fit(count: int) -> None:
    """What decides is not cut, nor who the GPUs are; cutting twice is cutting once."""
    codes = [code for code, gate in gates.GATES.items() if gate.judged.of_results][
        :count
    ]  # what readings enter
    report = full(codes)
    assert report_size.size(report.status) <= report_size.LIMIT
    assert report_size.fitted(report.status) == report.status
    assert report.seen(node=NODE, policy=make_policy(), at=NOW + 3 * INTERVAL).status == report.status
    assert [row.code for row in report.status.gates] == codes
    assert all(row.entered_at and row.bad >= 2 for row in report.status.gates)
    assert report.status.probes[0].history == MEMORY
    known = [(gpu.uuid, gpu.serial, gpu.pci) for gpu in report.status.gpus.items]
    assert known == [(gpu.uuid, gpu.serial, gpu.pci) for gpu in dgx2(codes).gpus]
    assert bool(report.status.desired.taints) == bool(codes)
    if codes:
        assert report.status.probes[0].findings


FINDINGS = st.lists(
    st.builds(
        Finding,
        code=st.sampled_from(["hot", "xid", "ecc"]),
        severity=st.sampled_from(list(Severity)),
        subject=st.text(max_size=10),
        message=st.text(max_size=300),
    ),
    max_size=12,
    unique_by=lambda f: (f.code, f.severity, f.subject),
)


@given(findings=FINDINGS, most=st.integers(0, 2000))
@tried(200)
def test_the_worst_findings_are_kept_in_their_order(findings: list[Finding], most: int) -> None:
    kept = report_size.worst(findings, most)
    assert kept == [f for f in findings if f in kept]
    assert len(kept) >= min(1, len(findings))
    assert len(kept) <= 1 or len(msgspec.json.encode(kept)) <= most
    order = list(Severity)
    dropped = [order.index(f.severity) for f in findings if f not in kept]
    assert not dropped or max(dropped) <= min(order.index(f.severity) for f in kept)


@pytest.mark.parametrize("memory", range(200, 2049, 132))
def test_what_took_a_label_away_outlasts_the_list_of_gpus(memory: int) -> None:
    report = nccl_node().healthy(result=with_cards(made.h100(), 14), at=NOW + 1)
    report = report.measured(nccl.h100(21.0, gather=16.0, ring=20.0), at=NOW + 10)
    probes = [
        replace(report.status.probe["health"], history="x" * memory),
        replace(report.status.probe["nccl"], history="x" * 2048),
    ]
    fitted = report_size.fitted(replace(report.status, probes=probes))
    assert report_size.size(fitted) <= report_size.LIMIT
    kept = [finding.code for finding in fitted.probe["nccl"].findings]
    assert "interconnect-contradicted" in kept or not fitted.gpus.items


def test_the_largest_machine_fits_with_its_nccl_run() -> None:
    """Sixteen GPUs, ten cards, slow pairs, rows of both probes bad; a DGX-2's health memory had 951 bytes."""
    node = MEASURED_BY_NCCL.offering(16)
    machine = with_cards(dgx2(["hot", "p2p-refused"]), 10)
    slow = {(i, j): 20.0 for i in range(16) for j in range(16) if i < j and (i + j) % 2}
    arms = [nccl.default_arm(9.0, gather=8.0, ranks=16, algorithm="RING"), nccl.p2p_off_arm(9.0, ranks=16)]
    measured = nccl.with_pairs(nccl.node(machine, *arms), 140.0, slow=slow)
    floor = {"gpu": "*V100*", "count": 16, "collective": "all_reduce", "bytes": 1 << 30, "busbw": 130}
    policy = make_policy().of({"expectations": [floor | {"floor": 110}]})
    with listening():
        report = nccl_node(node).healthy(node, result=machine, at=NOW + 1)
        for n in range(3):
            report = report.measured(measured, node, at=NOW + 10 + n, policy=policy)
    health = replace(report.status.probe["health"], history="x" * 951)
    fitted = report_size.fitted(replace(report.status, probes=report.status.with_probe(health)))
    assert report_size.size(fitted) <= report_size.LIMIT
    assert [row.code for row in fitted.gates] == ["p2p-refused", "hot", "busbw-low"]
    assert all(probe.findings for probe in fitted.probes if probe.name != "pull")
    assert fitted.probe["nccl"].history == report.status.probe["nccl"].history
    assert fitted.desired == report.status.desired
    assert report_size.fitted(fitted) == fitted


WHOLE = made.with_bus(
    replace(made.h100(), gpus=[replace(gpu, serial=f"16549{gpu.index:04d}") for gpu in made.h100().gpus])
)
MISSING = replace(WHOLE, gpus=WHOLE.gpus[:7], bus=Bus(gpus=[made.pci(n) for n in range(7)]))
SEVENTH = GpuIdentity(index=7, uuid=made.uuid(7), serial="165490007", pci=made.pci(7))


def test_a_lost_gpu_stays_known_until_it_is_back() -> None:
    lost = ran(WHOLE, MISSING, MISSING, MISSING)
    assert lost.status.gpus.missing == [SEVENTH]
    assert next(f for f in lost.status.probes[0].findings if f.code == "gpu-lost").gpus == [SEVENTH]
    assert ran(WHOLE, MISSING, WHOLE).status.gpus.missing == []


SICK = made.with_gpu(WHOLE, 3, repair=Repair(action=1))


@pytest.mark.parametrize(("sick", "serial"), [(MISSING, "165490007"), (SICK, "165490003")])
def test_the_event_of_a_taint_gives_the_serial_number(sick: Result, serial: str) -> None:
    change = ran(WHOLE, sick).status.change
    assert "tainted unhealthy=" in change.message
    assert f", serial {serial}: " in change.message


@given(
    text=st.lists(st.sampled_from(["look", "`nvidia-smi -q -i 3`", "größer", "`systemctl status x`", "a. "]))
    .map(" ".join)
    .filter(bool),
    most=st.integers(4, 200),
)
@tried(200)
def test_no_command_is_cut_in_two(text: str, most: int) -> None:
    """It stays whole or goes, in report, condition and event alike."""
    cut = report_size.cut(text, most)
    assert cut.count("`") % 2 == 0
    assert cut == text or cut.endswith("...")
    assert len(cut.encode()) <= most
    assert events.bounded(text * 60).count("`") % 2 == 0
