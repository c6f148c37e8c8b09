"""The network half of the fault proxy: requests as a rule sees them, and the server that passes them on.

Everything here runs on one event loop.  `decide(request, None)` is awaited before a request is passed on, and
`decide(request, response)` before its answer is.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import re
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from testbed.errors import TestbedError
from testbed.loopback import LOOPBACK

BODY_LIMIT = 64 * 1024 * 1024
HANGUP_LOOK_SECONDS = 0.5
"""How often a silent watch is checked for a client that has gone."""
HOP_BY_HOP = frozenset(
    {
        "connection",
        "content-length",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers that belong to one connection (RFC 9110, 7.6.1); lengths are set anew."""
OF_THE_BODY = frozenset({"Content-Encoding", "Etag"})
"""Headers of an answer that do not hold for another body, as the API server spells them."""
NOT_ADDED = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")
"""Headers that aiohttp adds to a request without them."""


class When(StrEnum):
    """The two moments at which a rule can act."""

    BEFORE = "before"
    AFTER = "after"


@dataclass(frozen=True, kw_only=True)
class RequestInfo:
    """A request as the client sent it."""

    method: str
    path: str
    query: Mapping[str, str]
    content_type: str
    user_agent: str
    body: bytes = field(repr=False)

    @property
    def is_watch(self) -> bool:
        """Whether the answer is a stream without end."""
        return self.query.get("watch", "").lower() in {"1", "true"}

    def json(self) -> Any:
        """The decoded body; ValueError when it is no JSON."""
        return json.loads(self.body)


@dataclass(frozen=True, kw_only=True)
class ResponseInfo:
    """The API server's answer. A stream has no body here."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)

    def json(self) -> Any:
        """The decoded body, compressed or not; ValueError when it is no JSON."""
        packed = self.headers.get("Content-Encoding") == "gzip"
        return json.loads(gzip.decompress(self.body) if packed else self.body)


@dataclass(frozen=True, kw_only=True)
class Refuse:
    """Answer with an error and a Status object."""

    status: int
    reason: str
    message: str


@dataclass(frozen=True)
class Replace:
    """Send this body in place of the API server's; after only, and not for streams."""

    body: bytes


Action = Refuse | Replace | None
Do = Callable[[RequestInfo, ResponseInfo | None], Action] | Action
"""An action, or what decides on one; a callable that returns None lets things go on."""


@dataclass(kw_only=True)
class Rule:
    """One rule and what became of it. `times`: how often it may fire, None for ever."""

    method: str | None
    path: re.Pattern[str] | None
    when: When
    times: int | None
    do: Do
    fired: list[RequestInfo] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def claim(self, request: RequestInfo, when: When) -> bool:
        """Whether it fires for this request now; counts it."""
        if when is not self.when or not self._matches(request):
            return False
        with self._lock:
            if self.times is not None and len(self.fired) >= self.times:
                return False
            self.fired.append(request)
        return True

    def act(self, request: RequestInfo, response: ResponseInfo | None) -> Action:
        """What is to be done; runs the callable, which may take its time or raise."""
        return self.do(request, response) if callable(self.do) else self.do

    def _matches(self, request: RequestInfo) -> bool:
        return (self.method is None or request.method == self.method) and (
            self.path is None or self.path.search(request.path) is not None
        )


Decide = Callable[[RequestInfo, ResponseInfo | None], Awaitable[list[Action]]]


