"""Mode Watch: the DaemonSet of each policy, and what its pods reported last.

The DaemonSets are applied when policies change and at an interval, so that nobody else's change of what they
set lasts; what they leave open, such as another container, stays.  Only a pod that such a DaemonSet controls
speaks for its node.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from nodegauge_operator import names
from nodegauge_operator.api.policy import Policy
from nodegauge_operator.api.report import unstamp
from nodegauge_operator.core.model import ProbeDefaults
from nodegauge_operator.core.probes import watch
from nodegauge_operator.core.watch_pod import WatchView
from nodegauge_operator.kube import daemonsets, pods
from nodegauge_operator.kube.client import Client
from nodegauge_operator.kube.errors import KubeError
from nodegauge_operator.reconcile.cache import Cache, version_of
from nodegauge_operator.reconcile.workqueue import BackgroundTask

log = logging.getLogger("nodegauge.watch")

APPLY_SECONDS = 300.0
"""Each DaemonSet is applied anew at this interval.  Chosen by this project: one write, in which the API
server changes nothing unless somebody else did."""
RETRY_SECONDS = 10.0
MISSING_SECONDS = 300.0
"""After so long without a DaemonSet health pods take its place.  Chosen by this project: longer than an API
server restarts, and as long as a pod may take to start."""


class WatchSet(Struct, frozen=True, kw_only=True):
    """A policy's DaemonSet.  `uid`: empty if there is none; `since`: when it was made, or was first missed,
    epoch seconds; `missed_at`: the latter, monotonic."""

    uid: str
    since: float
    missed_at: float = 0.0


class WatchPods:
    """The last that was seen of each watch pod, by node.

    A message that was judged is not kept: up to 4 KB a node, most of what this would take.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._pods: dict[str, dict[str, WatchView]] = {}
        self._judged: dict[str, tuple[str, str]] = {}
        """By UID of the pod: the end of its container whose message was judged, and the UID of the report."""

    def put(self, pod: WatchView, *, at: float = 0.0) -> bool:
        """Keep a pod unless a newer state is known; whether its container ended since.

        `at`: when an event brought it, epoch seconds; of a pod that was not known it says nothing."""
        pods = self._pods.setdefault(pod.node, {})
        before = pods.pop(pod.uid, None)
        if pod.gone:
            self._judged.pop(pod.uid, None)
            self._cache.note_dropped(pod.uid)
            return False
        if before is not None and version_of(pod.resource_version) <= version_of(before.resource_version):
            pod = before
        elif before is not None:
            pod = replace(pod, arrived=before.arrived if before.ended_id == pod.ended_id else at)
        pods[pod.uid] = self._without_message(pod) if self.judged_in(pod) else pod
        return before is None or before.ended_id != pod.ended_id

    def judged(self, pod: WatchView, *, report: str) -> None:
        """The report of this UID holds what the last end of this pod's container brought."""
        self._judged[pod.uid] = pod.ended_id, report
        self._pods[pod.node][pod.uid] = self._without_message(pod)

    def judged_in(self, pod: WatchView) -> str:
        """UID of the report that holds what this end brought; empty while its message is kept."""
        ended_id, report = self._judged.get(pod.uid, ("", ""))
        return report if ended_id == pod.ended_id else ""

    def read_again(self, pod: WatchView) -> None:
        """The pod with its message: no report holds what it brought any more.  Events may have told of a
        later end since it was read, or that it is gone."""
        self._judged.pop(pod.uid, None)
        known = self._pods.get(pod.node, {}).get(pod.uid)
        if known is not None and known.ended_id == pod.ended_id:
            self._pods[pod.node][pod.uid] = replace(known, ended=pod.ended)
        elif known is not None:
            self.put(pod)

    @staticmethod
    def _without_message(pod: WatchView) -> WatchView:
        return replace(pod, ended=pod.ended and replace(pod.ended, message=""))

    def of(self, node: str, watch_set: WatchSet | None) -> WatchView | None:
        """The oldest pod of this DaemonSet on the node that is not being deleted: its controller makes one
        there, and takes away what somebody else made."""
        owned = [
            pod
            for pod in self._pods.get(node, {}).values()
            if watch_set and pod.owner_uid == watch_set.uid and not pod.deleting
        ]
        return min(owned, key=lambda pod: pod.created_at, default=None)

    def each(self) -> Iterator[WatchView]:
        """Every pod."""
        return (pod for pods in self._pods.values() for pod in pods.values())

    def keep_only(self, uids: set[str], *, since: int) -> None:
        """After a full list: forget the pods that it lacks, but those newer than it (`since`: a version)."""
        for node, known in list(self._pods.items()):
            self._pods[node] = {
                uid: pod
                for uid, pod in known.items()
                if uid in uids or version_of(pod.resource_version) > since
            }
            if not self._pods[node]:
                del self._pods[node]
        known_uids = {pod.uid for pod in self.each()}
        self._judged = {uid: judged for uid, judged in self._judged.items() if uid in known_uids}


