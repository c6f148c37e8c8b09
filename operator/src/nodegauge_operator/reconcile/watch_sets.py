"""Mode Watch: the DaemonSet of each policy, and its pods.

The DaemonSets are watched: whatever somebody else changes in the spec of one, or its deletion, is taken back
at once, and said.  They are applied when policies change.  Only a pod that such a DaemonSet controls speaks
for its node.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from nodegauge_operator import names
from nodegauge_operator.api.policy import Policy
from nodegauge_operator.api.times import NEVER, unstamp
from nodegauge_operator.core.driver_access import DriverAccess, access_of
from nodegauge_operator.core.model import NodeView, ProbeDefaults
from nodegauge_operator.core.probes import watch
from nodegauge_operator.core.watch_pod import WatchView
from nodegauge_operator.kube import daemonsets
from nodegauge_operator.kube.client import Client
from nodegauge_operator.kube.errors import Forbidden, KubeError, Refused, WebhookFailed
from nodegauge_operator.names import WatchersReason
from nodegauge_operator.reconcile.cache import Cache, version_of
from nodegauge_operator.reconcile.claim_templates import ClaimTemplates
from nodegauge_operator.reconcile.reading_trust import Trust
from nodegauge_operator.reconcile.watchers_condition import Trouble
from nodegauge_operator.reconcile.workqueue import BackgroundTask

log = logging.getLogger("nodegauge.watch")

CALM_SECONDS = 300.0
"""Longest wait until a change is taken back of somebody who changes a DaemonSet again and again, and for how
long they have to leave it alone.  Chosen by this project: each change restarts every container."""
OFTEN = 3
"""So many changes without such a calm are a dispute, which the policy's condition shows."""
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
    epoch seconds; `missed_at`: the latter, monotonic; `generation` of its spec and `version` of the whole, as
    this process left it."""

    uid: str
    since: float
    missed_at: float = 0.0
    generation: int = 0
    version: int = 0


class WatchPods:
    """The pods of watch DaemonSets, by node.  One that is gone is known until another one is: what it wrote
    last may still have to be judged."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._pods: dict[str, dict[str, WatchView]] = {}
        self._changed: set[str] = set()
        """Nodes of which a pod has changed."""

    def take_changed(self) -> set[str]:
        """Nodes of which a pod has changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def put(self, pod: WatchView) -> bool:
        """Keep a pod unless a newer state is known; whether it is new."""
        pods = self._pods.setdefault(pod.node, {})
        before = pods.get(pod.uid)
        if before is not None and version_of(pod.resource_version) < version_of(before.resource_version):
            return False
        self._changed.add(pod.node)
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

    def of_set(self, node: str, watch_set: WatchSet | None) -> list[WatchView]:
        """The pods of this DaemonSet on the node."""
        known = self._pods.get(node, {}).values() if watch_set is not None else ()
        return [pod for pod in known if watch_set is not None and pod.owner_uid == watch_set.uid]

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
        """By policy; the one for nodes with DRA alone by `POLICY/dra` (`_key`)."""
        self.templates = ClaimTemplates(client=client, defaults=defaults)
        """Of the claims of all probes."""
        self._by_claim = False
        """Whether a node had DRA alone when the DaemonSets were applied."""
        self.pods = WatchPods(cache)
        self.on_end: Callable[[], None] = lambda: None
        """Called after each try to make the DaemonSets."""
        self.task = BackgroundTask("watch DaemonSets", on_end=lambda: self.on_end())
        self._client = client
        self._cache = cache
        self._defaults = defaults
        self._clock = clock
        self._monotonic = monotonic
        self.trust = trust
        """Whether readings count."""
        self._applied_for = ""
        """The admission policy for which the DaemonSets were applied."""
        self._policies: dict[str, Policy] = {}
        self._announced: dict[str, tuple[str, bool]] = {}
        """By policy, what `on_change` was called for: the DaemonSet's UID, and whether nodes wait for it."""
        self._due_at = 0.0
        self.namespace, self.installation = defaults.namespace, defaults.installation
        self.epoch = 0
        """Counts changes of `known` that change which pods speak for a node."""
        self._refusals: dict[str, tuple[int, Trouble]] = {}
        """By policy: how often in a row its DaemonSet was refused, and the last refusal."""
        self._disputes: dict[str, tuple[int, float]] = {}
        """By policy: changes that were taken back without a calm between, and when the last was seen,
        monotonic."""
        self._restored: dict[str, list[str]] = {}
        """By policy: changes that were taken back, in words."""
        self._unseen: list[tuple[dict[str, Any], bool]] = []
        """Watch events during `keep`: its own writes may be among them."""
        self._edited: dict[str, Policy] = {}
        """The policies as they were last seen, where they differ from those that were applied."""
        self._edited_at = self._first_edit_at = 0.0

    @property
    def trusted(self) -> str:
        """The admission policy under which readings count."""
        return self.trust.identity

    def name_of(self, key: str) -> str:
        """The name of a policy's DaemonSet."""
        policy, _, by_claim = key.partition("/")
        return names.watch_set_name(instance=self._defaults.instance, policy=policy, by_claim=bool(by_claim))

    def names_of(self, policy: str) -> list[str]:
        """The names of the policy's DaemonSets, at least of the one that there should be."""
        keys = [key for key in _keys(policy) if key in self.known]
        return [self.name_of(key) for key in keys or [policy]]

    def access_of(self, node: NodeView) -> DriverAccess:
        """How pods reach the driver there."""
        return access_of(node, self._defaults.driver_access)

    def of_node(self, policy: Policy | None, node: NodeView | None) -> WatchSet | None:
        """The policy's DaemonSet that is for this node; None if there is none."""
        if policy is None or node is None:
            return None
        return self.known.get(_key(policy.name, self.access_of(node)))

    def reaches(self, policy: Policy, node: NodeView) -> bool:
        """Whether a DaemonSet can keep a container there."""
        return watch.reaches(policy, self.access_of(node))

    def trouble(self, policy: str) -> Trouble | None:
        """What is wrong with the policy's DaemonSet; None for nothing.  A refusal is believed when it comes
        twice: an API server that has just started refuses for a moment what it allows."""
        every = (self._trouble(key) for key in _keys(policy))
        return next((trouble for trouble in every if trouble is not None), None)

    def _trouble(self, key: str) -> Trouble | None:
        times, refusal = self._refusals.get(key, (0, None))
        if times > 1:
            return refusal
        if "/" in key and key in self.known and self.templates.problem:
            return Trouble(reason=WatchersReason.CLAIM_REFUSED, text=self.templates.problem)
        changes, at = self._disputes.get(key, (0, 0.0))
        if changes < OFTEN or self._monotonic() - at >= CALM_SECONDS:
            return None
        text = f"somebody changes the DaemonSet {self.name_of(key)} again and again"
        return Trouble(reason=WatchersReason.DAEMON_SET_CHANGED, text=text)

    def take_restored(self, policy: str) -> list[str]:
        """Changes of the policy's DaemonSet that were taken back since the last call, in words."""
        return [text for key in _keys(policy) for text in self._restored.pop(key, [])]

    def seen(self, metadata: dict[str, Any], *, deleted: bool) -> bool:
        """A DaemonSet as a watch event shows it: whether somebody changed or deleted one of ours, which is
        made anew soon."""
        if self.task.busy:
            self._unseen.append((metadata, deleted))
            return False
        return self._seen_now(metadata, deleted=deleted)

    def _seen_now(self, metadata: dict[str, Any], *, deleted: bool) -> bool:
        policy = next((p for p in self.known if self.name_of(p) == metadata["name"]), "")
        known = self.known.get(policy)
        if known is None or not known.uid:
            return False
        same = metadata["uid"] == known.uid
        is_old = version_of(metadata.get("resourceVersion", "")) <= known.version
        untouched = same and not deleted and metadata.get("generation", 0) <= known.generation
        if is_old or untouched or (deleted and not same):
            return False
        if same and not deleted:  # the events of its status that follow say the same
            self.known[policy] = replace(known, generation=metadata["generation"])
        by = daemonsets.changed_by(metadata)
        self._take_back(policy, "was deleted" if deleted or not same else f"was changed{by and ' by '}{by}")
        return True

    async def look(self) -> None:
        """List the DaemonSets, for changes that the watch missed."""
        before, listed = dict(self.known), {}
        self._due_at = self._monotonic() if self._by_claim else self._due_at  # its templates may be gone
        where = {"namespace": self.namespace, "instance": self._defaults.instance}
        try:
            async for metadata in daemonsets.each(self._client, **where):
                listed[metadata["name"]] = metadata
        except KubeError as error:
            log.log(error.log_level, "watch DaemonSets cannot be listed: %s", error)
            return
        for policy, known in before.items():
            if self.known.get(policy) is known and known.uid:
                name = self.name_of(policy)
                gone = {"name": name, "uid": known.uid, "resourceVersion": str(known.version + 1)}
                self.seen(listed.get(name, gone), deleted=name not in listed)

    def due_in(self) -> float:
        """Seconds until something is to be done: none after a policy has come or gone, and a few after one
        was edited, for more edits."""
        if self.task.busy:
            return RETRY_SECONDS
        policies, now = self._cache.policies, self._monotonic()
        if self.trust.identity != self._applied_for or policies.keys() != self._policies.keys():
            return 0.0
        if self._has_claims() is not self._by_claim:
            return 0.0
        if policies == self._policies:
            return self._due_at - now
        if policies != self._edited:
            first = not self._edited or self._edited == self._policies
            self._first_edit_at = now if first else self._first_edit_at
            self._edited, self._edited_at = dict(policies), now
        follows_at = min(self._edited_at + SETTLE_SECONDS, self._first_edit_at + LONGEST_SETTLE)
        return min(follows_at, self._due_at) - now

    def start_if_due(self, *, on_change: Callable[[], None]) -> None:
        """Apply the DaemonSets in the background; `on_change` if one is new, or no longer waited for."""
        self.task.check()
        if self.due_in() <= 0:
            self.task.start(self.keep(on_change=on_change))

    def _has_claims(self) -> bool:
        """Whether pods reach the driver of a node by claims."""
        nodes, cache = self._cache.nodes, self._cache
        by_claim = (self.access_of(nodes[name]) is DriverAccess.DRA for name in cache.with_devices)
        return self._defaults.driver_access == DriverAccess.DRA or any(by_claim)

    def _wanted(self) -> dict[str, tuple[Policy, DriverAccess]]:
        """The DaemonSets that should be there: policy, and how the pods reach the driver."""
        setting = DriverAccess(self._defaults.driver_access)
        ways = {DriverAccess.RUNTIME if setting is DriverAccess.AUTO else setting}
        ways |= {DriverAccess.DRA} if self._by_claim else set()
        return {
            _key(name, access): (policy, access)
            for name, policy in self._policies.items()
            for access in sorted(ways, reverse=True)
            if watch.reaches(policy, access)
        }

    async def keep(self, *, on_change: Callable[[], None]) -> None:
        """Apply the DaemonSets of policies in mode Watch, and delete those of others.

        That of a policy that cannot be read stays as it is, like the policy's nodes."""
        self._policies, self._due_at = dict(self._cache.policies), NEVER
        self._edited = self._policies
        self._applied_for = self.trust.identity
        self._by_claim = self._has_claims()
        wanted = self._wanted()
        refused_before = self.templates.problem
        await self._keep_templates()
        there = None
        try:
            there = await self._delete_others(wanted)
        except KubeError as error:
            self._failed("watch DaemonSets that no policy wants may be there", error, again=bool(wanted))
        for name, (policy, access) in wanted.items():
            known = self.known.get(name)
            try:
                self.known[name] = await self._make(policy, access, first=known is None)
                self._refusals.pop(name, None)
            except KubeError as error:
                self._failed(f"the watch DaemonSet of policy {name} cannot be applied", error)
                await self._note_refusal(name, policy, error)
                if there is None and known is not None:
                    continue
                made = (there or {}).get(self.name_of(name), {})
                if policy.uid in [owner["uid"] for owner in made.get("ownerReferences") or ()]:
                    self.known[name] = self._watch_set(made)
                elif known is None or known.uid:
                    now = self._monotonic()
                    self.known[name] = WatchSet(uid="", since=self._clock(), missed_at=now)
        if self.templates.problem != refused_before:
            on_change()
        self._announce(on_change)

    async def _keep_templates(self) -> None:
        """Those of claims: only where the API server serves devices is there anything to keep."""
        if not (self._by_claim or self._cache.slices_served):
            return
        try:
            await self.templates.keep(wanted=self._by_claim)
        except KubeError as error:
            self._failed("the templates of the probes' claims cannot be kept", error)
        if self.templates.problem:
            self._due_at = self._monotonic() + RETRY_SECONDS

    def _announce(self, on_change: Callable[[], None]) -> None:
        state = {name: (known.uid, self._is_awaited(known)) for name, known in self.known.items()}
        if state != self._announced:
            self._announced, self.epoch = state, self.epoch + 1
            on_change()
        unseen, self._unseen = self._unseen, []
        for metadata, deleted in unseen:
            self._seen_now(metadata, deleted=deleted)

    async def _make(self, policy: Policy, access: DriverAccess, *, first: bool) -> WatchSet:
        """Make the DaemonSet, or take back what somebody else changed in its spec; `first`: this process
        has not seen it yet.  Raises `KubeError`."""
        manifest = watch.daemon_set(policy, self._defaults, trusted=self.trust.identity, access=access)
        applied = await daemonsets.apply(self._client, manifest)
        made = await daemonsets.replace_spec(self._client, manifest, uid=applied["uid"])
        if first and made.get("generation") != applied.get("generation"):
            self._note_restored(_key(policy.name, access), "had been changed")
        return self._watch_set(made)

    def _watch_set(self, made: dict[str, Any]) -> WatchSet:
        since = unstamp(made.get("creationTimestamp", "")) or self._clock()
        version = version_of(made.get("resourceVersion", ""))
        return WatchSet(uid=made["uid"], since=since, generation=made.get("generation", 0), version=version)

    def _take_back(self, policy: str, what: str) -> None:
        """Somebody changed the DaemonSet: it is made anew, later each time if that goes on."""
        now = self._monotonic()
        changes, at = self._disputes.get(policy, (0, now))
        changes = changes if now - at < CALM_SECONDS else 0
        self._disputes[policy] = changes + 1, now
        wait = min(CALM_SECONDS, RETRY_SECONDS * 2**changes) if changes else 0.0
        self._due_at = min(self._due_at, now + wait)
        self._note_restored(policy, what)

    def _note_restored(self, policy: str, what: str) -> None:
        text = f"the DaemonSet {self.name_of(policy)} {what}, which nodegauge takes back"
        self._restored.setdefault(policy, []).append(text)
        log.warning("%s", text)

    async def _note_refusal(self, key: str, policy: Policy, error: KubeError) -> None:
        """Keep why the API server refuses the DaemonSet; no answer says nothing of it."""
        if not isinstance(error, Refused | Forbidden | WebhookFailed):
            return
        name, reason = self.name_of(key), WatchersReason.DAEMON_SET_REFUSED
        text = f"the API server refuses the DaemonSet {name}: {error}"
        with contextlib.suppress(KubeError):
            other = await daemonsets.find(self._client, namespace=self.namespace, name=name)
            owners = (other or {}).get("ownerReferences") or ()
            if other is not None and policy.uid not in [owner["uid"] for owner in owners]:
                reason = WatchersReason.DAEMON_SET_FOREIGN
                text = f"a DaemonSet {name} is there that is not nodegauge's: rename or delete it"
        times, _ = self._refusals.get(key, (0, None))
        self._refusals[key] = times + 1, Trouble(reason=reason, text=text)

    def applied(self, policy: Policy | None, node: NodeView | None) -> Policy | None:
        """The policy as the node can follow it: in mode Periodic where no DaemonSet can be made."""
        if policy is not None and node is not None and policy.watches and not self.reaches(policy, node):
            return watch.by_pods(policy)
        known = self.of_node(policy, node)
        if policy is None or known is None or known.uid or self._is_awaited(known):
            return policy
        return watch.by_pods(policy)

    def _is_awaited(self, known: WatchSet) -> bool:
        """Whether the DaemonSet is missing for no longer than a pod may take to start."""
        return not known.uid and self._monotonic() - known.missed_at < MISSING_SECONDS

    async def _delete_others(self, wanted: Collection[str]) -> dict[str, dict[str, Any]]:
        """Delete the DaemonSets that nobody wants; the metadata of those that stay, by name."""
        defaults = self._defaults
        unread = self._cache.policy_errors.keys() - self._policies.keys()
        kept = {*wanted, *(key for policy in unread for key in _keys(policy))}
        keep = {self.name_of(name) for name in kept}
        for name in self.known.keys() - set(wanted):
            del self.known[name]
            for of_policy in (self._refusals, self._disputes, self._restored):
                of_policy.pop(name, None)
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


def _key(policy: str, access: DriverAccess) -> str:
    """Of a policy's DaemonSet: no policy's name has a slash."""
    return f"{policy}/{names.BY_CLAIM}" if access is DriverAccess.DRA else policy


def _keys(policy: str) -> tuple[str, str]:
    return policy, f"{policy}/{names.BY_CLAIM}"
