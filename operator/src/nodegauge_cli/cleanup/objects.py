"""Remove labels, taints and conditions from nodes, then reports, histories and probe pods.

If an object cannot be cleaned, the others still are: `Remaining` collects names and reasons for the end.  A
pod gets its grace period and a few seconds more before it is removed without its kubelet's confirmation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar
from urllib.parse import quote

import click

from nodegauge_cli.cleanup.retry import Retry
from nodegauge_operator import names
from nodegauge_operator.api.node_history import NodeHistory
from nodegauge_operator.api.report import Report
from nodegauge_operator.core.model import NodeView, PodView
from nodegauge_operator.core.outlets import label_patch, taint_patch
from nodegauge_operator.core.probes.pod import GRACE_SECONDS
from nodegauge_operator.core.watch_pod import WatchView
from nodegauge_operator.kube import (
    daemonsets,
    device_rules,
    histories,
    leases,
    nodes,
    pods,
    readings,
    reports,
    slices,
    workloads,
)
from nodegauge_operator.kube.client import Client
from nodegauge_operator.kube.errors import Conflict, KubeError, NotFound

T = TypeVar("T")

POLL_SECONDS = 0.5
IN_FLIGHT = 8
TRIES = 10
FORCE_AFTER = GRACE_SECONDS + 5.0
"""Seconds after a pod's deletion by which a running kubelet has confirmed it."""
PODS_WITHIN = 60.0
SHOWN = 20


