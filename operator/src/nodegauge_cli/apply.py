"""`nodegauge apply`: write one GPUValidationPolicy as soon as the API server serves its kind.

The chart runs this on the first install, when the CRD has only just been created: Helm looks the kind up once
and gives up, this command retries (ADR 0013).  It writes the object by server-side apply without force, so a
field that another manager set differently is a conflict and stays as it is.

Exit code 2 means that retrying cannot help; 1 means that a later try may succeed.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import click

from nodegauge_cli.inputs import duration
from nodegauge_operator import names
from nodegauge_operator.kube import policies
from nodegauge_operator.kube.client import Client, connect
from nodegauge_operator.kube.errors import Forbidden, KubeError, NotFound, Unavailable

POLL_SECONDS = 0.5
METHOD_NOT_ALLOWED = 405
"""The API server's answer while the CRD of an earlier installation is being deleted."""


class Refusal(click.ClickException):
    """The API server will refuse every further try."""

    exit_code = 2


@click.command()
@click.option("--policy", required=True, help="The complete GPUValidationPolicy, as JSON.")
@click.option(
    "--field-manager",
    default="helm",
    show_default=True,
    help="Field manager of the written fields. Later upgrades must use the same name.",
)
@click.option(
    "--timeout",
    callback=duration,
    default="120s",
    show_default=True,
    help="How long to wait for the CRD.",
)
def apply(policy: str, field_manager: str, timeout: float) -> None:
    """Create or update one GPUValidationPolicy as soon as its CRD is served.

    Fields that the policy does not name stay unchanged. If another field manager set a field to a different
    value, the command reports a conflict and writes nothing. It is safe to run again.
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
        raise _failure(error) from None


async def write(client: Client, body: dict[str, Any], *, owner: str, within: float) -> None:
    """Apply the policy; retry temporary errors for `within` seconds.  Raises the last `KubeError`."""
    name = body["metadata"]["name"]
    clock = asyncio.get_running_loop().time
    deadline, reported = clock() + within, ""
    while True:
        try:
            await policies.apply(client, body, owner=owner)
        except KubeError as error:
            if not _is_temporary(error) or clock() + POLL_SECONDS > deadline:
                raise
            if reported != str(error):
                reported = str(error)
                click.echo(f"policy {name}: not yet: {reported}")
            await asyncio.sleep(POLL_SECONDS)
        else:
            click.echo(f"policy {name}: written")
            return


def _is_temporary(error: KubeError) -> bool:
    """Whether waiting may help: a new kind or a new right takes a moment to reach an API server."""
    return isinstance(error, NotFound | Forbidden | Unavailable) or error.status == METHOD_NOT_ALLOWED


def _failure(error: KubeError) -> click.ClickException:
    if isinstance(error, NotFound):
        missing = f"the API server did not serve {names.CRD_NAMES[0]} in time"
        return click.ClickException(
            f"{missing}. Set crds.enabled and run helm upgrade; without Helm, kubectl apply --filename "
            f"crds/. {error}"
        )
    return click.ClickException(str(error)) if _is_temporary(error) else Refusal(str(error))


def _body(text: str) -> dict[str, Any]:
    try:
        body = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"not JSON: {error}", param_hint="--policy") from None
    if not isinstance(body, dict) or (body.get("apiVersion"), body.get("kind")) != (
        names.API_VERSION,
        names.POLICY_KIND,
    ):
        expected = f"{names.API_VERSION} {names.POLICY_KIND}"
        raise click.BadParameter(f"expected one object of {expected}", param_hint="--policy")
    metadata = body.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str) or not metadata["name"]:
        raise click.BadParameter("metadata.name is missing", param_hint="--policy")
    return body
