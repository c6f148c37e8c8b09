"""`nodegauge check`: does the API server serve the CRDs, and is the operator healthy?

The chart's test (`helm test`) runs this, and people can, from a place that reaches pods.  It changes nothing.
Its only right is one that the operator has too: list pods in its namespace.  It asks the pod directly,
because users can disable the Service.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

import aiohttp
import click

from nodegauge_cli.inputs import duration
from nodegauge_operator import names
from nodegauge_operator.kube import workloads
from nodegauge_operator.kube.client import Client, connect
from nodegauge_operator.kube.errors import Forbidden, KubeError

POLL_SECONDS = 1.0
ANSWER_SECONDS = 5.0
"""For one answer of the operator, as long as its liveness probe waits."""


class NotReady(Exception):
    """What is missing, and where to look."""


@click.command()
@click.option("--namespace", default="nodegauge", show_default=True, help="The operator's namespace.")
@click.option("--instance", default="", help="Check only the operator of this Helm release.")
@click.option("--port", default=8080, show_default=True, help="The operator's port (operator.httpPort).")
@click.option(
    "--timeout",
    callback=duration,
    default="60s",
    show_default=True,
    help="How long to wait for a healthy operator.",
)
def check(namespace: str, instance: str, port: int, timeout: float) -> None:
    """Check the CRDs, and the operator's /healthz and /readyz.

    The command stops at the first check that fails, with exit code 1. It changes nothing. Run it from a place
    that can reach pods, for example inside a pod.
    """
    selector = workloads.OPERATOR + (f",app.kubernetes.io/instance={instance}" if instance else "")

    async def run() -> None:
        client = await connect(environ=os.environ)
        try:
            await check_all(client, namespace=namespace, selector=selector, port=port, within=timeout)
        finally:
            await client.close()

    try:
        asyncio.run(run())
    except (KubeError, NotReady) as error:
        raise click.ClickException(str(error)) from None


async def check_all(client: Client, *, namespace: str, selector: str, port: int, within: float) -> None:
    """Every check in turn, with a line for each that passes.  Raises `NotReady` for the first that fails."""
    deadline = asyncio.get_running_loop().time() + within
    click.echo(await _wait(lambda: _served(client), deadline=deadline))
    for path in ("/healthz", "/readyz"):
        check_path = _HttpCheck(client, namespace=namespace, selector=selector, port=port, path=path)
        click.echo(await _wait(check_path, deadline=deadline))


async def _wait(step: Callable[[], Awaitable[str]], *, deadline: float) -> str:
    """The message of a step that passes.  It runs at least once and is repeated until the deadline."""
    clock = asyncio.get_running_loop().time
    while True:
        try:
            return await step()
        except Forbidden as error:  # waiting does not help
            raise NotReady(f"{error}: use an account that may list pods in this namespace") from None
        except KubeError as error:
            missing = NotReady(f"the API server does not answer: {error}")
        except NotReady as error:
            missing = error
        if clock() + POLL_SECONDS > deadline:
            raise missing
        await asyncio.sleep(POLL_SECONDS)


async def _served(client: Client) -> str:
    missing = await workloads.missing_crds(client)
    if missing:
        raise NotReady(
            f"CRDs are missing: {', '.join(missing)}. Set crds.enabled and run helm upgrade; "
            "without Helm, kubectl apply --filename crds/"
        )
    return f"CRDs are served: {', '.join(names.CRD_NAMES)}"


class _HttpCheck:
    """A request to one path of every operator pod, at its current address."""

    def __init__(self, client: Client, *, namespace: str, selector: str, port: int, path: str) -> None:
        self._client = client
        self._namespace = namespace
        self._selector = selector
        self._port = port
        self._path = path

    async def __call__(self) -> str:
        pods = await workloads.pods(self._client, namespace=self._namespace, selector=self._selector)
        running = [pod for pod in pods if pod.ip and pod.grace is None]
        if not running:
            raise NotReady(
                f"no operator pod in namespace {self._namespace} has an address yet: "
                f"kubectl get pods --namespace {self._namespace} --selector {self._selector}"
            )
        for pod in running:
            status, text = await self._get(pod)
            if status != 200:
                raise NotReady(f"operator {pod} answers {self._path} with {status}: {text}")
        return f"operator {', '.join(map(str, running))} answers {self._path}: {text}"

    async def _get(self, pod: workloads.OperatorPod) -> tuple[int, str]:
        host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
        url = f"http://{host}:{self._port}{self._path}"
        try:
            timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
            async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as answer:
                return answer.status, (await answer.text(errors="replace")).strip()[:200]
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise NotReady(
                f"operator {pod} cannot be reached at {url} ({type(error).__name__} {error}): check that it "
                "runs and that no NetworkPolicy or service mesh blocks pods of its namespace"
            ) from None
