"""`nodegauge check`: does the API server serve the CRDs, may the operator do its work, and is it healthy?

The chart's test (`helm test`) runs this, and people can, from a place that reaches pods.  It changes nothing.
The only right that it needs is one that the operator has too: list pods in its namespace.  It asks the pod
directly, because users can disable the Service.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator

import aiohttp
import click

from nodegauge_cli.inputs import duration
from nodegauge_operator import names
from nodegauge_operator.core.driver_access import Needs, claim_template
from nodegauge_operator.core.model import ProbeDefaults
from nodegauge_operator.kube import slices, workloads
from nodegauge_operator.kube.client import Client, connect
from nodegauge_operator.kube.errors import Forbidden, KubeError, NotFound, Refused
from nodegauge_operator.kube.tokens import WHO_AM_I

POLL_SECONDS = 1.0
ANSWER_SECONDS = 5.0
"""For one answer of the operator, as long as its liveness probe waits."""


CRDS = (*names.CRD_NAMES, names.HISTORY_CRD)
"""All that the operator writes and reads by default."""
REVIEWS = "/apis/authorization.k8s.io/v1"
RIGHTS = {
    "": {
        "nodes": "get list watch patch",
        "nodes/status": "patch",
        f"{names.POLICY_PLURAL}.{names.GROUP}": "list watch",
        f"{names.POLICY_PLURAL}/status.{names.GROUP}": "patch",
        f"{names.REPORT_PLURAL}.{names.GROUP}": "get list watch create delete",
        f"{names.REPORT_PLURAL}/status.{names.GROUP}": "patch",
        f"{names.READING_PLURAL}.{names.GROUP}": "get list watch delete",
        f"{names.HISTORY_PLURAL}.{names.GROUP}": "get list create patch delete",
        f"{names.SLICE_PLURAL}.resource.k8s.io": "list watch",
        "devicetaintrules.resource.k8s.io": "get list watch create patch delete",
    },
    "default": {"events": "create"},
    "own": {
        "pods": "get list watch create delete",
        "daemonsets.apps": "list watch create patch delete",
    },
}
"""What the operator does in the whole cluster, in `default` and in its own namespace: the chart's rbac.yaml
without what it asks for by a name."""


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
    """Check the CRDs, the rights of the operator's account, and its /healthz and /readyz.

    The command stops at the first check that fails, with exit code 1. It changes nothing. Run it from a place
    that can reach pods, for example inside a pod.
    """
    selector = workloads.OPERATOR + (f",app.kubernetes.io/instance={instance}" if instance else "")

    async def run() -> None:
        client = await connect(environ=os.environ)
        try:
            where = {"namespace": namespace, "selector": selector, "instance": instance}
            await check_all(client, port=port, within=timeout, **where)
        finally:
            await client.close()

    try:
        asyncio.run(run())
    except (KubeError, NotReady) as error:
        raise click.ClickException(str(error)) from None


async def check_all(
    client: Client, *, namespace: str, selector: str, instance: str = "", port: int, within: float
) -> None:
    """Every check in turn, with a line for each that passes.  Raises `NotReady` for the first that fails."""
    deadline = asyncio.get_running_loop().time() + within
    click.echo(await _wait(lambda: _served(client), deadline=deadline))
    click.echo(await _wait(lambda: _allowed(client, namespace, selector), deadline=deadline))
    click.echo(await _wait(lambda: _claims(client, namespace, instance), deadline=deadline))
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
    missing = await workloads.missing_crds(client, CRDS)
    if missing:
        raise NotReady(
            f"CRDs are missing: {', '.join(missing)}. Set crds.enabled and run helm upgrade; "
            "without Helm, kubectl apply --filename crds/"
        )
    return f"CRDs are served: {', '.join(CRDS)}"


async def _allowed(client: Client, namespace: str, selector: str) -> str:
    """Whether the account of the operator's pods has its rights, by the API server's own answer; who has
    another account, and may not ask for one, hears that nobody asked."""
    accounts = {pod.account for pod in await workloads.pods(client, namespace=namespace, selector=selector)}
    if not accounts:
        raise _no_pod("", namespace, selector)
    user = f"system:serviceaccount:{namespace}:{sorted(accounts)[0]}"
    me = (await client.call("POST", WHO_AM_I, body={}))["status"]["userInfo"].get("username")
    spec = {} if me == user else {"user": user, "groups": _groups(namespace)}
    missing = []
    for where, resource, verb in _needed(namespace):
        kind, _, group = resource.partition(".")
        named = dict(zip(("resource", "subresource"), kind.split("/"), strict=False))
        asked = {"verb": verb, "group": group, "namespace": where, **named}
        path = f"{REVIEWS}/{'' if me != user else 'self'}subjectaccessreviews"
        try:
            answer = await client.call("POST", path, body={"spec": spec | {"resourceAttributes": asked}})
        except Forbidden:
            return f"rights of {user}: not checked, since {me} may not ask for them"
        if not answer["status"]["allowed"]:
            missing.append(f"{verb} {resource}{f' in namespace {where}' if where else ''}")
    if missing:
        raise NotReady(
            f"{user} may not: {', '.join(missing)}. Run helm upgrade with the chart of this version, which "
            "brings its roles; without Helm, apply them as the chart renders them"
        )
    return f"account {user} has the operator's rights"


async def _claims(client: Client, namespace: str, instance: str) -> str:
    """Whether probes may share the GPUs that DRA hands out, by a template that the API server only tries."""
    try:
        there = [view async for view in slices.each(client)]
        if not there:
            return "no node has GPUs by DRA"
        defaults = ProbeDefaults(namespace=namespace, image="", instance=instance or "nodegauge")
        manifest = claim_template(defaults, needs=Needs.DRIVER)
        await slices.create_template(client, manifest, dry_run=True)
    except NotFound:
        return "the API server serves no DRA"
    except Forbidden as error:
        return f"access to GPUs by DRA: not checked: {error}"
    except Refused as error:
        command = f"kubectl label namespace {namespace} {names.ADMIN_ACCESS}=true"
        raise NotReady(f"probes cannot read the GPUs that DRA hands out: {error}. Run: {command}") from None
    nodes = len({view.node for view in there})
    return f"probes may share the GPUs that DRA hands out on {nodes} nodes"


def _groups(namespace: str) -> list[str]:
    return ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]


def _needed(namespace: str) -> Iterator[tuple[str, str, str]]:
    """Namespace, resource and verb of each right."""
    for where, resources in RIGHTS.items():
        for resource, verbs in resources.items():
            for verb in verbs.split():
                yield namespace if where == "own" else where, resource, verb


def _no_pod(lacks: str, namespace: str, selector: str) -> NotReady:
    look = f"kubectl get pods --namespace {namespace} --selector {selector}"
    return NotReady(f"no operator pod in namespace {namespace}{lacks}: {look}")


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
            raise _no_pod(" has an address yet", self._namespace, self._selector)
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