class ProxyServer:
    """Listens on `port`; `upstream` gives the API server's URL, which may change."""

    def __init__(
        self,
        upstream: Callable[[], str],
        *,
        port: int,
        serving: ssl.SSLContext,
        verifying: ssl.SSLContext,
        decide: Decide,
    ) -> None:
        self._upstream = upstream
        self._port = port
        self._serving = serving
        self._verifying = verifying
        self._decide = decide
        self._connections: set[asyncio.BaseTransport] = set()
        self._watches: dict[asyncio.Task[object], asyncio.BaseTransport] = {}

    async def open(self) -> None:
        """Everything but the listening socket."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._verifying, limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        app = web.Application(client_max_size=BODY_LIMIT)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.1)
        await self._runner.setup()
        self._site: web.TCPSite | None = None

    async def listen(self) -> None:
        """Accept connections."""
        if self._site is None:
            self._site = web.TCPSite(
                self._runner, LOOPBACK, self._port, ssl_context=self._serving, reuse_address=True
            )
            await self._site.start()

    @property
    def handling(self) -> int:
        """How many requests are under way."""
        return len(self._connections)

    async def pause(self) -> None:
        """Accept none, and cut those that there are."""
        site, self._site = self._site, None
        if site is not None:
            await site.stop()
        for task, watch in dict(self._watches).items():
            _abort(watch)
            task.cancel()
        idle = [
            handler.transport for handler in (self._runner.server.connections if self._runner.server else ())
        ]
        for transport in [*self._connections, *filter(None, idle)]:
            _abort(transport)

    async def close(self) -> None:
        """End for good."""
        await self.pause()
        await self._runner.cleanup()
        await self._session.close()
        # Aborted TLS connections are closed by callbacks that have been scheduled, not run.
        await asyncio.sleep(0.05)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        transport = request.transport
        if transport is None:
            return web.Response()
        self._connections.add(transport)
        try:
            return await self._answer(request, _info(request, await request.read()), transport)
        finally:
            self._connections.discard(transport)

    async def _answer(
        self, request: web.Request, info: RequestInfo, transport: asyncio.BaseTransport
    ) -> web.StreamResponse:
        if request.headers.get("Upgrade"):
            return _refusal(Refuse(status=501, reason="", message="the fault proxy passes no upgrades on"))
        if early := await self._act(info, None, transport):
            return early
        try:
            async with self._session.request(
                request.method,
                URL(self._upstream() + request.raw_path, encoded=True),
                headers=_passed_on(request.headers),
                data=info.body or None,
                skip_auto_headers=NOT_ADDED,
                allow_redirects=False,
            ) as upstream:
                if info.is_watch and upstream.status == 200:
                    return await self._stream(request, info, upstream, transport)
                body = await upstream.read()
        except aiohttp.ClientError:
            # The API server is gone: so is the connection to it, as its client sees it.
            return _dropped(transport)
        headers = _passed_on(upstream.headers)
        answer = ResponseInfo(status=upstream.status, headers=headers, body=body)
        if early := await self._act(info, answer, transport):
            return early
        return web.Response(status=upstream.status, headers=headers, body=body)

    async def _act(
        self, info: RequestInfo, answer: ResponseInfo | None, transport: asyncio.BaseTransport
    ) -> web.StreamResponse | None:
        """Do what the rules say; an answer when there is nothing else to be done."""
        actions = await self._decide(info, answer)
        for action in actions:
            match action:
                case Refuse():
                    return _refusal(action)
                case Replace(body):
                    return _replaced(answer, body)
        # A client killed meanwhile must not have its request passed on; the event loop may not know yet.
        return _dropped(transport) if actions and _hung_up(transport) else None

    async def _stream(
        self,
        request: web.Request,
        info: RequestInfo,
        upstream: aiohttp.ClientResponse,
        transport: asyncio.BaseTransport,
    ) -> web.StreamResponse:
        """Pass a watch on as it comes, until either side ends it or it is cut."""
        headers = _passed_on(upstream.headers)
        begun = ResponseInfo(status=upstream.status, headers=headers, body=b"")
        if early := await self._act(info, begun, transport):
            return early
        answer = web.StreamResponse(status=upstream.status, headers=headers)
        task = asyncio.current_task()
        assert task is not None
        self._watches[task] = transport
        try:
            await answer.prepare(request)
            await _pump(upstream.content, answer, transport)
        except asyncio.CancelledError:
            if not transport.is_closing():
                raise
            task.uncancel()
            return _dropped(transport)
        except (aiohttp.ClientError, ConnectionError):
            return _dropped(transport)
        finally:
            upstream.close()
            del self._watches[task]
        return answer


async def _pump(
    source: aiohttp.StreamReader, answer: web.StreamResponse, transport: asyncio.BaseTransport
) -> None:
    while not transport.is_closing():
        try:
            async with asyncio.timeout(HANGUP_LOOK_SECONDS):
                chunk = await source.readany()
        except TimeoutError:
            continue
        if not chunk:
            await answer.write_eof()
            return
        await answer.write(chunk)


def _info(request: web.Request, body: bytes) -> RequestInfo:
    return RequestInfo(
        method=request.method,
        path=request.path,
        query=dict(request.query),
        content_type=request.headers.get("Content-Type", ""),
        user_agent=request.headers.get("User-Agent", ""),
        body=body,
    )


def _passed_on(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """All headers but those of the connection itself, repeated ones too."""
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in HOP_BY_HOP)


def _refusal(refuse: Refuse) -> web.Response:
    """An error as the API server words it."""
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": refuse.message,
        "reason": refuse.reason,
        "code": refuse.status,
    }
    return web.Response(
        status=refuse.status, body=json.dumps(status).encode(), content_type="application/json"
    )


def _replaced(answer: ResponseInfo | None, body: bytes) -> web.Response:
    """The API server's answer with another body, which is not compressed."""
    if answer is None:
        raise TestbedError("Replace acts after the API server has answered: there is no answer yet")
    headers = CIMultiDict((name, value) for name, value in answer.headers.items() if name not in OF_THE_BODY)
    return web.Response(status=answer.status, headers=headers, body=body)


def _dropped(transport: asyncio.BaseTransport) -> web.StreamResponse:
    """Cut the connection; the response only satisfies aiohttp, which finds nobody to send it to."""
    _abort(transport)
    return web.Response()


def _hung_up(transport: asyncio.BaseTransport) -> bool:
    """Whether the client's end is closed, asked of the kernel: a dead process has closed it by now."""
    connection = transport.get_extra_info("socket")
    if transport.is_closing() or connection is None:
        return True
    with socket.socket(fileno=os.dup(connection.fileno())) as peek:
        try:
            return not peek.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True


def _abort(transport: asyncio.BaseTransport) -> None:
    if isinstance(transport, asyncio.WriteTransport):
        transport.abort()
