"""The history in a node's report: each change once, with its run and reason, and nothing on a steady node."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import support.results as made
from nodegauge_operator.api.history import Condition, Transition
from nodegauge_operator.core import report_size
from support.objects import INTERVAL, LOST, NOW, STALE, AReport, make_node, make_policy, make_report, read
from support.properties import tried

NODE = make_node()
GOOD = read(made.titan())
REFUSED = read(made.with_pair(made.titan(), 0, 1, nvlink=1))
"""P2P over NVLink is refused: two runs confirm it."""


def after(*ends: object, slot: bool = True) -> AReport:
    """The report after these runs, one an interval."""
    report = make_report()
    for n, end in enumerate(ends):
        report = report.after(end, node=NODE, at=NOW + n * INTERVAL, slot=slot)  # type: ignore[arg-type]
    return report


def changes(report: AReport) -> list[tuple[str, str, str, int]]:
    """What changed, from what to what, and in which run."""
    return [(past.what, past.before, past.to, past.run) for past in report.status.transitions]


def condition(report: AReport, kind: str) -> Condition:
    """One condition of the report."""
    return next(known for known in report.status.conditions if known.type == kind)


def test_a_fault_and_its_repair_are_told_in_order() -> None:
    """Verdict, class and taint, each with its run; the taint says why it came and why it went."""
    report = after(GOOD, REFUSED, REFUSED, GOOD, GOOD, GOOD)
    assert changes(report) == [
        ("verdict", "unknown", "pass", 1),
        ("interconnect", "", "nvlink", 1),
        ("verdict", "pass", "warn", 2),
        ("interconnect", "nvlink", "", 2),
        ("verdict", "warn", "fail", 3),
        ("taint unhealthy", "", "p2p:NoSchedule", 3),
        *changes(report)[6:],
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
def test_history_is_bounded_and_agrees_with_itself(ends: list[object]) -> None:
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
def test_validated_agrees_with_the_condition_of_the_node(ends: list[object], observe: bool) -> None:
    """Its time moves only when its status does; in mode Observe it is there too."""
    policy = make_policy().observing() if observe else make_policy()
    report, since, status = make_report(), "", ""
    for n, end in enumerate(ends):
        at = NOW + n * INTERVAL
        report = report.after(end, node=NODE, at=at, policy=policy)  # type: ignore[arg-type]
        known = condition(report, "Validated")
        if not observe:
            assert (known.status, known.reason) == (
                report.status.desired.condition,
                report.status.desired.reason,
            )
        assert (known.last_transition_time == since) == (known.status == status)
        since, status = known.last_transition_time, known.status
        tainted = bool(report.status.desired.taints)
        assert condition(report, "Tainted").status == ("True" if tainted else "False")


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


def test_a_report_of_an_older_version_has_no_history_and_gains_one() -> None:
    """The first look after an upgrade writes conditions and invents no transition."""
    report = after(GOOD)
    old = replace(report, status=replace(report.status, transitions=[], conditions=[]))
    now = old.seen(node=NODE, at=NOW + 60)
    assert now.status.transitions == []
    assert condition(now, "Validated").status == "True"
    assert msgspec.json.encode(now.status.conditions[0])
