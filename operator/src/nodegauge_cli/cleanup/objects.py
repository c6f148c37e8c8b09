"""Take what is ours off nodes, and remove reports and probe pods: all that can be, whatever fails beside it.

No object's failure ends the work on the others: it is noted in `Left`, by name and reason, and whoever runs
the clean-up is told in the end.  Nothing is forced before its time: a pod is given its grace period and a
few seconds more, and only one whose kubelet has not confirmed by then is removed without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar
from urllib.parse import quote

import click

from nodegauge_cli.cleanup.retry import Patience
from nodegauge_operator import names
from nodegauge_operator.api.report import Report
from nodegauge_operator.core.gate import label_patch
from nodegauge_operator.core.model import NodeView, PodView
from nodegauge_operator.core.probes.pod_parts import GRACE_SECONDS
from nodegauge_operator.core.taints import taint_patch
from nodegauge_operator.kube import nodes, pods, reports, workloads
from nodegauge_operator.kube.client import Client
from nodegauge_operator.kube.errors import Conflict, KubeError, NotFound

T = TypeVar("T")

POLL_SECONDS = 0.5
IN_FLIGHT = 8
TRIES = 10
FORCE_AFTER = GRACE_SECONDS + 5.0
"""A living kubelet has confirmed by then; seconds since the pod's deletion was asked for."""
PODS_WITHIN = 60.0
SHOWN = 20


