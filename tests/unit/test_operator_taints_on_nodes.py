"""Taints on nodes through the operator's own worker and adapter: how they come and what takes them off."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from nodegauge_operator import names
from nodegauge_operator.kube.errors import Refused
from nodegauge_operator.names import Reason
from support.api_server import NODES, POLICIES, REPORTS
from support.cluster import FakeCluster
from support.judging import listening, saying
from support.objects import INTERVAL, MINUTE
from support.operator import SteppedOperator

HOUR, GRACE = 60 * MINUTE, 10 * MINUTE
UNVALIDATED = names.TAINT_UNVALIDATED


@pytest.fixture(autouse=True)
def stated_answers() -> Iterator[None]:
    with listening():
        yield


class TaintingOperator(SteppedOperator):
    """An operator of some nodes and one policy; each run's answers are what a test says."""

    def __init__(self, *nodes: str, taints: tuple[str, ...] = (), **spec: Any) -> None:
        super().__init__(FakeCluster())
        for name in nodes or ("node-1",):
            self.cluster.add_node(name, taints=taints, gpu="yes")
        self.cluster.add_policy(**spec)
        self.list()
        self.inbox.clear()

    def measure(
        self, answers: str = "", *, name: str = "node-1", load: bool = True, after: float = INTERVAL
    ) -> None:
        """One whole run, so long after the one before."""
        self.cluster.pass_time(after)
        self.cluster.results[name] = saying(answers, load=load)
        self.catch_up(name)
        self.cluster.kubelets()
        self.catch_up(name, granted=False)

    def taints(self, name: str = "node-1") -> list[str]:
        """As kubectl writes them, without our prefix."""
        taints = self.cluster.objects[NODES][name]["spec"].get("taints") or []
        texts = (f"{t['key'].removeprefix(names.PREFIX)}={t.get('value', '')}:{t['effect']}" for t in taints)
        return [text.replace("=:", ":") for text in texts]

    def change(self, path: str, name: str, patch: dict[str, Any]) -> None:
        """Somebody else writes, and the operator sees it."""
        self.cluster.change(path, name, patch)
        self.deliver()

    def pass_grace(self) -> None:
        """The time for which a node that left its policy keeps everything."""
        self.catch_up(granted=False)
        self.cluster.pass_time(GRACE)
        self.catch_up(granted=False)

    @property
    def writes(self) -> list[str]:
        """What was written, as "VERB resource"."""
        return self.client.log


def test_a_taint_goes_up_in_the_patch_of_the_labels_after_the_report() -> None:
    """The report reserves it, then one write brings labels and taints together."""
    operator = TaintingOperator(taints=("team",))
    operator.measure("")
    operator.writes.clear()
    operator.measure("gpu-lost=b")
    assert operator.writes == [
        "POST pods",
        "PATCH nodeevidences",
        "PATCH nodereports/status",
        "PATCH nodes",
        "PATCH nodes/status",
        "POST events",
        "DELETE pods",
    ]
    assert operator.taints() == ["team:NoSchedule", "unhealthy=gpu-lost:NoSchedule"]
    assert operator.status["desired"]["taints"] == [
        {"key": names.TAINT_UNHEALTHY, "value": "gpu-lost", "effect": "NoSchedule"}
    ]
    events = [reason for reason, _ in operator.events]
    assert sorted(events) == [Reason.TAINTED, Reason.VALIDATED]


@pytest.mark.parametrize("how", ["policy deleted", "observe", "report deleted", "outside the selection"])
def test_what_takes_every_taint_of_ours_off_and_no_other(how: str) -> None:
    """Nothing stands on a node that no report and no policy asks for."""
    operator = TaintingOperator(taints=("team",), nodeSelector={"matchLabels": {"gpu": "yes"}})
    operator.measure("gpu-lost=b")
    assert len(operator.taints()) == 2
    match how:
        case "policy deleted":
            operator.cluster.remove(POLICIES, "default")
        case "observe":
            operator.cluster.change(POLICIES, "default", {"spec": {"mode": "Observe"}})
        case "report deleted":
            operator.cluster.remove(REPORTS, "node-1")
        case _:
            operator.cluster.change(NODES, "node-1", {"metadata": {"labels": {"gpu": None}}})
    operator.pass_grace()
    assert operator.taints() == ["team:NoSchedule"]


