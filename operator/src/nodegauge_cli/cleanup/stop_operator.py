"""Stop the operator before the clean-up: a running operator would write everything again.

An operator that cannot be stopped from here (in another namespace, or a pod without a Deployment of ours)
ends the clean-up before it changes a node, with a message that says what to do instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial

import click

from nodegauge_cli.cleanup.retry import Retry
from nodegauge_operator.kube import workloads
from nodegauge_operator.kube.client import Client
from nodegauge_operator.kube.errors import Forbidden, KubeError

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
