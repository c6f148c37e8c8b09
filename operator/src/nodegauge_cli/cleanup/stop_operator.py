"""Stop the operator before its work is undone: a living one would write again what a clean-up removes.

What cannot be stopped from here (an operator in another namespace, a pod that no Deployment of ours made)
ends the clean-up before it changed a node, with what to do instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial

import click

from nodegauge_cli.cleanup.retry import Patience
from nodegauge_operator.kube import workloads
from nodegauge_operator.kube.client import Client
from nodegauge_operator.kube.errors import Forbidden, KubeError

POLL_SECONDS = 0.25
FORCE_AFTER = 10.0
"""Seconds over its grace period after which a pod is removed without its kubelet's word."""
TOKEN_SECONDS = 15.0
"""A removed pod's token is refused by then: API servers remember an accepted one for 10 s (Kubernetes,
pkg/kubeapiserver/authenticator: tokenSuccessCacheTTL)."""


async def stop_operator(
    client: Client, *, namespace: str, deployment: str, within: float, patience: Patience
) -> None:
    """Scale the operator to nothing and wait until its pods are gone.

    Without a name its Deployments are those in the namespace with the chart's labels.  Raises `KubeError`
    where an operator is still alive after `within` seconds, or lives where this does not reach.
    """
    if deployment:
        names = [deployment]
    else:
        await refuse_elsewhere(client, namespace=namespace, patience=patience)
        names = await found(client, namespace=namespace, patience=patience)
    scale = partial(workloads.scale_to_zero, client, namespace=namespace)
    selectors = {name: await patience.call(partial(scale, deployment=name)) for name in names}
    for name, selector in selectors.items():
        if selector is None:
            click.echo(f"operator: no Deployment {namespace}/{name}, nothing to stop")
            continue
        await _await_none(client, namespace=namespace, selector=selector, within=within, patience=patience)
        click.echo(f"operator: Deployment {namespace}/{name} scaled to 0, its pods are gone")
    if not deployment:
        own = workloads.OPERATOR
        await _await_none(client, namespace=namespace, selector=own, within=within, patience=patience)


async def found(client: Client, *, namespace: str, patience: Patience) -> list[str]:
    """Names of the operator's Deployments, by their labels; says so where there is none."""
    names = await patience.call(partial(workloads.deployments, client, namespace=namespace))
    if not names:
        click.echo(f"operator: no Deployment with its labels in namespace {namespace}, nothing to stop")
    return names


async def refuse_elsewhere(client: Client, *, namespace: str, patience: Patience) -> None:
    """Raise where an operator lives in another namespace than the one that is cleaned."""
    try:
        living = await patience.call(partial(workloads.pods, client))
    except Forbidden as error:
        raise KubeError(
            f"cannot see whether an operator lives in another namespace, which would write again what is "
            f"removed: {error}. Name its Deployment with --deployment to go on without that look."
        ) from None
    others = [pod for pod in living if pod.namespace != namespace]
    if others:
        raise KubeError(
            f"an operator lives in another namespace ({_listed(others)}) and would write again what is "
            f"removed: run this with --namespace {others[0].namespace}, or uninstall that one first"
        )


async def _await_none(
    client: Client, *, namespace: str, selector: str, within: float, patience: Patience
) -> None:
    """Until no such pod is alive; one whose kubelet has not confirmed in time is removed without it."""
    list_pods = partial(workloads.pods, client, namespace=namespace, selector=selector)
    clock = asyncio.get_running_loop().time
    until, due, forced = clock() + within, dict[str, float](), False
    while living := await patience.call(list_pods):
        if clock() >= until:
            raise KubeError(
                f"the operator is still alive after {within:.0f} s ({_listed(living)}) and would write again "
                "what is removed. Delete what runs it, then run this again."
            )
        for pod in living:
            if pod.grace is not None and clock() >= due.setdefault(
                pod.uid, clock() + pod.grace + FORCE_AFTER
            ):
                click.echo(f"operator: pod {pod} not confirmed by its kubelet, removed without it")
                await patience.call(partial(workloads.remove, client, pod))
                forced = True
        await asyncio.sleep(POLL_SECONDS)
    if forced:
        await asyncio.sleep(TOKEN_SECONDS)


def _listed(pods: Iterable[workloads.OperatorPod]) -> str:
    return ", ".join(f"pod {pod}" for pod in pods)