class WatchSets:
    """Keeps one DaemonSet for each policy in mode Watch, and none for any other.

    `clock`: epoch seconds; `monotonic`: they never go back, so that setting a clock delays nothing.
    """

    def __init__(
        self,
        *,
        client: Client,
        cache: Cache,
        defaults: ProbeDefaults,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self.known: dict[str, WatchSet] = {}
        """By policy."""
        self.pods = WatchPods(cache)
        self.task = BackgroundTask("watch DaemonSets", on_end=lambda: None)
        self._client = client
        self._cache = cache
        self._defaults = defaults
        self._clock = clock
        self._monotonic = monotonic
        self._policies: dict[str, Policy] = {}
        self._announced: dict[str, tuple[str, bool]] = {}
        """By policy, what `on_change` was called for: the DaemonSet's UID, and whether nodes wait for it."""
        self._due_at = 0.0

    def due_in(self) -> float:
        """Seconds until something is to be done: none after a change of the policies."""
        if self.task.busy:
            return RETRY_SECONDS
        return self._due_at - self._monotonic() if self._cache.policies == self._policies else 0.0

    def start_if_due(self, *, on_change: Callable[[], None]) -> None:
        """Apply the DaemonSets in the background; `on_change` if one is new, or no longer waited for."""
        self.task.check()
        if self.due_in() <= 0:
            self.task.start(self.keep(on_change=on_change))

    async def keep(self, *, on_change: Callable[[], None]) -> None:
        """Apply the DaemonSets of policies in mode Watch, and delete those of others.

        That of a policy that cannot be read stays as it is, like the policy's nodes."""
        self._policies, self._due_at = dict(self._cache.policies), self._monotonic() + APPLY_SECONDS
        wanted = {name: policy for name, policy in self._policies.items() if policy.watches}
        there = None
        try:
            there = await self._delete_others(wanted)
        except KubeError as error:
            self._failed("watch DaemonSets that no policy wants may be there", error, again=bool(wanted))
        for name, policy in wanted.items():
            manifest, known = watch.daemon_set(policy, self._defaults), self.known.get(name)
            try:
                made = await daemonsets.apply(self._client, manifest)
            except KubeError as error:
                self._failed(f"the watch DaemonSet of policy {name} cannot be applied", error)
                if there is None and known is not None:
                    continue
                made = (there or {}).get(manifest["metadata"]["name"], {})
                if policy.uid not in [owner["uid"] for owner in made.get("ownerReferences") or ()]:
                    if known is None or known.uid:
                        missed = {"since": self._clock(), "missed_at": self._monotonic()}
                        self.known[name] = WatchSet(uid="", **missed)
                    continue
            since = unstamp(made.get("creationTimestamp", "")) or self._clock()
            self.known[name] = WatchSet(uid=made["uid"], since=since)
        state = {name: (known.uid, self._is_awaited(known)) for name, known in self.known.items()}
        if state != self._announced:
            self._announced = state
            on_change()

    def applied(self, policy: Policy | None) -> Policy | None:
        """The policy as its nodes can follow it: in mode Periodic where no DaemonSet can be made."""
        known = self.known.get(policy.name) if policy is not None else None
        if policy is None or known is None or known.uid or self._is_awaited(known):
            return policy
        return watch.by_pods(policy)

    def _is_awaited(self, known: WatchSet) -> bool:
        """Whether the DaemonSet is missing for no longer than a pod may take to start."""
        return not known.uid and self._monotonic() - known.missed_at < MISSING_SECONDS

    async def keep_message(self, name: str) -> None:
        """Keep the message of the node's watch pod until its report holds what it brought.

        Read it again if no report does any more, because somebody deleted it.  Raises `KubeError`.
        """
        node, report = self._cache.nodes.get(name), self._cache.reports.get(name)
        policy = self._cache.policy_of(node) if node else None
        pod = self.pods.of(name, self.known.get(policy.name)) if policy else None
        if pod is None or pod.ended is None:
            return
        if report is not None and watch.holds(report.status, pod, now=self._clock()):
            if pod.ended.message:
                self.pods.judged(pod, report=report.uid)
        elif self.pods.judged_in(pod) not in ("", report.uid if report is not None else ""):
            fresh = await pods.get_watch(self._client, pod.name, namespace=self._defaults.namespace)
            if fresh is not None and fresh.uid == pod.uid:
                self.pods.read_again(fresh)
            else:
                self.pods.put(replace(pod, gone=True))

    async def _delete_others(self, wanted: dict[str, Policy]) -> dict[str, dict[str, Any]]:
        """Delete the DaemonSets that nobody wants; the metadata of those that stay, by name."""
        defaults = self._defaults
        unread = self._cache.policy_errors.keys() - self._policies.keys()
        keep = {
            names.watch_set_name(instance=defaults.instance, policy=name) for name in wanted.keys() | unread
        }
        for name in self.known.keys() - wanted.keys():
            del self.known[name]
        there = {}
        async for made in daemonsets.each(
            self._client, namespace=defaults.namespace, instance=defaults.instance
        ):
            if made["name"] in keep:
                there[made["name"]] = made
            else:
                await daemonsets.delete(
                    self._client, namespace=defaults.namespace, name=made["name"], uid=made["uid"]
                )
        return there

    def _failed(self, what: str, error: KubeError, *, again: bool = True) -> None:
        """Try again soon, if anything waits for it."""
        log.log(error.log_level, "%s: %s; will try again", what, error)
        if again:
            self._due_at = self._monotonic() + RETRY_SECONDS
