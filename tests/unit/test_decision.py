"""What a node should carry: a pure function of its report, with expiry as promise 1 has it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Result
from nodegauge_judge import Probe, Verdict
from nodegauge_operator import names
from nodegauge_operator.api.report import DesiredNode, DesiredTaint, Outcome
from nodegauge_operator.api.times import stamp
from nodegauge_operator.core import decision
from nodegauge_operator.core.context import MAX_GRACE, MAX_WAIT
from nodegauge_operator.core.model import Taint
from nodegauge_operator.core.outlets import UNVALIDATED, label_patch, taint_patch
from nodegauge_operator.core.pod_outcome import RunEnd
from nodegauge_operator.core.probes.registry import label_keys
from nodegauge_operator.names import Reason
from support.objects import (
    BUSY,
    INTERVAL,
    LOST,
    MINUTE,
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
    "nodegauge.dev/interconnect-evidence": "reported",
    "nodegauge.dev/nvlink-gbps": "50",
    "interconnect": "nvlink",
}
HEALTH = {names.LABEL_HEALTH: "pass", names.LABEL_VALIDATED_AT: str(int(NOW))}


def titan() -> AReport:
    """A node of two bridged TITANs, read at NOW."""
    return make_report().after(read(made.titan()), node=NODE)


def desired(report: AReport, **known: Any) -> DesiredNode:
    context = make_context(**{"node": NODE, "report": report, "gate_slot": True} | known)
    return decision.decide(context).desired


def test_a_node_that_was_never_read_carries_a_reason_and_no_label() -> None:
    node_state = desired(make_report().after(LOST, node=NODE))
    assert node_state.labels == {}
    assert (node_state.condition, node_state.reason) == ("Unknown", Reason.NOT_YET_VALIDATED)
    assert "OOMKilled" in node_state.message


def test_pcie_has_no_rate_and_one_gpu_has_no_class() -> None:
    pcie = desired(make_report().after(read(made.phb()), node=NODE)).labels
    assert pcie[names.LABEL_INTERCONNECT] == "pcie"
    assert "nodegauge.dev/nvlink-gbps" not in pcie
    alone = desired(make_report().after(read(made.h100(1)), node=NODE)).labels
    assert alone.keys() == HEALTH.keys()


def ran(*ends: RunEnd, spec: dict[str, Any] | None = None, first: float = INTERVAL) -> AReport:
    """Two bridged TITANs that were read, then had these runs: the first so much later, then each interval."""
    report, policy = titan(), make_policy().of(spec or {})
    for n, end in enumerate(ends):
        report = report.after(end, node=NODE, policy=policy, at=NOW + first + n * INTERVAL)
    return report


QUICK = {"probes": {"health": {"interval": "30s"}}, "staleAfterIntervals": 4}
OFF = {"probes": {"health": {"enabled": False}}}


@pytest.mark.parametrize(
    ("ends", "first", "spec", "fresh_until"),
    [
        pytest.param([], INTERVAL, {}, MAX_WAIT, id="nothing tried: for a week"),
        pytest.param([BUSY], INTERVAL, {}, MAX_WAIT, id="busy: for a week"),
        pytest.param([LOST], INTERVAL, {}, STALE, id="lost: for the limit"),
        pytest.param([LOST, *[BUSY] * 48], INTERVAL, {}, MAX_WAIT, id="one lost among skipped runs"),
        pytest.param([BUSY] * 49, INTERVAL, {}, MAX_WAIT, id="a full node"),
        pytest.param([LOST], 9 * INTERVAL, {}, 8 * INTERVAL + STALE, id="a gap, then lost"),
        pytest.param([LOST], 30, QUICK, 120, id="the policy's interval and number"),
        pytest.param([], INTERVAL, OFF, STALE, id="switched off: nobody waits"),
    ],
)
def test_until_when_a_node_carries_a_reading(
    ends: list[RunEnd], first: float, spec: dict[str, Any], fresh_until: float
) -> None:
    """Only failed runs in a row age a reading; then labels go, and the condition says why."""
    report, policy = ran(*ends, spec=spec, first=first), make_policy().of(spec)
    before = desired(report, policy=policy, now=NOW + fresh_until)
    after = desired(report, policy=policy, now=NOW + fresh_until + 1)
    assert before == desired(titan())
    assert (after.labels, after.condition, after.reason) == ({}, "Unknown", Reason.STALE)
    last = report.status.probes[0].last_run
    assert last is None or last.reason == "Read" or last.reason in after.message
    context = make_context(node=NODE, report=report, policy=policy, now=NOW + fresh_until + 1)
    assert (context.raw_verdict, context.stale) == (Verdict.UNKNOWN, {Probe.HEALTH})


def refused(reason: str) -> RunEnd:
    return RunEnd(outcome=Outcome.UNKNOWN, reason=reason, message="exceeded quota: gpu")


@pytest.mark.parametrize(
    ("ends", "first", "known_until"),
    [
        ([refused("CreateRefused")], INTERVAL, STALE),
        ([refused("ErrImagePull"), refused("ImagePullBackOff")] * 40, INTERVAL, STALE),
        ([LOST, refused("CreateRefused")], INTERVAL, STALE),
        ([refused("CreateRefused")] * 96, 9 * INTERVAL, 8 * INTERVAL + STALE),
    ],
)
def test_a_run_that_is_refused_ages_health_and_not_topology(
    ends: list[RunEnd], first: float, known_until: float
) -> None:
    """It is not the node's: what is built into it is as for a full node, what it does now is not known."""
    report = ran(*ends, first=first)
    assert desired(report, now=NOW + known_until) == desired(titan())
    for wait in (known_until + 1, MAX_WAIT):
        node = desired(report, now=NOW + wait)
        assert (node.labels.keys() & HEALTH.keys(), node.condition) == ({names.LABEL_VALIDATED_AT}, "Unknown")
        assert (node.labels.items() >= TOPOLOGY.items(), node.reason) == (True, Reason.STALE)
        assert "exceeded quota: gpu" in node.message
    seen = report.seen(node=NODE, at=NOW + known_until + 1)
    assert seen.status.change.reason == Reason.STALE
    assert desired(report, now=NOW + MAX_WAIT + 1).labels == {}
    assert TOPOLOGY.items() & desired(report, node=NODE.booted("boot-2")).labels.items() == set()
    failed = report.after(LOST, node=NODE, at=NOW + 2 * MAX_WAIT / 3)
    assert desired(failed, now=NOW + 2 * MAX_WAIT / 3 + 2 * INTERVAL).labels.items() >= TOPOLOGY.items()
    assert desired(failed, now=NOW + 2 * MAX_WAIT / 3 + STALE).labels == {}


