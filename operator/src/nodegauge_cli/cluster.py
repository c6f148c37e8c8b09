"""What people's commands read of a cluster, and the few things that they write.

Through kubectl where it is on PATH: it knows every way to log in, its contexts are the user's, and it starts
in a tenth of the time that the Kubernetes library takes to import.  Elsewhere, as in the operator's
container, through the operator's own client.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any
from urllib.parse import quote, urlencode

import click
import msgspec

from nodegauge_operator import names
from nodegauge_operator.kube.errors import DENIED

PAGE = 500
"""Objects in a page of a list."""
CALL_SECONDS = 30
"""For one answer.  Chosen by this project: a page of 500 reports takes a second."""
OF_OURS = f"/apis/{names.API_VERSION}"
REPORTS, POLICIES, READINGS = (
    f"{OF_OURS}/{plural}" for plural in (names.REPORT_PLURAL, names.POLICY_PLURAL, names.READING_PLURAL)
)
NODES = "/api/v1/nodes"
UNAUTHORIZED = 401
NOT_LOGGED_IN = "You must be logged in to the server"
"""In kubectl's words for 401 (kubernetes, kubectl/pkg/cmd/util: StandardErrorMessage)."""
_STATUS = re.compile(r"^Error from server \((\w+)\)", re.MULTILINE)
_OF_PODS = re.compile(r"/namespaces/([^/]+)/pods")

Object = dict[str, Any]


class NoCluster(click.ClickException):
    """No API server answers, or it refuses; the message says why and what to do.  Exit code 1."""


class NotThere(NoCluster):
    """The object, or its kind, is not in the cluster."""


class Changed(NoCluster):
    """The object has changed since it was read: read it again."""


