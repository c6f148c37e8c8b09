"""The API server is away, in every way that it can be: the watches come back, and the process lives on.

kopf is the real one, on an API server that a test disturbs; its pauses are made short.  The test holds the
clock by which the operator is steady, gives up, or loses its Lease.
"""

import asyncio
import contextlib
import gc
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from kopf._core.reactor.inventory import ResourceMemories

from nodegauge_operator import names
from nodegauge_operator.handlers import supervisor as supervisor_module
from nodegauge_operator.handlers.app import Life, SweepDied, unready
from nodegauge_operator.handlers.supervisor import Supervisor
from nodegauge_operator.kube import leases, outage
from nodegauge_operator.kube.client import Client, connect
from nodegauge_operator.kube.errors import KubeError
from nodegauge_operator.metrics import Metrics
from nodegauge_operator.reconcile.cache import Cache, Restored
from nodegauge_operator.reconcile.sweep import Sweep
from support.api_server import ADMISSION, BINDINGS
from support.client import FakeClient
from support.cluster import FakeCluster
from support.operator import SETTINGS
from testbed.kubeconfig import write_kubeconfig
from testbed.wait import DEADLINE_SECONDS

NAMESPACED = ["pods", "daemonsets"]
OURS = [names.POLICY_PLURAL, names.REPORT_PLURAL, names.READING_PLURAL]
PROTECTED = {path.rpartition("/")[2]: FakeCluster().objects[path] for path in (ADMISSION, BINDINGS)}
"""The admission policy of NodeReadings and its binding, by plural."""
Answer = Callable[[web.Request], web.StreamResponse | None]


def resources(plurals: list[str]) -> dict[str, Any]:
    verbs = ["get", "list", "watch", "patch"]
    items = [
        {"name": p, "singularName": p[:-1], "kind": p.title(), "namespaced": p in NAMESPACED, "verbs": verbs}
        for p in plurals
    ]
    return {"resources": items}


