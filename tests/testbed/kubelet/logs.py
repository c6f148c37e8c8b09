"""A kubelet's own port, for `kubectl logs` and `helm test --logs`: the files that containers print into.

The API server passes requests on to the address and port in the node's status.  It is not asked who it is.
Nothing else is served: no `exec`, no `port-forward`, no metrics.
"""

from __future__ import annotations

import asyncio
import ssl
from functools import cache
from pathlib import Path

import trustme
from aiohttp import web

from testbed.kubelet.context import ADDRESS

LOOK_SECONDS = 0.1
"""How often a followed log is looked at."""
KNOWN = frozenset({"follow", "previous", "tailLines", "limitBytes"})


class LogServer:
    """Serves the logs below `pods`, the folder of a node's pods, over TLS."""

    def __init__(self, pods: Path) -> None:
        self._pods = pods
        self._runner: web.AppRunner | None = None

    async def start(self) -> int:
        """The port that it listens on."""
        app = web.Application()
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, ADDRESS, 0, ssl_context=_certified()).start()
        port: int = self._runner.addresses[0][1]
        return port

    async def stop(self) -> None:
        """Hang up; harmless when it never started."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        """A log, whole or its end, and what comes while it is followed."""
        if strange := request.query.keys() - KNOWN:
            raise web.HTTPBadRequest(text=f"simulated logs have no {', '.join(sorted(strange))}")
        folder, log = self._find(request.match_info, previous=request.query.get("previous") == "true")
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        with log.open("rb") as file:
            text = _end(file.read(), lines=request.query.get("tailLines"))
            await response.write(text[: int(request.query.get("limitBytes") or len(text))])
            while request.query.get("follow") == "true" and (folder / "pid").exists():
                await asyncio.sleep(LOOK_SECONDS)
                await response.write(file.read())
            if request.query.get("follow") == "true":
                await response.write(file.read())
        await response.write_eof()
        return response

    def _find(self, asked: web.UrlMappingMatchInfo, *, previous: bool) -> tuple[Path, Path]:
        """The container's folder, and the log of its present or previous life."""
        name = f"{asked['namespace']}_{asked['pod']}_*/{asked['container']}"
        folders = sorted(self._pods.glob(name), key=lambda folder: folder.stat().st_mtime)
        logs = sorted(folders[-1].glob("*.log"), key=lambda log: int(log.stem)) if folders else []
        if len(logs) <= previous:
            life = "has no previous life" if logs else "has not started"
            raise web.HTTPBadRequest(text=f"container {asked['container']} in pod {asked['pod']} {life}")
        return folders[-1], logs[-1 - previous]


def _end(text: bytes, *, lines: str | None) -> bytes:
    """The last lines of a text, or all of it."""
    count = len(text) if lines is None else int(lines)
    return b"".join(text.splitlines(keepends=True)[-count:]) if count else b""


@cache
def _certified() -> ssl.SSLContext:
    """A certificate that nobody checks, one for all kubelets of this process."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert(ADDRESS).configure_cert(context)
    return context
