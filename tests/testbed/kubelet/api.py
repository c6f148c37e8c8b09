"""The few calls that a kubelet makes, on plain dictionaries."""

import asyncio
import json
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Self

import aiohttp

from testbed.errors import ApiError
from testbed.kubeconfig import read_kubeconfig
from testbed.kubelet.errors import ApiUnreachable
from testbed.rest import STRATEGIC, Object

CALL_TIMEOUT = aiohttp.ClientTimeout(total=10)
WATCH_SECONDS = 300
LINE_LIMIT = 4 * 1024 * 1024
"""Bytes of the longest watch event: etcd refuses objects above 1.5 MiB."""


class Api:
    def __init__(self, session: aiohttp.ClientSession, *, server: str, authority: str) -> None:
        self.server = server
        self.authority = authority
        self._session = session

    @classmethod
    async def connect(cls, kubeconfig: Path, *, agent: str) -> Self:
        known = read_kubeconfig(kubeconfig)
        tls = ssl.create_default_context(cadata=known["authority"])
        session = aiohttp.ClientSession(
            base_url=known["server"] + "/",
            headers={"User-Agent": agent, "Authorization": f"Bearer {known['token']}"},
            connector=aiohttp.TCPConnector(ssl=tls, limit=0),
            read_bufsize=LINE_LIMIT,
        )
        return cls(session, server=known["server"], authority=known["authority"])

    async def close(self) -> None:
        await self._session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def get(self, path: str, **params: str) -> Object:
        return await self._call("GET", path, params=params)

    async def create(self, path: str, body: Object) -> Object:
        return await self._call("POST", path, body=body)

    async def patch(self, path: str, body: Object, *, kind: str = STRATEGIC) -> Object:
        """PATCH as the field manager `kubelet`; `metadata.uid` in the body is a precondition."""
        return await self._call("PATCH", path, body=body, content=kind, params={"fieldManager": "kubelet"})

    async def delete(self, path: str, body: Object | None = None) -> Object:
        return await self._call("DELETE", path, body=body)

    async def watch(self, path: str, *, version: str, **params: str) -> AsyncIterator[tuple[str, Object]]:
        """Events after `version` until the server ends the watch; ApiError 410 when that is too old."""
        lasting = {"allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_SECONDS)}
        query = {**params, "watch": "true", "resourceVersion": version, **lasting}
        timeout = aiohttp.ClientTimeout(total=WATCH_SECONDS + 30, sock_connect=10)
        try:
            async with self._session.get(path.lstrip("/"), params=query, timeout=timeout) as response:
                try:
                    await _refuse_errors(response)
                    async for line in response.content:
                        event = json.loads(line)
                        if event["type"] == "ERROR":
                            raise ApiError.of(event["object"]["code"], json.dumps(event["object"]).encode())
                        yield event["type"], event["object"]
                finally:
                    _cut(response)
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
        sent = {"data": json.dumps(body).encode(), "headers": {"Content-Type": content}} if body else {}
        how: Object = {"params": params, "timeout": CALL_TIMEOUT, **sent}
        try:
            async with self._session.request(method, path.lstrip("/"), **how) as response:
                await _refuse_errors(response)
                result: Object = await response.json()
                return result
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise ApiUnreachable(f"{method} {path}: {error or type(error).__name__}") from error


def _cut(response: aiohttp.ClientResponse) -> None:
    """Close the connection of an answer that is not read to its end: TLS would wait for the server."""
    connection = response.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()


async def _refuse_errors(response: aiohttp.ClientResponse) -> None:
    if response.status >= 400:
        raise ApiError.of(response.status, await response.read())


async def retry(call: Callable[[], Awaitable[Object]]) -> Object:
    """Repeat over transport failures and 5xx, with growing pauses; other ApiErrors are answers."""
    pause = 0.05
    while True:
        try:
            return await call()
        except ApiUnreachable:
            pass
        except ApiError as error:
            if error.status != 429 and error.status < 500:
                raise
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2.0, pause * 2)