@pytest.mark.parametrize("slots", [0, "0%"])
@pytest.mark.parametrize("ends", [[], [LOST]])
def test_a_paused_policy_changes_nothing(ends: list[RunEnd], slots: int | str) -> None:
    policy = make_policy().of({"budget": {"concurrentProbes": slots}})
    assert desired(ran(*ends), policy=policy, now=NOW + 9 * MAX_WAIT) == desired(titan())


def test_another_boot_takes_topology_away_and_leaves_health() -> None:
    """After a boot the links may be others: not known until read."""
    node_state = desired(titan(), node=NODE.booted("boot-2"))
    assert node_state.labels == HEALTH
    assert desired(titan(), node=NODE.booted("")).labels == TOPOLOGY | HEALTH


def test_validated_at_never_lies_in_the_future_and_survives_nonsense() -> None:
    for before in (str(int(NOW) + 999_999), "soon", "", "²", "9" * 5000, "-5"):
        report = titan()
        carried = replace(report.status.desired, labels={names.LABEL_VALIDATED_AT: before})
        report = replace(report, status=replace(report.status, desired=carried))
        labels = desired(report).labels
        assert labels[names.LABEL_VALIDATED_AT] == str(int(NOW))


THEIRS = NODE.labelled(interconnect="infiniband")


@pytest.mark.parametrize(
    ("node", "policy", "value", "conflicts"),
    [
        pytest.param(THEIRS, make_policy(), None, ["interconnect"], id="of-somebody-else"),
        pytest.param(NODE.labelled(interconnect="nvlink"), make_policy(), None, [], id="theirs-agrees"),
        pytest.param(THEIRS, make_policy().keyed("interconnect", take_over=True), "nvlink", [], id="taken"),
        pytest.param(NODE.ours({"interconnect": "pcie"}), make_policy(), "nvlink", [], id="ours"),
        pytest.param(NODE, make_policy().keyed(""), None, [], id="left-out"),
    ],
)
def test_the_short_key_is_ours(node: ANode, policy: APolicy, value: str | None, conflicts: list[str]) -> None:
    """The long key is ours alone.  The short one stays somebody else's unless the policy takes it over."""
    node_state = desired(titan(), node=node, policy=policy)
    assert (node_state.labels.get("interconnect"), node_state.conflicts) == (value, conflicts)
    assert node_state.labels[names.LABEL_INTERCONNECT] == "nvlink"


