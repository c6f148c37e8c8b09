"""What the operator knows of the cluster, trimmed: a cache that lists fill and watches keep up.

Newer wins by resourceVersion (comparable over all objects of a resource), so that a late watch event never
undoes the answer of our own write, nor brings back the object that had the name before.  A deleted node is
only a suspicion here: the sweep asks the API server.
"""

from __future__ import annotations

from collections.abc import Iterable

from nodegauge_operator import names
from nodegauge_operator.api.policy import Policy
from nodegauge_operator.api.report import Report, whole
from nodegauge_operator.core.model import NodeView, PodView
from nodegauge_operator.core.selection import ranked


class PolicyError:
    """A policy that cannot be read: the message, and the generation that it was seen at."""

    def __init__(self, *, generation: int, message: str) -> None:
        self.generation = generation
        self.message = message


class Store:
    """Nodes, reports, pods and policies by name; policies also remember what is wrong with them."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeView] = {}
        self.reports: dict[str, Report] = {}
        self.policies: dict[str, Policy] = {}
        self.policy_errors: dict[str, PolicyError] = {}
        self.policy_status: dict[str, dict[str, object]] = {}
        self.policy_versions: dict[str, int] = {}
        self.suspects: set[str] = set()
        self.outside: set[str] = set()
        """Nodes that exist and are not in the server-side selection (any more): no policy holds there."""
        self.epoch = 0
        """Moves on whenever the policies in force change: everything about every node may differ."""
        self.gone: set[str] | None = None
        """UIDs of what was dropped during a full list: its pages still show it.  None while there is none."""
        self._pods: dict[str, dict[str, PodView]] = {}
        self._followed: dict[str, str | None] = {}
        self._listeners: list[set[str]] = []

    def listen(self) -> set[str]:
        """A set of names that grows with each node whose count may be another one; the caller empties it."""
        self._listeners.append(set())
        return self._listeners[-1]

    def _changed(self, name: str) -> None:
        for listener in self._listeners:
            listener.add(name)

    def put_node(self, node: NodeView) -> bool:
        """Keep a node unless a newer one is known; whether anything changed that decisions look at."""
        before = self.nodes.get(node.name)
        if node.name in self.outside:
            self._changed(node.name)
        if before is not None and not _newer(node, before):
            return False
        self.nodes[node.name] = node
        if before is not None and _essence(before) == _essence(node):
            return False
        self._changed(node.name)
        self._followed.pop(node.name, None)
        return True

    def see_node(self, node: NodeView) -> bool:
        """Keep a node that a watch or a list has brought, which says that it is in the selection."""
        returned = node.name in self.outside
        self.outside.discard(node.name)
        if returned:
            self._changed(node.name)
        return self.put_node(node) or returned

    def drop_node(self, name: str) -> None:
        """Forget a node that is gone for certain."""
        known = self.nodes.pop(name, None)
        if known is not None:
            self._bury(known.uid)
        self._changed(name)
        self.suspects.discard(name)
        self.outside.discard(name)
        self._followed.pop(name, None)

    def put_report(self, report: Report) -> bool:
        """Keep a report unless a newer one is known; whether it changed."""
        before = self.reports.get(report.name)
        if before is not None and not _newer(report, before):
            return False
        self.reports[report.name] = report
        self._changed(report.name)
        return True

    def drop_report(self, name: str, uid: str) -> bool:
        """Forget this very report; whether it was known."""
        known = self.reports.get(name)
        if known is None or known.uid != uid:
            return False
        del self.reports[name]
        self._bury(uid)
        self._changed(name)
        return True

    def put_pod(self, pod: PodView) -> bool:
        """Keep a pod unless a newer state or a newer pod is known; whether it changed."""
        pods = self._pods.setdefault(pod.node, {})
        before = pods.get(pod.name)
        deleted = before is not None and before.uid == pod.uid and pod.gone
        if before is not None and not (deleted or _newer(pod, before)):
            return False
        pods[pod.name] = pod if before is None else pod.after(before)
        return True

    def knows_pod(self, pod: PodView) -> bool:
        """Whether this very pod is kept here."""
        known = self._pods.get(pod.node, {}).get(pod.name)
        return known is not None and known.uid == pod.uid

    def drop_pod(self, pod: PodView) -> None:
        """Forget this very pod."""
        pods = self._pods.get(pod.node, {})
        known = pods.get(pod.name)
        if known is not None and known.uid == pod.uid:
            del pods[pod.name]
            self._bury(pod.uid)
            if not pods:
                del self._pods[pod.node]

    def pods_of(self, node: str) -> tuple[PodView, ...]:
        """The node's pods, oldest run first; those that are gone are kept until they have been judged."""
        return tuple(sorted(self._pods.get(node, {}).values(), key=lambda p: p.number))

    def nodes_with_pods(self, *probes: str) -> set[str]:
        """Names of nodes that have a pod of one of these probes now."""
        return {
            node for node, pods in self._pods.items() if any(pod.probe in probes for pod in pods.values())
        }

    def policy_of(self, node: NodeView) -> Policy | None:
        """The policy in force on a node: highest priority, then the name; none outside of the selection."""
        if node.name in self.outside:
            return None
        if node.name not in self._followed:
            chosen = ranked(self.policies.values(), node.labels)
            self._followed[node.name] = chosen[0].name if chosen else None
        name = self._followed[node.name]
        return self.policies.get(name) if name else None

    def policies_changed(self) -> None:
        """Forget which policy each node follows: the set of policies is another one."""
        self._followed.clear()
        self.epoch += 1

    def known_names(self) -> set[str]:
        """Every node name that anything here is about."""
        return {*self.nodes, *self.reports, *self._pods}

    def keep_only(
        self, *, nodes: Iterable[str], reports: Iterable[str], pods: Iterable[str], since: int
    ) -> set[str]:
        """After a full list: what it lacks and is older than it (`since`, a resourceVersion) is gone.

        Returns the names of nodes about which something was dropped.  Nodes only become suspects.
        """
        listed_nodes, listed_reports, listed_pods = set(nodes), set(reports), set(pods)
        self.suspects |= {n for n in self.nodes if n not in listed_nodes}
        touched = set(self.suspects)
        for report in [r for r in self.reports.values() if r.name not in listed_reports]:
            if version_of(report.resource_version) <= since:
                touched.add(report.name)
                self.drop_report(report.name, report.uid)
        for pod in [p for pods_ in self._pods.values() for p in pods_.values()]:
            if pod.uid not in listed_pods and not pod.gone and version_of(pod.resource_version) <= since:
                touched.add(pod.node)
                self.drop_pod(pod)
        return touched

    def buried(self, uid: str) -> bool:
        """Whether the object was dropped while the full list was under way that shows it."""
        return self.gone is not None and uid in self.gone

    def _bury(self, uid: str) -> None:
        if self.gone is not None:
            self.gone.add(uid)


def _newer(new: NodeView | Report | PodView, old: NodeView | Report | PodView) -> bool:
    return version_of(new.resource_version) > version_of(old.resource_version)


def version_of(text: str) -> int:
    """A resourceVersion as a number; 0 where there is none."""
    return whole(text) or 0


def _essence(node: NodeView) -> tuple[object, ...]:
    """What decisions look at: a heartbeat changes none of it."""
    return (
        node.uid,
        node.labels,
        node.managed_labels,
        node.ready,
        node.leaving,
        node.boot_id,
        node.condition,
        node.gpu_capacity,
        node.gpu_allocatable,
        node.unschedulable,
        tuple(taint for taint in node.taints if taint.key in names.NODE_TAINTS),
    )
