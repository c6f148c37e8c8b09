"""One small client over `kubernetes.aio`: JSON in, JSON out, errors as our own, every call bounded.

It uses the library's REST layer (TLS, proxies, kubeconfig, refreshed tokens), but not its generated models:
decoding into them costs a fifth of the CPU time.  `KUBECONFIG` wins over the in-cluster account (ADR 0009).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import Any, Protocol
from urllib.parse import urlencode

import aiohttp
import msgspec
from kubernetes.aio import client as k8s
from kubernetes.aio import config as k8s_config
from msgspec import Struct

from nodegauge_operator import names
from nodegauge_operator.kube.decoding import decoded
from nodegauge_operator.kube.errors import KubeError, Unavailable, Unreachable, error_of
from nodegauge_operator.kube.outage import Outage

CALL_TIMEOUT = 10.0
LIST_TIMEOUT = 60.0
PAGE = 100
"""Objects in a page of a list: 5,000 nodes took 40 MB more in pages of 500, and just as long."""
METADATA_PAGE = 500
"""The same where only metadata is listed: of nodes that is 4 MB, of which little is decoded."""
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
"""Sent as JSON, which is YAML."""
JSON_PATCH = "application/json-patch+json"

METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""A list without what its objects hold (Kubernetes API concepts, "Metadata-only fetches")."""

PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy")
"""Variables that aiohttp takes a proxy from."""

TOKEN_SECONDS = 60.0
"""How often a mounted token is read again; a kubelet rotates it long before it expires."""


LONGEST_REST = 30.0
"""Seconds for which an answer can stop all calls, whatever it says: a lease has to be renewed.  Chosen by
this project."""

CLOCK_TOLERANCE = 5.0
"""Seconds by which two clocks may differ before the API server's counts: its header has whole seconds, and an
answer takes a moment."""


class Observer(Protocol):
    """Called after every finished call, for metrics."""

    def __call__(self, *, verb: str, resource: str, status: int, seconds: float) -> None: ...


class Access(Struct, frozen=True, kw_only=True):
    """How to reach the API server, with the members of kopf's `ConnectionInfo`."""

    server: str
    ca_path: str | None = None
    insecure: bool = False
    token: str | None = None
    certificate_path: str | None = None
    private_key_path: str | None = None


