"""`nodegauge cleanup`: take everything of ours off the cluster, also when the operator was busy.

Run by the chart's pre-delete hook and by people.  First the operator is scaled to nothing and waited for
(`stopping`), since a living one would write again what is removed here; then labels, taints and conditions go
(by key, and labels by managedFields), then reports and probe pods (`cleaning`).  Policies belong to whoever
made them: only one that is named goes, the chart's own.
"""

from __future__ import annotations

import asyncio
import os

import click

from nodegauge_cli.cleanup.objects import Cleaning
from nodegauge_cli.cleanup.retry import Patience
from nodegauge_cli.cleanup.stop_operator import found, stop_operator
from nodegauge_cli.options import duration
from nodegauge_operator.kube.client import Client, connect
from nodegauge_operator.kube.errors import KubeError
from nodegauge_operator.kube.limiter import Limiter


@click.command()
@click.option(
    "--namespace", default="nodegauge", show_default=True, help="Namespace of operator and probe pods."
)
@click.option(
    "--deployment",
    default="",
    help="The operator's Deployment; without it, those in the namespace that carry the chart's labels.",
)
@click.option("--policy", default="", help="A GPUValidationPolicy to delete as well; without it, none.")
@click.option(
    "--timeout",
    callback=duration,
    default="120s",
    show_default=True,
    help="How long to wait for the operator to end.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and change nothing.")
def cleanup(namespace: str, deployment: str, policy: str, timeout: float, dry_run: bool) -> None:
    """Stop the operator, then remove every label, taint, condition, probe pod and NodeReport of nodegauge.

    The operator's Deployment stays, scaled to 0; so do policies and CRDs. What fails is named in the end,
    with exit code 1, and everything else is removed all the same: this can be run again at any time.
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
    """The whole of it on one cluster.  Raises `KubeError` that names what is left."""
    patience = Patience()
    if not dry_run:
        await stop_operator(
            client, namespace=namespace, deployment=deployment, within=within, patience=patience
        )
    else:
        names = [deployment] if deployment else await found(client, namespace=namespace, patience=patience)
        for name in names:
            click.echo(f"operator: Deployment {namespace}/{name} would be scaled to 0")
    cleaning = Cleaning(client, namespace=namespace, policy=policy, dry_run=dry_run, patience=patience)
    await cleaning.run()
    if cleaning.left:
        raise KubeError(f"not all is clean:\n{cleaning.left.text()}\nRun this again once the reason is gone.")
