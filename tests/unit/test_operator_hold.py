"""Taints on nodes through the operator's own worker and adapter: how they come and what takes them off."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from nodegauge_operator import names
from nodegauge_operator.kube.errors import Refused
from nodegauge_operator.reasons import Reason
from support import INTERVAL, MINUTE
from support.cluster import NODES, POLICIES, REPORTS
from support.judging import listening, saying
from support.operator import Operator, World

pytestmark = pytest.mark.timeout(10)

HOUR = 60 * MINUTE
UNVALIDATED = names.TAINT_UNVALIDATED


@pytest.fixture(autouse=True)
def _told() -> Iterator[None]:
    with listening():
        yield


class Scene:
    """Nodes, a policy, an operator; each run ends as it is told."""

    def __init__(self, *nodes: str, taints: tuple[str, ...] = (), **spec: Any) -> None:
        self.world = World()
        self.cluster = self.world.cluster
        for name in nodes or ("node-1",):
            self.cluster.add_node(name, taints=taints, gpu="yes")
        self.cluster.add_policy(**spec)
        self.operator = Operator(self.cluster)
        self.operator.list()

    def run(
        self, words: str = "", *, name: str = "node-1", load: bool = True, after: float = INTERVAL
    ) -> None:
        """One whole run, so long after what was before."""
        self.world.pass_time(after)
        self.world.machines[name] = saying(words, load=load)
        self.settle(name, granted=True)
        self.world.kubelets()
        self.settle(name)

    def settle(self, name: str = "node-1", *, granted: bool = False) -> None:
        """What the operator does about what has happened."""
        self.operator.deliver()
        self.operator.settle(name, granted=granted)
        self.operator.deliver()

    def taints(self, name: str = "node-1") -> list[str]:
        """As kubectl writes them, without our prefix."""
        found = self.cluster.objects[NODES][name]["spec"].get("taints") or []
        words = (f"{t['key'].removeprefix(names.PREFIX)}={t.get('value', '')}:{t['effect']}" for t in found)
        return [word.replace("=:", ":") for word in words]

    def change(self, path: str, name: str, patch: dict[str, Any]) -> None:
        """Somebody else writes, and the operator hears of it."""
        self.cluster.change(path, name, patch)
        self.operator.deliver()

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.objects[REPORTS]["node-1"]["status"]
        return found

    @property
    def writes(self) -> list[str]:
        return self.operator.client.log


def test_a_taint_goes_up_in_the_patch_of_the_labels_after_the_report() -> None:
    """The report reserves it, then one write brings labels and taints together."""
    scene = Scene(taints=("team",))
    scene.run("")
    scene.writes.clear()
    scene.run("gpu-lost=b")
    assert scene.writes == [
        "POST pods",
        "PATCH nodereports/status",
        "PATCH nodes",
        "PATCH nodes/status",
        "POST events",
        "DELETE pods",
    ]
    assert scene.taints() == ["team:NoSchedule", "unhealthy=gpu-lost:NoSchedule"]
    assert scene.status["desired"]["taints"] == [
        {"key": names.TAINT_UNHEALTHY, "value": "gpu-lost", "effect": "NoSchedule"}
    ]
    events = [body["reason"] for body in scene.world.cluster_events().values()]
    assert sorted(events) == [Reason.TAINTED, Reason.VALIDATED]


def test_the_same_fault_again_writes_nothing_to_the_node() -> None:
    """A gated node costs three writes a run, like any other."""
    scene = Scene()
    scene.run("gpu-lost=b")
    scene.run("gpu-lost=b")
    scene.writes.clear()
    scene.run("gpu-lost=b", after=30)
    assert scene.writes == []
    scene.run("gpu-lost=b")
    node = [write for write in scene.writes if write.startswith("PATCH nodes") and "report" not in write]
    assert node in ([], ["PATCH nodes"])  # validated-at alone, every second run


def test_idle_runs_keep_it_and_good_ones_take_it_off() -> None:
    """Hot under load twice; idle for an evening; three good runs under load."""
    scene = Scene(hysteresis={"probationAfter": []})
    scene.run("hot=b")
    scene.run("hot=b")
    for _ in range(20):
        scene.run("hot=n", load=False)
    assert scene.taints() == ["throttled=thermal:NoSchedule"]
    scene.run("")
    scene.run("")
    assert scene.taints() == ["throttled=thermal:NoSchedule"]
    scene.run("")
    assert scene.taints() == []


def test_time_alone_lifts_on_trial_and_the_wake_is_set_for_it() -> None:
    """Nobody has to run anything at that moment."""
    scene = Scene()
    scene.run("hot=b")
    scene.run("hot=b")
    entered = scene.world.now
    scene.run("hot=n", load=False)
    scene.run("hot=n", load=False, after=INTERVAL)
    scene.run("hot=n", load=False, after=INTERVAL)
    scene.operator.deliver()
    assert scene.operator.settle(granted=False).wake_at == entered + HOUR
    scene.world.pass_time(entered + HOUR - scene.world.now)
    scene.settle()
    assert scene.taints() == []
    assert "throttled=thermal off on trial since" in scene.status["desired"]["message"]


def test_a_stranger_s_taints_survive_a_race() -> None:
    """Set after we last looked: the patch meets 409, is made anew, and carries both."""
    scene = Scene(taints=("team",))
    scene.run("")
    scene.world.machines["node-1"] = saying("gpu-lost=b")
    scene.world.pass_time(INTERVAL)
    scene.settle(granted=True)
    scene.world.kubelets()
    scene.operator.deliver()
    foreign = [{"key": "late", "value": "x", "effect": "NoExecute", "timeAdded": "2027-01-15T08:00:00Z"}]
    scene.cluster.change(NODES, "node-1", {"spec": {"taints": foreign}})
    scene.operator.settle()
    assert scene.taints() == ["late=x:NoExecute", "unhealthy=gpu-lost:NoSchedule"]
    assert scene.cluster.objects[NODES]["node-1"]["spec"]["taints"][0] == foreign[0]


@pytest.mark.parametrize("how", ["policy deleted", "observe", "report deleted", "outside the selection"])
def test_what_takes_every_taint_of_ours_off_and_no_other(how: str) -> None:
    """Nothing stands on a node that no report and no policy asks for."""
    scene = Scene(taints=("team",), nodeSelector={"matchLabels": {"gpu": "yes"}})
    scene.run("gpu-lost=b")
    assert len(scene.taints()) == 2
    match how:
        case "policy deleted":
            scene.cluster.remove(POLICIES, "default")
        case "observe":
            scene.cluster.change(POLICIES, "default", {"spec": {"mode": "Observe"}})
        case "report deleted":
            scene.cluster.remove(REPORTS, "node-1")
        case _:
            scene.cluster.change(NODES, "node-1", {"metadata": {"labels": {"gpu": None}}})
    scene.settle()
    assert scene.taints() == ["team:NoSchedule"]


def test_a_label_that_flaps_loses_no_state_and_keeps_no_place() -> None:
    """Off while it is away, and its place with it; back at once when it returns, without a run."""
    scene = Scene("node-1", "node-2", budget={"gatedNodes": 1}, nodeSelector={"matchLabels": {"gpu": "yes"}})
    scene.run("gpu-lost=b")
    scene.run("", name="node-2", after=1)
    scene.change(NODES, "node-1", {"metadata": {"labels": {"gpu": None}}})
    scene.settle()
    assert (scene.taints(), scene.status["desired"].get("taints", [])) == ([], [])
    assert [row["state"] for row in scene.status["gates"]] == ["gated"]
    runs = len(scene.cluster.judged)
    scene.change(NODES, "node-1", {"metadata": {"labels": {"gpu": "yes"}}})
    scene.settle()
    assert (scene.taints(), len(scene.cluster.judged)) == (["unhealthy=gpu-lost:NoSchedule"], runs)
    scene.change(NODES, "node-1", {"metadata": {"labels": {"gpu": None}}})
    scene.settle()
    scene.run("gpu-lost=b", name="node-2")
    assert scene.taints("node-2") == ["unhealthy=gpu-lost:NoSchedule"]
    scene.change(NODES, "node-1", {"metadata": {"labels": {"gpu": "yes"}}})
    scene.settle()
    assert scene.taints() == []
    assert [row["state"] for row in scene.status["gates"]] == ["held-back"]


def test_while_the_api_server_keeps_a_taint_its_evidence_stays() -> None:
    """A webhook refuses the node's patch: the policy is gone, the report remains until the taint is off."""
    scene = Scene()
    scene.run("gpu-lost=b")
    scene.cluster.remove(POLICIES, "default")
    scene.operator.client.refuse = lambda verb, path: (
        Refused("webhook said no", status=422) if (verb, path) == ("PATCH", f"{NODES}/node-1") else None
    )
    scene.settle()
    assert (len(scene.taints()), "node-1" in scene.cluster.objects[REPORTS]) == (1, True)
    scene.operator.client.refuse = lambda verb, path: None
    scene.settle()
    assert (scene.taints(), scene.cluster.objects[REPORTS]) == ([], {})


