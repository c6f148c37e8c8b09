"""What the operator knows of the cluster, trimmed: lists fill this cache, watches keep it current.

The higher resourceVersion wins (versions are comparable over all objects of a resource), so that a late watch
event neither undoes the answer of our own write nor brings back an earlier object of the same name.  A
deleted node is only a suspicion here: the reconciler asks the API server.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from nodegauge_operator import names
from nodegauge_operator.api.policy import (
    Policy,
    PolicyInvalid,
    Unreadable,
    parse,
    rank_of,
    ranked,
    readable_part,
    without_key,
)
from nodegauge_operator.api.report import Report, whole
from nodegauge_operator.core.device_rule import DeviceRule
from nodegauge_operator.core.devices import Device, SliceView, current
from nodegauge_operator.core.model import ChassisView, NodeView, PodView
from nodegauge_operator.core.reading_view import ReadingView
from nodegauge_operator.core.watch_pod import WatchView

log = logging.getLogger("nodegauge.report")


class Restored(Exception):
    """A read shows less than was seen before it began, which only etcd restored from a backup explains.

    What this process knows, and what it concluded from that, may never have been; and no later list or watch
    need say so, for new objects get the same versions again.
    """


class PolicyError(Struct, frozen=True, kw_only=True):
    """Why a policy cannot be read, the generation that has this error, and what can be read all the same."""

    generation: int
    message: str
    readable: Unreadable


class Cache:
    """Nodes, reports, pods and policies by name, and the errors of policies that cannot be read."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeView] = {}
        self.reports: dict[str, Report] = {}
        self.chassis: dict[str, ChassisView] = {}
        """What the BMC reader wrote, by node."""
        self.readings: dict[str, ReadingView] = {}
        """What probes wrote, by node; documents that a report holds are left out."""
        self.policies: dict[str, Policy] = {}
        self.policy_errors: dict[str, PolicyError] = {}
        self.policy_status: dict[str, dict[str, object]] = {}
        self.policy_versions: dict[str, int] = {}
        self.suspects: set[str] = set()
        self.outside_selector: set[str] = set()
        """Nodes that exist and that the server-side selector no longer matches: no policy applies there."""
        self.epoch = 0
        """Counts changes of the policies in force: each of them can affect every node."""
        self.dropped_while_listing: set[str] | None = None
        """UIDs dropped during the full list under way, whose pages still show them; None between lists."""
        self._readings_gone: dict[str, int] = {}
        """Readings dropped during the full list under way, whose pages still show them, by version."""
        self.rules_api = ""
        """The API version of DeviceTaintRules; empty while the API server has none, or lets us list none."""
        self._rules: dict[str, dict[str, DeviceRule]] = {}
        """Those of ours, by node, then by name."""
        self.slices_served: bool | None = None
        """Whether the API server serves ResourceSlices, and lets us list them; None before the first list."""
        self.with_devices: set[str] = set()
        """Nodes whose GPUs a DRA driver publishes, or did before by our label."""
        self._slices: dict[str, dict[str, SliceView]] = {}
        """By node, then by name."""
        self._pods: dict[str, dict[str, PodView]] = {}
        self._policy_names: dict[str, str | None] = {}
        """Node to the policy in force there, as far as it was asked for since the last change."""
        self._in_force: dict[str, Policy] = {}
        """The policies as they apply to nodes, since the last change; see `in_force`."""
        self._selecting: dict[str, str] = {}
        """Label key to the first policy that selects nodes by it."""
        self._subscribers: list[set[str]] = []

    def subscribe(self) -> set[str]:
        """A set of names to which each changed node is added; the caller empties it."""
        self._subscribers.append(set())
        return self._subscribers[-1]

    def _changed(self, name: str) -> None:
        for subscriber in self._subscribers:
            subscriber.add(name)

    def put_node(self, node: NodeView) -> bool:
        """Keep a node unless a newer one is known; whether anything changed that a decision depends on."""
        before = self.nodes.get(node.name)
        if node.name in self.outside_selector:
            self._changed(node.name)
        if before is not None and not _newer(node, before):
            return False
        node = replace(node, devices=self._devices_of(node.name))
        self._keep_node(node)
        if before is not None and _relevant(before) == _relevant(node):
            return False
        self._changed(node.name)
        self._policy_names.pop(node.name, None)
        return True

    def put_selected_node(self, node: NodeView) -> bool:
        """Keep a node from a watch or a list: it matches the server-side selector."""
        returned = node.name in self.outside_selector
        self.outside_selector.discard(node.name)
        if returned:
            self._changed(node.name)
        return self.put_node(node) or returned

    def drop_node(self, name: str) -> None:
        """Forget a node that the API server no longer has."""
        known = self.nodes.pop(name, None)
        self.with_devices.discard(name)
        if known is not None:
            self.note_dropped(known.uid)
        self._changed(name)
        self.suspects.discard(name)
        self.outside_selector.discard(name)
        self._policy_names.pop(name, None)

    def put_rule(self, rule: DeviceRule) -> bool:
        """Keep a DeviceTaintRule of ours unless a newer one is known; whether what it says changed.  Its
        status changes with each pod that it hits."""
        known = self._rules.setdefault(rule.node, {})
        before = known.get(rule.name)
        if self.was_dropped(rule.uid) or (before is not None and not _newer(rule, before)):
            return False
        known[rule.name] = rule
        if before is not None and before.uid == rule.uid and before.says(rule):
            return False
        self._changed(rule.node)
        return True

    def drop_rule(self, rule: DeviceRule) -> bool:
        """Forget this very rule; whether it was known."""
        known = self._rules.get(rule.node, {})
        if rule.name not in known or known[rule.name].uid != rule.uid:
            return False
        del known[rule.name]
        if not known:
            del self._rules[rule.node]
        self.note_dropped(rule.uid)
        self._changed(rule.node)
        return True

    def rules_of(self, node: str) -> tuple[DeviceRule, ...]:
        """Our DeviceTaintRules for devices of the node, by name."""
        return tuple(rule for _, rule in sorted(self._rules.get(node, {}).items()))

    def rules(self) -> list[DeviceRule]:
        """All of them."""
        return [rule for known in self._rules.values() for rule in known.values()]

    def put_slice(self, view: SliceView) -> bool:
        """Keep a ResourceSlice unless a newer one is known; whether the node's devices changed."""
        known = self._slices.setdefault(view.node, {})
        before = known.get(view.name)
        if self.was_dropped(view.name) or (before is not None and not _newer(view, before)):
            return False
        known[view.name] = view
        return self._renew_devices(view.node)

    def drop_slice(self, view: SliceView, *, version: int) -> bool:
        """Forget a ResourceSlice up to this resourceVersion; whether the node's devices changed."""
        known = self._slices.get(view.node, {})
        if view.name in known and version_of(known[view.name].resource_version) <= version:
            del known[view.name]
            self.note_dropped(view.name)
        return self._renew_devices(view.node)

    def slices(self) -> list[SliceView]:
        """Every ResourceSlice."""
        return [view for known in self._slices.values() for view in known.values()]

    def _keep_node(self, node: NodeView) -> None:
        self.nodes[node.name] = node
        known = node.devices or names.LABEL_DRIVER_ACCESS in node.labels
        (self.with_devices.add if known else self.with_devices.discard)(node.name)

    def _devices_of(self, node: str) -> tuple[Device, ...]:
        known = self._slices.get(node)
        return current(known.values()) if known else ()

    def _renew_devices(self, name: str) -> bool:
        node, devices = self.nodes.get(name), self._devices_of(name)
        if node is None or node.devices == devices:
            return False
        self._keep_node(replace(node, devices=devices))
        self._policy_names.pop(name, None)
        self._changed(name)
        return True

    def put_report(self, report: Report) -> bool:
        """Keep a report unless a newer one is known; whether it changed."""
        before = self.reports.get(report.name)
        if before is not None and not _newer(report, before):
            return False
        self.reports[report.name] = report
        if report.left_out:
            log.warning("report %s: left out: %s", report.name, "; ".join(report.left_out)[:1000])
        if report.deleting:
            log.warning("report %s was deleted, but its finalizers keep it: remove them", report.name)
        if before is None or before.status.policy != report.status.policy:
            self._policy_names.pop(report.name, None)
        self._changed(report.name)
        return True

    def drop_report(self, name: str, uid: str) -> bool:
        """Forget this very report; whether it was known."""
        known = self.reports.get(name)
        if known is None or known.uid != uid:
            return False
        del self.reports[name]
        self._policy_names.pop(name, None)
        self.note_dropped(uid)
        self._changed(name)
        return True

    def put_chassis(self, chassis: ChassisView) -> bool:
        """Keep what the BMC reader wrote unless something newer is known; whether it changed."""
        before = self.chassis.get(chassis.name)
        if before is not None and not _newer(chassis, before):
            return False
        self.chassis[chassis.name] = chassis
        return before is None or (before.uid, before.number) != (chassis.uid, chassis.number)

    def drop_chassis(self, name: str, *, version: int) -> None:
        """Forget what the BMC reader wrote up to this resourceVersion; something newer is kept."""
        known = self.chassis.get(name)
        if known is not None and version_of(known.resource_version) <= version:
            del self.chassis[name]

    def put_reading(self, reading: ReadingView, *, again: bool = False) -> bool:
        """Keep what probes wrote unless something newer is known; whether a part is new.  A part that is
        known stays as it is: it may have been judged.  `again`: with its document, for it has to be judged
        again."""
        if self.dropped_while_listing is None:
            self._readings_gone.clear()
        if version_of(reading.resource_version) <= self._readings_gone.get(reading.name, -1):
            return False
        before = self.readings.get(reading.name)
        if before is not None and not again and not _newer(reading, before):
            return False
        known = before.parts if before is not None and before.uid == reading.uid and not again else {}
        same = {
            probe: known[probe]
            for probe, part in reading.parts.items()
            if probe in known and known[probe].identity == part.identity
        }
        self.readings[reading.name] = replace(reading, parts=reading.parts | same)
        self._changed(reading.name)
        if reading.left_out:
            log.warning("reading %s: left out: %s", reading.name, "; ".join(reading.left_out)[:1000])
        return same.keys() != reading.parts.keys()

    def forget_documents(self, name: str, probes: Iterable[str]) -> None:
        """The node's report holds what these parts say."""
        known = self.readings.get(name)
        if known is not None and any(known.parts[probe].text for probe in probes):
            left = {probe: replace(known.parts[probe], text="") for probe in probes}
            self.readings[name] = replace(known, parts=known.parts | left)

    def drop_reading(self, name: str, *, version: int | None = None) -> None:
        """Forget what probes wrote up to this resourceVersion, or altogether."""
        if version is not None and self.dropped_while_listing is not None:
            self._readings_gone[name] = version
        known = self.readings.get(name)
        if known is not None and (version is None or version_of(known.resource_version) <= version):
            del self.readings[name]

    def put_pod(self, pod: PodView) -> bool:
        """Keep a pod unless a newer state or a newer pod is known; whether it changed."""
        pods = self._pods.setdefault(pod.node, {})
        before = pods.get(pod.name)
        deleted = before is not None and before.uid == pod.uid and pod.gone
        if before is not None and not (deleted or _newer(pod, before)):
            return False
        if before is not None and before.owner_uid and before.uid != pod.uid:
            pods[pod.name] = replace(before, gone=True)  # a name serves one pod of ours: this one is not
            return True
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
            self.note_dropped(pod.uid)
            if not pods:
                del self._pods[pod.node]

    def pods_of(self, node: str) -> tuple[PodView, ...]:
        """The node's pods, oldest run first; deleted ones are kept until their run has been judged."""
        return tuple(sorted(self._pods.get(node, {}).values(), key=lambda p: p.number))

    def nodes_with_pods(self, *probes: str) -> set[str]:
        """Names of nodes that now have a pod of one of these probes, not counting pods of strangers."""
        return {
            node
            for node, pods in self._pods.items()
            if any(pod.probe in probes and pod.owner_uid for pod in pods.values())
        }

    def policy_of(self, node: NodeView) -> Policy | None:
        """The policy in force on a node: highest priority, then by name.

        None outside the selector, and where a policy that would come first cannot be read.
        """
        if node.name in self.outside_selector:
            return None
        if node.name not in self._policy_names:
            chosen = ranked(self.policies.values(), node.selected_by)
            first = chosen[0] if chosen and not self._has_unreadable(node, before=chosen[0]) else None
            self._policy_names[node.name] = first.name if first else None
        name = self._policy_names[node.name]
        return self.in_force().get(name) if name else None

    def in_force(self) -> dict[str, Policy]:
        """The policies that can be read, as they apply to nodes: without a short label key by which another
        policy selects nodes.  That label would pass its node to and fro between the two for ever."""
        if not self._in_force and self.policies:
            self._selecting = {
                key: name
                for name, policy in sorted(self.policies.items(), reverse=True)
                for key in policy.spec.node_selector.keys
            }
            self._in_force = {
                name: without_key(policy)
                if policy.spec.labels.interconnect_key in self._selecting
                else policy
                for name, policy in self.policies.items()
            }
        return self._in_force

    def selecting_by_its_key(self, policy: Policy) -> str:
        """The first policy that selects nodes by the short key of this one; empty for none."""
        self.in_force()
        return self._selecting.get(policy.spec.labels.interconnect_key, "")

    def _has_unreadable(self, node: NodeView, *, before: Policy) -> bool:
        """Whether the node belongs to a policy that cannot be read and ranks before this one.

        If not even the selector can be read, the node's report names the policy that it followed.
        """
        report = self.reports.get(node.name)
        followed = report.status.policy if report and report.node_uid == node.uid else ""
        rank = rank_of(before.name, before.spec.priority)
        for name, error in self.policy_errors.items():
            selector = error.readable.selector
            selected = name == followed if selector is None else selector.matches(node.selected_by)
            if selected and name not in self.policies and error.readable.rank < rank:
                return True
        return False

    def put_policy(self, body: dict[str, object]) -> bool:
        """Keep a policy unless a newer one is known; whether the set of policies in force changed.

        Of a policy that cannot be read the error is kept, and the last good version stays in force; without
        one, its nodes have no policy.
        """
        metadata: dict[str, object] = body["metadata"]  # type: ignore[assignment]
        name, version = str(metadata["name"]), version_of(str(metadata.get("resourceVersion", "")))
        if version and version <= self.policy_versions.get(name, 0):
            return False
        self.policy_versions[name] = version
        self.policy_status[name] = body.get("status") or {}  # type: ignore[assignment]
        try:
            policy = parse(body)
        except PolicyInvalid as error:
            generation = int(str(metadata.get("generation", 0)))
            before, readable = self.policy_errors.get(name), readable_part(body)
            self.policy_errors[name] = PolicyError(
                generation=generation, message=str(error), readable=readable
            )
            changed = name not in self.policies and (before is None or before.readable != readable)
            if changed:
                self.policies_changed()
            return changed
        self.policy_errors.pop(name, None)
        changed = self.policies.get(name) != policy
        self.policies[name] = policy
        if changed:
            self.policies_changed()
        return changed

    def drop_policy(self, name: str, *, version: str) -> bool:
        """Forget a policy that was deleted at that resourceVersion; whether nodes may follow another one now.

        A policy created under the same name since then is kept.
        """
        if version_of(version) < self.policy_versions.get(name, 0):
            return False
        self.policy_versions.pop(name, None)
        self.policy_status.pop(name, None)
        known = self.policy_errors.pop(name, None) is not None
        known = self.policies.pop(name, None) is not None or known
        self.policies_changed()
        return known

    def policies_changed(self) -> None:
        """Forget which policy is in force on which node."""
        self._policy_names.clear()
        self._in_force, self._selecting = {}, {}
        self.epoch += 1

    def newest(self) -> int:
        """The highest version that was seen of our own resources, which share one etcd."""
        reports = (version_of(report.resource_version) for report in self.reports.values())
        readings = (version_of(reading.resource_version) for reading in self.readings.values())
        return max(chain(reports, readings, self.policy_versions.values()), default=0)

    def known_names(self) -> set[str]:
        """Every node name with a node, a report, a reading or a pod."""
        return {*self.nodes, *self.reports, *self.readings, *self._rules, *self._pods}

    def drop_unlisted(
        self, *, nodes: Iterable[str], reports: Iterable[str], pods: Iterable[str], since: int
    ) -> set[str]:
        """After a full list: drop what it lacks unless that is newer than the list (`since`: a version).

        Returns the names of nodes about which something was dropped.  Nodes only become suspects.
        """
        listed_nodes, listed_reports, listed_pods = set(nodes), set(reports), set(pods)
        self.suspects |= {n for n in self.nodes if n not in listed_nodes}
        affected = set(self.suspects)
        for report in [r for r in self.reports.values() if r.name not in listed_reports]:
            if version_of(report.resource_version) <= since:
                affected.add(report.name)
                self.drop_report(report.name, report.uid)
        for pod in [p for pods_ in self._pods.values() for p in pods_.values()]:
            if pod.uid not in listed_pods and not pod.gone and version_of(pod.resource_version) <= since:
                affected.add(pod.node)
                self.drop_pod(pod)
        return affected

    def was_dropped(self, uid: str) -> bool:
        """Whether the object was dropped during the full list that shows it."""
        return self.dropped_while_listing is not None and uid in self.dropped_while_listing

    def note_dropped(self, uid: str) -> None:
        """A full list under way may still show this object."""
        if self.dropped_while_listing is not None:
            self.dropped_while_listing.add(uid)


Versioned = NodeView | Report | PodView | ChassisView | ReadingView | WatchView | SliceView | DeviceRule


def _newer(new: Versioned, old: Versioned) -> bool:
    return version_of(new.resource_version) > version_of(old.resource_version)


def expect_no_older(version: str, *, known: int, what: str) -> None:
    """Raise `Restored` if a read shows this version of `what`, which was `known` when the read began.

    Reads that ask for no version show at least what any earlier answer or event showed (Kubernetes API
    concepts, "Resource versions": the most recent).
    """
    if 0 < version_of(version) < known:
        raise Restored(f"{what} is at version {version}, and was at {known}")


def version_of(text: str) -> int:
    """A resourceVersion as a number; 0 if there is none."""
    return whole(text) or 0


def _relevant(node: NodeView) -> NodeView:
    """The node as far as decisions depend on it: without its revision, which a heartbeat changes, and
    without taints of others."""
    taints = (t for t in node.taints if t.own or t.key in names.TAINTS_OF_NODES_BEING_REMOVED)
    return replace(node, resource_version="", taints=tuple(taints))
