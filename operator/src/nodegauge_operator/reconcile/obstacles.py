"""What keeps policies from doing what they say, for their condition `Ready`, a metric and an alert.

The reconciler puts here, at each end of a node's reconcile, what the API server refuses of that node: what it
does not repeat is over.  Whether a node is written to is none of its business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable

from nodegauge_operator.api.policy import Mode
from nodegauge_operator.core.actions import Refusal
from nodegauge_operator.names import Obstacle, PolicyReason
from nodegauge_operator.reconcile.budget_condition import State, n_nodes
from nodegauge_operator.reconcile.cache import Cache

REASONS: dict[Obstacle, tuple[PolicyReason, str]] = {
    Obstacle.TAINT: (
        PolicyReason.TAINT_REFUSED,
        "Faulty nodes take pods until the rule that refuses it admits nodegauge's account.",
    ),
    Obstacle.REPORT: (
        PolicyReason.REPORT_REFUSED,
        "What is found there counts for nothing until the rule that refuses it is corrected.",
    ),
    Obstacle.CLAIM: (
        PolicyReason.CLAIM_REFUSED,
        "Nodes whose GPUs only DRA hands out are not read until then; it is tried again every 10 s.",
    ),
    Obstacle.CONDITION: (
        PolicyReason.CONDITION_REFUSED,
        "Correct the rule that refuses it: taints and labels are written all the same.",
    ),
    Obstacle.LABEL: (
        PolicyReason.LABEL_REFUSED,
        "Correct the rule that refuses it; a key of spec.labels.interconnectKey must also be in the chart's "
        "value admissionPolicies.interconnectKeys. Taints and other labels are written all the same.",
    ),
    Obstacle.WRITE: (
        PolicyReason.WRITE_REFUSED,
        "It is tried again; correct the rule, the webhook or the role that the message names.",
    ),
}
"""In the order in which they are told: reason, and the way out."""
MAX_MESSAGE = 400
"""Characters of the API server's message in a condition.  Chosen by this project: the longest of the chart's
admission policies has 310 with its name."""


class Obstacles:
    """What is refused, by node.  `interconnect_keys`: labels that the chart's admission policies let us write
    for `spec.labels.interconnectKey`; empty for any."""

    def __init__(self, cache: Cache, *, interconnect_keys: Collection[str] = ()) -> None:
        self.lists = ""
        """Why full lists fail while the API server answers other calls; empty if they do not."""
        self.pods: Callable[[], str] = str
        """Why it may not be seen who waits for GPUs; empty if it may."""
        self._cache = cache
        self._keys = interconnect_keys
        self._of_node: dict[str, tuple[Refusal, ...]] = {}

    def put(self, node: str, refusals: Iterable[Refusal]) -> None:
        """All that is refused on this node now."""
        if now := tuple(refusals):
            self._of_node[node] = now
        else:
            self._of_node.pop(node, None)

    def counts(self, policy: str) -> Counter[Obstacle]:
        """Nodes of the policy, by what is refused there; lists, pods, and a key that will
        be, count once."""
        counts = Counter(kind for _, refusals in self._of(policy) for kind in {one.kind for one in refusals})
        if self._refused_key(policy):
            counts[Obstacle.LABEL] = max(1, counts[Obstacle.LABEL])
        alone = {Obstacle.LIST: self.lists, Obstacle.PODS: self.pods()}
        return counts + Counter(kind for kind, why in alone.items() if why)

    def state(self, policy: str) -> State | None:
        """`Ready` of the policy, if something is refused on its nodes: the first thing by `REASONS`."""
        pairs = [(one, node) for node, refusals in self._of(policy) for one in refusals]
        if not pairs and (key := self._refused_key(policy)):
            reason, way_out = REASONS[Obstacle.LABEL]
            message = f"the label {key} will be refused, as the chart's values lack it. {way_out}"
            return "False", reason, message
        if not pairs and self.lists:
            message = (
                f"full lists fail, so that what the watches miss is not seen: {self.lists[:MAX_MESSAGE]}"
            )
            return "False", PolicyReason.LISTS_FAIL, message
        if not pairs and (why := self.pods()):
            return "False", PolicyReason.PODS_REFUSED, why[:MAX_MESSAGE]
        if not pairs:
            return None
        order = list(REASONS)
        first, _ = min(pairs, key=lambda pair: (order.index(pair[0].kind), pair[0].what))
        there = [(one.message, node) for one, node in pairs if one.what == first.what]
        others = len({one.what for one, _ in pairs}) - 1
        reason, way_out = REASONS[first.kind]
        more = f" {others} more cannot be written either." if others else ""
        text, node = there[0]
        why = text[:MAX_MESSAGE].rstrip(".")
        where = f"{n_nodes(len(there))} ({node})"
        message = f"{first.what} cannot be written on {where}: {why}. {way_out}{more}"
        return "False", reason, message

    def stops_everything(self, selected: int) -> str:
        """Why no node of any policy can be judged; empty if one can.  `selected`: how many there are."""
        of_reports = [
            one.message
            for refusals in self._of_node.values()
            for one in refusals
            if one.kind is Obstacle.REPORT
        ]
        refused = bool(of_reports) and len(of_reports) >= selected
        return f"the API server refuses every NodeReport: {of_reports[0][:MAX_MESSAGE]}" if refused else ""

    def _refused_key(self, policy: str) -> str:
        """The policy's short key, if its label will be refused on every node; empty if not."""
        known = self._cache.policies.get(policy)
        key = known.spec.labels.interconnect_key if known and known.spec.mode is Mode.ENFORCE else ""
        return key if key and self._keys and key not in self._keys else ""

    def _of(self, policy: str) -> Iterable[tuple[str, tuple[Refusal, ...]]]:
        for name, refusals in sorted(self._of_node.items()):
            node = self._cache.nodes.get(name)
            in_force = self._cache.policy_of(node) if node is not None else None
            if in_force is not None and in_force.name == policy:
                yield name, refusals
