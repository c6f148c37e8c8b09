"""The few calls that a kubelet makes, on plain dictionaries.

Not the typed client: a kubelet passes objects through (a pod's status is merged into what others wrote), and
a thousand short pods should not spend their time in model classes.  Reading the kubeconfig is left to
`kubernetes.aio`.  Nothing here decides anything; `retry()` repeats, and only over transport failures.
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Self

import aiohttp
from kubernetes.aio import client as kubernetes_client
from kubernetes.aio import config as kubernetes_config

from testbed.kubelet.errors import ApiError, ApiUnreachable

Object = dict[str, Any]

CALL_TIMEOUT = aiohttp.ClientTimeout(total=10)
WATCH_SECONDS = 300
LINE_LIMIT = 4 * 1024 * 1024
"""Bytes of the longest watch event: etcd refuses objects above 1.5 MiB."""
STRATEGIC = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"


class Api:
    """A session with one API server; close it with `close()` or use it as an async context manager."""

    def __init__(self, session: aiohttp.ClientSession, *, server: str, ca: str | None) -> None:
        self.server = server
        self.ca_file = ca
        self._session = session

    @classmethod
    async def connect(cls, kubeconfig: Path, *, agent: str) -> Self:
        """Read the kubeconfig's current context; the library's error when it is unusable."""
        configuration = kubernetes_client.Configuration()
        await kubernetes_config.load_kube_config(str(kubeconfig), client_configuration=configuration)
        context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
        if not configuration.verify_ssl:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if configuration.cert_file:
            context.load_cert_chain(configuration.cert_file, configuration.key_file)
        headers = {"User-Agent": agent, "Accept": "application/json"}
        if token := await configuration.get_api_key_with_prefix("BearerToken"):
            headers["Authorization"] = token
        session = aiohttp.ClientSession(
            base_url=configuration.host.rstrip("/") + "/",
            headers=headers,
            connector=aiohttp.TCPConnector(ssl=context, limit=0),
            read_bufsize=LINE_LIMIT,
        )
        return cls(session, server=configuration.host, ca=configuration.ssl_ca_cert)

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def get(self, path: str, **params: str) -> Object:
        """GET an object or a list."""
        return await self._call("GET", path, params=params)

    async def create(self, path: str, body: Object) -> Object:
        """POST; ApiError 409 AlreadyExists."""
        return await self._call("POST", path, body=body)

    async def patch(self, path: str, body: Object, *, kind: str = STRATEGIC) -> Object:
        """PATCH as the field manager `kubelet`; `metadata.uid` in the body is a precondition."""
        return await self._call("PATCH", path, body=body, content=kind, params={"fieldManager": "kubelet"})

    async def delete(self, path: str, body: Object | None = None) -> Object:
        """DELETE with optional DeleteOptions; ApiError 404 or 409 (precondition)."""
        return await self._call("DELETE", path, body=body)

    async def watch(self, path: str, *, version: str, **params: str) -> AsyncIterator[tuple[str, Object]]:
        """Events after `version` until the server ends the watch; ApiError 410 when that is too old."""
        query = {
            **params,
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        timeout = aiohttp.ClientTimeout(total=WATCH_SECONDS + 30, sock_connect=10)
        try:
            async with self._session.get(path.lstrip("/"), params=query, timeout=timeout) as response:
                await _refuse_errors(response)
                async for line in response.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise _error(event["object"])
                    yield event["type"], event["object"]
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise ApiUnreachable(f"watch {path}: {error or type(error).__name__}") from error

    async def _call(
        self,
        method: str,
        path: str,
        *,
        body: Object | None = None,
        content: str = "application/json",
        params: dict[str, str] | None = None,
    ) -> Object:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": content} if data else {}
        try:
            async with self._session.request(
                method, path.lstrip("/"), data=data, headers=headers, params=params, timeout=CALL_TIMEOUT
            ) as response:
                await _refuse_errors(response)
                result: Object = await response.json()
                return result
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise ApiUnreachable(f"{method} {path}: {error or type(error).__name__}") from error


async def _refuse_errors(response: aiohttp.ClientResponse) -> None:
    if response.status < 400:
        return
    text = await response.text()
    try:
        status = json.loads(text)
    except ValueError:
        status = {"reason": response.reason, "message": text[:300]}
    raise _error({**status, "code": response.status})


def _error(status: Object) -> ApiError:
    return ApiError(
        int(status.get("code") or 500),
        reason=str(status.get("reason", "Unknown")),
        message=str(status.get("message", "")),
    )


async def retry(call: Callable[[], Awaitable[Object]], *, first: float = 0.05, most: float = 2.0) -> Object:
    """Repeat over transport failures and 5xx, with growing pauses, until there is an answer.

    An ApiError that is an answer (404, 409, 422) is raised at once.
    """
    pause = first
    while True:
        try:
            return await call()
        except ApiUnreachable:
            pass
        except ApiError as error:
            if not error.worth_retrying:
                raise
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(most, pause * 2)
