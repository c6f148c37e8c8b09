"""The client against a real HTTP server on loopback: every way in which an answer can be none."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from email.utils import formatdate
from pathlib import Path
from types import SimpleNamespace

import pytest
import pytest_asyncio
from aiohttp import web

from nodegauge_operator import names
from nodegauge_operator.kube import client as client_module
from nodegauge_operator.kube import errors, nodes
from nodegauge_operator.kube.client import MERGE, Client, Limiter, connect
from nodegauge_operator.kube.outage import Outage
from support.virtual_time import run
from testbed.kubeconfig import write_kubeconfig

PATH = "/api/v1/nodes"


class Server:
    def __init__(self) -> None:
        self.asked: list[web.Request] = []
        self.bodies: list[str] = []
        self.answers: list[web.StreamResponse | None] = []
        """Next answers; None for silence, and when there is none left an empty object."""
        self.while_asked: Callable[[], None] = lambda: None
        """Called between a request and its answer."""
        self.over = asyncio.Event()
        self.port = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request)
        self.bodies.append(await request.text())
        self.while_asked()
        answer = self.answers.pop(0) if self.answers else web.json_response({})
        if answer is None:
            await self.over.wait()
            return web.Response(status=500)
        return answer


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.port = runner.addresses[0][1]
    yield server
    server.over.set()
    await runner.cleanup()


@pytest.fixture
def token(tmp_path: Path) -> Path:
    """The file of a token that a kubelet rotates."""
    path = tmp_path / "token"
    path.write_text("first")
    return path


def kubeconfig(folder: Path, port: int, token: Path) -> dict[str, str]:
    path, user = folder / "kube config", {"tokenFile": str(token)}
    write_kubeconfig(path, server=f"http://127.0.0.1:{port}", authority="", user=user)
    return {"KUBECONFIG": str(path)}


@pytest_asyncio.fixture
async def client(server: Server, tmp_path: Path, token: Path) -> AsyncIterator[Client]:
    client = await connect(environ=kubeconfig(tmp_path, server.port, token))
    yield client
    await client.close()


def status(code: int, reason: str = "", message: str = "because") -> web.Response:
    return web.json_response({"kind": "Status", "reason": reason, "message": message}, status=code)


async def test_a_call_carries_what_it_should(server: Server, client: Client) -> None:
    server.answers = [web.json_response({"kind": "Node"})]
    answer = await client.call(
        "PATCH", f"{PATH}/n", query={"fieldManager": "nodegauge"}, body={"a": None}, content_type=MERGE
    )
    assert answer == {"kind": "Node"}
    (asked,) = server.asked
    assert (asked.method, asked.raw_path) == ("PATCH", f"{PATH}/n?fieldManager=nodegauge")
    assert asked.headers["Content-Type"] == MERGE
    assert asked.headers["Authorization"] == "Bearer first"
    assert asked.headers["User-Agent"] == names.USER_AGENT
    assert server.bodies == ['{"a": null}']
    server.answers = [web.json_response({"metadata": {"name": "x"}})]
    await nodes.get(client, "a b?c")
    assert server.asked[1].raw_path == "/api/v1/nodes/a%20b%3Fc"


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (400, "BadRequest", errors.Refused),
        (403, "Forbidden", errors.Forbidden),
        (404, "NotFound", errors.NotFound),
        (409, "Conflict", errors.Conflict),
        (409, "AlreadyExists", errors.AlreadyExists),
        (410, "Expired", errors.Refused),
        (422, "Invalid", errors.Refused),
        *((code, "Test", errors.Unavailable) for code in (401, 429, 500, 503, 504)),
    ],
)
async def test_statuses_become_errors_of_our_own(
    server: Server, client: Client, code: int, reason: str, kind: type[errors.KubeError]
) -> None:
    server.answers = [status(code, reason)]
    with pytest.raises(kind) as caught:
        await client.call("GET", PATH)
    assert type(caught.value) is kind
    assert (caught.value.status, caught.value.reason) == (code, reason)
    assert "because" in str(caught.value)
    assert PATH in str(caught.value)


@pytest.mark.parametrize(
    "answer",
    [
        *("<html>captive portal</html>", "", '{"items": [', "[]", "null", b"\xff\xfe"),
        *("{}", '{"kind": "Status", "status": "Success"}', '{"items": "none"}'),
    ],
)
async def test_success_without_a_list_fails(server: Server, client: Client, answer: str | bytes) -> None:
    """A proxy that says 200 must not read as an empty cluster: that would take every label off."""
    server.answers = [web.Response(body=answer, content_type="application/json")]
    with pytest.raises(errors.Unavailable):
        _ = [page async for page in client.pages(PATH)]


async def test_silence_and_a_closed_door_are_no_answer(
    server: Server, client: Client, tmp_path: Path, token: Path
) -> None:
    """Timeouts and refused connections: Unavailable, status 0; only the latter may have cut watches too."""
    server.answers = [None]
    with pytest.raises(errors.Unavailable) as caught:
        await client.call("GET", PATH, within=0.05)
    assert (type(caught.value), caught.value.status) == (errors.Unavailable, 0)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = await connect(environ=kubeconfig(tmp_path, free.getsockname()[1], token))
    with pytest.raises(errors.Unavailable) as caught:
        await nobody.call("GET", PATH)
    assert (type(caught.value), caught.value.status) == (errors.Unreachable, 0)
    await nobody.close()


async def test_an_answer_that_breaks_off_is_no_answer(server: Server, client: Client) -> None:
    half = 'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"items":['

    def cut() -> None:
        connection = server.asked[-1].transport
        connection.write(half.encode())
        connection.close()

    server.while_asked = cut
    with pytest.raises(errors.Unreachable):
        await client.call("GET", PATH)


async def test_every_call_is_observed(server: Server, tmp_path: Path, token: Path) -> None:
    seen: list[tuple[str, str, int]] = []

    def observe(*, verb: str, resource: str, status: int, seconds: float) -> None:
        assert seconds >= 0
        seen.append((verb, resource, status))

    client = await connect(environ=kubeconfig(tmp_path, server.port, token), observer=observe)
    server.answers = [web.json_response({}), status(409, "Conflict"), None]
    await client.call("GET", "/api/v1/namespaces/ng/pods/p")
    with pytest.raises(errors.Conflict):
        await client.call("PATCH", "/apis/nodegauge.dev/v1alpha1/nodereports/n/status", body={})
    with pytest.raises(errors.Unavailable):
        await client.call("GET", "/apis/nodegauge.dev/v1alpha1", within=0.05)
    await client.close()
    assert seen == [("GET", "pods", 200), ("PATCH", "nodereports/status", 409), ("GET", "discovery", 0)]


async def test_a_node_has_what_the_operator_reads_or_all_of_it(server: Server, client: Client) -> None:
    node = {"kind": "Node", "spec": {"providerID": "azure:///x", "unschedulable": True}}
    server.answers = [web.json_response(node), web.json_response(node)]
    assert (await client.call("GET", f"{PATH}/n"))["spec"] == {"unschedulable": True}
    assert await client.call("GET", f"{PATH}/n", whole=True) == node


async def test_pages_are_followed_with_the_same_selector(server: Server, client: Client) -> None:
    first = {"metadata": {"continue": "next&page"}, "items": [{"metadata": {"name": "a"}}]}
    second = {"metadata": {}, "items": [{"metadata": {"name": "b"}}]}
    server.answers = [web.json_response(first), web.json_response(second)]
    assert [view.name async for view in nodes.each(client, label_selector="gpu=true")] == ["a", "b"]
    assert [dict(r.query) for r in server.asked] == [
        {"limit": str(client_module.PAGE), "labelSelector": "gpu=true"},
        {"limit": str(client_module.PAGE), "labelSelector": "gpu=true", "continue": "next&page"},
    ]
    server.answers = [web.json_response(first), status(410, "Expired")]
    with pytest.raises(errors.Refused):
        _ = [view async for view in nodes.each(client)]


async def test_a_rotated_token_is_used_within_a_minute(
    server: Server, client: Client, token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(client_module.time, "monotonic", lambda: now)
    for passed, content, expected in (
        (0, "first", "first"),
        (59, "second", "first"),
        (2, "second", "second"),
        (61, "third\n", "third"),
    ):
        now += passed
        token.write_text(content)  # noqa: ASYNC240
        await client.call("GET", PATH)
        assert server.asked[-1].headers["Authorization"] == f"Bearer {expected}"


@pytest.mark.parametrize("content", [None, "", "clusters: 7", "\x00"])
async def test_a_kubeconfig_that_is_none_is_said(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "kubeconfig"
    if content is not None:
        path.write_text(content)
    with pytest.raises(errors.KubeError, match="Set KUBECONFIG"):
        await connect(environ={"KUBECONFIG": str(path)})


async def test_how_long_nobody_answered_is_known(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Since the first call that got none; a refusal is an answer, and a slow one sets no clock."""
    clock = SimpleNamespace(monotonic=lambda: clock.now, now=1000.0)
    monkeypatch.setattr(client_module, "time", clock)
    client.outage = Outage(lambda: clock.now)
    client._epoch = float(1_800_000_000 - 1000)

    def take() -> None:
        date = formatdate(client.now(), usegmt=True)
        clock.now += 7.0
        server.answers[0].headers["Date"] = date

    server.while_asked = take
    for code in (401, 429, 500, 503):
        server.answers = [status(code, "Test"), status(403, "Forbidden")]
        with pytest.raises(errors.Unavailable):
            await nodes.get(client, "n")
        assert client.outage.seconds == 7.0
        with pytest.raises(errors.Forbidden):
            await nodes.get(client, "n")
        assert client.outage.seconds == 0.0
    assert client.now() == 1_800_000_000 + 8 * 7.0