class Cluster:
    """One cluster, as the user's kubeconfig or `context` names it."""

    def __init__(self, *, context: str = "", environ: Mapping[str, str] = os.environ) -> None:
        self._context, self._environ = context, environ

    def get(self, path: str, **query: object) -> Object:
        """One object or page.  Raises `NotThere`, `NoCluster`."""
        return self._call("GET", path, query)

    def find(self, path: str, name: str) -> Object | None:
        """The object of this name below a collection's path, None if there is none.  Raises `NoCluster`."""
        try:
            return self.get(f"{path}/{quote(name)}")
        except NotThere as error:
            if f'"{name}" not found' in error.message:
                return None
            raise

    def each(self, path: str, **query: object) -> Iterator[Object]:
        """Every object of a collection, in pages.  Raises `NotThere` if the cluster does not serve it."""
        for page in self.pages(path, **query):
            yield from page.get("items") or ()

    def pages(self, path: str, **query: object) -> Iterator[Object]:
        """The same by pages, all of one state of the cluster: each has its resourceVersion."""
        more: dict[str, object] = {}
        while True:
            page = self.get(path, limit=PAGE, **query, **more)
            yield page
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return
            more = {"continue": token}

    def patch(self, resource: str, name: str, body: Object) -> Object:
        """Merge-patch a cluster-scoped object of this plural (`nodes`, `nodereports.nodegauge.dev`).

        Raises `Changed` if `body` has an older resourceVersion than the object.
        """
        group, path = resource.partition(".")[2], NODES
        if group:
            path = f"{OF_OURS}/{resource.partition('.')[0]}"
        return self._call("PATCH", f"{path}/{quote(name)}", {}, body=body, resource=resource)

    def watch(self, path: str, **query: object) -> Iterator[Object]:
        """Events of a watch (`type`, `object`) until the API server ends it.  `need_kubectl` comes first."""
        command = self._command("get", "--raw", _url(path, query | {"watch": 1}))
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None, "it is a pipe"
            assert process.stderr is not None, "it is a pipe"
            try:
                for line in process.stdout:
                    yield msgspec.json.decode(line)
                if process.wait():
                    raise _refusal(process.stderr.read().decode(errors="replace"), "GET", path)
            finally:
                process.terminate()

    def need_kubectl(self, what: str, instead: str) -> None:
        """Raises `NoCluster` where there is none: the operator's client does not do this."""
        if not self._kubectl:
            raise NoCluster(f"{what} needs kubectl on PATH: install it, or {instead} instead.")

    def namespace(self) -> str:
        """The namespace of the user's context, as kubectl takes it."""
        if not self._kubectl:
            return "default"
        command = self._command("config", "view", "--minify", "--output=jsonpath={..namespace}")
        done = subprocess.run(command, capture_output=True, timeout=CALL_SECONDS, check=False)
        return done.stdout.decode(errors="replace").strip() or "default"

    @cached_property
    def _kubectl(self) -> str:
        return shutil.which("kubectl", path=self._environ.get("PATH")) or ""

    def _command(self, *arguments: str) -> list[str]:
        context = [f"--context={self._context}"] if self._context else []
        return [self._kubectl, *context, *arguments]

    def _call(
        self,
        verb: str,
        path: str,
        query: Mapping[str, object],
        *,
        body: Object | None = None,
        resource: str = "",
    ) -> Object:
        if not self._kubectl:
            return self._by_client(verb, path, query, body)
        if body is None:
            command = self._command("get", "--raw", _url(path, query))
        else:
            text = msgspec.json.encode(body).decode()
            name = path.rpartition("/")[2]
            command = self._command(
                "patch", resource, name, "--type=merge", f"--patch={text}", "--output=json"
            )
        try:
            done = subprocess.run(command, capture_output=True, timeout=CALL_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise NoCluster(
                f"the API server has not answered in {CALL_SECONDS} s: is it reachable?"
            ) from None
        if done.returncode:
            raise _refusal(done.stderr.decode(errors="replace"), verb, path)
        try:
            answer: Object = msgspec.json.decode(done.stdout)
        except msgspec.DecodeError:
            raise NoCluster(f"kubectl printed no JSON for {path}: {done.stdout[:200]!r}") from None
        return answer

    def _by_client(self, verb: str, path: str, query: Mapping[str, object], body: Object | None) -> Object:
        if self._context:
            self.need_kubectl("--context", "set KUBECONFIG to a file of that cluster")
        import asyncio

        from nodegauge_operator.kube.client import MERGE, connect
        from nodegauge_operator.kube.errors import Conflict, Forbidden, KubeError, NotFound

        async def call() -> Object:
            client = await connect(environ=self._environ)
            try:
                known = {key: value for key, value in query.items() if isinstance(value, str | int)}
                if body is None:
                    return await client.call(verb, path, query=known, whole=True)
                return await client.call(verb, path, query=known, body=body, content_type=MERGE)
            finally:
                await client.close()

        try:
            return asyncio.run(call())
        except NotFound as error:
            raise _missing(str(error)) from None
        except Conflict as error:
            raise _changed(str(error)) from None
        except Forbidden as error:
            raise _forbidden(str(error), verb, path) from None
        except KubeError as error:
            if error.status == UNAUTHORIZED:
                raise _unknown(str(error)) from None
            raise (NoCluster if error.status else _unreachable)(str(error)) from None


def context_option(function: Any) -> Any:
    """The option `--context`, as kubectl has it."""
    return click.option(
        "--context", default="", help="Context of the kubeconfig (default: the current one)."
    )(function)


def _url(path: str, query: Mapping[str, object]) -> str:
    return f"{path}?{urlencode(query)}" if query else path


def _refusal(text: str, verb: str, path: str) -> NoCluster:
    """What kubectl says of a call, with the way out."""
    text = " ".join(text.split())
    refusal = _STATUS.search(text)
    match refusal[1] if refusal else "":
        case "NotFound":
            return _missing(text)
        case "Conflict":
            return _changed(text)
        case "Forbidden":
            return _forbidden(text, verb, path)
        case reason if reason and NOT_LOGGED_IN not in text:
            return NoCluster(text)
    return (_unknown if NOT_LOGGED_IN in text else _unreachable)(text)


def _missing(text: str) -> NotThere:
    if "could not find the requested resource" in text:
        return NotThere(f"nodegauge is not installed in this cluster, or an older version is: {text}")
    return NotThere(text)


def _changed(text: str) -> Changed:
    return Changed(f"{text}\nOthers have changed it meanwhile: look at it, then call this again.")


def _forbidden(text: str, verb: str, path: str) -> NoCluster:
    """With the role that would help; none helps against an admission policy."""
    denied = any(reason in text for reason in DENIED)
    return NoCluster(text if denied else f"{text}\n{_role(verb, path)}")


def _role(verb: str, path: str) -> str:
    """Who gives the right to this call (docs/kubectl.md, Rights)."""
    if path.startswith(OF_OURS):
        return f"Ask for the ClusterRole nodegauge-{'view' if verb == 'GET' else 'edit'}."
    if path.startswith(f"{NODES}/"):
        return (
            "Ask for the ClusterRole nodegauge-override, which gives get and patch of nodes. Nobody has it "
            "until it is bound, an editor of policies neither (docs/kubectl.md, Rights)."
        )
    if namespaced := _OF_PODS.search(path):
        return f"Ask for the ClusterRole view in namespace {namespaced[1]}."
    return "No ClusterRole of nodegauge gives this right: ask for one that lists nodes."


def _unknown(text: str) -> NoCluster:
    return NoCluster(
        f"{text}\nThe API server does not know who you are: log in again (`kubectl auth whoami`)."
    )


def _unreachable(text: str) -> NoCluster:
    return NoCluster(f"{text or 'no answer'}\nSet KUBECONFIG or --context to a cluster with nodegauge.")
