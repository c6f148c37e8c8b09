"""A reverse proxy before the API server, with its own certificate, that injects faults at the moment a test
chooses.  Every method may be called from any thread or event loop."""

import asyncio
import gzip
import json
import os
import re
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from testbed.controlplane import ControlPlane
from testbed.controlplane_config import ADMIN
from testbed.errors import TestbedError
from testbed.loopback import LOOPBACK, reserve_port
from testbed.processes import Running

CALL_SECONDS = 60.0
BODY_LIMIT = 64 * 1024 * 1024
HANGUP_LOOK_SECONDS = 0.5
"""How often a silent watch is checked for a client that has gone."""
CUT_SECONDS = 0.1
"""After how long a watch is cut, if all are; and how often a silent one looks whether it may go on."""
HOP_BY_HOP = frozenset({"connection", "content-length", "host", "keep-alive", "te", "transfer-encoding"})
"""Headers that belong to one connection (RFC 9110, 7.6.1); lengths are set anew."""
NOT_ADDED = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")
"""Headers that aiohttp adds to a request without them."""


class Watches(StrEnum):
    """What becomes of every watch: passed on, open without a byte, or closed again and again."""

    PASS = "pass"
    SILENT = "silent"
    CUT = "cut"


class When(StrEnum):
    BEFORE = "before"
    AFTER = "after"


@dataclass(frozen=True, kw_only=True)
class RequestInfo:
    method: str
    path: str
    body: bytes = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class ResponseInfo:
    """The API server's answer. A stream has no body here."""

    status: int
    headers: CIMultiDict[str]
    body: bytes = field(repr=False)

    def json(self) -> Any:
        packed = self.headers.get("Content-Encoding") == "gzip"
        return json.loads(gzip.decompress(self.body) if packed else self.body)


@dataclass(frozen=True, kw_only=True)
class Refuse:
    """Answer with an error and a Status object, and with these headers besides."""

    status: int
    reason: str
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)


Action = Refuse | None
Do = Callable[[RequestInfo, ResponseInfo | None], Action] | Action
"""An action, or what decides on one; a callable that returns None lets things go on."""


@dataclass(kw_only=True)
class Rule:
    """One rule and what became of it. `times`: how often it may fire, None for ever."""

    path: str
    when: When
    times: int | None
    do: Do
    fired: list[RequestInfo] = field(default_factory=list)

    def claim(self, request: RequestInfo, when: When) -> bool:
        fires = (
            when is self.when
            and re.search(self.path, request.path) is not None
            and (self.times is None or len(self.fired) < self.times)
        )
        self.fired += [request] * fires
        return fires


