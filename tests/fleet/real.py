"""The world that faults happen in: six nodes with strangers' marks, machines that break and are repaired.

Every fault happens while all nodes are being read anew and one machine changes.  The end must be that of the
same change on a calm day.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import support.results as made
from nodegauge_contract import Result
from support.cluster_under_test import OURS, ClusterUnderTest, answering, at_work, install_crds, run_of
from support.taint_history import TaintHistory
from testbed.controlplane import ControlPlane
from testbed.errors import ApiError
from testbed.operatorprocess import OperatorProcess
from testbed.proxy import FaultProxy
from testbed.scripted import create_node
from testbed.wait import wait_for

Object = dict[str, Any]

NODES = 6
BUDGET = 2
"""Nodes that may be tainted at a time; three machines are bad in the bad state."""
FOREIGN_LABEL = {"team": "a", "example.com/rack": "r1"}
FOREIGN_TAINT = {"key": "example.com/reserved", "value": "b", "effect": "PreferNoSchedule"}
FOREIGN_ANNOTATION = {"example.com/note": "theirs"}
GOOD: dict[int, Result] = {n: at_work(60) for n in range(NODES)}
P2P = made.with_pair(at_work(60), 0, 1, nvlink=4, read=4, write=4)
BAD: dict[int, Result] = GOOD | dict.fromkeys(range(3), P2P)
"""By node: three machines lose their interconnect, and are tainted if there is room.  No heat: what a load
shows is judged over minutes."""
STATES = {"good": GOOD, "bad": BAD}
FAST = {
    "probes": {
        "health": {"interval": "10s", "deadline": "5s", "window": "1s", "recheck": "2s"},
        "load": {"enabled": False},
    },
    "hysteresis": {"leaveRuns": 1, "dwell": "1s", "enterRuns": 1},
    "budget": {"concurrentProbes": "100%", "gatedNodes": BUDGET, "gatedNodesPerHour": "100%"},
    "limits": {"notScheduled": "10s", "notStarted": "15s", "notGone": "10s", "overtime": "5s"},
}
MOST_SECONDS = 240.0
"""Outer bound of how long it takes until all is as it should be; what it took is printed."""


class Wrong(Exception):
    """Something is not as it should be after a fault; the text says what."""


@dataclass
class World:
    """A control plane, a proxy before it, an operator behind that, and its nodes."""

    plane: ControlPlane
    proxy: FaultProxy
    rig: ClusterUnderTest
    operator: OperatorProcess
    random: random.Random
    state: str = "good"
    results: dict[str, Result] = field(default_factory=dict)
    expected: dict[str, Object] = field(default_factory=dict)
    """By state: what a calm change ends in."""

    def change(self, state: str) -> None:
        """The machines break, or are repaired; and every node is to be read anew."""
        self.state = state
        self.results = {name: STATES[state][n] for n, name in enumerate(self.rig.nodes)}
        self.ask()

    def ask(self) -> None:
        """Read every node anew."""
        for name in self.rig.nodes:
            with contextlib.suppress(ApiError, OSError):
                self.rig.ask_for_run(name)

    def answer(self, pod: Object) -> str | None:
        """What the probe of this pod brings."""
        result = self.results.get(run_of(pod)[1])
        return answering(result)(pod) if result is not None else None

    def summary(self) -> Object:
        """Everything that must be equal with and without faults: which of the bad nodes are tainted and which
        are held back may differ, how many of each may not."""
        nodes = [self.one(name) for name in self.rig.nodes]
        counts = Counter(taint for node in nodes for taint in node["taints"])
        kinds = {taint.partition("=")[2].partition(":")[0] for taint in counts}
        tainted = sum(1 for node in nodes if node["taints"])
        return {
            "tainted": tainted,
            "causes": sorted(kinds) if tainted < BUDGET else [],
            "nodes": [{k: v for k, v in node.items() if k != "taints"} for node in nodes],
            "pods": len(self.rig.pods()),
        }

    def one(self, name: str) -> Object:
        """One node as schedulers and people see it."""
        labels, condition = self.rig.ours(name), self.rig.condition(name)
        verdict = self.rig.report(name).get("status", {}).get("rawVerdict", "")
        labels.pop(OURS + "health", None)  # fail only where the taint found room
        return {
            "labels": labels,
            "verdict": verdict,
            "known": condition.get("status") != "Unknown",
            "taints": self.rig.taints(name),
        }

    def wrong(self) -> str:
        """What is not as it should be now; empty if all is."""
        expected = self.expected.get(self.state)
        now = self.summary()
        if expected is not None and now != expected:
            differing = [key for key in now if now[key] != expected[key]]
            return f"{differing[0]}: {now[differing[0]]}, expected {expected[differing[0]]}"
        return self.foreign()

    def foreign(self) -> str:
        """What of a stranger's marks is not there any more; empty if all are."""
        for name in self.rig.nodes:
            node = self.rig.node(name)
            metadata = node["metadata"]
            kept = (metadata.get("labels", {}), metadata.get("annotations", {}))
            for marks, there in zip((FOREIGN_LABEL, FOREIGN_ANNOTATION), kept, strict=True):
                if not marks.items() <= there.items():
                    return f"{name} lost a stranger's label or annotation: {there}"
            if FOREIGN_TAINT not in [
                {k: v for k, v in taint.items() if k != "timeAdded"}
                for taint in node["spec"].get("taints", [])
            ]:
                return f"{name} lost a stranger's taint: {node['spec'].get('taints')}"
        return ""

    def add_node(self) -> None:
        """A machine with strangers' marks."""
        name = self.rig.add_node(**FOREIGN_LABEL)
        self.mark(name)

    def mark(self, name: str) -> None:
        """Strangers put their taint and annotation on it."""
        self.rig.api.patch(
            f"/api/v1/nodes/{name}",
            {"spec": {"taints": [FOREIGN_TAINT]}, "metadata": {"annotations": FOREIGN_ANNOTATION}},
        )

    def make_again(self, name: str) -> None:
        """The machine registers again, with a boot of its own, after its node was deleted."""
        labels = {"test": self.rig.mark, **FOREIGN_LABEL}
        create_node(self.rig.api, name, labels=labels, boot=f"boot-{self.random.randrange(1000)}")
        self.mark(name)

    def settle(self, *, seconds: float = MOST_SECONDS) -> None:
        """Wait until all is as it should be, with readings from now on; `Wrong` says what is not."""
        before = {name: self.rig.last_run(name).get("number", 0) for name in self.rig.nodes}
        self.ask()
        last = "no run ended"

        def right() -> bool:
            nonlocal last
            try:
                unread = [n for n in self.rig.nodes if self.rig.last_run(n).get("number", 0) <= before[n]]
                last = f"not read anew: {unread}" if unread else self.wrong()
            except (ApiError, OSError) as error:
                last = str(error)
            return not last

        try:
            wait_for(right, seconds=seconds, what="the end of a calm run")
        except Exception as error:
            raise Wrong(last or str(error)) from error