def test_somebody_s_hand_on_our_taint_is_put_right() -> None:
    """The node is a function of its report: removed, changed or set without reason."""
    scene = Scene()
    scene.run("gpu-lost=b")
    scene.change(NODES, "node-1", {"spec": {"taints": []}})
    scene.settle()
    assert scene.taints() == ["unhealthy=gpu-lost:NoSchedule"]
    other = [{"key": names.TAINT_THROTTLED, "value": "thermal", "effect": "NoExecute"}]
    scene.change(NODES, "node-1", {"spec": {"taints": other}})
    scene.settle()
    assert scene.taints() == ["unhealthy=gpu-lost:NoSchedule"]


# -- unvalidated -------------------------------------------------------------------------------------------


def test_a_kubelet_s_unvalidated_is_lifted_at_the_first_pass() -> None:
    """Not by a failed run, nor by one that could not be read; and whatever its effect."""
    scene = Scene(taints=("team", UNVALIDATED))
    scene.run("gpu-lost=b")
    assert scene.taints() == ["team:NoSchedule", "unvalidated:NoSchedule", "unhealthy=gpu-lost:NoSchedule"]
    scene.run("")
    assert scene.taints() == ["team:NoSchedule", "unhealthy=gpu-lost:NoSchedule"]
    scene.change(NODES, "node-1", {"spec": {"taints": [{"key": UNVALIDATED, "effect": "NoExecute"}]}})
    scene.settle()
    assert scene.taints() == ["unhealthy=gpu-lost:NoSchedule"]