class Left:
    """What could not be cleaned, and why: name to reason."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._reasons)

    def note(self, what: str, reason: object) -> None:
        """One object, or one kind of objects, that is still there; the first reason stands."""
        self._reasons.setdefault(what, str(reason))

    def done(self, what: str) -> None:
        """It went after all."""
        self._reasons.pop(what, None)

    def text(self) -> str:
        """For people: the first ones by name, and how many more."""
        lines = [f"{what}: {reason}" for what, reason in self._reasons.items()]
        tail = [f"... and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
        return "\n".join(f"  {line}" for line in [*lines[:SHOWN], *tail])


class Cleaning:
    """One clean-up of one cluster."""

    def __init__(
        self, client: Client, *, namespace: str, policy: str, dry_run: bool, patience: Patience
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._policy = policy
        self._dry_run = dry_run
        self._patience = patience
        self._places = asyncio.Semaphore(IN_FLIGHT)
        self._ended: list[PodView] = []
        self.left = Left()

    async def run(self) -> None:
        """Everything in turn; pods are asked to end before reports go, and waited for after."""
        await self._step("nodes", self._clean_nodes)
        await self._step("probe pods", self._end_pods)
        await self._step("reports", self._delete_reports)
        await self._step("probe pods", self._await_pods)
        await self._step("test pods", self._delete_tests)
        if self._policy:
            await self._step(f"policy {self._policy}", self._delete_policy)

    async def _step(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except NotFound:
            click.echo(f"{what}: gone already")
        except KubeError as error:
            self.left.note(what, error)

    # -- nodes -----------------------------------------------------------------------------------------------

    async def _clean_nodes(self) -> None:
        found = await self._patience.list(lambda: nodes.each(self._client))
        ours = [node for node in found if _marks(node)]
        done = len(ours)
        if self._dry_run:
            for node in ours:
                click.echo(f"  {node.name}: {', '.join(_marks(node))}")
        else:
            done = await self._each(ours, named=_node_name, clean=self._node)
        click.echo(f"nodes: {done} of {len(found)}{self._done('cleaned')}")

    async def _node(self, node: NodeView) -> None:
        failed: KubeError | None = None
        for wanting, write in (
            (_metadata_of_ours, self._metadata_off),
            (lambda seen: seen.condition, self._condition_off),
        ):
            try:
                now = await self._settle(node, wanting=wanting, write=write)
            except KubeError as error:
                failed = failed or error  # what refuses the one may let the other pass
                continue
            if now is None:
                return
            node = now
        if failed:
            raise failed

    async def _metadata_off(self, node: NodeView) -> NodeView:
        """Labels and taints in one patch, with the node's resourceVersion."""
        labels, taints = label_patch(node, {}), taint_patch(node, ())
        return await nodes.patch(self._client, node, labels=labels, taints=taints)

    async def _condition_off(self, node: NodeView) -> NodeView:
        return await nodes.patch_condition(self._client, node, None)

    async def _settle(
        self,
        node: NodeView,
        *,
        wanting: Callable[[NodeView], object],
        write: Callable[[NodeView], Awaitable[NodeView]],
    ) -> NodeView | None:
        """The node once there is nothing to write; None when it has gone.  A conflict reads it again."""
        seen = node
        for _ in range(TRIES):
            if not wanting(seen):
                return seen
            try:
                try:
                    seen = await self._patience.call(partial(write, seen))
                except Conflict:
                    seen = await self._patience.call(partial(nodes.get, self._client, node.name))
            except NotFound:
                return None
        raise KubeError(f"it keeps changing: still not clean after {TRIES} tries")

    # -- reports and pods ------------------------------------------------------------------------------------

    async def _delete_reports(self) -> None:
        found = await self._patience.list(lambda: reports.each(self._client))
        done = len(found)
        if not self._dry_run:
            done = await self._each(found, named=lambda r: f"report {r.name}", clean=self._delete_report)
        click.echo(f"reports: {done} of {len(found)}{self._done('removed')}")

    async def _delete_report(self, report: Report) -> None:
        await self._patience.call(lambda: reports.delete(self._client, report))

    async def _end_pods(self) -> None:
        self._ended = await self._pods()
        if not self._dry_run:
            await self._each(self._ended, named=self._pod_name, clean=self._end)

    async def _await_pods(self) -> None:
        """Until the probe pods are gone: after their grace, without asking their kubelets any longer."""
        remaining = [] if self._dry_run or not self._ended else await self._pods()
        clock = asyncio.get_running_loop().time
        began, forced = clock(), False
        while remaining and clock() < began + PODS_WITHIN:
            if not forced and clock() >= began + FORCE_AFTER:
                forced = True
                click.echo(f"probe pods: {len(remaining)} not confirmed by a kubelet, removed without it")
                await self._each(remaining, named=self._pod_name, clean=self._force)
            else:
                await asyncio.sleep(POLL_SECONDS)
            remaining = await self._pods()
        if not self._dry_run:
            self._account(remaining)
        count = len(self._ended)
        click.echo(f"probe pods: {max(0, count - len(remaining))} of {count}{self._done('removed')}")

    def _account(self, remaining: list[PodView]) -> None:
        still = {pod.uid for pod in remaining}
        for pod in self._ended:
            if pod.uid not in still:
                self.left.done(self._pod_name(pod))
        for pod in remaining:
            self.left.note(self._pod_name(pod), "deleted, but something (a finalizer?) holds it")

    async def _pods(self) -> list[PodView]:
        return await self._patience.list(lambda: pods.each(self._client, namespace=self._namespace))

    async def _end(self, pod: PodView) -> None:
        await self._delete_pod(pod, grace=0 if pod.finished else None)

    async def _force(self, pod: PodView) -> None:
        await self._delete_pod(pod, grace=0)

    async def _delete_pod(self, pod: PodView, *, grace: int | None) -> None:
        delete = partial(pods.delete, self._client, pod, namespace=self._namespace, grace=grace)
        await self._patience.call(delete)

    def _pod_name(self, pod: PodView) -> str:
        return f"probe pod {self._namespace}/{pod.name}"

    async def _delete_tests(self) -> None:
        """Quietly: there is none but after a `helm test` that failed."""
        if not self._dry_run:
            remove = partial(workloads.remove_tests, self._client, namespace=self._namespace)
            if found := await self._patience.call(remove):
                click.echo(f"test pods: {found} removed")

    async def _delete_policy(self) -> None:
        path = f"/apis/{names.API_VERSION}/{names.POLICY_PLURAL}/{quote(self._policy)}"
        if not self._dry_run:
            await self._patience.call(partial(self._client.call, "DELETE", path))
        click.echo(f"policy {self._policy}:{self._done('removed')}")

    # -- all of them -----------------------------------------------------------------------------------------

    async def _each(
        self, found: list[T], *, named: Callable[[T], str], clean: Callable[[T], Awaitable[None]]
    ) -> int:
        """How many were cleaned, a few at a time; the others are noted as left."""

        async def one(item: T) -> bool:
            async with self._places:
                try:
                    await clean(item)
                except KubeError as error:
                    self.left.note(named(item), error)
                    return False
            self.left.done(named(item))
            return True

        return sum(await asyncio.gather(*(one(item) for item in found)))

    def _done(self, word: str) -> str:
        return f" would be {word} (dry run: nothing was changed)" if self._dry_run else f" {word}"


def _node_name(node: NodeView) -> str:
    return f"node {node.name}"


def _metadata_of_ours(node: NodeView) -> list[str]:
    """Labels and taints of ours on the node, as people read them."""
    taints = [f"taint {taint.key}" for taint in node.taints if taint.key in names.NODE_TAINTS]
    return [*label_patch(node, {}), *taints]


def _marks(node: NodeView) -> list[str]:
    """All that is ours on the node."""
    return [*_metadata_of_ours(node), *(["condition"] if node.condition else [])]
