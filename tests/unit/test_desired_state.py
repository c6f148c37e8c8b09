"""What a node should carry: a pure function of its report, with expiry as promise 1 has it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Result
from nodegauge_judge import Verdict
from nodegauge_operator import names
from nodegauge_operator.api.report import DesiredNode, DesiredTaint
from nodegauge_operator.core import desired_state
from nodegauge_operator.core.context import MAX_WAIT
from nodegauge_operator.core.desired_state import UNVALIDATED, label_patch, taint_patch
from nodegauge_operator.core.model import NodeView, Taint
from nodegauge_operator.core.pod_outcome import RunEnd
from nodegauge_operator.names import Reason
from support.objects import (
    BUSY,
    INTERVAL,
    LOST,
    NOW,
    STALE,
    ANode,
    APolicy,
    AReport,
    make_context,
    make_node,
    make_policy,
    make_report,
    read,
    taint,
)
from support.properties import tried

NODE = make_node()
TOPOLOGY = {
    names.LABEL_INTERCONNECT: "nvlink",
    names.LABEL_EVIDENCE: "reported",
    names.LABEL_NVLINK_GBPS: "50",
    "interconnect": "nvlink",
}
HEALTH = {names.LABEL_HEALTH: "pass", names.LABEL_VALIDATED_AT: str(int(NOW))}


def titan() -> AReport:
    """A node of two bridged TITANs, read at NOW."""
    return make_report().after(read(made.titan()), node=NODE)


def desired(report: AReport, **known: Any) -> DesiredNode:
    """What the node should carry by this report."""
    context = make_context(**{"node": NODE, "report": report} | known)
    return desired_state.desired_node(context, context.status)


def desired_at(report: AReport, *, at: float = NOW, node: NodeView = NODE) -> DesiredNode:
    """What the node should carry at that time."""
    return desired(report, node=node, now=at)


def test_a_reading_becomes_labels_and_a_condition() -> None:
    """Class, evidence, rate, short key, health, time, and GPUValidated=True."""
    node_state = desired_at(titan())
    assert node_state.labels == TOPOLOGY | HEALTH
    assert (node_state.condition, node_state.reason) == ("True", Reason.VALIDATED)


def test_a_node_that_was_never_read_carries_a_reason_and_no_label() -> None:
    """Unknown, with what went wrong."""
    node_state = desired_at(make_report().after(LOST, node=NODE))
    assert node_state.labels == {}
    assert (node_state.condition, node_state.reason) == ("Unknown", Reason.NOT_YET_VALIDATED)
    assert "OOMKilled" in node_state.message


def test_a_node_that_never_ran_carries_nothing() -> None:
    """An empty report is no reason for a condition."""
    assert desired_at(make_report()) == DesiredNode()


def test_pcie_has_no_rate_and_one_gpu_has_no_class() -> None:
    """Absent is the only honest value there."""
    pcie = desired_at(make_report().after(read(made.phb()), node=NODE)).labels
    assert pcie[names.LABEL_INTERCONNECT] == "pcie"
    assert names.LABEL_NVLINK_GBPS not in pcie
    alone = desired_at(make_report().after(read(made.h100(1)), node=NODE)).labels
    assert alone.keys() == HEALTH.keys()


def test_refused_p2p_takes_the_class_away_at_once_and_keeps_the_verdict() -> None:
    """Links that are up and cannot be used are no NVLink: the label goes at once, `fail` takes two runs."""
    refused, report = read(made.with_pair(made.titan(), 0, 1, nvlink=1)), titan()
    report = report.after(refused, node=NODE, at=NOW + INTERVAL)
    node_state = desired_at(report, at=NOW + INTERVAL)
    assert not node_state.labels.keys() & TOPOLOGY.keys()
    assert node_state.labels[names.LABEL_HEALTH] == "warn"
    assert (node_state.condition, node_state.reason) == ("True", Reason.UNCONFIRMED)
    node_state = desired_at(report.after(refused, node=NODE, at=NOW + 2 * INTERVAL), at=NOW + 2 * INTERVAL)
    assert (node_state.condition, node_state.reason) == ("False", Reason.FAULTS_FOUND)


@pytest.mark.parametrize("end", [LOST, BUSY])
def test_an_unread_run_neither_sets_nor_clears(end: RunEnd) -> None:
    """Until the staleness limit the node carries what the last reading said."""
    report = titan().after(end, node=NODE, at=NOW + INTERVAL)
    assert desired_at(report, at=NOW + STALE) == desired_at(titan())


def test_waiting_does_not_age_a_reading_for_a_week() -> None:
    """The API server is away, no slot is free, the node is not Ready: no run said anything else."""
    assert desired_at(titan(), at=NOW + MAX_WAIT) == desired_at(titan())
    node_state = desired_at(titan(), at=NOW + MAX_WAIT + 1)
    assert (node_state.labels, node_state.condition) == ({}, "Unknown")


@pytest.mark.parametrize("setting", [0, "0%"])
@pytest.mark.parametrize("end", [None, LOST])
def test_a_paused_policy_changes_nothing(setting: int | str, end: RunEnd | None) -> None:
    """However long it is paused, and whatever the last run said."""
    report = titan() if end is None else titan().after(end, node=NODE, at=NOW + INTERVAL)
    policy = make_policy().of({"budget": {"concurrentProbes": setting}})
    assert desired(report, node=NODE, policy=policy, now=NOW + 9 * MAX_WAIT) == desired_at(titan())


def test_after_a_gap_failed_runs_age_a_reading_from_their_first() -> None:
    """An hour without API server, then one lost run: the reading is not gone at once."""
    report = titan().after(LOST, node=NODE, at=NOW + 9 * INTERVAL)
    assert desired_at(report, at=NOW + 9 * INTERVAL + STALE - INTERVAL) == desired_at(titan())
    assert desired_at(report, at=NOW + 9 * INTERVAL + STALE - INTERVAL + 1).labels == {}


def test_a_probe_that_is_switched_off_is_not_waited_for() -> None:
    """Nobody will renew the reading: it goes when it is old."""
    policy = make_policy().of({"probes": {"health": {"enabled": False}}})
    assert desired(titan(), node=NODE, policy=policy, now=NOW + STALE).labels == TOPOLOGY | HEALTH
    assert desired(titan(), node=NODE, policy=policy, now=NOW + STALE + 1).labels == {}


def test_a_probe_that_is_switched_off_takes_a_reading_along_that_only_waited() -> None:
    """It waited for a day, for a slot or for room, and was believed: nobody waits any more."""
    policy, later = make_policy().of({"probes": {"health": {"enabled": False}}}), NOW + 86_400
    assert desired(titan(), node=NODE, now=later).labels == TOPOLOGY | HEALTH
    assert desired(titan(), node=NODE, policy=policy, now=later).labels == {}
    refused = read(made.with_pair(made.titan(), 0, 1, read=5))
    faulty = make_report().after(refused, node=NODE).after(refused, node=NODE, at=NOW + INTERVAL)
    assert [t.value for t in desired(faulty, node=NODE, policy=policy, now=later).taints] == ["p2p"]


def test_an_operator_that_was_away_for_long_does_not_strip_the_fleet_that_it_finds() -> None:
    """After a start, or when a paused policy is resumed, there is one interval's time to read anew."""
    start = NOW + 365 * 86_400
    early = desired(titan(), node=NODE, now=start + 1, since=start)
    late = desired(titan(), node=NODE, now=start + INTERVAL + 1, since=start)
    assert (early.labels, late.labels) == (TOPOLOGY | HEALTH, {})