SHORT = st.sampled_from(["interconnect", "example.com/link", ""])
LABEL_KEYS = st.sampled_from(
    [
        *label_keys(),
        *("interconnect", "example.com/link", "team", "nvidia.com/gpu.count", "nodegauge.dev.evil/x"),
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
    if draw(st.booleans()):
        return make_policy().keyed(draw(SHORT), take_over=draw(st.booleans()))
    return make_policy().observing()


@given(node=nodes(), policy=policies(), result=RESULTS)
@tried(250)
def test_a_patch_leaves_nothing_to_patch_and_foreign_keys_alone(
    node: ANode, policy: APolicy, result: Result
) -> None:
    """A key in it has our prefix, or we wrote it before, or nobody has it, or it is taken over."""
    report = make_report().after(read(result), node=node)
    wanted = desired(report, node=node, policy=policy).labels
    patch = label_patch(node, wanted)
    free = node.managed_labels | label_keys()
    key = policy.spec.labels.interconnect_key
    free |= {key} if policy.spec.labels.take_over or key not in node.labels else set()
    assert patch.keys() <= free
    after = node.patched(patch)
    assert wanted.items() <= after.labels.items()
    assert {(k, v) for k, v in node.labels.items() if k not in free} <= after.labels.items()
    assert {k for k in after.labels if k in label_keys() or k in after.managed_labels} <= wanted.keys()
    again = desired(report, node=after, policy=policy).labels
    assert (again, label_patch(after, again)) == (wanted, {})


THROTTLED, UNHEALTHY = names.TAINT_THROTTLED, names.TAINT_UNHEALTHY
THERMAL = DesiredTaint(key=THROTTLED, value="thermal")
GPU_LOST = DesiredTaint(key=UNHEALTHY, value="gpu-lost")
TAINT_KEYS = st.sampled_from(
    [*names.NODE_TAINTS, "team", "nvidia.com/gpu", "node.kubernetes.io/x", "x/throttled"]
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
    """And exactly what is wanted of ours; and nothing left to do."""
    node = replace(NODE, taints=taints)
    patch = taint_patch(node, wanted, leave=leave)
    now = taints if patch is None else patch
    foreign, still = ([t for t in of if t.key not in names.NODE_TAINTS] for of in (taints, now))
    assert foreign == still
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
    stands = replace(taint(f"{THROTTLED}=thermal"), added="2027-01-15T08:00:00Z")
    node = replace(NODE, taints=(taint("a=1"), stands, taint("b=2")))
    assert taint_patch(node, [THERMAL]) is None
    other = DesiredTaint(key=THROTTLED, value="power-brake")
    assert taint_patch(node, [other]) == (taint("a=1"), taint(f"{THROTTLED}=power-brake"), taint("b=2"))
    assert taint_patch(node, [THERMAL, GPU_LOST]) == (*node.taints, taint(f"{UNHEALTHY}=gpu-lost"))
    assert taint_patch(node, []) == (taint("a=1"), taint("b=2"))


@pytest.mark.parametrize("minutes", [1, 5, 14])
def test_readings_expire_in_the_end_while_the_operator_ends_every_few_minutes(minutes: int) -> None:
    """Each start gives an interval to renew them; the report's own times say that runs go on to fail."""
    report = make_report().after(read(made.titan()), node=NODE).after(LOST, node=NODE, at=NOW + 60)
    [probe] = report.status.probes
    assert probe.last_run is not None

    def fresh(now: float) -> bool:
        run = replace(probe.last_run, finished_at=stamp(now - 30))
        status = replace(report.status, probes=[replace(probe, last_run=run)])
        tried = replace(report, status=status)
        context = make_context(node=NODE, report=tried, now=now, since=now - minutes * MINUTE)
        return Probe.HEALTH not in context.stale

    assert fresh(NOW + STALE + 1)
    assert fresh(NOW + STALE + MAX_GRACE - INTERVAL)
    assert not fresh(NOW + STALE + MAX_GRACE + 120)
    assert not fresh(NOW + 365 * MAX_GRACE)