class Client:
    """Calls to one API server.  Open it with `connect`; close it with `close`."""

    def __init__(
        self,
        configuration: Any,
        *,
        environ: Mapping[str, str],
        limiter: Limiter | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._api = k8s.ApiClient(configuration)
        self._environ = environ
        self._limiter = limiter
        self._observer = observer
        self._auth: dict[str, str] = {}
        self._auth_at = -TOKEN_SECONDS
        self._rests_until = 0.0
        """Before then nothing is asked, as an answer said; monotonic."""
        self._epoch = time.time() - time.monotonic()
        """Epoch seconds at monotonic 0: by our clock at the start, then by the API server's."""

    @cached_property
    def outage(self) -> Outage:
        """How long no call has been answered; also logs what is waited for."""
        return Outage()

    def now(self) -> float:
        """Epoch seconds by the API server's clock.

        It dates pods and nodes, and every operator of this cluster sees the same one.  A wrong clock on the
        operator's own node decides nothing, nor does setting it right: between two answers time is monotonic.
        """
        return time.monotonic() + self._epoch

    def _compare_clocks(self, date: str, *, asked_at: float) -> None:
        """`date`: the header of an answer, whole seconds (RFC 9110, 6.6.1); a missing one changes nothing.

        `asked_at`: when the call was made, monotonic.  The header was written at some moment since then: an
        answer that takes long says nothing about the clocks.
        """
        try:
            at = parsedate_to_datetime(date).timestamp()
        except (TypeError, ValueError):
            return
        latest = time.monotonic()
        if at > latest + self._epoch + CLOCK_TOLERANCE:
            self._epoch = at - latest
        elif at < asked_at + self._epoch - CLOCK_TOLERANCE:
            self._epoch = at - asked_at

    def _rest_after(self, delay: str, *, status: int) -> None:
        """`delay`: the header of an answer, whole seconds (RFC 9110, 10.2.3); API servers send no date.  All
        calls rest: the server is too busy for more (API Priority and Fairness), or is starting."""
        if status in (429, 503) and delay.isascii() and delay.isdigit():
            until = time.monotonic() + min(float(delay), LONGEST_REST)
            self._rests_until = max(self._rests_until, until)

    async def close(self) -> None:
        """Close all connections."""
        await self._api.close()

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        within: float = CALL_TIMEOUT,
        whole: bool = False,
        shape: str = "",
    ) -> dict[str, Any]:
        """One request; the decoded object, of nodes what the operator reads, or the `whole`.  `shape`: a name
        of `kube.decoding`, of which only that is decoded.  Raises `KubeError`."""
        if (rest := self._rests_until - time.monotonic()) > 0:
            await asyncio.sleep(rest)
        if self._limiter is not None:
            await self._limiter.wait()
        began = time.monotonic()
        try:
            kinds = {"Accept": accept, "Content-Type": content_type}
            answer = await self._call(
                method, path, query=query, body=body, kinds=kinds, within=within, whole=whole, shape=shape
            )
        except Unavailable as error:
            self.outage.failed(str(error), since=began)
            raise
        except KubeError:
            self.outage.answered()
            raise
        self.outage.answered()
        return answer

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None,
        body: Any,
        kinds: dict[str, str],
        within: float,
        whole: bool,
        shape: str,
    ) -> dict[str, Any]:
        url = self._api.configuration.host + path + ("?" + urlencode(query) if query else "")
        headers = kinds | {"User-Agent": names.USER_AGENT}
        resource = _resource(path)
        started, status = time.monotonic(), 0
        try:
            headers |= await self._authorization()
            asked_at = time.monotonic()
            response = await self._api.call_api(
                method, url, header_params=headers, body=body, _request_timeout=within
            )
            self._compare_clocks(response.headers.get("Date", ""), asked_at=asked_at)
            data, status = await response.read(), response.status
            self._rest_after(response.headers.get("Retry-After", ""), status=status)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _no_answer(error)(f"{method} {path}: {type(error).__name__} {error}".strip()) from None
        finally:
            if self._observer is not None:
                self._observer(
                    verb=method,
                    resource=resource,
                    status=status,
                    seconds=time.monotonic() - started,
                )
        if 200 <= status < 300:
            shape = "metadata" if kinds["Accept"] == METADATA_ONLY else shape or resource
            return _decoded(data, resource="" if whole else shape, what=f"{method} {path}")
        raise _refusal(status, data, f"{method} {path}")

    async def pages(
        self,
        path: str,
        *,
        label_selector: str = "",
        field_selector: str = "",
        metadata_only: bool = False,
        shape: str = "",
    ) -> AsyncIterator[dict[str, Any]]:
        """The pages of a list; each is the list object with its `items`.

        `metadata_only`: items have their metadata alone, and of that what `kube.decoding` lists.
        """
        accept = METADATA_ONLY if metadata_only else "application/json"
        query: dict[str, Any] = {"limit": METADATA_PAGE if metadata_only else PAGE}
        if label_selector:
            query["labelSelector"] = label_selector
        if field_selector:
            query["fieldSelector"] = field_selector
        while True:
            page = await self.call("GET", path, query=query, accept=accept, within=LIST_TIMEOUT, shape=shape)
            if not isinstance(page.get("items", ""), list | None):  # Go may write an empty list as null
                raise Unavailable(f"GET {path}: success without a list")
            yield page
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return
            query["continue"] = token

    async def watch(self, path: str, *, query: Mapping[str, Any], within: float) -> AsyncIterator[bytes]:
        """The lines of a watch, one event each, until the API server ends it, for `within` seconds at most.

        Raises `KubeError`; a stream that is cut, or silent beyond that time, ends it too."""
        if self._limiter is not None:
            await self._limiter.wait()
        query = {**query, "watch": "1", "timeoutSeconds": round(within)}
        url = f"{self._api.configuration.host}{path}?{urlencode(query)}"
        headers = {"Accept": "application/json", "User-Agent": names.USER_AGENT}
        headers |= await self._authorization()
        limits = aiohttp.ClientTimeout(total=within + CALL_TIMEOUT, sock_connect=CALL_TIMEOUT)
        try:
            response = await self._api.call_api("GET", url, header_params=headers, _request_timeout=limits)
            if response.status != 200:
                raise _refusal(response.status, await response.read(), f"GET {path}")
            left = b""
            try:
                async for chunk in response.response.content.iter_any():
                    *lines, left = (left + chunk).split(b"\n")
                    for line in lines:
                        yield line
            finally:
                response.response.close()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _no_answer(error)(f"watch {path}: {type(error).__name__} {error}".strip()) from None

    async def _authorization(self) -> dict[str, str]:
        """The bearer header; the token file is read again once in `TOKEN_SECONDS` (kubelets rotate it)."""
        if time.monotonic() - self._auth_at >= TOKEN_SECONDS:
            value = _bearer(await configuration(environ=self._environ))
            self._auth = {"Authorization": value} if value else {}
            self._auth_at = time.monotonic()
        return self._auth