def test_after_the_limit_failed_runs_expire_to_absent_labels() -> None:
    """Nothing readable for longer than the limit: no label, condition Unknown with why."""
    report = titan().after(LOST, node=NODE, at=NOW + INTERVAL)
    node_state = desired_at(report, at=NOW + STALE + 1)
    assert node_state.labels == {}
    assert (node_state.condition, node_state.reason) == ("Unknown", Reason.STALE)
    assert "OOMKilled" in node_state.message
    verdict = make_context(node=NODE, report=report, now=NOW + STALE + 1).raw_verdict
    assert verdict is Verdict.UNKNOWN


@pytest.mark.parametrize("first", [BUSY, LOST])
def test_skipped_runs_age_nothing(first: RunEnd) -> None:
    """A full node could not be read; only failures in a row age its reading, not one among skipped runs."""
    report = titan().after(first, node=NODE, at=NOW + INTERVAL)
    for n in range(2, 50):
        report = report.after(BUSY, node=NODE, at=NOW + n * INTERVAL)
    assert desired_at(report, at=NOW + 50 * INTERVAL).labels == TOPOLOGY | HEALTH


def test_another_boot_takes_topology_away_and_leaves_health() -> None:
    """After a boot the links may be others: not known until read."""
    node_state = desired_at(titan(), node=NODE.booted("boot-2"))
    assert node_state.labels == HEALTH
    assert desired_at(titan(), node=NODE.booted("")).labels == TOPOLOGY | HEALTH


