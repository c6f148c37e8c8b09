"""Promise 2 in the core: a patch of labels never names a key that is not ours, whatever a node carries."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import support.results as made
from nodegauge_operator import names
from nodegauge_operator.api.report import DesiredNode, Outcome, Report
from nodegauge_operator.core.desired_state import desired_node, label_patch
from nodegauge_operator.core.pod_outcome import RunEnd
from support import NOW, make_context, make_node, make_policy, make_report, tried
from support.objects import ANode, APolicy

pytestmark = pytest.mark.timeout(20)


def desired(report: Report, **known: Any) -> DesiredNode:
    """What the node should carry by this report."""
    if known["policy"] is None:
        return DesiredNode()
    context = make_context(report=report, **known)
    return desired_node(context, context.status)


SHORT = st.sampled_from(["interconnect", "example.com/link", ""])
KEYS = st.sampled_from(
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
LABELS = st.dictionaries(KEYS, VALUES, max_size=6)
RESULTS = st.sampled_from([made.titan(), made.phb(), made.dgx1(), made.h100(1), made.a100_bridged_pairs()])


@st.composite
def nodes(draw: st.DrawFn) -> ANode:
    """A node with labels of ours and of others."""
    return make_node().bearing(draw(LABELS)).ours(draw(LABELS))


@st.composite
def policies(draw: st.DrawFn) -> APolicy | None:
    """Any policy as far as labels go, or none."""
    if draw(st.booleans()):
        return make_policy().keyed(draw(SHORT), take_over=draw(st.booleans()))
    return draw(st.sampled_from([None, make_policy().observing()]))


@given(node=nodes(), policy=policies(), result=RESULTS)
@tried(400)
def test_foreign_keys_are_never_in_a_patch(node: ANode, policy: APolicy | None, result: object) -> None:
    """A key in the patch is one of our prefix, one that we wrote before, one nobody has, or taken over."""
    end = RunEnd(outcome=Outcome.READ, reason="Read", result=result)  # type: ignore[arg-type]
    report = make_report().after(end, node=node)
    wanted = desired(report, node=node, policy=policy, now=NOW).labels
    patch = label_patch(node, wanted)
    free = node.managed_labels | names.NODE_LABELS.keys()
    if policy is not None:
        key = policy.spec.labels.interconnect_key
        free |= {key} if policy.spec.labels.take_over or key not in node.labels else set()
    assert patch.keys() <= free
    foreign = {k: v for k, v in node.labels.items() if k not in free}
    after = node.patched(patch)
    assert {k: v for k, v in after.labels.items() if k in foreign} == foreign


@given(node=nodes(), policy=policies(), result=RESULTS)
@tried(200)
def test_a_patch_does_what_is_wanted_and_the_next_one_is_empty(
    node: ANode, policy: APolicy | None, result: object
) -> None:
    """After it the node carries exactly what it should of ours, and nothing is left to do."""
    end = RunEnd(outcome=Outcome.READ, reason="Read", result=result)  # type: ignore[arg-type]
    report = make_report().after(end, node=node)
    wanted = desired(report, node=node, policy=policy, now=NOW).labels
    after = node.patched(label_patch(node, wanted))
    assert {k: after.labels[k] for k in wanted} == wanted
    assert {k for k in after.labels if k in names.NODE_LABELS or k in after.managed_labels} == wanted.keys()
    again = desired(report, node=after, policy=policy, now=NOW)
    assert again.labels == wanted
    assert label_patch(after, again.labels) == {}


def test_a_changed_key_removes_the_old_one() -> None:
    """What managedFields give to us under an earlier short key goes with it."""
    end = RunEnd(outcome=Outcome.READ, reason="Read", result=made.titan())
    node = make_node().labelled(team="a")
    first = desired(make_report().after(end, node=node), node=node, policy=make_policy(), now=NOW)
    node = node.patched(label_patch(node, first.labels))
    moved = make_policy().keyed("example.com/link")
    report = make_report().after(end, node=node, policy=moved)
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
