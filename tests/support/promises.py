"""A few nodes, an operator, and all who may come between.  After every write the budget holds, and what
others put on a node is there.  That every taint has its readings is asked by `fleet.oracle`."""

from collections.abc import Callable, Coroutine
from typing import Any

from nodegauge_operator import names
from nodegauge_operator.core.budget import slots_of
from nodegauge_operator.core.probes.registry import label_keys
from nodegauge_operator.kube.errors import KubeError
from support.api_server import NODES, POLICIES, REPORTS, Body
from support.client import Killed
from support.cluster import FakeCluster
from support.judging import saying
from support.operator import HEALTH, NOTHING, SteppedOperator
from support.virtual_time import Turn

SELECTED = {"nodeSelector": {"matchLabels": {"gpu": "yes"}}}
STRANGE = "x"
GARBAGE = "Segmentation fault"


class Broken(AssertionError):
    """A promise does not hold."""


class InterleavedOperator:
    """`act` lets one thing happen; `rest` lets the operator finish all that it would do by itself."""

    def __init__(self, count: int, **spec: Any) -> None:
        self.cluster = FakeCluster()
        self.foreign: dict[str, tuple[dict[str, str], list[Body]]] = {}
        """By node: labels and taints that strangers put there."""
        self._in_flight: dict[str, Coroutine[Any, Any, Any]] = {}
        self._race: Callable[[], None] | None = None
        self._allowed: dict[str, int] = {}
        self.cluster.add_policy(**(SELECTED | spec))
        for n in range(count):
            self.add_node(f"node-{n}")
        self._born()

    # -- what happens ------------------------------------------------------------------------------------

    def add_node(self, name: str, unvalidated: bool = False) -> None:
        if name in self.cluster.objects[NODES]:
            return
        own = [names.TAINT_UNVALIDATED] if unvalidated else []
        body = self.cluster.add_node(name, taints=("team", *own), gpu="yes", team="a")
        self.foreign[name] = _foreign(body)

    def remove(self, name: str, path: str) -> None:
        if name in self.cluster.objects[path]:
            self.cluster.remove(path, name)

    def measure(self, name: str, codes: str, times: int = 1) -> None:
        for _ in range(times):
            self.deliver()
            self.finish(name)
            self.reconcile(name)  # the run before this one, if nobody has looked at it yet
            self.deliver()
            self.cluster.pass_time(15 * 60)
            self.cluster.results[name] = saying(codes, load="hot=n" not in codes)
            self.reconcile(name, granted=True)
            for pod in self.cluster.pods():
                mine = pod["metadata"]["annotations"][names.POD_NODE] == name
                gone = pod["metadata"].get("deletionTimestamp")
                if mine and pod["status"]["phase"] == "Pending" and not gone:
                    self.cluster.end(pod, GARBAGE if codes == GARBAGE else self.cluster.result(pod))
            self.deliver()

    def write_policy(self, spec: Body | None) -> None:
        there = "default" in self.cluster.objects[POLICIES]
        if spec is None:
            if there:
                self.cluster.remove(POLICIES, "default")
        elif there:
            self.cluster.change(POLICIES, "default", {"spec": spec, "metadata": {"generation": 2}})
        else:
            self.cluster.add_policy(**(SELECTED | spec))

    def label(self, name: str, label: str) -> None:
        if name in self.cluster.objects[NODES]:
            key, _, value = label.partition("=")
            patch = {"metadata": {"labels": {key: value or None}}}
            self.foreign[name] = _foreign(self.cluster.change(NODES, name, patch))

    def stranger(self, name: str, taint: str = "", drop: bool = False) -> None:
        body = self.cluster.objects[NODES].get(name)
        if body is None:
            return
        taints = [] if drop else list(body["spec"].get("taints") or ())
        if taint and not any((t["key"], t["effect"]) == (taint, "NoExecute") for t in taints):
            taints.insert(0, {"key": taint, "value": STRANGE, "effect": "NoExecute"})
        self.foreign[name] = _foreign(self.cluster.change(NODES, name, {"spec": {"taints": taints}}))

    def race(self, name: str, taint: str) -> None:
        self._race = lambda: self.stranger(name, taint)

    def deliver(self) -> None:
        self.operator.deliver()

    def go(self, name: str) -> None:
        if name not in self._in_flight:
            self._in_flight[name] = self.operator.reconciler.reconcile(name, granted=NOTHING, since=0.0)
        self._step(name)

    def finish(self, name: str) -> None:
        while name in self._in_flight:
            self._step(name)

    def reconcile(self, name: str, *, granted: bool = False) -> None:
        kinds = HEALTH if granted else NOTHING
        self._in_flight[name] = self.operator.reconciler.reconcile(name, granted=kinds, since=0.0)
        self.finish(name)

    def die_after(self, writes: int, when: str) -> None:
        self.operator.client.kill_at = (len(self.operator.client.log) + writes, when)

    def restart(self) -> None:
        for work in self._in_flight.values():
            work.close()
        self._in_flight.clear()
        self.operator.die()
        self._born()

    def rest(self) -> None:
        for _ in range(60):
            self.operator.client.kill_at = None
            before = len(self.operator.client.log)
            self.deliver()
            known = {*self.cluster.objects[NODES], *self.operator.cache.known_names(), *self._in_flight}
            for name in sorted(known):
                self.finish(name)
                self.reconcile(name)
            if len(self.operator.client.log) == before and not self.operator.inbox:
                return
        raise Broken("the operator never comes to rest")

    def taints(self, name: str) -> list[str]:
        return _faults(self.cluster.objects[NODES][name])

    # -- inside -------------------------------------------------------------------------------------------

    def _born(self) -> None:
        self.operator = SteppedOperator(self.cluster)
        self.operator.list()
        self.operator.client._turn = Turn
        self.operator.client.refuse = self._before
        self.operator.client.answered = self._after

    def _step(self, name: str) -> None:
        try:
            self._in_flight[name].send(None)
            self._allowed[name] = self._slots(name)
        except (StopIteration, KubeError):
            self._in_flight.pop(name, None)
        except Killed:
            del self._in_flight[name]
            self.restart()

    def _before(self, verb: str, path: str) -> KubeError | None:
        if verb == "PATCH" and path.startswith(f"{NODES}/") and self._race is not None:
            race, self._race = self._race, None
            race()
        if verb == "PATCH" and path.startswith((f"{REPORTS}/", f"{NODES}/")):
            self._gated_before = self._gated()
        return None

    def _after(self, verb: str, path: str) -> None:
        name = path.split("/")[-2] if path.endswith("/status") else path.rsplit("/", 1)[1]
        if verb == "PATCH" and path.startswith(f"{REPORTS}/"):
            self._check_budget(name)
        elif verb == "PATCH" and path.startswith(f"{NODES}/"):
            self._check_foreign(name)
            if not path.endswith("/status"):
                self._check_budget(name)

    def _gated(self) -> set[str]:
        """Nodes that take a slot, of those that follow a policy."""
        cache = self.operator.cache
        return {
            name
            for name, node in cache.nodes.items()
            if cache.policy_of(node) is not None and (self._reserves(name) or self._tainted(name))
        }

    def _reserves(self, name: str) -> bool:
        status = self.cluster.objects[REPORTS].get(name, {}).get("status", {})
        return any(t["key"] in names.TAINTS_OF_FAULTS for t in status.get("desired", {}).get("taints", ()))

    def _tainted(self, name: str) -> bool:
        node = self.cluster.objects[NODES].get(name)
        return node is not None and bool(_faults(node))

    def _check_budget(self, name: str) -> None:
        """Who was gated found a slot: when the write began, or since, if the budget grew meanwhile."""
        if name in self._gated_before or name not in self._gated():
            return
        slots = max(self._allowed[name], self._slots(name))
        if len(self._gated()) > slots:
            raise Broken(f"{name} entered: {sorted(self._gated())} are gated, {slots} may be")

    def _slots(self, name: str) -> int:
        """How many nodes may be gated by what the operator knows when it makes a call."""
        cache = self.operator.cache
        node = cache.nodes.get(name)
        policy = cache.policy_of(node) if node is not None else None
        if policy is None:
            return 0
        followers = [n for n, other in cache.nodes.items() if cache.policy_of(other) is policy]
        return slots_of(policy.spec.budget.gated_nodes, len(followers))

    def _check_foreign(self, name: str) -> None:
        body = self.cluster.objects[NODES][name]
        if _foreign(body) != self.foreign[name]:
            raise Broken(f"{name}: others put {self.foreign[name]}, now {_foreign(body)}")


def _faults(body: Body) -> list[str]:
    """Keys of the taints for faults that the operator has set; a stranger's may be unheard of yet."""
    taints = [t for t in body["spec"].get("taints") or () if t.get("value") != STRANGE]
    return [t["key"] for t in taints if t["key"] in names.TAINTS_OF_FAULTS]


def _foreign(body: Body) -> tuple[dict[str, str], list[Body]]:
    ours = label_keys() | {"interconnect"}
    labels = {k: v for k, v in body["metadata"]["labels"].items() if k not in ours}
    return labels, [t for t in body["spec"].get("taints") or () if t["key"] not in names.NODE_TAINTS]
