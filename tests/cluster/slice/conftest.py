"""The slice that all tests here share, so each gets it healthy: a release that is installed, hardware without
faults, and nodes that carry what it demands."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.slice import GPU_NODES, Slice
from support.tenancy import PLANE
from testbed.cluster import Testbed
from testbed.controlplane import ControlPlane


@pytest.fixture(scope="session")
def shared_slice(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Slice:
    """The testbed of all tests here, in a folder with a space in its name."""
    directory: Path = tmp_path_factory.mktemp("slice") / "a path with spaces"
    nodes = {"system-1": None, **GPU_NODES}
    testbed = Testbed(directory, nodes=nodes, control_plane=control_plane)
    return PLANE.enter(Slice(PLANE.enter(testbed)).released())


@pytest.fixture
def cluster(shared_slice: Slice) -> Slice:
    shared_slice.ready()
    return shared_slice
