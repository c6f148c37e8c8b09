"""The fault proxy: invisible until a rule fires, and then it acts at the right moment."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.audit import AuditTrail
from testbed.controlplane import ControlPlane
from testbed.proxy import FaultProxy, RequestInfo, ResponseInfo
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
    """A node to write to."""
    name = f"node-{uuid.uuid4().hex[:8]}"
    control_plane.rest().create("/api/v1/nodes", {"metadata": {"name": name, **label("none")["metadata"]}})
    yield name
    control_plane.rest().delete(f"/api/v1/nodes/{name}")


def label(value: str) -> dict[str, Any]:
    """A patch that sets the test label; new nodes have `none`."""
    return {"metadata": {"labels": {LABEL: value}}}


def value_of(rest: Rest, node: str) -> str:
    """The test label's value."""
    result: str = rest.get(f"/api/v1/nodes/{node}")["metadata"]["labels"][LABEL]
    return result


def test_requests_pass_unchanged(rest: Rest, node: str, audit: AuditTrail) -> None:
    """Body, content type, query, user agent and token reach the API server."""
    rest.patch(f"/api/v1/nodes/{node}?fieldManager=me%2Fmyself", label("a"), content_type=STRATEGIC)
    [entry] = audit.writes(resource="nodes", name=node, verb="patch", user="testbed-admin")
    assert (entry.code, entry.body, entry.user_agent) == (200, label("a"), "nodegauge-testbed")
    assert entry.raw["requestURI"].endswith("?fieldManager=me%2Fmyself")


def test_before_the_write_is_not_done_yet_and_after_it_is(
    control_plane: ControlPlane, rest: Rest, node: str, fault_proxy: FaultProxy
) -> None:
    """A callable runs at its moment; it gets the request and, after the write, the answer."""
    direct = control_plane.rest()
    seen: list[tuple[str, int | None, str]] = []

    def look(request: RequestInfo, response: ResponseInfo | None) -> None:
        status = response.status if response else None
        seen.append((value_of(direct, node), status, json.loads(request.body)["metadata"]["labels"][LABEL]))

    for when in ("before", "after"):
        fault_proxy.on(method="PATCH", path=rf"/nodes/{node}$", when=when, do=look)
    rest.patch(f"/api/v1/nodes/{node}", label("x"))
    assert seen == [("none", None, "x"), ("x", 200, "x")]


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

    fault_proxy.on(method="PATCH", when=when, do=kill)
    with subprocess.Popen(command) as writer:
        started.set()
        assert writer.wait() == -9
    fault_proxy.wait_idle()
    assert value_of(control_plane.rest(), node) == expected


def test_a_paused_proxy_refuses_connections_and_comes_back(rest: Rest, fault_proxy: FaultProxy) -> None:
    """As an API server that is gone for a while, at the same address before and after."""
    rest.get("/readyz/ping")
    fault_proxy.pause()
    with pytest.raises(ConnectionError):
        rest.get("/readyz/ping")
    fault_proxy.resume()
    rest.get("/readyz/ping")
