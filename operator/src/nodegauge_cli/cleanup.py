"""`nodegauge cleanup`: take everything of ours off the cluster, also when the operator was busy.

Run by the chart's pre-delete hook and by people.  First the operator is scaled to nothing and waited for,
since a living one would write again what is removed here; then labels and conditions go (by key and by
managedFields), then probe pods and reports.  Policies are not touched: they belong to whoever made them.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable

import click

from nodegauge_operator.api.policy import seconds as parse_seconds
from nodegauge_operator.core.gate import label_patch
from nodegauge_operator.core.model import NodeView
from nodegauge_operator.kube import nodes, pods, reports, workloads
from nodegauge_operator.kube.client import Client, connect
from nodegauge_operator.kube.errors import Conflict, KubeError, NotFound
from nodegauge_operator.kube.limiter import Limiter

POLL_SECONDS = 0.25
IN_FLIGHT = 8
TRIES = 10
POD_SECONDS = 60.0


@click.command()
@click.option(
    "--namespace", default="nodegauge", show_default=True, help="Namespace of operator and probe pods."
)
@click.option("--deployment", default="", help="The operator's Deployment; it is scaled to 0 first.")
@click.option(
    "--timeout", default="120s", show_default=True, help="How long to wait for the operator to end."
)
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and change nothing.")
def cleanup(namespace: str, deployment: str, timeout: str, dry_run: bool) -> None:
    """Remove every label, condition, probe pod and NodeReport of nodegauge from the cluster."""
    seconds = _seconds(timeout)
    try:
        asyncio.run(_cleanup(namespace=namespace, deployment=deployment, within=seconds, dry_run=dry_run))
    except KubeError as error:
        raise click.ClickException(str(error)) from None


def _seconds(text: str) -> float:
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--timeout") from None


async def _cleanup(*, namespace: str, deployment: str, within: float, dry_run: bool) -> None:
    client = await connect(environ=os.environ, limiter=Limiter(rate=200, burst=200))
    try:
        if deployment and not dry_run:
            await _stop_operator(client, namespace=namespace, deployment=deployment, within=within)
        await _clean_nodes(client, dry_run=dry_run)
        await _delete_pods(client, namespace=namespace, dry_run=dry_run)
        await _delete_reports(client, dry_run=dry_run)
    finally:
        await client.close()


async def _stop_operator(client: Client, *, namespace: str, deployment: str, within: float) -> None:
    selector = await workloads.scale_to_zero(client, namespace=namespace, deployment=deployment)
    if selector is None:
        click.echo(f"operator: no Deployment {namespace}/{deployment}, nothing to stop")
        return

    async def left() -> int:
        return await workloads.pods_left(client, namespace=namespace, selector=selector)

    if remaining := await _wait_for_none(left, within=within):
        raise KubeError(
            f"{remaining} pod(s) of Deployment {namespace}/{deployment} still there after {within:.0f} s: a "
            "living operator would write again what is removed. Delete them, then run this again."
        )
    click.echo(f"operator: Deployment {namespace}/{deployment} scaled to 0, its pods are gone")


async def _wait_for_none(count: Callable[[], Awaitable[int]], *, within: float) -> int:
    """Ask until the count is 0 or `within` seconds have passed; the last count."""
    until = time.monotonic() + within
    remaining = await count()
    while remaining and time.monotonic() < until:
        await asyncio.sleep(POLL_SECONDS)
        remaining = await count()
    return remaining


async def _clean_nodes(client: Client, *, dry_run: bool) -> None:
    places = asyncio.Semaphore(IN_FLIGHT)

    async def one(node: NodeView) -> bool:
        async with places:
            return await _clean_node(client, node, dry_run=dry_run)

    found = [node async for node in nodes.each(client)]
    cleaned = await asyncio.gather(*(one(node) for node in found))
    click.echo(f"nodes: {sum(cleaned)} of {len(found)} cleaned" + (_would(dry_run) if dry_run else ""))


async def _clean_node(client: Client, node: NodeView, *, dry_run: bool) -> bool:
    """Whether the node carried anything of ours; a conflict reads it again."""
    touched = False
    for _ in range(TRIES):
        labels = label_patch(node, {})
        if not labels and node.condition is None:
            return touched
        touched = True
        if dry_run:
            click.echo(f"  {node.name}: {', '.join([*labels, *(['condition'] if node.condition else [])])}")
            return True
        try:
            if labels:
                node = await nodes.patch_labels(client, node, labels)
            else:
                node = await nodes.patch_condition(client, node, None)
        except Conflict:
            node = await nodes.get(client, node.name)
        except NotFound:
            return touched
    raise KubeError(f"node {node.name} keeps changing: still not clean after {TRIES} tries; run this again")


async def _delete_pods(client: Client, *, namespace: str, dry_run: bool) -> None:
    found = [pod async for pod in pods.each(client, namespace=namespace)]
    if not dry_run:
        for pod in found:
            await pods.delete(client, pod, namespace=namespace, grace=0 if pod.finished else None)

        async def left() -> int:
            return len([pod async for pod in pods.each(client, namespace=namespace)])

        if remaining := await _wait_for_none(left, within=POD_SECONDS):
            raise KubeError(f"{remaining} probe pod(s) do not go: is their kubelet alive? Run this again.")
    click.echo(f"probe pods: {len(found)}" + _would(dry_run))


async def _delete_reports(client: Client, *, dry_run: bool) -> None:
    try:
        found = [report async for report in reports.each(client)]
    except NotFound:
        click.echo("reports: the CRD is gone already")
        return
    if not dry_run:
        for report in found:
            await reports.delete(client, report)
    click.echo(f"reports: {len(found)}" + _would(dry_run))


def _would(dry_run: bool) -> str:
    return " (dry run: nothing was changed)" if dry_run else " removed"
