"""A BMC that answers over HTTPS from a recorded tree, with the faults that BMCs have."""

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import trustme
from aiohttp import web

TREES = Path(__file__).parents[2] / "fixtures" / "redfish"
USER, PASSWORD = "reader", "correct horse"
SESSIONS = "/redfish/v1/SessionService/Sessions"
Resources = dict[str, Any] | Callable[[], dict[str, Any]]
"""Path to resource, or what makes them for each request."""


def tree(name: str) -> dict[str, Any]:
    resources = msgspec.json.decode((TREES / f"{Path(name).stem}.json").read_bytes())["resources"]
    return {path.rstrip("/"): body for path, body in resources.items()}


@dataclass
class Behaviour:
    """What is wrong with the BMC itself.  `sessions`: it has a session service, else only Basic
    authentication.  `delay`: seconds before each answer.  `hang`: paths that are never answered.  `broken`:
    HTTP status by path.  `expand`: it keeps the expansion that its root
    announces.  `busy`: answers 503 before the first good one.  `says`: status, headers and body by path, for
    requests that are logged in and for the login; of the service root for all."""

    sessions: bool = True
    delay: float = 0.0
    hang: set[str] = field(default_factory=set)
    broken: dict[str, int] = field(default_factory=dict)
    expand: bool = False
    busy: int = 0
    says: dict[str, tuple[int, dict[str, str], Any]] = field(default_factory=dict)


class Bmc:
    def __init__(self, resources: Resources, behaviour: Behaviour) -> None:
        self._resources = resources
        self.behaviour = behaviour
        self.url = ""
        self.asked: list[str] = []
        self.tokens: set[str] = set()
        self.ended: set[str] = set()

    @property
    def resources(self) -> dict[str, Any]:
        return self._resources() if callable(self._resources) else self._resources

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path.rstrip("/") or "/"
        self.asked.append(path + (f"?{request.query_string}" if request.query_string else ""))
        if path in self.behaviour.hang:
            await asyncio.sleep(3600)
        await asyncio.sleep(self.behaviour.delay)
        if self.behaviour.busy and request.method == "GET":
            self.behaviour.busy -= 1
            return web.json_response({"error": {}}, status=503)
        if path == SESSIONS and request.method == "POST":
            return self._refusal(SESSIONS) or await self._log_in(request)
        if not self._is_known(request) and path != "/redfish/v1":
            return web.json_response({"error": {}}, status=401)
        if request.method == "DELETE":
            self.ended.add(path)
            return web.Response(status=204)
        if (refusal := self._refusal(path)) is not None:
            return refusal
        if path in self.behaviour.broken:
            return web.json_response({"error": {}}, status=self.behaviour.broken[path])
        resources = self.resources
        if path not in resources:
            return web.json_response({"error": {}}, status=404)
        body = dict(resources[path])
        if "$expand" in request.query and self.behaviour.expand:
            body |= {"Members": [resources.get(one["@odata.id"], one) for one in body.get("Members", [])]}
        return web.json_response(body)

    def _refusal(self, path: str) -> web.Response | None:
        if path not in self.behaviour.says:
            return None
        status, headers, body = self.behaviour.says[path]
        if path == SESSIONS and status == 201:
            self.tokens.add(headers["X-Auth-Token"])
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return web.Response(status=status, headers=headers, body=data)

    async def _log_in(self, request: web.Request) -> web.Response:
        if not self.behaviour.sessions:
            return web.json_response({"error": {}}, status=404)
        if await request.json() != {"UserName": USER, "Password": PASSWORD}:
            return web.json_response({"error": {}}, status=401)
        token = f"token-{len(self.tokens)}"
        self.tokens.add(token)
        headers = {"X-Auth-Token": token, "Location": f"{SESSIONS}/{token}"}
        return web.json_response({}, status=201, headers=headers)

    def _is_known(self, request: web.Request) -> bool:
        basic = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        return request.headers.get("X-Auth-Token") in self.tokens or (
            not self.behaviour.sessions and request.headers.get("Authorization") == basic
        )


@asynccontextmanager
async def serving(
    resources: Resources, *, authority: trustme.CA, behaviour: Behaviour | None = None
) -> AsyncIterator[Bmc]:
    bmc = Bmc(resources, behaviour or Behaviour())

    async def answer(request: web.Request) -> web.StreamResponse:
        return await bmc.answer(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    bmc.url = f"https://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield bmc
    finally:
        await asyncio.sleep(0.02)  # a handshake that the client broke off closes its socket in the next turns
        await runner.cleanup()
