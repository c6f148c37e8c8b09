"""`nodegauge cleanup`: remove everything that nodegauge wrote to a cluster.

The chart's pre-delete hook runs this, and people do.  It stops the operator first.  Then it removes labels,
taints and conditions (by key, and labels by managedFields), reports, histories and probe pods (`objects`).
Policies belong to the people who created them, so it deletes only the one that is named: the chart's own.

With a release, only what that release wrote is removed, by the installation in the reports: uninstalling a
release that waits for another one takes nothing from it.

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
@click.option(
    "--release",
    default="",
    help="Clean only what this Helm release in the namespace wrote. Default: everything on the cluster.",
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
def cleanup(
    namespace: str, deployment: str, release: str, policy: str, timeout: float, dry_run: bool
) -> None:
    """Stop the operator, then remove what nodegauge wrote to the cluster.

    It removes labels, taints and conditions from nodes, and deletes DeviceTaintRules, watch DaemonSets,
    probe pods, NodeReports, NodeReadings and NodeHistories. The operator's Deployment (scaled to 0),
    policies, ChassisReadings and CRDs stay. If an object cannot be removed, the command continues with the
    others, lists it at the end and exits with code 1. It is safe to run again.
    """

    async def run() -> None:
        client = await connect(environ=os.environ, limiter=Limiter(rate=200, burst=200))
        try:
            await clean(
                client,
                namespace=namespace,
                deployment=deployment,
                release=release,
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
    client: Client,
    *,
    namespace: str,
    deployment: str,
    release: str,
    policy: str,
    within: float,
    dry_run: bool,
) -> None:
    """Clean one cluster, or what one release wrote there.  Raises a `KubeError` that lists what is left."""
    operator = Operator(client, namespace=namespace, release=release, retry=Retry())
    if not dry_run:
        await operator.stop(deployment, within=within)
    else:
        for name in [deployment] if deployment else await operator.deployments():
            click.echo(f"operator: Deployment {namespace}/{name} would be scaled to 0")
    clean_up = CleanUp(
        client, namespace=namespace, release=release, policy=policy, dry_run=dry_run, retry=operator.retry
    )
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


class Operator:
    """The operator's Deployments and pods in one namespace; with `release`, only those of this release."""

    def __init__(self, client: Client, *, namespace: str, release: str, retry: Retry) -> None:
        self.retry = retry
        self._client = client
        self._namespace = namespace
        self._release = release
        self._selector = workloads.operator_of(release) if release else workloads.OPERATOR

    async def stop(self, deployment: str, *, within: float) -> None:
        """Scale it to 0 and wait until its pods are gone.

        Without a name, its Deployments are those in the namespace with the chart's labels.  Raises
        `KubeError` if an operator still runs after `within` seconds, or, unless only one release is cleaned,
        runs in another namespace.
        """
        if deployment:
            names = [deployment]
        else:
            if not self._release:
                await self._refuse_elsewhere()
            names = await self.deployments()
        scale = partial(workloads.scale_to_zero, self._client, namespace=self._namespace)
        selectors = {name: await self.retry.call(partial(scale, deployment=name)) for name in names}
        for name, selector in selectors.items():
            if selector is None:
                click.echo(f"operator: no Deployment {self._namespace}/{name}, nothing to stop")
                continue
            await self._await_none(selector, within=within)
            click.echo(f"operator: Deployment {self._namespace}/{name} scaled to 0, its pods are gone")
        if not deployment:
            await self._await_none(self._selector, within=within)

    async def deployments(self) -> list[str]:
        """Names of its Deployments, found by their labels; prints a line if there is none."""
        find = partial(
            workloads.deployments, self._client, namespace=self._namespace, selector=self._selector
        )
        names = await self.retry.call(find)
        if not names:
            where = f"in namespace {self._namespace}"
            click.echo(f"operator: no Deployment with its labels {where}, nothing to stop")
        return names

    async def _refuse_elsewhere(self) -> None:
        """Raise if an operator runs in another namespace."""
        try:
            running = await self.retry.call(partial(workloads.pods, self._client))
        except Forbidden as error:
            raise KubeError(
                f"cannot check whether an operator runs in another namespace, where it would write "
                f"everything again: {error}. To skip this check, name the operator with --deployment."
            ) from None
        others = [pod for pod in running if pod.namespace != self._namespace]
        if others:
            raise KubeError(
                f"an operator runs in another namespace ({_listed(others)}) and would write everything "
                f"again: use --namespace {others[0].namespace}, or uninstall that operator first"
            )

    async def _await_none(self, selector: str, *, within: float) -> None:
        """Wait until no such pod runs; a pod whose kubelet does not confirm in time is removed without it."""
        list_pods = partial(workloads.pods, self._client, namespace=self._namespace, selector=selector)
        clock = asyncio.get_running_loop().time
        deadline, due, forced = clock() + within, dict[str, float](), False
        while running := await self.retry.call(list_pods):
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
                    await self.retry.call(partial(workloads.remove, self._client, pod))
                    forced = True
            await asyncio.sleep(POLL_SECONDS)
        if forced:
            await asyncio.sleep(TOKEN_SECONDS)


def _listed(pods: Iterable[workloads.OperatorPod]) -> str:
    return ", ".join(f"pod {pod}" for pod in pods)