@pytest.mark.parametrize(
    ("code", "delay", "rests"),
    [
        *((429, "7", 7), (503, "1", 1), (503, "9999", client_module.LONGEST_REST)),
        *((429, "", 0), (429, "Fri, 27 Nov 2026 10:00:00 GMT", 0), (403, "7", 0)),
    ],
)
async def test_a_busy_server_is_left_alone_for_as_long_as_it_says(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch, code: int, delay: str, rests: float
) -> None:
    clock = SimpleNamespace(monotonic=lambda: clock.now, now=1000.0)

    async def sleep(seconds: float) -> None:
        clock.now += seconds

    monkeypatch.setattr(client_module, "time", clock)
    monkeypatch.setattr(client_module, "asyncio", SimpleNamespace(sleep=sleep))
    refusal = status(code)
    refusal.headers["Retry-After"] = delay
    server.answers = [refusal]
    with pytest.raises(errors.KubeError):
        await client.call("PATCH", f"{PATH}/n", body={})
    await client.call("GET", PATH)
    assert clock.now == 1000 + rests


@pytest.mark.parametrize(
    ("burst", "idle", "gives_up", "times"),
    [
        pytest.param(3, 0.0, [], [0, 0, 0, 0.1, 0.2, 0.3], id="a burst, then the rate"),
        pytest.param(2, 3600.0, [], [0, 0, 0.1, 0.2, 0.3, 0.4], id="idle time saves up one burst"),
        pytest.param(3, 0.0, [3, 4], [0, 0, 0, 0.2], id="who gives up blocks nobody"),
    ],
)
def test_calls_keep_to_the_rate(
    monkeypatch: pytest.MonkeyPatch, burst: int, idle: float, gives_up: list[int], times: list[float]
) -> None:
    """When each of six calls at once is let through, in their order, by a limit of ten a second."""

    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(client_module.time, "monotonic", loop.time)
        limiter = Limiter(rate=10, burst=burst)
        await asyncio.sleep(idle)
        calls_at: list[tuple[int, float]] = []

        async def call(number: int) -> None:
            await limiter.wait()
            calls_at.append((number, loop.time() - idle))

        calls = [asyncio.create_task(call(n)) for n in range(6)]
        await asyncio.sleep(0)
        for number in gives_up:
            calls[number].cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert calls_at == sorted(calls_at), "callers overtook each other"
        return [round(at, 6) for _, at in calls_at]

    assert run(main()) == times
