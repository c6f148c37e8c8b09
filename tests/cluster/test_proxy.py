"""The fault proxy: it is not noticed until it is told to break something, and breaks exactly that."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from kubernetes.aio import client, config

from testbed.audit import AuditTrail
from testbed.controlplane import ControlPlane
from testbed.errors import ApiError, TestbedError
from testbed.proxy import FaultProxy
from testbed.proxy_rules import Delay, Drop, Refuse, Replace, RequestInfo, ResponseInfo
from testbed.rest import STRATEGIC, Rest

pytestmark = pytest.mark.cluster

TESTS = Path(__file__).parents[1]
LABEL = "example.com/value"


@pytest.fixture
def rest(control_plane: ControlPlane, fault_proxy: FaultProxy) -> Rest:
    """Plain calls through the proxy."""
    return Rest(fault_proxy.server, ca_file=control_plane.ca_file, token=control_plane.admin_token)


@pytest.fixture
def node(control_plane: ControlPlane) -> Iterator[str]:
    """A node to be written to."""
    name = f"node-{uuid.uuid4().hex[:8]}"
    control_plane.rest().create("/api/v1/nodes", {"metadata": {"name": name, **label("none")["metadata"]}})
    yield name
    control_plane.rest().delete(f"/api/v1/nodes/{name}")


def label(value: str) -> dict[str, Any]:
    """A patch that sets the test label; nodes are made with `none`."""
    return {"metadata": {"labels": {LABEL: value}}}


def value_of(rest: Rest, node: str) -> str:
    """The test label as it is."""
    found: str = rest.get(f"/api/v1/nodes/{node}")["metadata"]["labels"][LABEL]
    return found


def eventually(condition: Callable[[], object], *, seconds: float = 10.0) -> None:
    """Poll until the condition holds."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"not within {seconds:g} s"
        time.sleep(0.01)


def test_requests_pass_unchanged_and_are_recorded(
    rest: Rest, node: str, fault_proxy: FaultProxy, audit: AuditTrail
) -> None:
    """Body, content type, user agent and token reach the API server; what went through is known."""
    rest.patch(f"/api/v1/nodes/{node}?fieldManager=me%2Fmyself", label("a"), content_type=STRATEGIC)
    [entry] = audit.writes(resource="nodes", name=node, verb="patch", user="testbed-admin")
    assert entry.user_agent == "nodegauge-testbed"
    assert entry.body == label("a")
    assert entry.raw["requestURI"].endswith("?fieldManager=me%2Fmyself")
    [exchange] = fault_proxy.exchanges(method="PATCH")
    assert exchange.status == 200
    assert exchange.request.path == f"/api/v1/nodes/{node}"
    assert exchange.request.query == {"fieldManager": "me/myself"}
    assert exchange.request.content_type == STRATEGIC
    assert exchange.request.json() == label("a")


def test_refusals_of_the_api_server_pass(control_plane: ControlPlane, fault_proxy: FaultProxy) -> None:
    """A token that is none is refused by the API server itself, with its own words."""
    stranger = Rest(fault_proxy.server, ca_file=control_plane.ca_file, token="nobody")
    with pytest.raises(ApiError, match="401 Unauthorized"):
        stranger.get("/api/v1/nodes")


def test_kubectl_and_helm_work_through_it(control_plane: ControlPlane, fault_proxy: FaultProxy) -> None:
    """Go's clients, with their compressed answers and many connections, notice nothing."""
    kubeconfig = str(fault_proxy.kubeconfig())
    assert control_plane.helm("list", "--kubeconfig", kubeconfig, "--output", "json").strip() == "[]"
    if control_plane.binaries.kubectl:
        listed = control_plane.kubectl("--kubeconfig", kubeconfig, "get", "namespaces", "--output", "json")
        assert "default" in [item["metadata"]["name"] for item in json.loads(listed)["items"]]
    assert fault_proxy.exchanges(method="GET")