@pytest.mark.parametrize("how", ["label flaps", "policy replaced", "policy renamed"])
def test_a_node_that_leaves_its_policy_for_a_moment_keeps_everything(how: str) -> None:
    """Labels, taint and report stay for ten minutes; nothing starts meanwhile, and nothing is lost."""
    operator = TaintingOperator(
        "node-1", "node-2", budget={"gatedNodes": 1}, nodeSelector={"matchLabels": {"gpu": "yes"}}
    )
    operator.measure("gpu-lost=b")
    operator.measure("", name="node-2", after=1)
    before, policy = operator.cluster.state()["nodes"], operator.cluster.objects[POLICIES]["default"]
    if how == "label flaps":
        operator.change(NODES, "node-1", {"metadata": {"labels": {"gpu": None}}})
    else:
        operator.cluster.remove(POLICIES, "default")
    operator.catch_up()
    operator.cluster.pass_time(GRACE - 1)
    operator.catch_up()
    assert operator.taints() == ["unhealthy=gpu-lost:NoSchedule"]
    assert operator.reconciler.gate_budget.used("default") == 1
    if how == "label flaps":
        operator.change(NODES, "node-1", {"metadata": {"labels": {"gpu": "yes"}}})
    else:
        name = {"policy renamed": "other"}.get(how, "default")
        operator.cluster.add_policy(name, **policy["spec"])
    operator.catch_up(granted=False)
    assert operator.cluster.state()["nodes"] == before
    assert [gate["state"] for gate in operator.status["gates"]] == ["gated"]


def test_while_the_api_server_keeps_a_taint_its_evidence_stays() -> None:
    """A webhook refuses the node's patch: the policy is gone, the report remains until the taint is off."""
    operator = TaintingOperator()
    operator.measure("gpu-lost=b")
    operator.cluster.remove(POLICIES, "default")
    operator.client.refuse = lambda verb, path: (
        Refused("webhook said no", status=422) if (verb, path) == ("PATCH", f"{NODES}/node-1") else None
    )
    operator.pass_grace()
    assert (len(operator.taints()), "node-1" in operator.cluster.objects[REPORTS]) == (1, True)
    operator.client.refuse = lambda verb, path: None
    operator.catch_up(granted=False)
    assert (operator.taints(), operator.cluster.objects[REPORTS]) == ([], {})


def test_somebody_s_hand_on_our_taint_is_put_right() -> None:
    """The node is a function of its report: removed, changed or set without reason."""
    operator = TaintingOperator()
    operator.measure("gpu-lost=b")
    operator.change(NODES, "node-1", {"spec": {"taints": []}})
    operator.catch_up(granted=False)
    assert operator.taints() == ["unhealthy=gpu-lost:NoSchedule"]
    other = [{"key": names.TAINT_THROTTLED, "value": "thermal", "effect": "NoExecute"}]
    operator.change(NODES, "node-1", {"spec": {"taints": other}})
    operator.catch_up(granted=False)
    assert operator.taints() == ["unhealthy=gpu-lost:NoSchedule"]


# -- unvalidated -------------------------------------------------------------------------------------------


def test_a_kubelet_s_unvalidated_is_lifted_at_the_first_pass() -> None:
    """Not by a failed run, nor by one that could not be read; and whatever its effect."""
    operator = TaintingOperator(taints=("team", UNVALIDATED))
    operator.measure("gpu-lost=b")
    assert operator.taints() == ["team:NoSchedule", "unvalidated:NoSchedule", "unhealthy=gpu-lost:NoSchedule"]
    operator.measure("")
    assert operator.taints() == ["team:NoSchedule", "unhealthy=gpu-lost:NoSchedule"]
    operator.change(NODES, "node-1", {"spec": {"taints": [{"key": UNVALIDATED, "effect": "NoExecute"}]}})
    operator.catch_up(granted=False)
    assert operator.taints() == ["unhealthy=gpu-lost:NoSchedule"]


def test_a_node_that_is_not_ours_keeps_its_unvalidated() -> None:
    """It registered with it; the label that will select it comes later, from somebody else."""
    operator = TaintingOperator(taints=(UNVALIDATED,), nodeSelector={"matchLabels": {"late": "yes"}})
    operator.catch_up(granted=False)
    assert (operator.taints(), operator.writes) == (["unvalidated:NoSchedule"], [])
    operator.change(NODES, "node-1", {"metadata": {"labels": {"late": "yes"}}})
    operator.catch_up(granted=False)
    assert operator.taints() == ["unvalidated:NoSchedule"]
    operator.measure("")
    assert operator.taints() == []


@pytest.mark.parametrize("probed", [True, False])
def test_a_new_node_is_closed_where_a_run_can_open_it(probed: bool) -> None:
    """Without a slot for a run; and not at all where no run will ever pass."""
    operator = TaintingOperator(taints=("team",), probes={"health": {"enabled": probed}})
    operator.change(POLICIES, "default", {"spec": {"taints": {"unvalidated": "Set"}}})
    operator.catch_up(granted=False)
    assert operator.taints() == ["team:NoSchedule", *["unvalidated:NoSchedule"] * probed]
    assert probed or operator.writes == []
    operator.cluster.remove(POLICIES, "default")
    operator.pass_grace()
    assert (operator.taints(), operator.cluster.objects[REPORTS]) == (["team:NoSchedule"], {})
