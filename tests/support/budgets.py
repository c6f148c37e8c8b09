"""Nodes of several policies, and the budgets of gated nodes over them, without an operator around."""

from typing import Any

from msgspec.structs import replace

from nodegauge_operator import names
from nodegauge_operator.api.policy import Budget
from nodegauge_operator.api.report import DesiredNode, DesiredTaint, GateState, GateStatus, Report
from nodegauge_operator.api.times import stamp
from nodegauge_operator.core import budget
from nodegauge_operator.reconcile.cache import Cache
from nodegauge_operator.reconcile.gate_budget import GateBudget
from support.objects import NOW, make_context, make_node, make_policy, make_report, taint

HOUR = 3600.0
THERMAL = DesiredTaint(key=names.TAINT_THROTTLED, value="thermal")
NOBODY: frozenset[str] = frozenset()


class Fleet:
    """Nodes that follow the policy that `pool` names.  `time` passes evenly, and somebody may set the clock
    `ahead` or back; `cluster` and `rate`: the cluster's budget, and its new taints per hour."""

    def __init__(
        self,
        *pools: str,
        slots: int | str = 1,
        per_hour: int | str = "100%",
        cluster: int | str = "100%",
        rate: int | str = "100%",
    ) -> None:
        self.time, self.ahead, self._version = 1000.0, 0.0, 100
        self._limits: dict[str, Any] = {"cluster": cluster, "per_hour": rate}
        self.cache = Cache()
        for pool in dict.fromkeys(pools):
            self.policy(pool, slots=slots, per_hour=per_hour)
        for n, pool in enumerate(pools):
            self.put(f"node-{n}", pool)
        self.restart()

    def now(self) -> float:
        return NOW + self.time + self.ahead

    def restart(self) -> None:
        self.budget = GateBudget(self.cache, clock=lambda: self.time, now=self.now, **self._limits)

    def policy(
        self,
        name: str,
        *,
        slots: int | str = 1,
        per_hour: int | str = "100%",
        priority: int = 0,
        **labels: str,
    ) -> None:
        policy = make_policy(name).selecting(**(labels or {"pool": name})).ranked(priority)
        limits = Budget(gated_nodes=slots, gated_nodes_per_hour=per_hour)
        self.cache.policies[name] = policy.spec_with(budget=limits)
        self.cache.policies_changed()

    def put(self, name: str, pool: str, *, uid: str = "") -> None:
        known = self.cache.nodes.get(name)
        node = make_node(name, uid=uid, version=self._next()).labelled(pool=pool)
        self.cache.put_node(replace(node, taints=known.taints if known else ()))

    def replaced(self, name: str) -> None:
        pool = self.cache.nodes[name].labels["pool"]
        self.cache.drop_node(name)
        self.cache.reports.pop(name, None)
        self.put(name, pool, uid=f"{name}-{self._next()}")

    def report(
        self, name: str, *taints: DesiredTaint, gates: tuple[GateStatus, ...] = (), **status: Any
    ) -> Report:
        known = make_report(self.cache.nodes[name], version=self._next())
        wanted = replace(known.status, desired=DesiredNode(taints=list(taints)), gates=list(gates), **status)
        self.cache.put_report(replace(known, status=wanted))
        return self.cache.reports[name]

    def waits(self, name: str, *codes: str, since: float = NOW) -> None:
        self.report(name, gates=self.held_back(*codes or ("hot",), since=since))

    @staticmethod
    def held_back(*codes: str, since: float = NOW) -> tuple[GateStatus, ...]:
        state = GateState.HELD_BACK
        return tuple(GateStatus(code=code, state=state, since=stamp(since)) for code in codes)

    def carries(self, name: str, *keys: str) -> None:
        node = replace(self.cache.nodes[name], resource_version=str(self._next()))
        self.cache.put_node(replace(node, taints=tuple(taint(key) for key in keys)))

    def gate(self, name: str, *, answered: bool = True) -> bool:
        if not self.budget.reserve(name):
            return False
        if answered:
            self._write(name, THERMAL)
            self.budget.confirm(name)
        else:
            self.budget.unanswered(name)
        return answered

    def lift(self, name: str) -> None:
        self._write(name)

    def _write(self, name: str, *taints: DesiredTaint) -> None:
        node = self.cache.nodes[name]
        known = self.cache.reports.get(name) or make_report(node)
        wanted = replace(known.status, desired=DesiredNode(taints=list(taints)), gates=[])
        context = make_context(node=node, policy=make_policy(), report=known, now=self.now())
        self.report(name, *taints, tainted_at=budget.newly_tainted_at(context, wanted))
        self.carries(name, *(f"{t.key}={t.value}" for t in taints))

    def gate_all(self) -> int:
        for name in list(self.cache.nodes):
            self.gate(name)
        return sum(bool(node.taints) for node in self.cache.nodes.values())

    def offered(self, busy: frozenset[str] = NOBODY) -> list[str]:
        return self.budget.offer(busy=busy)

    def _next(self) -> int:
        self._version += 1
        return self._version