async def test_watches_pass_event_by_event_and_can_be_cut(
    control_plane: ControlPlane, fault_proxy: FaultProxy, node: str
) -> None:
    """The operator's own client library sees a change as it happens, and a cut as a broken connection."""
    configuration = client.Configuration()
    await config.load_kube_config(str(fault_proxy.kubeconfig()), client_configuration=configuration)
    async with client.ApiClient(configuration) as api:
        answer = await client.CoreV1Api(api).list_node_without_preload_content(
            watch=True, field_selector=f"metadata.name={node}"
        )
        first = json.loads(await answer.content.readline())
        control_plane.rest().patch(f"/api/v1/nodes/{node}", label("seen"))
        second = first
        while second["object"]["metadata"]["labels"][LABEL] != "seen":
            second = json.loads(await answer.content.readline())
        assert fault_proxy.cut_watches() == 1
        with pytest.raises(aiohttp.ClientError):
            await answer.content.readline()
        answer.close()
    assert (first["type"], second["type"]) == ("ADDED", "MODIFIED")
    eventually(lambda: fault_proxy.open_watches == 0)


def test_a_watch_whose_client_went_is_let_go(control_plane: ControlPlane, fault_proxy: FaultProxy) -> None:
    """A killed client leaves no open watch behind, although no event comes."""
    if control_plane.binaries.kubectl is None:
        pytest.fail("this test watches with kubectl, and there is none")
    command = [control_plane.binaries.kubectl, "--kubeconfig", fault_proxy.kubeconfig(), "get", "nodes", "-w"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as watcher:
        eventually(lambda: fault_proxy.open_watches == 1)
        watcher.kill()
    eventually(lambda: fault_proxy.open_watches == 0)


def test_before_the_write_is_not_there_yet_and_after_it_is(
    control_plane: ControlPlane, rest: Rest, node: str, fault_proxy: FaultProxy
) -> None:
    """A callable runs exactly at its moment, sees the request, and after also the answer."""
    direct = control_plane.rest()
    seen: list[tuple[str, int | None, str]] = []

    def look(request: RequestInfo, response: ResponseInfo | None) -> None:
        status = response.status if response else None
        seen.append((value_of(direct, node), status, request.json()["metadata"]["labels"][LABEL]))

    fault_proxy.on(method="PATCH", path=rf"/nodes/{node}$", when="before", do=look)
    fault_proxy.on(method="PATCH", path=rf"/nodes/{node}$", when="after", do=look)
    rest.patch(f"/api/v1/nodes/{node}", label("x"))
    assert seen == [("none", None, "x"), ("x", 200, "x")]


def test_a_rule_fires_for_what_it_names_and_as_often_as_told(
    rest: Rest, node: str, fault_proxy: FaultProxy
) -> None:
    """Method, path, content and count all limit it; a refusal is a Status object with its Retry-After."""
    refuse = Refuse(status=429, reason="TooManyRequests", message="later", retry_after=3)
    rule = fault_proxy.on(
        method="PATCH",
        path=rf"/nodes/{node}$",
        times=2,
        where=lambda request: b"no" in request.body,
        do=refuse,
    )
    rest.get(f"/api/v1/nodes/{node}")
    rest.patch(f"/api/v1/nodes/{node}", label("yes"))
    for _ in range(2):
        with pytest.raises(ApiError, match="429 TooManyRequests: later"):
            rest.patch(f"/api/v1/nodes/{node}", label("no"))
    rest.patch(f"/api/v1/nodes/{node}", label("no"))
    assert len(rule.fired) == 2
    assert [one.status for one in fault_proxy.exchanges(method="PATCH")] == [200, 429, 429, 200]
    rule.cancel()


def test_dropped_before_leaves_it_undone_and_after_does_it(
    control_plane: ControlPlane, rest: Rest, node: str, fault_proxy: FaultProxy
) -> None:
    """The client cannot tell the two apart, as in life; the API server can."""
    path = f"/api/v1/nodes/{node}"
    for when, expected in (("before", "none"), ("after", "dropped")):
        fault_proxy.on(method="PATCH", when=when, do=Drop())
        with pytest.raises(OSError):
            rest.patch(path, label("dropped"))
        assert value_of(control_plane.rest(), node) == expected
    assert [one.status for one in fault_proxy.exchanges(method="PATCH")] == [None, None]


def test_an_error_after_the_write_hides_that_it_was_done(
    control_plane: ControlPlane, rest: Rest, node: str, fault_proxy: FaultProxy
) -> None:
    """The classic: 500 for a request that succeeded."""
    fault_proxy.on(method="PATCH", when="after", do=Refuse(status=500, reason="InternalError"))
    with pytest.raises(ApiError, match="500 InternalError"):
        rest.patch(f"/api/v1/nodes/{node}", label("done"))
    assert value_of(control_plane.rest(), node) == "done"


WRITER = """
import sys, pathlib
sys.path.insert(0, sys.argv[1])
from testbed.rest import Rest
rest = Rest(sys.argv[2], ca_file=pathlib.Path(sys.argv[3]), token=sys.argv[4])
rest.patch(sys.argv[5], {"metadata": {"labels": {"example.com/value": "written"}}})
"""


@pytest.mark.parametrize(("when", "expected"), [("before", "none"), ("after", "written")])
def test_a_client_killed_at_a_write_has_written_nothing_before_and_all_after(
    control_plane: ControlPlane, node: str, fault_proxy: FaultProxy, when: str, expected: str
) -> None:
    """SIGKILL from a callable: the request of a process that died before it is not passed on."""
    arguments = [fault_proxy.server, str(control_plane.ca_file), control_plane.admin_token]
    command = [sys.executable, "-c", WRITER, str(TESTS), *arguments, f"/api/v1/nodes/{node}"]
    started = threading.Event()

    def kill(request: RequestInfo, response: ResponseInfo | None) -> None:
        started.wait()
        writer.kill()
        writer.wait()

    rule = fault_proxy.on(method="PATCH", when=when, do=kill)
    with subprocess.Popen(command) as writer:
        started.set()
        rule.wait(20.0)
        assert writer.wait() == -9
    eventually(lambda: fault_proxy.exchanges(method="PATCH"))
    assert value_of(control_plane.rest(), node) == expected


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_an_answer_can_be_replaced(
    control_plane: ControlPlane, fault_proxy: FaultProxy, encoding: str
) -> None:
    """A rule reads the API server's answer, packed or not, and sends another in its place, once."""

    def without_apps(_request: RequestInfo, response: ResponseInfo | None) -> Replace:
        assert response is not None
        groups = [one for one in response.json()["groups"] if one["name"] != "apps"]
        return Replace(json.dumps({"groups": groups}).encode())

    rest = Rest(fault_proxy.server, ca_file=control_plane.ca_file, token=control_plane.admin_token)
    fault_proxy.on(path="^/apis$", when="after", do=without_apps)
    seen = [rest.call("GET", "/apis", headers={"Accept-Encoding": encoding})["groups"] for _ in range(2)]
    assert ["apps" in [one["name"] for one in groups] for groups in seen] == [False, True]


def test_a_delayed_request_waits_alone(rest: Rest, node: str, fault_proxy: FaultProxy) -> None:
    """While one request waits, others pass."""
    fault_proxy.on(method="PATCH", do=Delay(0.3))
    patch = threading.Thread(target=rest.patch, args=(f"/api/v1/nodes/{node}", label("late")))
    patch.start()
    rest.get(f"/api/v1/nodes/{node}")
    patch.join()
    order = [one.request.method for one in fault_proxy.exchanges()]
    assert order == ["GET", "PATCH"]
    assert fault_proxy.exchanges(method="PATCH")[0].seconds >= 0.3


def test_a_paused_proxy_refuses_connections_and_comes_back(rest: Rest, fault_proxy: FaultProxy) -> None:
    """An API server that is gone for a while, at the same address before and after."""
    rest.get("/readyz/ping")
    fault_proxy.pause()
    with pytest.raises(ConnectionError):
        rest.get("/readyz/ping")
    fault_proxy.resume()
    rest.get("/readyz/ping")


def test_a_callable_that_raises_fails_the_test(control_plane: ControlPlane) -> None:
    """A broken rule must not pass unnoticed: its request fails, and so does the proxy's end."""
    proxy = FaultProxy(control_plane)
    proxy.start()
    proxy.on(do=lambda *_: 1 // 0)  # type: ignore[arg-type,return-value]
    rest = Rest(proxy.server, ca_file=control_plane.ca_file, token=control_plane.admin_token)
    with pytest.raises(ApiError, match="500"):
        rest.get("/readyz/ping")
    with pytest.raises(TestbedError, match="ZeroDivisionError"):
        proxy.stop()
    proxy.stop()


def test_without_an_api_server_connections_break(tmp_path: Path) -> None:
    """The proxy answers nothing in its place, and goes on when it is back."""
    with ControlPlane(tmp_path) as control_plane, FaultProxy(control_plane) as proxy:
        rest = Rest(proxy.server, ca_file=control_plane.ca_file, token=control_plane.admin_token)
        control_plane.stop_apiserver(grace=0)
        with pytest.raises(OSError):
            rest.get("/readyz/ping")
        control_plane.start_apiserver()
        rest.get("/readyz/ping")
