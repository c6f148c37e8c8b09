"""`nodegauge check`: does the API server serve our CRDs, and does the operator live and see its cluster?

Run by the chart's test (`helm test`) and by people, from where pods can be reached.  It changes nothing, and
needs no right beyond the operator's own: to list pods in its namespace.  The operator is asked at its pod's
address, not at its Service, which is the user's to switch off.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

import aiohttp
import click

from nodegauge_cli.options import duration
from nodegauge_operator import names
from nodegauge_operator.kube import discovery, workloads
from nodegauge_operator.kube.client import Client, connect
from nodegauge_operator.kube.errors import Forbidden, KubeError

POLL_SECONDS = 1.0
ASK_SECONDS = 5.0
"""For one answer of the operator; its own probes have as long."""


class NotYet(Exception):
    """What is missing, in words that say where to look."""


@click.command()
@click.option("--namespace", default="nodegauge", show_default=True, help="Namespace of the operator.")
@click.option("--instance", default="", help="Helm release of the operator; without it, any.")
@click.option("--port", default=8080, show_default=True, help="Its port (operator.httpPort).")
@click.option(
    "--timeout",
    callback=duration,
    default="60s",
    show_default=True,
    help="How long to wait until all is well.",
)
def check(namespace: str, instance: str, port: int, timeout: float) -> None:
    """Ask the API server for the CRDs, and the operator for /healthz and /readyz.

    Exit code 1 names the first that is not well. Run it where pods can be reached, such as in a pod; nothing
    is changed.
    """
    selector = workloads.OPERATOR + (f",app.kubernetes.io/instance={instance}" if instance else "")

    async def run() -> None:
        client = await connect(environ=os.environ)
        try:
            await all_well(client, namespace=namespace, selector=selector, port=port, within=timeout)
        finally:
            await client.close()

    try:
        asyncio.run(run())
    except (KubeError, NotYet) as error:
        raise click.ClickException(str(error)) from None


async def all_well(client: Client, *, namespace: str, selector: str, port: int, within: float) -> None:
    """Each step in turn, a line for each that holds.  Raises `NotYet` for the first that does not in time."""
    until = asyncio.get_running_loop().time() + within
    click.echo(await _wait(lambda: _served(client), until=until))
    for path in ("/healthz", "/readyz"):
        ask = _Ask(client, namespace=namespace, selector=selector, port=port, path=path)
        click.echo(await _wait(ask, until=until))


async def _wait(step: Callable[[], Awaitable[str]], *, until: float) -> str:
    """What the step says once it holds; it is tried at least once, whatever the time."""
    clock = asyncio.get_running_loop().time
    while True:
        try:
            return await step()
        except Forbidden as error:  # waiting grants no rights
            raise NotYet(f"{error}: run this as an account that may list pods there") from None
        except KubeError as error:
            missing = NotYet(f"the API server does not answer: {error}")
        except NotYet as error:
            missing = error
        if clock() + POLL_SECONDS > until:
            raise missing
        await asyncio.sleep(POLL_SECONDS)


async def _served(client: Client) -> str:
    missing = await discovery.missing_crds(client)
    if missing:
        raise NotYet(f"not served: {', '.join(missing)}. Set crds.enabled, or kubectl apply --filename crds/")
    return f"CRDs are served: {', '.join(names.CRD_NAMES)}"


class _Ask:
    """One path of the operator, asked at the address that its pod has at that moment."""

    def __init__(self, client: Client, *, namespace: str, selector: str, port: int, path: str) -> None:
        self._client = client
        self._namespace = namespace
        self._selector = selector
        self._port = port
        self._path = path

    async def __call__(self) -> str:
        found = await workloads.pods(self._client, namespace=self._namespace, selector=self._selector)
        living = [pod for pod in found if pod.ip and pod.grace is None]
        if not living:
            raise NotYet(
                f"no operator in namespace {self._namespace} has an address yet: "
                f"kubectl get pods --namespace {self._namespace} --selector {self._selector}"
            )
        for pod in living:
            status, text = await self._get(pod)
            if status != 200:
                raise NotYet(f"operator {pod} answers {self._path} with {status}: {text}")
        return f"operator {', '.join(map(str, living))} answers {self._path}: {text}"

    async def _get(self, pod: workloads.OperatorPod) -> tuple[int, str]:
        host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
        url = f"http://{host}:{self._port}{self._path}"
        try:
            timeout = aiohttp.ClientTimeout(total=ASK_SECONDS)
            async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as answer:
                return answer.status, (await answer.text(errors="replace")).strip()[:200]
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise NotYet(
                f"operator {pod} cannot be reached at {url} ({type(error).__name__} {error}): is it up, "
                "and does a NetworkPolicy or a mesh keep pods of its namespace from it?"
            ) from None