def test_the_limit_follows_the_policy() -> None:
    """Intervals times their number."""
    quick = make_policy().of({"probes": {"health": {"interval": "30s"}}, "staleAfterIntervals": 4})
    report = titan().after(LOST, node=NODE, policy=quick, at=NOW + 30)
    context = make_context(node=NODE, report=report, policy=quick)
    at = context.expires_at(report.status.probe(names.PROBE_HEALTH))
    assert at == NOW + 120
    before = desired(report, node=NODE, policy=quick, now=at)
    after = desired(report, node=NODE, policy=quick, now=at + 1)
    assert (len(before.labels), len(after.labels)) == (6, 0)


def test_in_mode_watch_failed_readings_expire_after_the_same_time() -> None:
    """A calm container reports seldom, but a failing one at once: the limit is that of runs by pods."""
    watched = make_policy().of({"probes": {"health": {"mode": "Watch"}}})
    before = titan().after(read(made.titan()), node=NODE, policy=watched, at=NOW + 60)
    calm = make_context(node=NODE, report=before, policy=watched)
    failing = before.after(LOST, node=NODE, policy=watched, at=NOW + 5400)
    failed = make_context(node=NODE, report=failing, policy=watched)
    assert calm.expires_at(before.status.probe(names.PROBE_HEALTH)) > NOW + 86_400
    assert failed.expires_at(failing.status.probe(names.PROBE_HEALTH)) == NOW + 5400 + STALE - INTERVAL


def test_validated_at_is_rewritten_after_half_the_limit_only() -> None:
    """Fewer writes, and still young enough for Gt (ADR 0008)."""
    report = titan()
    stamps = []
    for n in range(1, 7):
        report = report.after(read(made.titan()), node=NODE, at=NOW + n * INTERVAL)
        stamps.append(int(report.status.desired.labels[names.LABEL_VALIDATED_AT]))
    assert [(s - NOW) / INTERVAL for s in stamps] == [0, 2, 2, 4, 4, 6]


def test_validated_at_never_lies_in_the_future_and_survives_nonsense() -> None:
    """A value that a person wrote, or a clock that went back, is replaced."""
    for before in (str(int(NOW) + 999_999), "soon", "", "²", "9" * 5000, "-5"):
        report = titan()
        carried = replace(report.status.desired, labels={names.LABEL_VALIDATED_AT: before})
        report = replace(report, status=replace(report.status, desired=carried))
        labels = desired(report, node=NODE, now=NOW).labels
        assert labels[names.LABEL_VALIDATED_AT] == str(int(NOW))


def test_a_policy_that_observes_puts_nothing_on_a_node() -> None:
    """Reports are written; nodes are left alone."""
    policy = make_policy().observing()
    assert desired(titan(), node=NODE, policy=policy, now=NOW) == DesiredNode()


THEIRS = NODE.labelled(interconnect="infiniband")


@pytest.mark.parametrize(
    ("node", "policy", "value", "conflicts"),
    [
        pytest.param(THEIRS, make_policy(), None, ["interconnect"], id="of-somebody-else"),
        pytest.param(NODE.labelled(interconnect="nvlink"), make_policy(), None, [], id="theirs-agrees"),
        pytest.param(
            THEIRS, make_policy().keyed("interconnect", take_over=True), "nvlink", [], id="taken-over"
        ),
        pytest.param(NODE.ours({"interconnect": "pcie"}), make_policy(), "nvlink", [], id="ours"),
        pytest.param(NODE, make_policy().keyed(""), None, [], id="left-out"),
    ],
)
def test_the_short_key_is_ours(node: ANode, policy: APolicy, value: str | None, conflicts: list[str]) -> None:
    """The long key is ours alone.  The short one stays somebody else's unless the policy takes it over."""
    node_state = desired(titan(), node=node, policy=policy, now=NOW)
    assert (node_state.labels.get("interconnect"), node_state.conflicts) == (value, conflicts)
    assert node_state.labels[names.LABEL_INTERCONNECT] == "nvlink"