@contextlib.contextmanager
def living(folder: Path, *, seed: int) -> Iterator[World]:
    """A world in which a calm change to the bad state and back has been seen."""
    with ControlPlane(folder / "control-plane") as plane, FaultProxy(plane) as proxy:
        api = plane.rest()
        install_crds(api)
        namespace = "faults"
        api.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
        plane.await_objects(namespace=namespace)
        rig = ClusterUnderTest(api, namespace=namespace, directory=folder, kubeconfig=proxy.kubeconfig())
        operator = rig.operator(NODEGAUGE_RELIST_INTERVAL="10s")
        world = World(plane=plane, proxy=proxy, rig=rig, operator=operator, random=random.Random(seed))
        for _ in range(NODES):
            world.add_node()
        rig.add_policy("faults", **FAST)
        with rig.kubelet(world.answer), operator:
            world.change("good")
            learn(world, "good")
            world.change("bad")
            learn(world, "bad")
            world.change("good")
            world.settle()
            yield world


def learn(world: World, state: str) -> None:
    """What a calm change to this state ends in."""
    wanted = 0 if state == "good" else BUDGET
    before = {name: world.rig.last_run(name).get("number", 0) for name in world.rig.nodes}
    world.ask()
    for name, number in before.items():
        world.rig.wait_run(name, number + 1)

    def calm() -> Object:
        now = world.summary()
        known = all(node["known"] for node in now["nodes"])
        right = known and now["pods"] == 0 and now["tainted"] == wanted and not world.foreign()
        return now if right else {}

    world.expected[state] = wait_for(
        calm,
        seconds=MOST_SECONDS,
        what=f"{state} machines: {wanted} nodes tainted, no pod left, strangers' marks as they were",
    )


@contextlib.contextmanager
def watched(world: World) -> Iterator[None]:
    """Every moment of the nodes' taints; `Wrong` if there were ever more than the budget allows."""
    prefix = f"node-{world.rig.mark}"
    with TaintHistory(world.plane.kubeconfig, prefix=prefix) as history:
        yield
    worst = max((len(nodes) for nodes, _ in history.moments()), default=0)
    if worst > BUDGET:
        raise Wrong(f"{worst} nodes were tainted at a time, the budget allows {BUDGET}")
