"""The whole list of a node's taints: ours exactly as wanted, everybody else's untouched (promise 2)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nodegauge_operator import names
from nodegauge_operator.api.report import DesiredTaint
from nodegauge_operator.core.desired_state import UNVALIDATED, taint_patch
from nodegauge_operator.core.model import Taint
from support import make_node, tried
from support.objects import ANode, taint

pytestmark = pytest.mark.timeout(20)

NODE = make_node()
THROTTLED, UNHEALTHY = names.TAINT_THROTTLED, names.TAINT_UNHEALTHY
THERMAL = DesiredTaint(key=THROTTLED, value="thermal")
LOST = DesiredTaint(key=UNHEALTHY, value="gpu-lost")


KEYS = st.sampled_from(
    [*names.NODE_TAINTS, "team", "nvidia.com/gpu", "node.kubernetes.io/not-ready", "x/throttled"]
)
TAINTS = st.builds(
    Taint,
    key=KEYS,
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
@tried(600)
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
    assert taint_patch(node, [THERMAL, LOST]) == (*node.taints, taint(f"{UNHEALTHY}=gpu-lost"))
    assert taint_patch(node, []) == (taint("a=1"), taint("b=2"))


def test_a_second_effect_under_our_key_goes_and_the_right_one_stays() -> None:
    """Kubernetes allows one key with several effects; we hold one."""
    stands = Taint(key=UNHEALTHY, value="gpu-lost", effect="NoSchedule", added="2027-01-15T08:00:00Z")
    node: ANode = replace(NODE, taints=(taint(f"{UNHEALTHY}=x:NoExecute"), taint("a"), stands))
    assert taint_patch(node, [LOST]) == (stands, taint("a"))
