"""Promises about taints and the budget hold in any order of events.

Runs are good, bad, idle or unreadable; the operator dies at any write; several nodes are reconciled at once;
policies, nodes and labels come, change and go; others write at the worst moment.  `support.promises` checks
after every write of the operator.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodegauge_operator import names
from nodegauge_operator.core.probes.registry import label_keys
from support.api_server import NODES, POLICIES, REPORTS
from support.promises import GARBAGE
from support.promises import InterleavedOperator as Operator
from support.properties import tried

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("stated_answers"), pytest.mark.timeout(1800)]
"""A property takes half a minute of CPU time; beside a dozen busy processes that is more than ten minutes."""

COUNT = 3
NODE_NAMES = st.sampled_from([f"node-{n}" for n in range(COUNT)])
FAULTS = ["hot=b", "gpu-lost=b", "p2p-refused=b"]
ANSWERS = st.sampled_from([*FAULTS, "hot=b", "hot=b p2p-refused=b", "", "", "hot=n", "hot=u", GARBAGE])
SPECS = st.sampled_from(
    [
        None,
        {},
        *({"mode": mode} for mode in ("Observe", "Enforce")),
        *({"budget": {"gatedNodes": slots}} for slots in (0, 1, 2, "50%")),
        {"taints": {"effect": "None"}},
        {"taints": {"effect": "NoExecute", "causes": {"thermal": "None"}}},
        {"taints": {"effect": "NoSchedule", "causes": {}, "unvalidated": "Set"}},
        {"hysteresis": {"dwell": "0s", "leaveRuns": 1}},
        {"hysteresis": {"probationAfter": ["20m"], "probation": "1h"}},
    ]
)
TAINTS = st.sampled_from(["late", "other", *names.NODE_TAINTS])

SECONDS = st.sampled_from([60, 1200, 7200, 90_000])
KINDS: list[tuple[Any, ...]] = [
    (12, Operator.measure, NODE_NAMES, ANSWERS, st.just(1)),
    (6, Operator.measure, NODE_NAMES, st.sampled_from(FAULTS), st.just(2)),
    (3, Operator.measure, NODE_NAMES, st.just(""), st.just(3)),
    (8, Operator.go, NODE_NAMES),
    (6, Operator.finish, NODE_NAMES),
    (2, Operator.deliver),
    (2, lambda operator, seconds: operator.cluster.pass_time(seconds), SECONDS),
    (4, Operator.write_policy, SPECS),
    (2, Operator.stranger, NODE_NAMES, TAINTS),
    (2, Operator.race, NODE_NAMES, TAINTS),
    (1, lambda operator, name: operator.stranger(name, drop=True), NODE_NAMES),
    (2, Operator.label, NODE_NAMES, st.sampled_from(["gpu=", "gpu=yes", "team=b", "late=1"])),
    (1, Operator.remove, NODE_NAMES, st.sampled_from([NODES])),
    (1, Operator.remove, NODE_NAMES, st.sampled_from([REPORTS])),
    (1, Operator.add_node, NODE_NAMES, st.booleans()),
    (1, Operator.restart),
    (3, Operator.die_after, st.integers(0, 5), st.sampled_from(["before", "after"])),
]
"""How often a thing happens, what happens, and with what."""
ACTIONS = st.sampled_from([kind for kind in KINDS for _ in range(kind[0])]).flatmap(
    lambda kind: st.tuples(st.just(kind[1]), *kind[2:])
)


def played(actions: list[tuple[Any, ...]]) -> Operator:
    operator = Operator(COUNT, budget={"gatedNodes": 1})
    for act, *how in actions:
        act(operator, *how)
    operator.rest()
    return operator


def heals(operator: Operator) -> None:
    """Good runs lift every taint."""
    operator.write_policy({"mode": "Enforce", "hysteresis": {"dwell": "10m", "leaveRuns": 3}})
    for name in operator.cluster.objects[NODES]:
        operator.label(name, "gpu=yes")
    operator.rest()
    for _ in range(3):
        for name in sorted(operator.cluster.objects[NODES]):
            operator.measure(name, "")
            operator.rest()
    for name, body in operator.cluster.objects[NODES].items():
        assert operator.taints(name) == []
        assert names.TAINT_UNVALIDATED not in {t["key"] for t in body["spec"].get("taints") or ()}


def is_let_go(operator: Operator) -> None:
    """A deleted policy leaves nothing."""
    operator.write_policy(None)
    operator.rest()
    operator.cluster.kubelets()
    operator.cluster.pass_time(600)
    operator.rest()
    assert (operator.cluster.objects[REPORTS], list(operator.cluster.pods())) == ({}, [])
    for name, body in operator.cluster.objects[NODES].items():
        assert operator.taints(name) == []
        assert not body["metadata"]["labels"].keys() & label_keys()


@given(actions=st.lists(ACTIONS, min_size=15, max_size=45))
@tried(120)
def test_no_order_of_events_breaks_a_promise_or_traps_a_node(actions: list[tuple[Any, ...]]) -> None:
    """Checked after every write; at rest each node carries what its report holds, and nothing besides (one
    that no policy selects is left as it is, before it is released: others may have taken something away);
    then half of the stories end in one way, half in the other."""
    operator = played(actions)
    for name, body in operator.cluster.objects[NODES].items():
        report = operator.cluster.objects[REPORTS].get(name, {}).get("status", {})
        desired = {(t["key"], t["value"], t["effect"]) for t in report.get("desired", {}).get("taints", ())}
        stand = {
            (t["key"], t.get("value", ""), t["effect"])
            for t in body["spec"].get("taints") or ()
            if t["key"] in names.TAINTS_OF_FAULTS
        }
        wanted = {t for t in desired if t[0] in names.TAINTS_OF_FAULTS}
        selected = operator.cluster.objects[POLICIES] and body["metadata"]["labels"].get("gpu") == "yes"
        assert stand == wanted if selected else stand <= wanted, name
    (heals if len(actions) % 2 else is_let_go)(operator)
