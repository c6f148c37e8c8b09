"""helm for tests of the chart, and an empty control plane to install it on."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from support.chart import NAMESPACE, ChartPods, Helm, clear
from testbed.binaries import find_or_build
from testbed.controlplane import ControlPlane
from testbed.rest import Rest


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(program=find_or_build().helm, home=tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="session")
def empty_plane(control_plane: ControlPlane) -> ControlPlane:
    level = {"pod-security.kubernetes.io/enforce": "restricted"}
    control_plane.rest().create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE, "labels": level}})
    return control_plane


@pytest.fixture
def rest(empty_plane: ControlPlane) -> Rest:
    return empty_plane.rest()


@pytest.fixture
def chart_pods(empty_plane: ControlPlane, tmp_path: Path) -> Iterator[ChartPods]:
    with ChartPods(empty_plane, directory=tmp_path) as running:
        yield running


@pytest.fixture
def cluster(helm: Helm, empty_plane: ControlPlane, chart_pods: ChartPods) -> Iterator[Helm]:
    """helm on an empty cluster; what a test installs is removed after it."""
    on_cluster = replace(helm, plane=empty_plane)
    yield on_cluster
    clear(empty_plane.rest())


@pytest.fixture
def lean(cluster: Helm) -> Helm:
    """The same without the admission policies, for what has nothing to do with them."""
    return replace(cluster, lean=True)