# -- the patch of labels (promise 2) ------------------------------------------------------------------------

SHORT = st.sampled_from(["interconnect", "example.com/link", ""])
LABEL_KEYS = st.sampled_from(
    [
        *names.NODE_LABELS,
        "interconnect",
        "example.com/link",
        "team",
        "nvidia.com/gpu.count",
        "nodegauge.dev.evil/x",
    ]
)
VALUES = st.sampled_from(["nvlink", "pcie", "nvlink-pairs", "pass", "50", "x", ""])
LABELS = st.dictionaries(LABEL_KEYS, VALUES, max_size=6)
RESULTS = st.sampled_from([made.titan(), made.phb(), made.dgx1(), made.h100(1), made.a100_bridged_pairs()])


@st.composite
def nodes(draw: st.DrawFn) -> ANode:
    """A node with labels of ours and of others."""
    return make_node().bearing(draw(LABELS)).ours(draw(LABELS))


@st.composite
def policies(draw: st.DrawFn) -> APolicy:
    """Any policy as far as labels go."""
    if draw(st.booleans()):
        return make_policy().keyed(draw(SHORT), take_over=draw(st.booleans()))
    return make_policy().observing()


@given(node=nodes(), policy=policies(), result=RESULTS)
@tried(150)
def test_foreign_keys_are_never_in_a_patch(node: ANode, policy: APolicy, result: Result) -> None:
    """A key in the patch is one of our prefix, one that we wrote before, one nobody has, or taken over."""
    report = make_report().after(read(result), node=node)
    wanted = desired(report, node=node, policy=policy, now=NOW).labels
    patch = label_patch(node, wanted)
    free = node.managed_labels | names.NODE_LABELS.keys()
    key = policy.spec.labels.interconnect_key
    free |= {key} if policy.spec.labels.take_over or key not in node.labels else set()
    assert patch.keys() <= free
    foreign = {k: v for k, v in node.labels.items() if k not in free}
    after = node.patched(patch)
    assert {k: v for k, v in after.labels.items() if k in foreign} == foreign


@given(node=nodes(), policy=policies(), result=RESULTS)
@tried(200)
def test_a_patch_leaves_nothing_to_patch(node: ANode, policy: APolicy, result: Result) -> None:
    """After it the node carries exactly what it should of ours, and nothing is left to do."""
    report = make_report().after(read(result), node=node)
    wanted = desired(report, node=node, policy=policy, now=NOW).labels
    after = node.patched(label_patch(node, wanted))
    assert {k: after.labels[k] for k in wanted} == wanted
    assert {k for k in after.labels if k in names.NODE_LABELS or k in after.managed_labels} <= wanted.keys()
    again = desired(report, node=after, policy=policy, now=NOW)
    assert again.labels == wanted
    assert label_patch(after, again.labels) == {}


def test_a_changed_key_removes_the_old_one() -> None:
    """What managedFields give to us under an earlier short key goes with it."""
    node = make_node().labelled(team="a")
    first = desired(
        make_report().after(read(made.titan()), node=node), node=node, policy=make_policy(), now=NOW
    )
    node = node.patched(label_patch(node, first.labels))
    moved = make_policy().keyed("example.com/link")
    report = make_report().after(read(made.titan()), node=node, policy=moved)
    patch = label_patch(node, desired(report, node=node, policy=moved, now=NOW).labels)
    assert patch == {"interconnect": None, "example.com/link": "nvlink"}


def test_nothing_wanted_takes_off_all_of_ours_and_nothing_else() -> None:
    """Mode Observe, no policy, uninstalling."""
    node = make_node().labelled(team="a", interconnect="mine").ours({names.LABEL_HEALTH: "pass", "link": "x"})
    assert label_patch(node, {}) == {names.LABEL_HEALTH: None, "link": None}


