"""`nodegauge apply`: write one GPUValidationPolicy, as soon as the API server serves its kind.

Run by the chart's first install, where the CRD is only a moment old: Helm looks its kind up once and gives
up, this asks until it is there (ADR 0013).  It writes that one object by server-side apply and never forces:
a field that somebody else has set to something else is a conflict, and theirs.

Exit code 2 is for what no second try can mend; 1 for what time may.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import click

from nodegauge_cli.options import duration
from nodegauge_operator import names
from nodegauge_operator.kube import policies
from nodegauge_operator.kube.client import Client, connect
from nodegauge_operator.kube.errors import Forbidden, KubeError, NotFound, Unavailable

POLL_SECONDS = 0.5
TERMINATING = 405
"""A create is not allowed while the CRD goes (with the one of an installation before): it may come back."""


class Refusal(click.ClickException):
    """The API server will say the same to every try."""

    exit_code = 2


@click.command()
@click.option("--policy", required=True, help="The whole GPUValidationPolicy, as JSON.")
@click.option(
    "--field-manager",
    default="helm",
    show_default=True,
    help="Whose the written fields are: who upgrades the policy later must have the same name.",
)
@click.option(
    "--timeout",
    callback=duration,
    default="120s",
    show_default=True,
    help="How long to wait until its kind is served.",
)
def apply(policy: str, field_manager: str, timeout: float) -> None:
    """Write one GPUValidationPolicy, once the API server serves its CRD.

    Fields that it does not name stay as they are; one that somebody else has set otherwise is a conflict, and
    nothing is written. This can be run again at any time.
    """
    body = _body(policy)

    async def run() -> None:
        client = await connect(environ=os.environ)
        try:
            await write(client, body, owner=field_manager, within=timeout)
        finally:
            await client.close()

    try:
        asyncio.run(run())
    except KubeError as error:
        raise _ending(error) from None


async def write(client: Client, body: dict[str, Any], *, owner: str, within: float) -> None:
    """Apply it, and try again for `within` seconds what time can mend.  Raises the last `KubeError`."""
    name = body["metadata"]["name"]
    clock = asyncio.get_running_loop().time
    until, said = clock() + within, ""
    while True:
        try:
            await policies.apply(client, body, owner=owner)
        except KubeError as error:
            if not _may_pass(error) or clock() + POLL_SECONDS > until:
                raise
            if said != (said := str(error)):
                click.echo(f"policy {name}: not yet: {said}")
            await asyncio.sleep(POLL_SECONDS)
        else:
            click.echo(f"policy {name}: written")
            return


def _may_pass(error: KubeError) -> bool:
    """No such kind or no such right yet (either takes a moment to reach an API server), no answer."""
    return isinstance(error, NotFound | Forbidden | Unavailable) or error.status == TERMINATING


def _ending(error: KubeError) -> click.ClickException:
    if isinstance(error, NotFound):
        missing = f"no API server has served {names.CRD_NAMES[0]} in that time"
        return click.ClickException(
            f"{missing}: set crds.enabled, or kubectl apply --filename crds/. {error}"
        )
    return click.ClickException(str(error)) if _may_pass(error) else Refusal(str(error))


def _body(text: str) -> dict[str, Any]:
    try:
        body = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"not JSON: {error}", param_hint="--policy") from None
    if not isinstance(body, dict) or (body.get("apiVersion"), body.get("kind")) != (
        names.API_VERSION,
        names.POLICY_KIND,
    ):
        wanted = f"{names.API_VERSION} {names.POLICY_KIND}"
        raise click.BadParameter(f"it must be one object of {wanted}", param_hint="--policy")
    metadata = body.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str) or not metadata["name"]:
        raise click.BadParameter("metadata.name is missing", param_hint="--policy")
    return body