def test_a_node_that_is_not_ours_keeps_its_unvalidated() -> None:
    """It registered with it; the label that will select it comes later, from somebody else."""
    scene = Scene(taints=(UNVALIDATED,), nodeSelector={"matchLabels": {"late": "yes"}})
    scene.settle()
    assert (scene.taints(), scene.writes) == (["unvalidated:NoSchedule"], [])
    scene.change(NODES, "node-1", {"metadata": {"labels": {"late": "yes"}}})
    scene.settle()
    assert scene.taints() == ["unvalidated:NoSchedule"]
    scene.run("")
    assert scene.taints() == []


def test_a_flapping_label_does_not_validate_a_node() -> None:
    """It was never read: what keeps workloads away stays there while the label is away."""
    scene = Scene(taints=(UNVALIDATED,), nodeSelector={"matchLabels": {"gpu": "yes"}})
    scene.run("gpu-lost=b")
    scene.change(NODES, "node-1", {"metadata": {"labels": {"gpu": None}}})
    scene.settle()
    assert scene.taints() == ["unvalidated:NoSchedule"]


def test_a_policy_may_have_unvalidated_set_before_the_first_run() -> None:
    """The report says so first; no place among the probes is needed for it."""
    scene = Scene(taints=("team",))
    scene.change(POLICIES, "default", {"spec": {"taints": {"unvalidated": "Set"}}})
    scene.settle()
    assert scene.writes == ["POST nodereports", "PATCH nodereports/status", "PATCH nodes"]
    assert scene.taints() == ["team:NoSchedule", "unvalidated:NoSchedule"]
    scene.settle()
    assert len(scene.writes) == 3
    scene.run("")
    assert scene.taints() == ["team:NoSchedule"]
    scene.cluster.remove(POLICIES, "default")
    scene.settle()
    assert scene.taints() == ["team:NoSchedule"]


def test_nothing_is_closed_that_nothing_would_open() -> None:
    """Without the probe no run will ever pass: unvalidated is not set then."""
    off = {"probes": {"health": {"enabled": False}}}
    scene = Scene(taints=("team",), **off)
    scene.change(POLICIES, "default", {"spec": {"taints": {"unvalidated": "Set"}}})
    scene.settle()
    assert (scene.taints(), scene.writes) == (["team:NoSchedule"], [])


def test_a_policy_that_goes_takes_the_unvalidated_that_it_set_along() -> None:
    """Though the node never ran: the report shows that it was ours."""
    scene = Scene(taints=("team",))
    scene.change(POLICIES, "default", {"spec": {"taints": {"unvalidated": "Set"}}})
    scene.settle()
    scene.cluster.remove(POLICIES, "default")
    scene.settle()
    assert (scene.taints(), scene.cluster.objects[REPORTS]) == (["team:NoSchedule"], {})


# -- the budget --------------------------------------------------------------------------------------------


def test_fifty_hot_nodes_at_once_never_gate_more_than_the_budget() -> None:
    """A fifth of them, and the others say that they are held back; as taints go, others take their places."""
    every = [f"node-{n}" for n in range(50)]
    scene = Scene(*every)

    def round_of(words: str, names: list[str]) -> None:
        scene.world.pass_time(INTERVAL)
        for name in names:
            scene.run(words, name=name, after=0)
            assert len(gated()) <= 10

    def gated() -> list[str]:
        return [name for name in every if scene.taints(name)]

    round_of("hot=b", every)
    assert gated() == []
    round_of("hot=b", every)
    first = gated()
    assert len(first) == 10
    states = [
        scene.cluster.objects[REPORTS][name]["status"]["gates"][0]["state"]
        for name in every
        if name not in first
    ]
    assert states == ["held-back"] * 40
    for _ in range(3):
        round_of("", first)
    assert gated() == []
    for name in every:
        scene.settle(name)
        assert len(gated()) <= 10
    assert len(gated()) == 10
    assert not set(gated()) & set(first)