def test_a_key_of_our_prefix_is_ours_even_where_managed_fields_were_lost() -> None:
    """managedFields can be cleared by anyone; the prefix cannot be mistaken."""
    node = make_node().bearing({names.LABEL_INTERCONNECT: "nvlink"})
    assert label_patch(node, {}) == {names.LABEL_INTERCONNECT: None}
    assert label_patch(node, {names.LABEL_INTERCONNECT: "pcie"}) == {names.LABEL_INTERCONNECT: "pcie"}


# -- the list of taints (promise 2) ------------------------------------------------------------------------

THROTTLED, UNHEALTHY = names.TAINT_THROTTLED, names.TAINT_UNHEALTHY
THERMAL = DesiredTaint(key=THROTTLED, value="thermal")
GPU_LOST = DesiredTaint(key=UNHEALTHY, value="gpu-lost")


TAINT_KEYS = st.sampled_from(
    [*names.NODE_TAINTS, "team", "nvidia.com/gpu", "node.kubernetes.io/not-ready", "x/throttled"]
)
TAINTS = st.builds(
    Taint,
    key=TAINT_KEYS,
    value=st.sampled_from(["", "thermal", "gpu-lost", "a"]),
    effect=st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule"]),
    added=st.sampled_from(["", "2027-01-15T08:00:00Z"]),
)
LISTS = st.lists(TAINTS, max_size=7, unique_by=lambda t: (t.key, t.effect)).map(tuple)
WANTED = st.lists(
    st.builds(
        DesiredTaint,
        key=st.sampled_from(sorted(names.NODE_TAINTS)),
        value=st.sampled_from(["", "thermal", "gpu-lost"]),
        effect=st.sampled_from(["NoSchedule", "NoExecute"]),
    ),
    max_size=3,
    unique_by=lambda t: t.key,
)


@given(taints=LISTS, wanted=WANTED, leave=st.sampled_from([frozenset(), UNVALIDATED]))
@tried(200)
def test_whatever_a_node_carries_foreign_taints_are_as_they_were(
    taints: tuple[Taint, ...], wanted: list[DesiredTaint], leave: frozenset[str]
) -> None:
    """Order, values, effects and times of others; exactly what is wanted of ours; and nothing left to do."""
    node = replace(NODE, taints=taints)
    patch = taint_patch(node, wanted, leave=leave)
    now = taints if patch is None else patch
    assert [t for t in now if t.key not in names.NODE_TAINTS] == [
        t for t in taints if t.key not in names.NODE_TAINTS
    ]
    for key in names.NODE_TAINTS:
        mine = [t for t in now if t.key == key]
        asked = [t for t in wanted if t.key == key]
        before = [t for t in taints if t.key == key]
        if key in UNVALIDATED and before and (asked or key in leave):
            assert mine == before
        else:
            assert [(t.value, t.effect) for t in mine] == [(t.value, t.effect) for t in asked]
    assert len({(t.key, t.effect) for t in now}) == len(now)
    assert taint_patch(replace(node, taints=now), wanted, leave=leave) is None
    assert patch is None or patch != taints


def test_ours_is_replaced_where_it_stands_and_keeps_its_time_where_it_is_the_same() -> None:
    """Nothing moves, and an eviction's clock is not set back."""
    stands = Taint(key=THROTTLED, value="thermal", effect="NoSchedule", added="2027-01-15T08:00:00Z")
    node = replace(NODE, taints=(taint("a=1"), stands, taint("b=2")))
    assert taint_patch(node, [THERMAL]) is None
    other = DesiredTaint(key=THROTTLED, value="power-brake")
    assert taint_patch(node, [other]) == (
        taint("a=1"),
        Taint(key=THROTTLED, value="power-brake", effect="NoSchedule"),
        taint("b=2"),
    )
    assert taint_patch(node, [THERMAL, GPU_LOST]) == (*node.taints, taint(f"{UNHEALTHY}=gpu-lost"))
    assert taint_patch(node, []) == (taint("a=1"), taint("b=2"))


def test_a_second_effect_under_our_key_goes_and_the_right_one_stays() -> None:
    """Kubernetes allows one key with several effects; we hold one."""
    stands = Taint(key=UNHEALTHY, value="gpu-lost", effect="NoSchedule", added="2027-01-15T08:00:00Z")
    node: ANode = replace(NODE, taints=(taint(f"{UNHEALTHY}=x:NoExecute"), taint("a"), stands))
    assert taint_patch(node, [GPU_LOST]) == (stands, taint("a"))
