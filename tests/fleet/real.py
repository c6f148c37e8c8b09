"""The fleet on a real control plane behind a proxy.  Three machines change, and all nodes are read anew
during each fault and after it; the end must be that of the same change on a calm day."""

import contextlib
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import support.results as made
from nodegauge_operator.names import Reason
from support.cluster_under_test import GROUP, OURS, ClusterUnderTest, Machines, at_work, install_crds
from support.taint_history import TaintHistory
from testbed.controlplane import ControlPlane
from testbed.errors import ApiError, TestbedError
from testbed.marks import condition_of, labels_of, last_run_of, taints_of
from testbed.operatorprocess import OperatorProcess
from testbed.proxy import FaultProxy, Rule, When
from testbed.rest import Object
from testbed.scripted import create_node
from testbed.wait import wait_for

MOST_SECONDS = 240.0
"""Outer bound of how long it takes until all is as it should be; what it took is printed."""
LOOK_SECONDS, GLANCE_SECONDS = 0.5, 0.02
"""A look reads the whole fleet, a glance only what the proxy has counted here."""
interrupted = threading.Event()
"""Nothing is waited for any more."""
until = partial(wait_for, seconds=MOST_SECONDS, every=LOOK_SECONDS, interrupted=interrupted)

NODES = 4
"""Three that get bad and one that stays good.  Their runs are most of what this costs."""
BUDGET = 2
"""Nodes that may be tainted at a time; three machines are bad in the bad state."""
FOREIGN_LABEL = {"team": "a", "example.com/rack": "r1"}
FOREIGN_TAINT = {"key": "example.com/reserved", "value": "b", "effect": "PreferNoSchedule"}
FOREIGN_ANNOTATION = {"example.com/note": "theirs"}
GOOD = at_work(60)
BAD, BAD_NODES = made.with_pair(GOOD, 0, 1, nvlink=4, read=4, write=4), 3
"""In the bad state so many machines lose their interconnect, and are tainted if there is room.  No heat: what
a load shows is judged over minutes."""
POLICY = f"{GROUP}/gpuvalidationpolicies/faults"
INTERVAL = "30s"
"""Steps ask for the runs that they need; a request that a fault swallowed waits for this long."""
FAST = {
    "probes": {
        "health": {"interval": INTERVAL, "deadline": "5s", "window": "1s", "recheck": "2s"},
        "load": {"enabled": False},
    },
    "hysteresis": {"leaveRuns": 1, "dwell": "1s", "enterRuns": 1},
    "budget": {"concurrentProbes": "100%", "gatedNodes": BUDGET, "gatedNodesPerHour": "100%"},
    "limits": {"notScheduled": "10s", "notStarted": "15s", "notGone": "2s", "overtime": "5s"},
}


