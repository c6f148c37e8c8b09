"""Mode Watch: the DaemonSet of each policy, and its pods.

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
from nodegauge_operator.kube import daemonsets
from nodegauge_operator.kube.client import Client
from nodegauge_operator.kube.errors import KubeError
from nodegauge_operator.reconcile.cache import Cache, version_of
from nodegauge_operator.reconcile.reading_trust import Trust
from nodegauge_operator.reconcile.workqueue import BackgroundTask

log = logging.getLogger("nodegauge.watch")

APPLY_SECONDS = 300.0
"""Each DaemonSet is applied anew at this interval.  Chosen by this project: one write, in which the API
server changes nothing unless somebody else did."""
RETRY_SECONDS = 10.0
SETTLE_SECONDS, LONGEST_SETTLE = 10.0, 60.0
"""Seconds without another edit of a policy until its DaemonSet follows, and after which it follows all the
same: each edit replaces a pod on every node.  Chosen by this project: eight edits in 16 s made 94 pods on 12
nodes."""
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
    """The pods of watch DaemonSets, by node.  One that is gone is known until another one is: what it wrote
    last may still have to be judged."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._pods: dict[str, dict[str, WatchView]] = {}

    def put(self, pod: WatchView) -> bool:
        """Keep a pod unless a newer state is known; whether it is new."""
        pods = self._pods.setdefault(pod.node, {})
        before = pods.get(pod.uid)
        if before is not None and version_of(pod.resource_version) < version_of(before.resource_version):
            return False
        if pod.gone:
            self._cache.note_dropped(pod.uid)
        pods[pod.uid] = pod
        if pod.gone and pod.node not in self._cache.nodes:
            self.forget_gone(pod.node)
            return before is None
        gone = sorted((view for view in pods.values() if view.gone), key=lambda view: view.created_at)
        for view in gone[:-1]:
            del pods[view.uid]
        return before is None

    def forget_gone(self, node: str) -> None:
        """The node is gone: nothing that its pods wrote will be judged."""
        left = {pod.uid: pod for pod in self._pods.pop(node, {}).values() if not pod.gone}
        if left:
            self._pods[node] = left

    def names_by_uid(self, node: str, watch_set: WatchSet | None, *, trusted: str) -> dict[str, str]:
        """UID and name of the pods of this DaemonSet on the node that were made for this admission policy."""
        known = self._pods.get(node, {}).values() if watch_set is not None else ()
        owner = watch_set.uid if watch_set is not None else ""
        return {pod.uid: pod.name for pod in known if (pod.owner_uid, pod.trust) == (owner, trusted)}

    def each(self) -> Iterator[WatchView]:
        """Every pod."""
        return (pod for pods in self._pods.values() for pod in pods.values())

    def keep_only(self, uids: set[str], *, since: int) -> None:
        """After a full list: those that it lacks are gone, but those newer than it (`since`: a version)."""
        for pod in list(self.each()):
            if pod.uid not in uids and not pod.gone and version_of(pod.resource_version) <= since:
                self.put(replace(pod, gone=True))


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
        trust: Trust,
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
        self._trust = trust
        self._applied_for = ""
        """The admission policy for which the DaemonSets were applied."""
        self._policies: dict[str, Policy] = {}
        self._announced: dict[str, tuple[str, bool]] = {}
        """By policy, what `on_change` was called for: the DaemonSet's UID, and whether nodes wait for it."""
        self._due_at = 0.0
        self._edited: dict[str, Policy] = {}
        """The policies as they were last seen, where they differ from those that were applied."""
        self._edited_at = self._first_edit_at = 0.0

    def due_in(self) -> float:
        """Seconds until something is to be done: none after a policy has come or gone, and a few after one
        was edited, for more edits."""
        if self.task.busy:
            return RETRY_SECONDS
        policies, now = self._cache.policies, self._monotonic()
        if self._trust.identity != self._applied_for or policies.keys() != self._policies.keys():
            return 0.0
        if policies == self._policies:
            return self._due_at - now
        if policies != self._edited:
            first = not self._edited or self._edited == self._policies
            self._first_edit_at = now if first else self._first_edit_at
            self._edited, self._edited_at = dict(policies), now
        return min(self._edited_at + SETTLE_SECONDS, self._first_edit_at + LONGEST_SETTLE) - now

    def start_if_due(self, *, on_change: Callable[[], None]) -> None:
        """Apply the DaemonSets in the background; `on_change` if one is new, or no longer waited for."""
        self.task.check()
        if self.due_in() <= 0:
            self.task.start(self.keep(on_change=on_change))

    async def keep(self, *, on_change: Callable[[], None]) -> None:
        """Apply the DaemonSets of policies in mode Watch, and delete those of others.

        That of a policy that cannot be read stays as it is, like the policy's nodes."""
        self._policies, self._due_at = dict(self._cache.policies), self._monotonic() + APPLY_SECONDS
        self._edited = self._policies
        self._applied_for = self._trust.identity
        wanted = {name: policy for name, policy in self._policies.items() if policy.watches}
        there = None
        try:
            there = await self._delete_others(wanted)
        except KubeError as error:
            self._failed("watch DaemonSets that no policy wants may be there", error, again=bool(wanted))
        for name, policy in wanted.items():
            known = self.known.get(name)
            manifest = watch.daemon_set(policy, self._defaults, trusted=self._trust.identity)
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
