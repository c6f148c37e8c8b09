"""Watches the watchers: how the resident container of each node does, for condition, event, metrics and
fallback.

Only nodes that changed, and those whose container does not work, are looked at again.  Time is monotonic:
setting a clock calls no container missing.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from nodegauge_operator import names
from nodegauge_operator.api.history import Change
from nodegauge_operator.api.policy import Policy
from nodegauge_operator.api.times import NEVER, stamp
from nodegauge_operator.core.model import NodeView
from nodegauge_operator.core.override import override_at
from nodegauge_operator.core.probes import watch
from nodegauge_operator.core.watch_pod import WatchView
from nodegauge_operator.core.watchers import (
    BAD,
    HELD_OFF_SECONDS,
    Look,
    Watcher,
    is_expected,
    look,
    not_expected,
)
from nodegauge_operator.kube import events
from nodegauge_operator.kube.client import Client
from nodegauge_operator.kube.errors import KubeError
from nodegauge_operator.metrics import Metrics
from nodegauge_operator.reconcile.budget_condition import State
from nodegauge_operator.reconcile.cache import Cache
from nodegauge_operator.reconcile.watch_sets import WatchSets
from nodegauge_operator.reconcile.watchers_condition import watchers_ready

log = logging.getLogger("nodegauge.watch")

WATCHERS_READY = "WatchersReady"
LOOK_SECONDS = 5.0
"""How often containers that restart are looked at again: one that goes on for a while counts as well."""
RESTARTING = Watcher.RESTARTING
BEFORE = dict.fromkeys(BAD, Watcher.STARTING) | {
    Watcher.UNJUDGED: Watcher.READY,
    Watcher.HELD_OFF: Watcher.NOT_EXPECTED,
}
"""What counts only after a while, and what a node is until then."""


class Seen(Struct, frozen=True, kw_only=True):
    """A node when it was last looked at; `policy` is in force there."""

    policy: str
    look: Look


class Watchers:
    """The containers of all nodes whose policy is in mode Watch; brought up to date at each question.
    `refused`: nodes of a policy whose last health pod was refused, and why.  `clock`: epoch seconds."""

    def __init__(
        self,
        *,
        client: Client,
        cache: Cache,
        sets: WatchSets,
        metrics: Metrics,
        refused: Callable[[str], Mapping[str, str]],
        instance: str,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._client = client
        self._cache = cache
        self._sets = sets
        self._metrics = metrics
        self._refused = refused
        self._instance = instance
        self._clock = clock
        self._monotonic = monotonic
        self._changed = cache.subscribe()
        self._seen_under = (-1, -1, "")
        """Policies, DaemonSets and admission policy under which every node was looked at."""
        self._seen: dict[str, Seen] = {}
        self._counts: defaultdict[str, Counter[Watcher]] = defaultdict(Counter)
        """By policy: nodes by what a look at their pods says."""
        self._since: defaultdict[str, dict[str, float]] = defaultdict(dict)
        """By policy: nodes whose container does not work, or may not run, and since when, monotonic."""
        self._began = self._looked_again_at = monotonic()
        self._announced: dict[str, tuple[str, str]] = {}

    def put_pod(self, pod: WatchView) -> bool:
        """Keep a pod of a watch DaemonSet; whether its node is to be reconciled: it may have written, its
        container works again, or the time begins after which health pods read it."""
        before = self._state_now(pod.node)
        is_new, after = self._sets.pods.put(pod), self._state_now(pod.node)
        works_again = before in BAD and after not in BAD
        return is_new or works_again or (after is Watcher.STARTING and before is not after)

    def starting(self) -> list[str]:
        """Nodes whose container does not work and still has time."""
        self._update()
        nodes = (node for of_policy in self._since.values() for node in of_policy)
        return [node for node in nodes if self._state(node) is Watcher.STARTING]

    def is_bad(self, node: str) -> bool:
        """Whether health pods read the node, as its container has not worked for too long."""
        return self._state_now(node) in BAD

    def due_at(self, node: str) -> float:
        """When the container of the node will have been missing for too long, epoch seconds."""
        self._update()
        seen = self._seen.get(node)
        if (
            seen is None
            or node not in self._since[seen.policy]
            or seen.look.state not in BAD
            or self._state(node) in BAD
        ):
            return NEVER
        left = self._since[seen.policy][node] + self._grace(seen.policy) - self._monotonic()
        return self._clock() + max(left, 1.0)

    def condition(self, name: str) -> State | None:
        """The condition `WatchersReady`; None without containers, or without nodes.  One that was False
        before this process began stays so until it is known which containers are still missing."""
        policy = self._cache.policies.get(name)
        counts, bad = self._counted(name)
        if policy is None or not policy.watches or not counts:
            return None
        if not bad and counts[Watcher.STARTING] and self._monotonic() < self._began + self._grace(name):
            shown: Any = self._cache.policy_status.get(name, {}).get("conditions") or ()
            for before in shown:
                if (before.get("type"), before.get("status")) == (WATCHERS_READY, "False"):
                    return before["status"], before["reason"], before["message"]
        made, where = " ".join(self._sets.names_of(name)), self._sets.namespace
        described = f"kubectl describe daemonset {made} -n {where}"
        refused = {node: why for node, why in self._refused(name).items() if node in bad}
        return watchers_ready(counts, bad, self._sets.trouble(name), refused=refused, described=described)

    def export(self) -> None:
        """The gauges."""
        self._metrics.watch_containers.clear()
        self._metrics.watchers_ready.clear()
        for name in self._cache.policies:
            if (state := self.condition(name)) is not None:
                self._metrics.watchers_ready.labels(name).set(state[0] != "False")
                counts, _ = self._counted(name)
                for watcher in Watcher:
                    self._metrics.watch_containers.labels(name, watcher.value).set(counts[watcher])

    async def announce(self, name: str, before: dict[str, Any]) -> None:
        """Post the event of a condition that turned False, or back, and of each change of the DaemonSet that
        was taken back; `before`: the condition that the policy's status has.

        An event that cannot be posted holds up nothing: condition, metric and log line say the same."""
        policy, state = self._cache.policies.get(name), self.condition(name)
        if policy is None:
            return
        for text in self._sets.take_restored(name):
            await self._post(policy, "Warning", names.WatchersReason.DAEMON_SET_CHANGED, text)
        if state is None or state[:2] == self._announced.get(name):
            return
        was = before.get("status"), before.get("reason")
        self._announced[name] = state[0], str(state[1])
        if was != state[:2] and "False" in (state[0], was[0]):
            kind = "Warning" if state[0] == "False" else "Normal"
            log.log(logging.WARNING if kind == "Warning" else logging.INFO, "policy %s: %s", name, state[2])
            await self._post(policy, kind, str(state[1]), state[2])

    async def _post(self, policy: Policy, kind: str, reason: str, text: str) -> None:
        now = self._clock()
        change = Change(run=f"{policy.name}/{now:.0f}", type=kind, reason=reason, message=text, at=stamp(now))
        try:
            await events.post_of_policy(self._client, policy, change, instance=self._instance, now=now)
        except KubeError as error:
            log.log(error.log_level, "event %s of policy %s not posted: %s", reason, policy.name, error)

    def _counted(self, name: str) -> tuple[Counter[Watcher], dict[str, Look]]:
        """The policy's nodes by state, and those whose container has not worked for too long."""
        self._update()
        counts, bad = Counter(self._counts[name]), {}
        for node in self._since[name]:
            of_pods = self._seen[node].look
            if (state := self._state(node)) is of_pods.state:
                bad[node] = of_pods
            elif state is not None:
                counts[of_pods.state] -= 1
                counts[state] += 1
        return +counts, bad

    def _state_now(self, node: str) -> Watcher | None:
        self._update()
        return self._state(node)

    def _state(self, node: str) -> Watcher | None:
        """As the look at its pods says, unless it still has time."""
        seen = self._seen.get(node)
        if seen is None or seen.look.state not in BEFORE:
            return seen.look.state if seen else None
        state, waited = seen.look.state, self._monotonic() - self._since[seen.policy][node]
        grace = HELD_OFF_SECONDS if state is Watcher.HELD_OFF else self._grace(seen.policy)
        return state if waited >= grace else BEFORE[state]

    def _grace(self, policy: str) -> float:
        known = self._cache.policies.get(policy)
        return watch.start_grace(known) if known else NEVER

    def _update(self) -> None:
        under, now = (self._cache.epoch, self._sets.epoch, self._sets.trusted), self._monotonic()
        if under != self._seen_under:
            self._seen_under = under
            self._changed.update(self._cache.nodes, self._seen)
        if now - self._looked_again_at >= LOOK_SECONDS:  # time alone ends a restarting
            self._looked_again_at = now
            restarting = (
                n for of in self._since.values() for n in of if self._seen[n].look.state is RESTARTING
            )
            self._changed.update(restarting)
        self._changed |= self._sets.pods.take_changed()
        while self._changed:
            self._see(self._changed.pop())

    def _see(self, name: str) -> None:
        before, after = self._seen.pop(name, None), self._look_at(name)
        since = self._monotonic()
        if before is not None:
            self._counts[before.policy][before.look.state] -= 1
            known = self._since[before.policy].pop(name, since)
            same = after is not None and BEFORE.get(after.look.state) is BEFORE.get(before.look.state)
            since = known if same else since
        if after is not None:
            self._seen[name] = after
            self._counts[after.policy][after.look.state] += 1
            if after.look.state in BEFORE:
                self._since[after.policy][name] = since

    def _look_at(self, name: str) -> Seen | None:
        node = self._cache.nodes.get(name)
        policy = self._cache.policy_of(node) if node is not None else None
        if node is None or policy is None or not self._sets.reaches(policy, node):
            return None
        if not is_expected(node):
            return Seen(policy=policy.name, look=not_expected(node))
        pods = self._sets.pods.of_set(name, self._sets.of_node(policy, node))
        unjudged = self._unjudged(node)
        of_pods = look(pods, trusted=self._sets.trusted, now=self._clock(), unjudged=unjudged)
        return Seen(policy=policy.name, look=of_pods)

    def _unjudged(self, node: NodeView) -> str:
        """UID of the pod whose reading of the node is the newest and in no report; empty for none, and where
        readings are left alone on purpose."""
        reading, report = self._cache.readings.get(node.name), self._cache.reports.get(node.name)
        part = reading.parts.get(names.PROBE_HEALTH) if reading is not None else None
        override = override_at(node.override, now=self._clock())
        if part is None or report is None or (override is not None and override.leaves_alone):
            return ""
        if self._sets.trust.problem:  # said by itself, and health pods would not be believed either
            return ""
        is_ours = report.installation in ("", self._sets.installation)
        judged = report.status.probe[names.PROBE_HEALTH].reading == part.identity
        return part.pod_uid if is_ours and not judged else ""
