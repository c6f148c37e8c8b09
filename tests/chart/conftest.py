"""helm for tests of the chart, and an empty control plane to install it on.

The control plane is not shared with other tests, because CRDs come and go on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from support.chart_cluster import clear
from support.chart_pods import ChartPods
from support.chart_tools import NAMESPACE, Helm
from testbed.binaries import find_or_build
from testbed.controlplane import ControlPlane
from testbed.rest import Rest


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """helm without a cluster."""
    return Helm(program=find_or_build().helm, home=tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="session")
def empty_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane whose release namespace takes only restricted pods."""
    with ControlPlane(tmp_path_factory.mktemp("control-plane")) as control_plane:
        level = {"pod-security.kubernetes.io/enforce": "restricted"}
        body = {"metadata": {"name": NAMESPACE, "labels": level}}
        control_plane.rest().create("/api/v1/namespaces", body)
        yield control_plane


@pytest.fixture
def rest(empty_plane: ControlPlane) -> Rest:
    """Calls as administrator."""
    return empty_plane.rest()


@pytest.fixture
def chart_pods(empty_plane: ControlPlane, tmp_path: Path) -> Iterator[ChartPods]:
    """A node on which the chart's pods run."""
    with ChartPods(empty_plane, directory=tmp_path) as running:
        yield running


@pytest.fixture
def cluster(helm: Helm, empty_plane: ControlPlane, chart_pods: ChartPods) -> Iterator[Helm]:
    """helm on a cluster without anything of ours; whatever a test installs is gone after it."""
    on_cluster = replace(helm, kubeconfig=empty_plane.kubeconfig)
    yield on_cluster
    clear(on_cluster, empty_plane.rest())