def node(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": name, "resourceVersion": "1"}}


def failed(status: int) -> Answer:
    body = {"kind": "Status", "message": f"as the test says: {status}", "reason": "Test", "code": status}
    return lambda _: web.json_response(body, status=status)


def only(part: str, answer: Answer) -> Answer:
    """The same for requests with this in their path and query alone."""
    return lambda request: answer(request) if part in request.path_qs else None


def raw(text: str) -> Answer:
    """This instead of a watch."""
    return only("watch=true", lambda _: web.Response(text=text, content_type="application/json"))


class ApiServer:
    """Discovery, lists and watches over HTTP.  `disturb` answers first, where it returns something."""

    def __init__(self) -> None:
        self.disturb: Answer = lambda _: None
        self.crds = list(OURS)
        self.asked = self.disturbed = 0
        """Requests, and those that `disturb` answered."""
        self.nodes: list[str] = []
        self._watches: list[asyncio.Queue[str]] = []

    async def start(self) -> str:
        """Listen; the URL."""
        application = web.Application()
        application.router.add_get("/{path:.*}", self._handle)
        application.router.add_patch(leases.LEASE, self._handle)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        self.cut()
        await self._runner.cleanup()

    def cut(self) -> None:
        for queue in self._watches:
            queue.put_nowait("")
        self._watches.clear()

    def add_node(self, name: str) -> None:
        self.nodes.append(name)
        for queue in self._watches:
            queue.put_nowait(name)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        if (answer := self.disturb(request)) is not None:
            self.disturbed += 1
            return answer
        versions = {"groupVersion": names.API_VERSION, "version": names.VERSION}
        body: dict[str, Any]
        match request.path.strip("/").split("/"):
            case ["api"]:
                body = {"versions": ["v1"]}
            case ["api", "v1"]:
                body = resources(["nodes", "pods", "namespaces", "events"])
            case ["apis"]:
                group = {"name": names.GROUP, "versions": [versions], "preferredVersion": versions}
                apps = {"groupVersion": "apps/v1", "version": "v1"}
                dra = {"groupVersion": names.DRA_API, "version": "v1"}
                groups = [
                    {"name": name, "versions": [one], "preferredVersion": one}
                    for name, one in (("apps", apps), ("resource.k8s.io", dra))
                ]
                body = {"groups": groups + ([group] if self.crds else [])}
            case ["apis", "apps", "v1"]:
                body = resources(["daemonsets"])
            case ["apis", "resource.k8s.io", "v1"]:
                body = resources([names.SLICE_PLURAL])
            case ["apis", "coordination.k8s.io", *_]:
                spec = {"holderIdentity": SETTINGS.probe.installation}
                body = {"metadata": {"resourceVersion": "1"}, "spec": spec}
            case ["apis", "admissionregistration.k8s.io", _, plural, name]:
                body = PROTECTED[plural][name]
            case ["apis", names.GROUP, names.VERSION] if self.crds:
                body = resources(self.crds)
            case ["apis", names.GROUP, names.VERSION, *plural] if plural not in ([one] for one in self.crds):
                return web.json_response({"kind": "Status", "reason": "NotFound"}, status=404)
            case _:
                return await self._objects(request)
        return web.json_response(body)

    async def _objects(self, request: web.Request) -> web.StreamResponse:
        nodes = request.path.endswith("/nodes")
        if "watch" in request.query:
            return await self._watch(request, nodes=nodes)
        items = [node(name) for name in self.nodes] if nodes else []
        version = {"resourceVersion": str(1 + len(self.nodes))}
        return web.json_response({"metadata": version, "items": items})

    async def _watch(self, request: web.Request, *, nodes: bool) -> web.StreamResponse:
        """What came since the list, then what comes, until `cut` or until the client has gone."""
        answer = web.StreamResponse()
        await answer.prepare(request)
        queue: asyncio.Queue[str] = asyncio.Queue()
        self._watches.append(queue)
        since = int(request.query.get("resourceVersion") or 1) - 1
        for name in self.nodes[since:]:
            queue.put_nowait(name)
        with contextlib.suppress(ConnectionResetError):
            while name := await queue.get():
                if nodes:
                    event = {"type": "ADDED", "object": node(name)}
                    await answer.write(json.dumps(event).encode() + b"\n")
        return answer


class Operator:
    """Watches on such a server, without the sweep's loop."""

    task: asyncio.Task[None]

    def __init__(self, server: ApiServer, client: Client, clock: SimpleNamespace, environ: Any) -> None:
        self.server, self.client, self.clock = server, client, clock
        self.sweep = Sweep(client=client, cache=Cache(), metrics=Metrics(), settings=SETTINGS)
        self.sweep.installation._monotonic = lambda: clock.now
        self.watches = Supervisor(client=client, sweep=self.sweep, settings=SETTINGS, environ=environ)
        self.gaps = self._count = 0
        interrupted = self.sweep.interrupted

        def counting() -> None:
            self.gaps += 1
            interrupted()

        self.sweep.interrupted = counting  # type: ignore[method-assign]

    def unready(self) -> str:
        """Why it is not ready; empty while it is."""
        return unready(self.client, self.sweep, self.watches)

    @asynccontextmanager
    async def disturbed(self, how: Answer) -> AsyncIterator[None]:
        """Within it the server answers so, and the operator is not ready."""
        self.server.disturb = how
        self.server.cut()
        await self.until(self.unready, "unready")
        yield
        self.server.disturb = lambda _: None

    async def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for a condition while the watches go on; an error of theirs is one of the test."""
        loop = asyncio.get_running_loop()
        end = loop.time() + DEADLINE_SECONDS
        while not condition():
            assert not self.task.done(), self.task.exception()
            seen = f"{self.server.asked} requests, nodes {[*self.sweep.cache.nodes]}, {self.unready()!r}"
            assert loop.time() < end, f"never {what}; seen last: {seen}"
            await asyncio.sleep(0.01)

    async def sees_nodes(self) -> None:
        """A node that registers now is seen through the watch."""
        self._count += 1
        name = f"node-{self._count}"
        await self.until(lambda: len(self.server._watches) >= 7, "watched")
        self.server.add_node(name)
        await self.until(lambda: name in self.sweep.cache.nodes, f"saw {name}")

    async def recovers(self) -> None:
        """It sees nodes, is steady for long enough, and says so."""
        for _ in range(100):
            if not self.unready():
                return
            await self.sees_nodes()
            self.clock.now += supervisor_module.STEADY_SECONDS
            asked = self.server.asked
            await self.until(lambda since=asked: self.server.asked > since + 1, "looked")
        raise AssertionError(f"never ready: {self.unready()}")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The supervisor's, which stands still; its pauses are hundredths of a second."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(supervisor_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    pauses = {"START_SECONDS": 0.2, "LOOK_SECONDS": 0.05, "STEADY_SECONDS": 0.3, "SHORTEST": 0.02}
    for name, value in {**pauses, "RETRIES": (0.01,)}.items():
        monkeypatch.setattr(supervisor_module, name, value)
    monkeypatch.setattr("nodegauge_operator.kube.outage.LONG_SECONDS", 0.1)
    monkeypatch.setattr(supervisor_module, "backoff", lambda tries, _: 0.02)
    monkeypatch.setattr("nodegauge_operator.kube.client.TOKEN_SECONDS", 0.0)
    return clock


@pytest_asyncio.fixture
async def operator(clock: SimpleNamespace, tmp_path: Path) -> AsyncIterator[Operator]:
    server = ApiServer()
    url = await server.start()
    path = write_kubeconfig(tmp_path / "config", server=url, authority="", user={"token": "secret"})
    environ = {"KUBECONFIG": str(path)}
    operator = Operator(server, await connect(environ=environ), clock, environ)
    await operator.sweep.installation.renew()
    await operator.sweep._trust.look(on_change=lambda: None)
    assert operator.sweep._trust.problem == ""
    operator.task = asyncio.create_task(operator.watches.run())
    yield operator
    operator.watches.stop()
    await asyncio.gather(operator.task, return_exceptions=True)
    await operator.client.close()
    await server.stop()


OUTAGES: dict[str, Answer] = {
    "503": failed(503),
    "500": failed(500),
    "401": failed(401),
    "403": failed(403),
    "429": failed(429),
    "a proxy's page": lambda _: web.Response(text="<html>wait</html>", content_type="text/html"),
    "403 for one list": only("nodereports?", failed(403)),
    "404 for one resource": only("nodereports?", failed(404)),
    "an error in a watch": raw('{"type": "ERROR", "object": {"code": 500, "message": "?"}}\n'),
    "half an event": raw('{"type": "ADDED", "obj'),
    "an event without an object": raw('{"type": "ADDED"}\n'),
}


@pytest.mark.parametrize("how", OUTAGES)
@pytest.mark.parametrize("from_the_start", [True, False])
async def test_the_watches_come_back_after_every_kind_of_outage(
    operator: Operator, how: str, from_the_start: bool
) -> None:
    operator.sweep.listed = True
    if not from_the_start:
        await operator.sees_nodes()
    async with operator.disturbed(OUTAGES[how]):
        least = operator.server.disturbed + 3
        await operator.until(lambda: operator.server.disturbed >= least, "asked again")
        gaps = operator.gaps
    await operator.recovers()
    assert operator.gaps > gaps or from_the_start


@pytest.mark.parametrize("gone", [OURS, OURS[:1], OURS[1:]])
@pytest.mark.parametrize("for_long", [False, True])
async def test_a_crd_that_is_deleted_and_made_again_is_watched_again(
    operator: Operator, gone: list[str], for_long: bool
) -> None:
    operator.sweep.listed = True
    for _ in range(3):
        await operator.sees_nodes()
        operator.server.crds = [plural for plural in OURS if plural not in gone]
        operator.server.cut()
        if for_long:
            await operator.until(lambda: "CRDs missing" in operator.unready(), "named the missing CRD")
            asked = operator.server.asked
            await operator.until(lambda since=asked: operator.server.asked > since + 3, "asked again")
        operator.server.crds = list(OURS)
    await operator.sees_nodes()
    await operator.recovers()


async def test_a_resource_that_discovery_shows_late_is_watched(operator: Operator) -> None:
    """Of several API servers one may not know the CRD yet when kopf asks it."""
    operator.server.disturb = lambda request: (
        web.json_response({"groups": []}) if request.path == "/apis" else None
    )
    await operator.until(lambda: "not served yet" in operator.unready(), "missed the resource")
    operator.server.disturb = lambda _: None
    await operator.sees_nodes()


async def test_crds_that_are_missing_at_the_start_end_the_process(operator: Operator) -> None:
    operator.server.crds = OURS[:1]
    await operator.until(lambda: "CRDs missing" in operator.unready(), "named the missing CRD")
    operator.clock.now += supervisor_module.START_SECONDS
    await asyncio.wait({operator.task}, timeout=DEADLINE_SECONDS)
    with pytest.raises(KubeError, match=r"install nodereports\.nodegauge\.dev and nodereadings\..*crds/"):
        operator.task.result()


async def test_an_outage_leaves_no_tasks_behind_and_ends_none_of_ours(operator: Operator) -> None:
    """kopf cancels every task that began after it, unless it is told whose they are."""
    await operator.sees_nodes()
    ours = asyncio.create_task(asyncio.Event().wait())
    first = len(asyncio.all_tasks())
    for _ in range(3):
        async with operator.disturbed(failed(404)):
            pass
        await operator.sees_nodes()
        await operator.until(lambda: len(asyncio.all_tasks()) <= first + 2, "as few tasks as before")
    assert not ours.done()
    ours.cancel()


async def test_a_watch_that_swallows_its_cancellation_ends_with_the_others(operator: Operator) -> None:
    """As kopf's do between two streams; it would be served beside the next ones, and hold up the exit."""
    await operator.sees_nodes()

    async def swallows() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    left = asyncio.create_task(swallows(), name="watcher for nodes.v1@None")
    async with operator.disturbed(failed(404)):
        await operator.until(left.done, "the end of the watch")


@pytest.mark.parametrize(
    ("error", "ends"), [(None, None), (Restored("older"), Restored), (ValueError("a bug"), SweepDied)]
)
@pytest.mark.asyncio
async def test_a_restored_etcd_ends_what_is_known_and_not_the_process(
    error: Exception | None, ends: type[Exception] | None
) -> None:
    """An error of the loop ends both, and a signal ends neither with an error."""
    life = Life(FakeClient(FakeCluster()), metrics=Metrics(), settings=SETTINGS, environ={})
    watching = asyncio.Event()

    async def sweep() -> None:
        if error is not None:
            raise error
        life.stop.set()
        await asyncio.Event().wait()

    life.sweep.run = sweep  # type: ignore[method-assign]
    life.watches.run, life.watches.stop = watching.wait, watching.set  # type: ignore[method-assign, assignment]
    try:
        ended: object = await life.run()
    except SweepDied as died:
        ended = died
    assert type(ended) is (ends or type(None))
    assert watching.is_set()


def test_one_line_a_minute_says_what_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    noted = outage.Outage(clock=lambda: now[0])
    with caplog.at_level(logging.INFO):
        for second in range(600):
            now[0] = float(second)
            for call in range(10):
                noted.failed(f"GET /{call}: 503")
        now[0] += 1
        noted.answered()
        noted.answered()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 11
    assert "for 540 s, 600 failed calls" in lines[9]
    assert "/0: 503" in lines[9]
    assert "answers again after 600 s" in lines[10]
    assert noted.seconds == 0.0


async def test_kopf_keeps_nothing_of_the_objects_that_it_saw(operator: Operator) -> None:
    """It would keep a kilobyte for each, of 5,000 nodes with their pods and reports 15 MB."""
    await operator.sees_nodes()
    await operator.sees_nodes()
    every = [one for one in gc.get_objects() if isinstance(one, ResourceMemories)]
    assert every
    assert not [memory for memories in every for memory in memories.iter_all_memories()]
