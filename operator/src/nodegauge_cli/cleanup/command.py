"""`nodegauge cleanup`: remove everything that nodegauge wrote to a cluster.

The chart's pre-delete hook runs this, and people do.  It stops the operator first.  Then it removes labels,
taints and conditions (by key, and labels by managedFields), reports and probe pods (`objects`).  Policies
belong to the people who created them, so it deletes only the one that is named: the chart's own.

A running operator would write everything again.  An operator that cannot be stopped from here (in another
namespace, or a pod without a Deployment of ours) ends the clean-up before it changes a node, with a message
that says what to do instead.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from functools import partial

import click

from nodegauge_cli.cleanup.objects import CleanUp
from nodegauge_cli.cleanup.retry import Retry
from nodegauge_cli.inputs import duration
from nodegauge_operator.kube import workloads
from nodegauge_operator.kube.client import Client, Limiter, connect
from nodegauge_operator.kube.errors import Forbidden, KubeError


@click.command()
@click.option(
    "--namespace",
    default="nodegauge",
    show_default=True,
    help="Namespace of the operator and its probe pods.",
)
@click.option(
    "--deployment",
    default="",
    help="The operator's Deployment. Default: those in the namespace with the chart's labels.",
)
@click.option("--policy", default="", help="Also delete this GPUValidationPolicy.")
@click.option(
    "--timeout",
    callback=duration,
    default="120s",
    show_default=True,
    help="How long to wait for the operator to stop.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be removed; change nothing.")
def cleanup(namespace: str, deployment: str, policy: str, timeout: float, dry_run: bool) -> None:
    """Stop the operator, then remove nodegauge's labels, taints, conditions, probe pods and NodeReports.

    The operator's Deployment (scaled to 0), policies and CRDs stay. If an object cannot be removed, the
    command continues with the others, lists it at the end and exits with code 1. It is safe to run again.
    """

    async def run() -> None:
        client = await connect(environ=os.environ, limiter=Limiter(rate=200, burst=200))
        try:
            await clean(
                client,
                namespace=namespace,
                deployment=deployment,
                policy=policy,
                within=timeout,
                dry_run=dry_run,
            )
        finally:
            await client.close()

    try:
        asyncio.run(run())
    except KubeError as error:
        raise click.ClickException(str(error)) from None


async def clean(
    client: Client, *, namespace: str, deployment: str, policy: str, within: float, dry_run: bool
) -> None:
    """Clean one cluster.  Raises a `KubeError` that lists what is left."""
    retry = Retry()
    if not dry_run:
        await stop_operator(client, namespace=namespace, deployment=deployment, within=within, retry=retry)
    else:
        names = (
            [deployment] if deployment else await find_deployments(client, namespace=namespace, retry=retry)
        )
        for name in names:
            click.echo(f"operator: Deployment {namespace}/{name} would be scaled to 0")
    clean_up = CleanUp(client, namespace=namespace, policy=policy, dry_run=dry_run, retry=retry)
    await clean_up.run()
    if clean_up.remaining:
        raise KubeError(
            f"some objects remain:\n{clean_up.remaining.text()}\nFix the causes, then run this command again."
        )


POLL_SECONDS = 0.25
FORCE_AFTER = 10.0
"""Seconds after its grace period at which a pod is removed without its kubelet's confirmation."""
TOKEN_SECONDS = 15.0
"""After this long the token of a removed pod is refused: API servers cache an accepted token for 10 s
(Kubernetes, pkg/kubeapiserver/authenticator: tokenSuccessCacheTTL)."""


async def stop_operator(
    client: Client, *, namespace: str, deployment: str, within: float, retry: Retry
) -> None:
    """Scale the operator to 0 and wait until its pods are gone.

    Without a name, its Deployments are those in the namespace with the chart's labels.  Raises `KubeError` if
    an operator still runs after `within` seconds, or runs in another namespace.
    """
    if deployment:
        names = [deployment]
    else:
        await refuse_elsewhere(client, namespace=namespace, retry=retry)
        names = await find_deployments(client, namespace=namespace, retry=retry)
    scale = partial(workloads.scale_to_zero, client, namespace=namespace)
    selectors = {name: await retry.call(partial(scale, deployment=name)) for name in names}
    for name, selector in selectors.items():
        if selector is None:
            click.echo(f"operator: no Deployment {namespace}/{name}, nothing to stop")
            continue
        await _await_none(client, namespace=namespace, selector=selector, within=within, retry=retry)
        click.echo(f"operator: Deployment {namespace}/{name} scaled to 0, its pods are gone")
    if not deployment:
        own = workloads.OPERATOR
        await _await_none(client, namespace=namespace, selector=own, within=within, retry=retry)


async def find_deployments(client: Client, *, namespace: str, retry: Retry) -> list[str]:
    """Names of the operator's Deployments, found by their labels; prints a line if there is none."""
    names = await retry.call(partial(workloads.deployments, client, namespace=namespace))
    if not names:
        click.echo(f"operator: no Deployment with its labels in namespace {namespace}, nothing to stop")
    return names


async def refuse_elsewhere(client: Client, *, namespace: str, retry: Retry) -> None:
    """Raise if an operator runs in another namespace."""
    try:
        running = await retry.call(partial(workloads.pods, client))
    except Forbidden as error:
        raise KubeError(
            f"cannot check whether an operator runs in another namespace, where it would write everything "
            f"again: {error}. To skip this check, name the operator with --deployment."
        ) from None
    others = [pod for pod in running if pod.namespace != namespace]
    if others:
        raise KubeError(
            f"an operator runs in another namespace ({_listed(others)}) and would write everything again: "
            f"use --namespace {others[0].namespace}, or uninstall that operator first"
        )


async def _await_none(client: Client, *, namespace: str, selector: str, within: float, retry: Retry) -> None:
    """Wait until no such pod runs; a pod whose kubelet does not confirm in time is removed without it."""
    list_pods = partial(workloads.pods, client, namespace=namespace, selector=selector)
    clock = asyncio.get_running_loop().time
    deadline, due, forced = clock() + within, dict[str, float](), False
    while running := await retry.call(list_pods):
        if clock() >= deadline:
            raise KubeError(
                f"the operator still runs after {within:.0f} s ({_listed(running)}) and would write "
                "everything again. Delete what owns its pods, then run this command again."
            )
        for pod in running:
            if pod.grace is not None and clock() >= due.setdefault(
                pod.uid, clock() + pod.grace + FORCE_AFTER
            ):
                click.echo(f"operator: pod {pod} removed without confirmation by its kubelet")
                await retry.call(partial(workloads.remove, client, pod))
                forced = True
        await asyncio.sleep(POLL_SECONDS)
    if forced:
        await asyncio.sleep(TOKEN_SECONDS)


def _listed(pods: Iterable[workloads.OperatorPod]) -> str:
    return ", ".join(f"pod {pod}" for pod in pods)