@dataclass
class RealFleet:
    """`calls`: the operator's through the proxy, as they begin; `answers`: as they end."""

    plane: ControlPlane
    proxy: FaultProxy
    rig: ClusterUnderTest
    operator: OperatorProcess
    random: random.Random
    calls: Rule
    answers: Rule
    state: str = "good"
    machines: Machines = field(default_factory=lambda: Machines(GOOD))
    expected: dict[str, Object] = field(default_factory=dict)

    def change(self, state: str) -> None:
        """The machines break, or are repaired."""
        self.state = state
        self.machines.of = dict.fromkeys(self.rig.nodes[:BAD_NODES], BAD) if state == "bad" else {}

    def ask(self) -> None:
        for name in self.rig.nodes:
            with contextlib.suppress(ApiError, OSError):
                self.rig.ask_for_run(name)

    # -- what is so ------------------------------------------------------------------------------------------

    def nodes(self) -> dict[str, Object]:
        items = self.rig.api.get(f"/api/v1/nodes?labelSelector=test={self.rig.mark}")["items"]
        return {item["metadata"]["name"]: item for item in items}

    def reports(self) -> dict[str, Object]:
        return {item["metadata"]["name"]: item for item in self.rig.api.get(f"{GROUP}/nodereports")["items"]}

    def runs(self) -> dict[str, tuple[str, int]]:
        reports = self.reports()
        every = {name: reports.get(name, {}) for name in self.rig.nodes}
        return {
            name: (report.get("metadata", {}).get("uid", ""), last_run_of(report).get("number", 0))
            for name, report in every.items()
        }

    def unread(self, before: dict[str, tuple[str, int]]) -> list[str]:
        return [
            name
            for name, (report, number) in self.runs().items()
            if number <= (before[name][1] if report == before[name][0] else 0)
        ]

    def summary(self) -> Object:
        """Which bad nodes are tainted and which are held back may differ, how many of each may not."""
        nodes, reports = self.nodes(), self.reports()
        taints = [taints_of(node) for node in nodes.values()]
        kinds = {t.partition("=")[2].partition(":")[0] for on_node in taints for t in on_node}
        tainted = sum(map(bool, taints))
        summary: Object = {
            "tainted": tainted,
            "causes": sorted(kinds) if tainted < BUDGET else [],
            "pods": len(self.rig.pods()),
        }
        for number, name in enumerate(self.rig.nodes):
            node = nodes.get(name)
            summary[f"node {number}"] = node and _seen(node, reports.get(name, {}))
        return summary

    def wrong(self) -> str:
        expected, now = self.expected[self.state], self.summary()
        return "; ".join(
            f"{key}: {now[key]}, expected {expected[key]}" for key in now if now[key] != expected[key]
        )

    def shows(self, condition: str) -> str:
        conditions = self.rig.api.get(POLICY)["status"]["conditions"]
        return next((str(c["reason"]) for c in conditions if c["type"] == condition), "")

    # -- nodes -----------------------------------------------------------------------------------------------

    def add_node(self) -> None:
        self.mark(self.rig.add_node(**FOREIGN_LABEL))

    def mark(self, name: str) -> None:
        self.rig.api.patch(
            f"/api/v1/nodes/{name}",
            {"spec": {"taints": [FOREIGN_TAINT]}, "metadata": {"annotations": FOREIGN_ANNOTATION}},
        )

    def make_again(self, name: str) -> None:
        """The machine registers again, with a boot of its own, after its node was deleted."""
        labels = {"test": self.rig.mark, **FOREIGN_LABEL}
        create_node(self.rig.api, name, labels=labels, boot=f"boot-{self.random.randrange(1000)}")
        self.mark(name)

    # -- waiting ---------------------------------------------------------------------------------------------

    def after_calls(self, most: int) -> None:
        """At a random moment: after up to `most` more calls of the operator, which is to read all nodes."""
        self.ask()
        wanted = len(self.calls.fired) + self.random.randrange(most)
        call = f"call {wanted} of the operator"
        until(lambda: len(self.calls.fired) >= wanted, every=GLANCE_SECONDS, what=call)

    def read_anew(self) -> None:
        """Wait until every node has been read since now."""
        before = self.runs()
        self.ask()
        until(lambda: not self.unread(before), what="a reading of every node")

    def settle(self) -> None:
        """Wait until all is as it should be, with readings from now on; `TestbedError` says what is not."""
        before = self.runs()
        self.ask()

        def wrong() -> str:
            try:
                unread = self.unread(before)
                return f"not read anew: {unread}" if unread else self.wrong()
            except (ApiError, OSError) as error:
                return repr(error)

        until(lambda: not wrong(), what="the end of a calm run")

    def learn(self, state: str) -> None:
        wanted = {"pods": 0, "tainted": 0 if state == "good" else BUDGET}
        self.change(state)
        self.read_anew()

        def calm() -> Object:
            now = self.summary()
            nodes = [node for key, node in now.items() if key.startswith("node")]
            well = all(node["known"] and node["of others"] for node in nodes)
            return now if well and wanted.items() <= now.items() else {}

        self.expected[state] = until(calm, what=f"a calm fleet with {wanted}")


def _seen(node: Object, report: Object) -> Object:
    """A node as schedulers and people see it, but for its taints."""
    labels = labels_of(node["metadata"].get("labels", {}))
    labels.pop(OURS + "health", None)  # fail only where the taint found room
    verdict = report.get("status", {}).get("rawVerdict", "")
    condition = condition_of(node)
    known = condition.get("status") != "Unknown" or condition["reason"] == Reason.HELD_BACK
    return {"labels": labels, "verdict": verdict, "known": known, "of others": _keeps_foreign(node)}


def _keeps_foreign(node: Object) -> bool:
    """Whether it has the label, annotation and taint of strangers."""
    metadata, taints = node["metadata"], node["spec"].get("taints", [])
    return (
        FOREIGN_LABEL.items() <= metadata.get("labels", {}).items()
        and FOREIGN_ANNOTATION.items() <= metadata.get("annotations", {}).items()
        and any(FOREIGN_TAINT.items() <= taint.items() for taint in taints)
    )


@contextlib.contextmanager
def living(folder: Path, *, seed: int) -> Iterator[RealFleet]:
    with ControlPlane(folder / "control-plane") as plane, FaultProxy(plane) as proxy:
        api = plane.rest()
        install_crds(api)
        namespace = "faults"
        api.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
        plane.await_objects(namespace=namespace)
        rig = ClusterUnderTest(api, namespace=namespace, directory=folder, kubeconfig=proxy.kubeconfig())
        fleet = RealFleet(
            plane=plane,
            proxy=proxy,
            rig=rig,
            operator=rig.operator(NODEGAUGE_RELIST_INTERVAL="5s"),
            random=random.Random(seed),
            calls=proxy.on(times=None),
            answers=proxy.on(times=None, when=When.AFTER),
        )
        for _ in range(NODES):
            fleet.add_node()
        rig.add_policy("faults", **FAST)
        with rig.kubelet(fleet.machines), fleet.operator:
            fleet.learn("good")
            fleet.learn("bad")
            fleet.change("good")
            fleet.settle()
            yield fleet


@contextlib.contextmanager
def watched(fleet: RealFleet) -> Iterator[None]:
    """Every moment of the nodes' taints; `TestbedError` if there were ever more than the budget allows."""
    prefix = f"node-{fleet.rig.mark}"
    with TaintHistory(fleet.plane.rest(), prefix=prefix) as history:
        yield
    worst = max(map(len, history.moments()), default=0)
    if worst > BUDGET:
        raise TestbedError(f"{worst} nodes were tainted at a time, the budget allows {BUDGET}")
