"""`nodegauge cleanup`: remove everything that nodegauge wrote to a cluster.

The chart's pre-delete hook runs this, and people do.  It stops the operator first (`stop_operator`), which
would write everything again.  Then it removes labels, taints and conditions (by key, and labels by
managedFields), reports and probe pods (`objects`).  Policies belong to the people who created them, so it
deletes only the one that is named: the chart's own.
"""

from __future__ import annotations

import asyncio
import os

import click

from nodegauge_cli.cleanup.objects import CleanUp
from nodegauge_cli.cleanup.retry import Retry
from nodegauge_cli.cleanup.stop_operator import find_deployments, stop_operator
from nodegauge_cli.inputs import duration
from nodegauge_operator.kube.client import Client, connect
from nodegauge_operator.kube.errors import KubeError
from nodegauge_operator.kube.limiter import Limiter


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