async def configuration(*, environ: Mapping[str, str]) -> Any:
    """The library's configuration: from KUBECONFIG where set, else in-cluster, else ~/.kube/config.

    Raises `KubeError` with what was tried and what to do.
    """
    config = k8s.Configuration()
    # Without a proxy in the environment, skip the lookup: aiohttp would use two threads for it at each call.
    config.client_session_kwargs = {"trust_env": any(environ.get(name) for name in PROXIES)}
    try:
        if environ.get("KUBECONFIG"):
            await k8s_config.load_kube_config(environ["KUBECONFIG"], client_configuration=config)
        elif environ.get("KUBERNETES_SERVICE_HOST"):
            k8s_config.load_incluster_config(client_configuration=config)
        else:
            await k8s_config.load_kube_config(client_configuration=config)
    except Exception as error:  # a malformed file can make the library raise anything
        raise KubeError(
            f"no access to a cluster: {error}. Set KUBECONFIG, or run in a pod with a service account token."
        ) from None
    return config


async def access(*, environ: Mapping[str, str]) -> Access:
    """The same access as plain fields, for kopf's login; the token is read anew at each call."""
    config = await configuration(environ=environ)
    token = _bearer(config).removeprefix("Bearer ")
    return Access(
        server=config.host,
        ca_path=config.ssl_ca_cert,
        insecure=not config.verify_ssl,
        token=token or None,
        certificate_path=config.cert_file,
        private_key_path=config.key_file,
    )


async def connect(
    *, environ: Mapping[str, str], limiter: Limiter | None = None, observer: Observer | None = None
) -> Client:
    """A client for the cluster that the environment points to.  Raises `KubeError`."""
    config = await configuration(environ=environ)
    return Client(config, environ=environ, limiter=limiter, observer=observer)


def _bearer(config: Any) -> str:
    value = str(
        config.api_key.get("BearerToken") or ""
    ).strip()  # a token file that was edited by hand ends in a line break
    return "Bearer " + value[7:] if value[:7].lower() == "bearer " else value


def _no_answer(error: Exception) -> type[Unavailable]:
    """The error for a call without an answer; aiohttp's connection timeouts are of both kinds."""
    cut = isinstance(error, aiohttp.ClientConnectionError | aiohttp.ClientPayloadError | ConnectionError)
    return Unreachable if cut and not isinstance(error, TimeoutError) else Unavailable


def _decoded(data: bytes, *, resource: str, what: str) -> dict[str, Any]:
    """The object in the answer.  Success without an object comes from a proxy: `Unavailable`."""
    try:
        return decoded(data, resource=resource)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise Unavailable(f"{what}: success without an object: {data[:80]!r}") from None


def _refusal(status: int, data: bytes, what: str) -> KubeError:
    """The error in a Status, or in what a proxy sent instead of one."""
    try:
        body = decoded(data, resource="status")
    except (msgspec.MsgspecError, UnicodeDecodeError):
        body = {"message": data[:200].decode("utf-8", "replace")}
    return error_of(status, body.get("reason", ""), f"{what}: {body.get('message', '')}"[:600])


def _resource(path: str) -> str:
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    if parts[:1] == ["namespaces"] and len(parts) > 2:
        parts = parts[2:]
    return "/".join([parts[0], parts[2]] if len(parts) > 2 else parts[:1]) if parts else "discovery"


def manager() -> dict[str, str]:
    """The query parameter with our field manager."""
    return {"fieldManager": names.FIELD_MANAGER}


class Limiter:
    """On average `rate` calls a second, at most `burst` at once; callers wait in order."""

    def __init__(self, *, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._tokens = float(burst)
        self._at = time.monotonic()
        self._lock = asyncio.Lock()

    async def wait(self) -> None:
        """Return when one more call may be made."""
        async with self._lock:
            now = time.monotonic()
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
            self._at = now
            self._tokens -= 1
            if self._tokens < 0:
                await asyncio.sleep(-self._tokens / self._rate)