class Remaining:
    """What could not be cleaned, and why: name to reason."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._reasons)

    def add(self, name: str, reason: object) -> None:
        """Record an object, or a kind of objects, that could not be cleaned; the first reason is kept."""
        self._reasons.setdefault(name, str(reason))

    def discard(self, name: str) -> None:
        """It was cleaned after all."""
        self._reasons.pop(name, None)

    def text(self) -> str:
        """A line for each of the first ones, and how many more there are."""
        lines = [f"{name}: {reason}" for name, reason in self._reasons.items()]
        tail = [f"... and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
        return "\n".join(f"  {line}" for line in [*lines[:SHOWN], *tail])


class CleanUp:
    """One clean-up of one cluster."""

    def __init__(
        self, client: Client, *, namespace: str, release: str, policy: str, dry_run: bool, retry: Retry
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._installation = f"{namespace}/{release}" if release else ""
        """The only one whose nodes and reports are cleaned; empty for all."""
        self._others: frozenset[str] = frozenset()
        """Names of nodes of other installations."""
        self._policy = policy
        self._dry_run = dry_run
        self._retry = retry
        self._in_flight = asyncio.Semaphore(IN_FLIGHT)
        self._deleted: list[PodView | WatchView] = []
        self.remaining = Remaining()

    async def run(self) -> None:
        """Every step in turn.  Pods end while reports are deleted, and are waited for afterwards.

        Raises `KubeError` if it cannot be seen what belongs to other installations.
        """
        if self._installation:
            await self._find_others()
        await self._step("nodes", self._clean_nodes)
        await self._step("device rules", self._delete_rules)
        await self._step("watch DaemonSets", self._delete_watch_sets)
        await self._step("probe pods", self._end_pods)
        await self._step("claim templates", self._delete_claim_templates)
        await self._step("reports", self._delete_reports)
        await self._step("histories", self._delete_histories)
        await self._step("probe pods", self._await_pods)
        await self._step("test pods", self._delete_tests)
        await self._step("lease", self._delete_lease)
        if self._policy:
            await self._step(f"policy {self._policy}", self._delete_policy)

    async def _step(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except NotFound:
            click.echo(f"{what}: already gone")
        except KubeError as error:
            self.remaining.add(what, error)

    # -- other installations ---------------------------------------------------------------------------------

    async def _find_others(self) -> None:
        """What other reports say, and, if another installation holds the Lease, every node without a report
        of this one."""
        holder, every = await self._holder(), await self._retry.list(lambda: nodes.each(self._client))
        owners: dict[str, str] = {}
        with suppress(NotFound):  # no CRD, so no report
            reported = await self._retry.list(lambda: reports.each(self._client))
            owners = {report.name: report.installation for report in reported}
        ours = {self._installation} if holder not in ("", self._installation) else {"", self._installation}
        names_seen = {node.name for node in every} | owners.keys()
        self._others = frozenset(name for name in names_seen if owners.get(name, "") not in ours)
        if self._others:
            click.echo(
                f"{len(self._others)} nodes do not belong to {self._installation}, and stay as they are"
            )

    async def _holder(self) -> str:
        try:
            return (await self._retry.call(partial(leases.get, self._client))).holder
        except NotFound:
            return ""

    async def _delete_lease(self) -> None:
        """Last: until then no other installation begins to write."""
        holder = await self._holder()
        if holder and (not self._installation or holder == self._installation) and not self._dry_run:
            await self._retry.call(partial(leases.delete, self._client))

    # -- nodes -----------------------------------------------------------------------------------------------

    async def _clean_nodes(self) -> None:
        every = await self._retry.list(lambda: nodes.each(self._client))
        ours = [node for node in every if _ours(node) and node.name not in self._others]
        done = len(ours)
        if self._dry_run:
            for node in ours:
                click.echo(f"  {node.name}: {', '.join(_ours(node))}")
        else:
            done = await self._each(ours, named=_node_name, clean=self._node)
        click.echo(f"nodes: {done} of {len(every)}{self._done('cleaned')}")

    async def _node(self, node: NodeView) -> None:
        failed: KubeError | None = None
        for is_left, write in (
            (_our_metadata, self._remove_metadata),
            (lambda seen: seen.condition, self._remove_condition),
        ):
            try:
                now = await self._cleaned(node, is_left=is_left, write=write)
            except KubeError as error:
                failed = failed or error  # the other write may still succeed
                continue
            if now is None:
                return
            node = now
        if failed:
            raise failed

    async def _remove_metadata(self, node: NodeView) -> NodeView:
        """Labels and taints in one patch, with the node's resourceVersion."""
        labels, taints = label_patch(node, {}), taint_patch(node, ())
        return await nodes.patch(self._client, node, labels=labels, taints=taints)

    async def _remove_condition(self, node: NodeView) -> NodeView:
        return await nodes.patch_condition(self._client, node, None)

    async def _cleaned(
        self,
        node: NodeView,
        *,
        is_left: Callable[[NodeView], object],
        write: Callable[[NodeView], Awaitable[NodeView]],
    ) -> NodeView | None:
        """The node once nothing is left to write, None if it is gone.  A conflict reads the node again."""
        seen = node
        for _ in range(TRIES):
            if not is_left(seen):
                return seen
            try:
                try:
                    seen = await self._retry.call(partial(write, seen))
                except Conflict:
                    seen = await self._retry.call(partial(nodes.get, self._client, node.name))
            except NotFound:
                return None
        raise KubeError(f"the node keeps changing; gave up after {TRIES} tries")

    async def _delete_rules(self) -> None:
        """Mostly there are none, so nothing is printed then."""
        api = await self._retry.call(partial(device_rules.served, self._client))
        listed = await self._retry.list(lambda: device_rules.each(self._client, api=api)) if api else []
        every = [rule for rule in listed if rule.node not in self._others]
        done = len(every)
        if not self._dry_run:
            done = await self._each(
                every,
                named=lambda rule: f"device rule {rule.name}",
                clean=lambda rule: self._retry.call(
                    partial(device_rules.delete, self._client, rule, api=api)
                ),
            )
        if every:
            click.echo(f"device rules: {done} of {len(every)}{self._done('removed')}")

    # -- reports and pods ------------------------------------------------------------------------------------

    async def _delete_reports(self) -> None:
        listed = await self._retry.list(lambda: reports.each(self._client))
        every = [report for report in listed if report.name not in self._others]
        done = len(every)
        if not self._dry_run:
            done = await self._each(every, named=lambda r: f"report {r.name}", clean=self._delete_report)
        click.echo(f"reports: {done} of {len(every)}{self._done('removed')}")

    async def _delete_report(self, report: Report) -> None:
        await self._retry.call(lambda: readings.delete(self._client, report.name))
        await self._retry.call(lambda: reports.delete(self._client, report))

    async def _delete_histories(self) -> None:
        """Also those of nodes that are gone: with a release, only what it wrote itself, and what nobody says
        to have written on nodes that are not another's."""
        listed = await self._retry.list(lambda: histories.each(self._client))
        ours = (self._installation, "")
        every = [
            one
            for one in listed
            if not self._installation
            or (one.installation in ours and (one.installation or one.name not in self._others))
        ]
        done = len(every)
        if not self._dry_run:
            done = await self._each(every, named=lambda h: f"history {h.name}", clean=self._delete_history)
        click.echo(f"histories: {done} of {len(every)}{self._done('removed')}")

    async def _delete_history(self, history: NodeHistory) -> None:
        await self._retry.call(lambda: histories.delete(self._client, history))

    async def _delete_watch_sets(self) -> None:
        """Before their pods, which would come again; usually there are none, so nothing is printed then."""
        release = self._installation.partition("/")[2]
        listed = partial(daemonsets.each, self._client, namespace=self._namespace, instance=release)
        every = await self._retry.list(listed)
        for made in every if not self._dry_run else ():
            delete = partial(daemonsets.delete, self._client, namespace=self._namespace)
            await self._retry.call(partial(delete, name=made["name"], uid=made["uid"]))
        if every:
            click.echo(f"watch DaemonSets: {len(every)}{self._done('removed')}")

    async def _delete_claim_templates(self) -> None:
        """Their claims go with the pods; an API server that does not serve them has none."""
        release = self._installation.partition("/")[2]
        listed = partial(slices.templates, self._client, namespace=self._namespace, instance=release)
        try:
            every = await self._retry.call(listed)
        except NotFound:
            return
        for made in every if not self._dry_run else ():
            name, uid = made["metadata"]["name"], made["metadata"]["uid"]
            delete = partial(slices.delete_template, self._client, namespace=self._namespace)
            await self._retry.call(partial(delete, name=name, uid=uid))
        if every:
            click.echo(f"claim templates: {len(every)}{self._done('removed')}")

    async def _end_pods(self) -> None:
        self._deleted = await self._pods()
        if not self._dry_run:
            await self._each(self._deleted, named=self._pod_name, clean=self._end)

    async def _await_pods(self) -> None:
        """Wait until the probe pods are gone; after their grace period remove them without their kubelets."""
        remaining = [] if self._dry_run or not self._deleted else await self._pods()
        clock = asyncio.get_running_loop().time
        began, forced = clock(), False
        while remaining and clock() < began + PODS_WITHIN:
            if not forced and clock() >= began + FORCE_AFTER:
                forced = True
                click.echo(f"probe pods: {len(remaining)} removed without confirmation by their kubelets")
                await self._each(remaining, named=self._pod_name, clean=self._force)
            else:
                await asyncio.sleep(POLL_SECONDS)
            remaining = await self._pods()
        if not self._dry_run:
            self._record(remaining)
        count = len(self._deleted)
        click.echo(f"probe pods: {max(0, count - len(remaining))} of {count}{self._done('removed')}")

    def _record(self, remaining: list[PodView | WatchView]) -> None:
        still = {pod.uid for pod in remaining}
        for pod in self._deleted:
            if pod.uid not in still:
                self.remaining.discard(self._pod_name(pod))
        for pod in remaining:
            self.remaining.add(self._pod_name(pod), "deleted, but still present (check its finalizers)")

    async def _pods(self) -> list[PodView | WatchView]:
        of_runs = await self._retry.list(lambda: pods.each(self._client, namespace=self._namespace))
        resident = await self._retry.list(lambda: pods.each_watch(self._client, namespace=self._namespace))
        return [*of_runs, *resident]

    async def _end(self, pod: PodView | WatchView) -> None:
        await self._delete_pod(pod, grace=0 if isinstance(pod, PodView) and pod.finished else None)

    async def _force(self, pod: PodView | WatchView) -> None:
        await self._delete_pod(pod, grace=0)

    async def _delete_pod(self, pod: PodView | WatchView, *, grace: int | None) -> None:
        delete = partial(pods.delete, self._client, pod, namespace=self._namespace, grace=grace)
        await self._retry.call(delete)

    def _pod_name(self, pod: PodView | WatchView) -> str:
        return f"probe pod {self._namespace}/{pod.name}"

    async def _delete_tests(self) -> None:
        """Pods that a failed `helm test` left; usually there are none, so nothing is printed then."""
        if not self._dry_run:
            remove = partial(workloads.remove_tests, self._client, namespace=self._namespace)
            if count := await self._retry.call(remove):
                click.echo(f"test pods: {count} removed")

    async def _delete_policy(self) -> None:
        path = f"/apis/{names.API_VERSION}/{names.POLICY_PLURAL}/{quote(self._policy)}"
        if not self._dry_run:
            await self._retry.call(partial(self._client.call, "DELETE", path))
        click.echo(f"policy {self._policy}:{self._done('removed')}")

    # -- shared -----------------------------------------------------------------------------------------

    async def _each(
        self, items: list[T], *, named: Callable[[T], str], clean: Callable[[T], Awaitable[None]]
    ) -> int:
        """Clean all, a few at a time; how many succeeded.  The others are recorded."""

        async def cleaned(item: T) -> bool:
            async with self._in_flight:
                try:
                    await clean(item)
                except KubeError as error:
                    self.remaining.add(named(item), error)
                    return False
            self.remaining.discard(named(item))
            return True

        return sum(await asyncio.gather(*(cleaned(item) for item in items)))

    def _done(self, word: str) -> str:
        return f" would be {word} (dry run: nothing was changed)" if self._dry_run else f" {word}"


def _node_name(node: NodeView) -> str:
    return f"node {node.name}"


def _our_metadata(node: NodeView) -> list[str]:
    """Our labels and taints on the node, as they are printed."""
    taints = [f"taint {taint.key}" for taint in node.taints if taint.own]
    return [*label_patch(node, {}), *taints]


def _ours(node: NodeView) -> list[str]:
    """Our labels, taints and condition on the node."""
    return [*_our_metadata(node), *(["condition"] if node.condition else [])]
