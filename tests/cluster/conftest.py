"""Fixtures on the control plane of the worker, for tests that tidy up after themselves."""

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodegauge_operator.kube.leases import LEASE
from support.cluster_under_test import ClusterUnderTest, install_crds
from support.guarded import Guarded, release
from support.tenancy import PLANE
from testbed.audit import AuditTrail
from testbed.controlplane import ControlPlane
from testbed.errors import ApiError
from testbed.rest import Rest


@pytest.fixture
def api(control_plane: ControlPlane) -> Rest:
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
def crds(api: Rest) -> None:
    install_crds(api)


@pytest.fixture
def rig(
    api: Rest, control_plane: ControlPlane, namespace: str, tmp_path: Path, crds: None
) -> Iterator[ClusterUnderTest]:
    """A corner of the cluster, with the CRDs installed."""
    rig = ClusterUnderTest(api, namespace=namespace, directory=tmp_path, kubeconfig=control_plane.kubeconfig)
    yield rig
    rig.clean()


@pytest.fixture
def audit(control_plane: ControlPlane) -> AuditTrail:
    return AuditTrail(control_plane.audit_log, control_plane.rest())


@pytest.fixture(scope="session")
def guarded(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Guarded:
    """One release with its admission policies in force for all tests of them; they leave nothing behind."""
    return PLANE.enter(release(control_plane, tmp_path_factory.mktemp("guarded")))