class FaultProxy(Running):
    def __init__(self, upstream: ControlPlane) -> None:
        self.watches = Watches.PASS
        self._upstream = upstream
        self._rules: list[Rule] = []
        self._failures: list[BaseException] = []
        self._handling: set[asyncio.Task[Any] | None] = set()
        self._runner: web.AppRunner | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._port = reserve_port()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._thread.start()
        layout = self._upstream.layout
        self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._tls.load_cert_chain(layout.ca_file, layout.key_file)
        self._verifying = ssl.create_default_context(cafile=str(layout.ca_file))
        self.resume()

    def stop(self) -> None:
        if self._thread is None:
            return
        self.pause()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._thread = None
        if self._failures:
            raise TestbedError(f"a rule's callable raised {self._failures[0]!r}") from self._failures[0]

    def pause(self) -> None:
        self._call(self._close())

    def resume(self) -> None:
        self._call(self._listen())

    @property
    def server(self) -> str:
        return f"https://{LOOPBACK}:{self._port}"

    def kubeconfig(self) -> Path:
        name, token = f"proxy-{self._port}", self._upstream.tokens()[ADMIN]
        return self._upstream.user_kubeconfig(name, token=token, server=self.server)

    def on(
        self, *, path: str = "", when: When = When.BEFORE, times: int | None = None, do: Do = None
    ) -> Rule:
        """Of several rules that match, each acts, in the order of their addition.  `path` is searched in the
        path without the query.  `do`: an action, or a callable that runs on a thread of its own while its
        request waits."""
        self._rules.append(rule := Rule(path=path, when=when, times=times, do=do))
        return rule

    def _call(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(CALL_SECONDS)

    async def _listen(self) -> None:
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
        self._listener = socket.create_server((LOOPBACK, self._port))
        await web.SockSite(self._runner, self._listener, ssl_context=self._tls).start()

    async def _close(self) -> None:
        runner, self._runner = self._runner, None
        if runner is None:
            return
        self._loop.remove_reader(self._listener)
        await asyncio.sleep(0)  # asyncio loses what was accepted just now if its server is closed meanwhile
        for site in list(runner.sites):  # first, or clients come back before they are all cut off
            await site.stop()
        for handler in runner.server.connections if runner.server else ():
            _abort(handler.transport)
        await self._end_requests()
        await runner.cleanup()
        await self._end_requests()  # of connections that were being made just now
        await self._session.close()
        await self._abort_connections()

    async def _abort_connections(self) -> None:
        """In the middle of TLS's beginning or end; collected later, they would fail another test."""
        left: Mapping[int, asyncio.WriteTransport] = self._loop._transports  # type: ignore[attr-defined]
        open_before = True
        while open_before:
            await asyncio.sleep(0.05)  # what makes and what closes them has been scheduled, not run
            open_before = any(not transport.is_closing() for transport in list(left.values()))
            for transport in list(left.values()):
                transport.abort()

    async def _end_requests(self) -> None:
        while tasks := [task for task in self._handling if task is not None and not task.done()]:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self._handling.add(task := asyncio.current_task())
        try:
            info = RequestInfo(method=request.method, path=request.path, body=await request.read())
            return await self._answer(request, info)
        except aiohttp.ClientError:  # the API server is gone, and so is its connection to this client
            return _dropped(request)
        finally:
            self._handling.discard(task)

    async def _answer(self, request: web.Request, info: RequestInfo) -> web.StreamResponse:
        if early := await self._act(request, info, None):
            return early
        if self._session.closed:  # cut while it was read
            return _dropped(request)
        async with self._session.request(
            request.method,
            URL(self._upstream.server + request.raw_path, encoded=True),
            headers=_passed_on(request.headers),
            data=info.body or None,
            skip_auto_headers=NOT_ADDED,
            allow_redirects=False,
        ) as upstream:
            streamed = upstream.status == 200 and request.query.get("watch", "") in {"1", "true"}
            body = b"" if streamed else await upstream.read()
            answer = ResponseInfo(status=upstream.status, headers=_passed_on(upstream.headers), body=body)
            if early := await self._act(request, info, answer):
                return early
            if streamed:
                return await self._stream(request, answer, upstream)
        return web.Response(status=answer.status, headers=answer.headers, body=body)

    async def _act(
        self, request: web.Request, info: RequestInfo, answer: ResponseInfo | None
    ) -> web.StreamResponse | None:
        when = When.BEFORE if answer is None else When.AFTER
        acted = [rule for rule in list(self._rules) if rule.claim(info, when)]
        for rule in acted:
            try:
                action = await asyncio.to_thread(rule.do, info, answer) if callable(rule.do) else rule.do
            except Exception as error:
                self._failures.append(error)
                raise
            if action is not None:
                return _refusal(action)
        # A client killed meanwhile must not have its request passed on; the event loop may not know yet.
        return _dropped(request) if acted and _hung_up(request) else None

    async def _stream(
        self, request: web.Request, begun: ResponseInfo, upstream: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        answer = web.StreamResponse(status=begun.status, headers=begun.headers)
        cut_at = self._loop.time() + CUT_SECONDS
        try:
            await answer.prepare(request)
            while request.transport is not None and not request.transport.is_closing():
                if self.watches is Watches.CUT and self._loop.time() >= cut_at:
                    return _dropped(request)
                if self.watches is Watches.SILENT:
                    await asyncio.sleep(CUT_SECONDS)
                    continue
                try:
                    async with asyncio.timeout(
                        CUT_SECONDS if self.watches is Watches.CUT else HANGUP_LOOK_SECONDS
                    ):
                        chunk = await upstream.content.readany()
                except TimeoutError:
                    continue
                if not chunk:
                    await answer.write_eof()
                    break
                await answer.write(chunk)
        except (aiohttp.ClientError, ConnectionError):
            return _dropped(request)
        return answer


def _passed_on(headers: Mapping[str, str]) -> CIMultiDict[str]:
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in HOP_BY_HOP)


def _refusal(refuse: Refuse) -> web.Response:
    known = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    status = known | {"message": refuse.message, "reason": refuse.reason, "code": refuse.status}
    return web.json_response(status, status=refuse.status, headers=dict(refuse.headers))


def _dropped(request: web.Request) -> web.StreamResponse:
    _abort(request.transport)
    return web.Response()


def _hung_up(request: web.Request) -> bool:
    connection = request.transport.get_extra_info("socket") if request.transport else None
    if connection is None or connection.fileno() < 0:
        return True
    with socket.socket(fileno=os.dup(connection.fileno())) as peek:
        try:
            return not peek.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True


def _abort(transport: asyncio.BaseTransport | None) -> None:
    if isinstance(transport, asyncio.WriteTransport):
        transport.abort()
