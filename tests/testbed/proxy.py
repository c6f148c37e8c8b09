"""A reverse proxy before the API server that injects faults at the moment a test chooses.

    with FaultProxy(control_plane) as proxy:
        proxy.on(method="PATCH", path=r"/api/v1/nodes/n1$", when="before", do=lambda *_: operator.kill())
        ... run a program with KUBECONFIG=proxy.kubeconfig() ...

It passes on everything else unchanged: tokens, watches event by event, compressed bodies.  It serves TLS with
the API server's own certificate, because client-go sends no token over plain HTTP.  Connection upgrades (exec
and the like) answer 501.

The proxy runs on its own thread; every method may be called from any thread or event loop.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from testbed.controlplane import ControlPlane
from testbed.errors import TestbedError
from testbed.loopback import LOOPBACK, reserve_port
from testbed.proxy_server import Action, Do, ProxyServer, RequestInfo, ResponseInfo, Rule, When
from testbed.running import Running
from testbed.wait import wait_for

T = TypeVar("T")

CALL_SECONDS = 60.0


class FaultProxy(Running):
    """A proxy before one control plane; `start()` it, or use it as a context manager."""

    def __init__(self, upstream: ControlPlane) -> None:
        self._upstream = upstream
        self._rules: list[Rule] = []
        self._failures: list[BaseException] = []
        self._lock = threading.Lock()
        self._port = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._server: ProxyServer | None = None

    # Its life.

    def start(self) -> None:
        """Listen on a free port."""
        self._port = reserve_port()
        loop = asyncio.new_event_loop()
        self._loop = loop
        self._thread = threading.Thread(target=loop.run_forever, name="fault-proxy", daemon=True)
        self._thread.start()
        layout = self._upstream.layout
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(layout.ca_file, layout.key_file)
        self._server = ProxyServer(
            lambda: self._upstream.server,
            port=self._port,
            serving=tls,
            verifying=ssl.create_default_context(cafile=str(layout.ca_file)),
            decide=self._decide,
        )
        self._call(self._server.open())
        self.resume()

    def stop(self) -> None:
        """Cut every connection and end; TestbedError when a rule's callable has raised. Harmless twice."""
        loop, thread, server = self._loop, self._thread, self._server
        if loop is None or thread is None or server is None:
            return
        self._call(server.close())
        self._loop = self._thread = self._server = None
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        if self._failures:
            raise TestbedError(f"a rule's callable raised {self._failures[0]!r}") from self._failures[0]

    def pause(self) -> None:
        """Listen no more and cut every connection: as if the API server were gone."""
        self._call(self._running().pause())

    def resume(self) -> None:
        """Listen again, on the same port."""
        self._call(self._running().listen())

    def wait_idle(self) -> None:
        """Until no request is under way."""
        wait_for(lambda: self._running().handling == 0, what="the end of every request")

    # What clients and tests use.

    @property
    def server(self) -> str:
        """The proxy's URL."""
        return f"https://{LOOPBACK}:{self._port}"

    def kubeconfig(self, token: str | None = None) -> Path:
        """A kubeconfig for the proxy, as administrator or with the given token."""
        name = f"proxy-{self._port}" + ("" if token is None else f"-{abs(hash(token)):x}")
        token = token or self._upstream.admin_token
        return self._upstream.user_kubeconfig(name, token=token, server=self.server)

    def on(
        self,
        *,
        method: str | None = None,
        path: str | re.Pattern[str] | None = None,
        when: When | str = When.BEFORE,
        times: int | None = 1,
        do: Do = None,
    ) -> Rule:
        """Add a rule; of several that match, each acts, in the order of their addition.

        `path` is searched in the path without the query.  `do` is an action of `proxy_rules`, or a callable
        that runs on a thread of its own while its request, and no other, waits.  When the client is gone
        after that (it was killed), its request is not passed on.
        """
        pattern = re.compile(path) if isinstance(path, str) else path
        rule = Rule(method=method, path=pattern, when=When(when), times=times, do=do)
        with self._lock:
            self._rules.append(rule)
        return rule

    # Called by the server, on the proxy's event loop.

    async def _decide(self, request: RequestInfo, response: ResponseInfo | None) -> list[Action]:
        when = When.BEFORE if response is None else When.AFTER
        with self._lock:
            rules = list(self._rules)
        actions = []
        try:
            for rule in rules:
                if rule.claim(request, when):
                    actions.append(await asyncio.to_thread(rule.act, request, response))
        except Exception as error:
            self._failures.append(error)
            raise
        return actions

    def _running(self) -> ProxyServer:
        if self._server is None:
            raise TestbedError("the fault proxy does not run")
        return self._server

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(CALL_SECONDS)
