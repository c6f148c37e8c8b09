"""Full lists: when the next one is due, and how it fills the cache.

A watch does not report what was deleted while it was interrupted, so lists are the truth and watches the
speed.  A full list costs the API server dozens of pages, and interruptions come in crowds exactly when it is
busiest: each list after an interruption, and each that fails, makes the next one wait longer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from nodegauge_operator.kube import (
    chassis,
    device_rules,
    nodes,
    pods,
    policies,
    readings,
    reports,
    slices,
)
from nodegauge_operator.kube.client import Client
from nodegauge_operator.kube.errors import Forbidden, NotFound
from nodegauge_operator.kube.listing import Unknown
from nodegauge_operator.reconcile.cache import Cache, Versioned, expect_no_older, version_of
from nodegauge_operator.reconcile.watch_sets import WatchPods

log = logging.getLogger("nodegauge.bmc")

SHORTEST, LONGEST = 5.0, 300.0
SPREAD = 0.25
"""Jitter adds up to this part: operators that the same outage hit do not return at the same moment."""
GATHER_SECONDS = 20.0
"""kopf's own list after an interruption arrives as one event per object; a full list waits this long for its
end."""
CALM_SECONDS = 2 * LONGEST
"""After so long without an interruption, the delay starts again from the shortest."""

Jitter = Callable[[], float]
"""A number from 0 to 1, another one at each call: `random.random`."""


def backoff(tries: int, jitter: Jitter) -> float:
    """Seconds to wait after so many `tries` (from 0) that did not help: 5, 10, 20 ... 300, and the jitter."""
    wait: float = min(LONGEST, SHORTEST * 2 ** min(tries, 10))
    return wait * (1 + SPREAD * jitter())


class ListSchedule:
    """When the next full list is due.  Call `begin` when it starts, then say how it ended.

    Times are monotonic seconds: a clock that is set must not stop the lists.
    """

    def __init__(self, *, interval: float, jitter: Jitter) -> None:
        self._interval = interval
        self._jitter = jitter
        self._regular_at = 0.0
        self._gap: tuple[float, float] | None = None
        """When the interruption was first and last noticed."""
        self._repairing: tuple[float, float] | None = None
        """The interruption that the list under way repairs."""
        self._failures = 0
        self._gap_lists = 0
        """Lists after interruptions, since the last calm period."""
        self._gap_list_at = -CALM_SECONDS
        self._not_before = 0.0

    @property
    def failures(self) -> int:
        """How many lists in a row have failed."""
        return self._failures

    def gap(self, now: float) -> None:
        """Watch events may have been missed: only a list that begins after `now` repairs that."""
        self._gap = (self._gap[0] if self._gap else now, now)

    def due_at(self) -> float:
        """When the next list is due."""
        if self._gap is None or self._failures:
            return self._regular_at
        first, last = self._gap
        gathered_at = min(last + SHORTEST, first + GATHER_SECONDS)
        return min(self._regular_at, max(gathered_at, self._not_before))

    def begin(self) -> None:
        """A list starts now."""
        self._repairing, self._gap = self._gap, None

    def done(self, now: float) -> None:
        """The list is complete."""
        self._failures = 0
        self._regular_at = now + self._interval
        if self._repairing is not None:
            self._gap_lists = 0 if now - self._gap_list_at >= CALM_SECONDS else self._gap_lists
            self._gap_lists, self._gap_list_at = self._gap_lists + 1, now
            self._not_before = now + backoff(self._gap_lists, self._jitter)
        self._repairing = None

    def failed(self, now: float) -> None:
        """The API server did not return the whole list."""
        self._retry_at(now + backoff(self._failures, self._jitter))

    def missing(self, now: float) -> None:
        """Our CRDs are not installed: asking is cheap, and somebody is waiting for them to be seen."""
        self._retry_at(now + SHORTEST)

    def _retry_at(self, at: float) -> None:
        self._failures += 1
        self._regular_at = at
        self._gap, self._repairing = self._repairing or self._gap, None


class _Comparison:
    """What a list shows, and which of it is newer than what was known when the list began."""

    def __init__(self, known: Iterable[Versioned], beat: Callable[[], None]) -> None:
        self.listed: dict[str, str] = {}
        """UIDs by name."""
        self._versions = {view.name: version_of(view.resource_version) for view in known}
        self._beat = beat

    @property
    def unknown(self) -> Unknown | None:
        """What `kube.listing` asks; None while nothing is known, because then everything is new."""
        return self.is_unknown if self._versions else None

    def saw(self, *, name: str, uid: str) -> None:
        """A whole object arrived."""
        self._beat()
        self.listed[name] = uid

    def is_unknown(self, metadata: Mapping[str, str]) -> bool:
        name, version = metadata["name"], metadata.get("resourceVersion", "")
        self.saw(name=name, uid=metadata.get("uid", ""))
        known = self._versions.get(name, -1)
        expect_no_older(version, known=known, what=name)
        return version_of(version) > known


async def list_all(
    client: Client,
    cache: Cache,
    *,
    namespace: str,
    node_selector: str,
    bmc: bool = False,
    watch_pods: WatchPods,
    beat: Callable[[], None] = lambda: None,
    wake: Callable[[str], None] = lambda name: None,
) -> None:
    """List everything into the cache.  Raises `KubeError`; what arrived until then is kept.  `Restored`: the
    cache is worth nothing any more.

    `beat` is called as objects arrive: a slow list of a large cluster is still progress.  `wake` is called at
    once with each node about which something changed, because no watch reports that again.  `bmc`: list what
    the BMC reader wrote, too.  `watch_pods`: takes the pods of mode Watch.  Watches and
    reconcilers continue meanwhile, and every page shows the cluster as it was when the list began.  Only
    objects that are newer than the cache are fetched whole (`kube.listing`).
    """
    cache.dropped_while_listing = set()
    try:
        newest = cache.newest()
        since = await _current_version(client)
        expect_no_older(str(since), known=newest, what="the API server")
        beat()
        await _policies(client, cache, since=since, wake=wake)
        beat()
        listed_reports = await _reports(client, cache, beat=beat, wake=wake)
        beat()
        await _readings(client, cache, since=since, beat=beat, wake=wake)
        beat()
        if bmc:
            await _chassis(client, cache, since=since, beat=beat, wake=wake)
        of_pods = _Comparison((p for name in cache.known_names() for p in cache.pods_of(name)), beat)
        async for pod in pods.each(client, namespace=namespace, unknown=of_pods.unknown):
            if not cache.was_dropped(pod.uid) and cache.put_pod(pod):
                wake(pod.node)
            of_pods.saw(name=pod.name, uid=pod.uid)
        beat()
        # one outside of the server-side selection that is listed has returned to it
        inside = (node for name, node in cache.nodes.items() if name not in cache.outside_selector)
        of_nodes = _Comparison(inside, beat)
        async for node in nodes.each(client, label_selector=node_selector, unknown=of_nodes.unknown):
            of_nodes.saw(name=node.name, uid=node.uid)
            if not cache.was_dropped(node.uid) and cache.put_selected_node(node):
                wake(node.name)
        # a newer node of a name that was dropped is a suspect, like any that no list shows
        listed_nodes = {name for name, uid in of_nodes.listed.items() if not cache.was_dropped(uid)}
        await _device_rules(client, cache, since=since, wake=wake)
        await _slices(client, cache, since=since, beat=beat, wake=wake)
        beat()
        await _watch_pods(client, cache, watch_pods, namespace=namespace, since=since, beat=beat, wake=wake)
        affected = cache.drop_unlisted(
            nodes=listed_nodes, reports=listed_reports, pods=of_pods.listed.values(), since=since
        )
    finally:
        cache.dropped_while_listing = None
    # A report or a pod of a node that no list shows: the node is gone, or left the server-side selector.
    unlisted = cache.known_names() - listed_nodes
    cache.suspects |= unlisted
    for name in affected | unlisted:
        wake(name)


async def _policies(client: Client, cache: Cache, *, since: int, wake: Callable[[str], None]) -> None:
    """List the policies; if any in force changed, every node is looked at."""
    epoch, known = cache.epoch, dict(cache.policy_versions)
    listed = set()
    async for body in policies.each(client):
        name, version = body["metadata"]["name"], body["metadata"].get("resourceVersion", "")
        expect_no_older(version, known=known.get(name, -1), what=f"policy {name}")
        cache.put_policy(body)
        listed.add(str(name))
    for name in [n for n in cache.policy_versions if n not in listed]:
        cache.drop_policy(name, version=str(since))
    if cache.epoch != epoch:
        for name in cache.known_names():
            wake(name)


async def _reports(
    client: Client, cache: Cache, *, beat: Callable[[], None], wake: Callable[[str], None]
) -> set[str]:
    """List the reports; the names on all pages."""
    comparison = _Comparison(cache.reports.values(), beat)
    async for report in reports.each(client, unknown=comparison.unknown):
        if not cache.was_dropped(report.uid) and cache.put_report(report):
            wake(report.name)
        comparison.saw(name=report.name, uid=report.uid)
    return set(comparison.listed)


async def _readings(
    client: Client, cache: Cache, *, since: int, beat: Callable[[], None], wake: Callable[[str], None]
) -> None:
    """List what probes wrote, and drop what is not there unless it is newer than the list."""
    comparison = _Comparison(cache.readings.values(), beat)
    async for view in readings.each(client, unknown=comparison.unknown):
        if cache.put_reading(view):
            wake(view.name)
        comparison.saw(name=view.name, uid=view.uid)
    for name in cache.readings.keys() - comparison.listed.keys():
        cache.drop_reading(name, version=since)


async def _chassis(
    client: Client, cache: Cache, *, since: int, beat: Callable[[], None], wake: Callable[[str], None]
) -> None:
    """List what the BMC reader wrote, and drop what is not there unless it is newer than the list; without
    the CRD there is nothing."""
    comparison = _Comparison(cache.chassis.values(), beat)
    try:
        async for view in chassis.each(client, unknown=comparison.unknown):
            if cache.put_chassis(view):
                wake(view.name)
            comparison.saw(name=view.name, uid=view.uid)
    except (NotFound, Forbidden) as error:
        log.warning("no readings of BMCs: %s", error)
        return
    for name in cache.chassis.keys() - comparison.listed.keys():
        cache.drop_chassis(name, version=since)


async def _device_rules(client: Client, cache: Cache, *, since: int, wake: Callable[[str], None]) -> None:
    """List our DeviceTaintRules; an API server without them, or a role of an older chart, has none."""
    listed: set[str] = set()
    try:
        api = await device_rules.served(client)
        if api:
            async for rule in device_rules.each(client, api=api):
                if cache.put_rule(rule):
                    wake(rule.node)
                listed.add(rule.uid)
    except (NotFound, Forbidden) as error:
        log.warning("no DeviceTaintRules: %s; run helm upgrade with the chart of this version", error)
        api = ""
    cache.rules_api = api
    for rule in cache.rules():
        if rule.uid not in listed and version_of(rule.resource_version) <= since and cache.drop_rule(rule):
            wake(rule.node)


async def _slices(
    client: Client, cache: Cache, *, since: int, beat: Callable[[], None], wake: Callable[[str], None]
) -> None:
    """List the devices of DRA drivers; an API server that does not serve them, or a role of an older chart,
    has none."""
    comparison = _Comparison(cache.slices(), beat)
    unknown = comparison.is_unknown if cache.slices_served is not None else None
    try:
        async for view in slices.each(client, unknown=unknown):
            if cache.put_slice(view):
                wake(view.node)
            comparison.saw(name=view.name, uid=view.name)
    except (NotFound, Forbidden) as error:
        if isinstance(error, Forbidden) and cache.slices_served is not False:
            log.warning("no devices of DRA drivers: %s; upgrade the chart too", error)
        cache.slices_served = False
        return
    cache.slices_served = True
    for view in cache.slices():
        if view.name not in comparison.listed and cache.drop_slice(view, version=since):
            wake(view.node)


async def _watch_pods(
    client: Client,
    cache: Cache,
    watch_pods: WatchPods,
    *,
    namespace: str,
    since: int,
    beat: Callable[[], None],
    wake: Callable[[str], None],
) -> None:
    """List the pods of mode Watch, and forget those that are gone unless they are newer than the list."""
    comparison = _Comparison(watch_pods.each(), beat)
    async for pod in pods.each_watch(client, namespace=namespace, unknown=comparison.unknown):
        if not cache.was_dropped(pod.uid) and watch_pods.put(pod):
            wake(pod.node)
        comparison.saw(name=pod.name, uid=pod.uid)
    watch_pods.keep_only(set(comparison.listed.values()), since=since)


async def _current_version(client: Client) -> int:
    """The resourceVersion before the lists: a newer object missing from them has not been deleted."""
    page = await client.call("GET", policies.PATH, query={"limit": 1})
    version = (page.get("metadata") or {}).get("resourceVersion", "")
    return int(version) if version.isdigit() else 0
