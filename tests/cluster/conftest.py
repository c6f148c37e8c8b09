"""Fixtures on a real control plane, one for the whole session.

Its programs are found or built before the first test, with their progress on the terminal: building takes
minutes, longer than any test may, and a test that cannot have them must fail, not skip.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator

import pytest

from nodegauge_operator.kube.leases import LEASE
from testbed.audit import AuditTrail
from testbed.binaries import find_or_build
from testbed.controlplane import ControlPlane
from testbed.errors import ApiError, TestbedError
from testbed.proxy import FaultProxy
from testbed.rest import Rest

NEEDS_PROGRAMS = "control_plane"


def pytest_collection_finish(session: pytest.Session) -> None:
    """Find or build the programs, outside of any test's time limit."""
    if session.config.option.collectonly:
        return
    if not any(map(_needs_programs, session.items)):
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    shown = capture.global_and_fixture_disabled() if capture else contextlib.nullcontext()
    try:
        with shown:
            find_or_build()
    except TestbedError as error:
        raise pytest.UsageError(str(error)) from error


def _needs_programs(item: pytest.Item) -> bool:
    """Whether a test shares this control plane, or starts one of its own."""
    return NEEDS_PROGRAMS in getattr(item, "fixturenames", ()) or bool(item.get_closest_marker("cluster"))


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A running control plane that all tests of the session share."""
    with ControlPlane(tmp_path_factory.mktemp("control-plane")) as control_plane:
        yield control_plane


@pytest.fixture
def api(control_plane: ControlPlane) -> Rest:
    """Plain calls as the administrator."""
    return control_plane.rest()


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    """A namespace of its own, in which pods can be created at once."""
    name = f"test-{uuid.uuid4().hex[:10]}"
    rest = control_plane.rest()
    rest.create("/api/v1/namespaces", {"metadata": {"name": name}})
    control_plane.await_objects(namespace=name)
    yield name
    with contextlib.suppress(ApiError):
        rest.delete(LEASE)  # the installation of the next namespace need not wait for the end of this one
    with contextlib.suppress(ApiError):
        rest.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture
def fault_proxy(control_plane: ControlPlane) -> Iterator[FaultProxy]:
    """A proxy before the API server; a rule whose callable raised fails the test."""
    with FaultProxy(control_plane) as proxy:
        yield proxy


@pytest.fixture
def audit(control_plane: ControlPlane) -> AuditTrail:
    """The audit log since the beginning of the test."""
    return AuditTrail(control_plane.audit_log, control_plane.rest())
