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
from support import tried
from support.api_server import NODES, REPORTS
from support.judging import listening
from support.promises import GARBAGE, InterleavedOperator

pytestmark = pytest.mark.timeout(600)  # seconds of CPU, but minutes on a machine at load 8

COUNT = 3
NODE_NAMES = st.sampled_from([f"node-{n}" for n in range(COUNT)])
WORDS = st.sampled_from(
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
    "measure": (12, (NODE_NAMES, WORDS)),
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


def act(fleet: InterleavedOperator, action: tuple[Any, ...]) -> None:
    """One thing happens."""
    match action:
        case ("measure", name, words):
            fleet.measure(name, words, load="hot=n" not in words)
        case ("gets", name, words):
            fleet.measure(name, words)
            fleet.measure(name, words)
        case ("heals", name):
            for _ in range(3):
                fleet.measure(name, "")
        case ("go", name):
            fleet.go(name)
        case ("finish", name):
            fleet.finish(name)
        case ("deliver",):
            fleet.deliver()
        case ("wait", seconds):
            fleet.cluster.pass_time(seconds)
        case ("policy", spec):
            fleet.write_policy(spec)
        case ("stranger", name, taint):
            fleet.stranger(name, taint=taint)
        case ("race", name, taint):
            fleet.race(name, taint)
        case ("drop", name):
            fleet.stranger(name, drop=True)
        case ("label", name, label):
            fleet.stranger(name, label=label)
        case ("node goes", name):
            fleet.remove_node(name)
        case ("node comes", name, unvalidated):
            fleet.add_node(name, unvalidated=unvalidated)
        case ("report goes", name):
            if name in fleet.cluster.objects[REPORTS]:
                fleet.cluster.remove(REPORTS, name)
        case ("restart",):
            fleet.restart()
        case ("die", writes, when):
            fleet.die_after(writes, when)
        case _:
            raise AssertionError(action)


def played(actions: list[tuple[Any, ...]], **spec: Any) -> InterleavedOperator:
    """A fleet after all that, at rest."""
    fleet = InterleavedOperator(COUNT, **({"budget": {"gatedNodes": 1}} | spec))
    for action in actions:
        act(fleet, action)
    fleet.rest()
    return fleet


@given(actions=st.lists(ACTIONS, min_size=15, max_size=45))
@tried(120)
def test_no_order_of_events_breaks_a_promise(actions: list[tuple[Any, ...]]) -> None:
    """Checked after every write; and at rest each node carries what its report holds, and nothing besides."""
    with listening():
        fleet = played(actions)
        for name, body in fleet.cluster.objects[NODES].items():
            report = fleet.cluster.objects[REPORTS].get(name, {}).get("status", {})
            held = {(t["key"], t["value"], t["effect"]) for t in report.get("desired", {}).get("taints", ())}
            stand = {
                (t["key"], t.get("value", ""), t["effect"])
                for t in body["spec"].get("taints") or ()
                if t["key"] in names.TAINTS_OF_FAULTS
            }
            assert stand == {t for t in held if t[0] in names.TAINTS_OF_FAULTS}, name


@given(actions=st.lists(ACTIONS, min_size=10, max_size=30))
@tried(60)
def test_no_order_of_events_traps_a_node(actions: list[tuple[Any, ...]]) -> None:
    """Whatever happened: three good runs under load later nothing is tainted for a fault, on any node."""
    with listening():
        fleet = played(actions)
        fleet.write_policy({"mode": "Enforce", "hysteresis": {"dwell": "10m", "leaveRuns": 3}})
        for name in fleet.cluster.objects[NODES]:
            fleet.stranger(name, label="gpu=yes")
        fleet.rest()
        for _ in range(3):
            for name in sorted(fleet.cluster.objects[NODES]):
                fleet.measure(name, "")
            fleet.rest()
        assert [name for name in fleet.cluster.objects[NODES] if fleet.taints(name)] == []
        assert [
            name
            for name, body in fleet.cluster.objects[NODES].items()
            if any(t["key"] == names.TAINT_UNVALIDATED for t in body["spec"].get("taints") or ())
        ] == []


@given(actions=st.lists(ACTIONS, min_size=10, max_size=30))
@tried(45)
def test_whatever_happened_a_deleted_policy_leaves_nothing(actions: list[tuple[Any, ...]]) -> None:
    """Neither taints for faults, nor labels, nor reports, nor pods; and what others put there stays."""
    with listening():
        fleet = played(actions)
        fleet.write_policy(None)
        fleet.rest()
        fleet.cluster.kubelets()
        fleet.rest()
        assert fleet.cluster.objects[REPORTS] == {}
        assert list(fleet.cluster.pods()) == []
        for name, body in fleet.cluster.objects[NODES].items():
            assert fleet.taints(name) == []
            assert not body["metadata"]["labels"].keys() & names.NODE_LABELS.keys()


def test_the_stories_reach_what_they_are_about() -> None:
    """Two nodes hot, one place: the property would be empty if nothing ever entered."""
    with listening():
        hot = [("measure", f"node-{n}", "hot=b") for n in (0, 1, 0, 1)]
        go = [("go", f"node-{n}") for _ in range(12) for n in (0, 1)]
        fleet = played([*hot[:2], *go, *hot[2:], *go])
        assert fleet.entered == 1
        assert [n for n in sorted(fleet.cluster.objects[NODES]) if fleet.taints(n)] == ["node-0"]
        assert fleet.checked > 4


@pytest.mark.parametrize("calls", range(8))
def test_a_place_is_free_only_once_the_taint_is_off_the_node(calls: int) -> None:
    """One node heals, another waits: it is looked at after every single call made for the first."""
    with listening():
        fleet = InterleavedOperator(2, budget={"gatedNodes": 1})
        for name in ("node-0", "node-1"):
            fleet.measure(name, "gpu-lost=b")
            fleet.finish(name)
            fleet.settle(name)
        assert [n for n in ("node-0", "node-1") if fleet.taints(n)] == ["node-0"]
        for _ in range(3):
            fleet.measure("node-0", "")
        for _ in range(calls):
            fleet.go("node-0")
        fleet.settle("node-1")
        assert not (fleet.taints("node-0") and fleet.taints("node-1"))
        fleet.rest()
        assert [n for n in ("node-0", "node-1") if fleet.taints(n)] == ["node-1"]
