"""Promises about taints and the budget hold in any order of events.

Runs are good, bad, idle or unreadable; the operator dies at any write; several nodes are reconciled at once;
policies, nodes and labels come, change and go; others write at the worst moment.  `support.promises` checks
after every write of the operator.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodegauge_operator import names
from support.api_server import NODES, REPORTS
from support.judging import listening
from support.promises import GARBAGE, InterleavedOperator
from support.properties import tried

pytestmark = pytest.mark.slow

COUNT = 3
NODE_NAMES = st.sampled_from([f"node-{n}" for n in range(COUNT)])
ANSWERS = st.sampled_from(
    [
        "hot=b",
        "hot=b",
        "gpu-lost=b",
        "p2p-refused=b",
        "hot=b p2p-refused=b",
        "",
        "",
        "hot=n",
        "hot=u",
        GARBAGE,
    ]
)
SPECS = st.sampled_from(
    [
        None,
        {},
        {"mode": "Observe"},
        {"mode": "Enforce"},
        {"budget": {"gatedNodes": 0}},
        {"budget": {"gatedNodes": 1}},
        {"budget": {"gatedNodes": 2}},
        {"budget": {"gatedNodes": "50%"}},
        {"taints": {"effect": "None"}},
        {"taints": {"effect": "NoExecute", "causes": {"thermal": "None"}}},
        {"taints": {"effect": "NoSchedule", "causes": {}, "unvalidated": "Set"}},
        {"hysteresis": {"dwell": "0s", "leaveRuns": 1}},
        {"hysteresis": {"probationAfter": ["20m"], "probation": "1h"}},
    ]
)
TAINTS = st.sampled_from(["late", "other", *names.NODE_TAINTS])

KINDS: dict[str, tuple[int, tuple[st.SearchStrategy[Any], ...]]] = {
    "measure": (12, (NODE_NAMES, ANSWERS)),
    "gets": (6, (NODE_NAMES, st.sampled_from(["hot=b", "gpu-lost=b", "p2p-refused=b"]))),
    "heals": (3, (NODE_NAMES,)),
    "go": (8, (NODE_NAMES,)),
    "finish": (6, (NODE_NAMES,)),
    "deliver": (2, ()),
    "wait": (2, (st.sampled_from([60, 1200, 7200, 90_000]),)),
    "policy": (4, (SPECS,)),
    "stranger": (2, (NODE_NAMES, TAINTS)),
    "race": (2, (NODE_NAMES, TAINTS)),
    "drop": (1, (NODE_NAMES,)),
    "label": (2, (NODE_NAMES, st.sampled_from(["gpu=", "gpu=yes", "team=b", "late=1"]))),
    "node goes": (1, (NODE_NAMES,)),
    "node comes": (1, (NODE_NAMES, st.booleans())),
    "report goes": (1, (NODE_NAMES,)),
    "restart": (1, ()),
    "die": (3, (st.integers(0, 5), st.sampled_from(["before", "after"]))),
}
"""What may happen, how often, and with what."""
ACTIONS = st.sampled_from([kind for kind, (weight, _) in KINDS.items() for _ in range(weight)]).flatmap(
    lambda kind: st.tuples(st.just(kind), *KINDS[kind][1])
)


def act(operator: InterleavedOperator, action: tuple[Any, ...]) -> None:
    """One thing happens."""
    match action:
        case ("measure", name, answers):
            operator.measure(name, answers, load="hot=n" not in answers)
        case ("gets", name, answers):
            operator.measure(name, answers)
            operator.measure(name, answers)
        case ("heals", name):
            for _ in range(3):
                operator.measure(name, "")
        case ("go", name):
            operator.go(name)
        case ("finish", name):
            operator.finish(name)
        case ("deliver",):
            operator.deliver()
        case ("wait", seconds):
            operator.cluster.pass_time(seconds)
        case ("policy", spec):
            operator.write_policy(spec)
        case ("stranger", name, taint):
            operator.stranger(name, taint=taint)
        case ("race", name, taint):
            operator.race(name, taint)
        case ("drop", name):
            operator.stranger(name, drop=True)
        case ("label", name, label):
            operator.stranger(name, label=label)
        case ("node goes", name):
            operator.remove_node(name)
        case ("node comes", name, unvalidated):
            operator.add_node(name, unvalidated=unvalidated)
        case ("report goes", name):
            if name in operator.cluster.objects[REPORTS]:
                operator.cluster.remove(REPORTS, name)
        case ("restart",):
            operator.restart()
        case ("die", writes, when):
            operator.die_after(writes, when)
        case _:
            raise AssertionError(action)


def played(actions: list[tuple[Any, ...]], **spec: Any) -> InterleavedOperator:
    """A operator after all that, at rest."""
    operator = InterleavedOperator(COUNT, **({"budget": {"gatedNodes": 1}} | spec))
    for action in actions:
        act(operator, action)
    operator.rest()
    return operator


@given(actions=st.lists(ACTIONS, min_size=15, max_size=45))
@tried(120)
def test_no_order_of_events_breaks_a_promise(actions: list[tuple[Any, ...]]) -> None:
    """Checked after every write; and at rest each node carries what its report holds, and nothing besides."""
    with listening():
        operator = played(actions)
        for name, body in operator.cluster.objects[NODES].items():
            report = operator.cluster.objects[REPORTS].get(name, {}).get("status", {})
            desired = {
                (t["key"], t["value"], t["effect"]) for t in report.get("desired", {}).get("taints", ())
            }
            stand = {
                (t["key"], t.get("value", ""), t["effect"])
                for t in body["spec"].get("taints") or ()
                if t["key"] in names.TAINTS_OF_FAULTS
            }
            assert stand == {t for t in desired if t[0] in names.TAINTS_OF_FAULTS}, name


@given(actions=st.lists(ACTIONS, min_size=10, max_size=30))
@tried(60)
def test_no_order_of_events_traps_a_node(actions: list[tuple[Any, ...]]) -> None:
    """Whatever happened: three good runs under load later nothing is tainted for a fault, on any node."""
    with listening():
        operator = played(actions)
        operator.write_policy({"mode": "Enforce", "hysteresis": {"dwell": "10m", "leaveRuns": 3}})
        for name in operator.cluster.objects[NODES]:
            operator.stranger(name, label="gpu=yes")
        operator.rest()
        for _ in range(3):
            for name in sorted(operator.cluster.objects[NODES]):
                operator.measure(name, "")
                operator.rest()
        assert [name for name in operator.cluster.objects[NODES] if operator.taints(name)] == []
        assert [
            name
            for name, body in operator.cluster.objects[NODES].items()
            if any(t["key"] == names.TAINT_UNVALIDATED for t in body["spec"].get("taints") or ())
        ] == []


@given(actions=st.lists(ACTIONS, min_size=10, max_size=30))
@tried(45)
def test_whatever_happened_a_deleted_policy_leaves_nothing(actions: list[tuple[Any, ...]]) -> None:
    """Neither taints for faults, nor labels, nor reports, nor pods; and what others put there stays."""
    with listening():
        operator = played(actions)
        operator.write_policy(None)
        operator.rest()
        operator.cluster.kubelets()
        operator.cluster.pass_time(600)
        operator.rest()
        assert operator.cluster.objects[REPORTS] == {}
        assert list(operator.cluster.pods()) == []
        for name, body in operator.cluster.objects[NODES].items():
            assert operator.taints(name) == []
            assert not body["metadata"]["labels"].keys() & names.NODE_LABELS.keys()


def test_the_stories_reach_what_they_are_about() -> None:
    """Two nodes hot, one place: the property would be empty if nothing ever entered."""
    with listening():
        hot = [("measure", f"node-{n}", "hot=b") for n in (0, 1, 0, 1)]
        go = [("go", f"node-{n}") for _ in range(12) for n in (0, 1)]
        operator = played([*hot[:2], *go, *hot[2:], *go])
        assert operator.entered == 1
        assert [n for n in sorted(operator.cluster.objects[NODES]) if operator.taints(n)] == ["node-0"]
        assert operator.checked > 4


@pytest.mark.parametrize("calls", range(8))
def test_a_place_is_free_only_once_the_taint_is_off_the_node(calls: int) -> None:
    """One node heals, another waits: it is looked at after every single call made for the first."""
    with listening():
        operator = InterleavedOperator(2, budget={"gatedNodes": 1})
        for name in ("node-0", "node-1"):
            operator.measure(name, "gpu-lost=b")
            operator.finish(name)
            operator.reconcile(name)
        assert [n for n in ("node-0", "node-1") if operator.taints(n)] == ["node-0"]
        for _ in range(3):
            operator.measure("node-0", "")
        for _ in range(calls):
            operator.go("node-0")
        operator.reconcile("node-1")
        assert not (operator.taints("node-0") and operator.taints("node-1"))
        operator.rest()
        assert [n for n in ("node-0", "node-1") if operator.taints(n)] == ["node-1"]
