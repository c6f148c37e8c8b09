"""The slice that all tests here share, so each gets it healthy: a release that is installed, hardware without
faults, and nodes that carry what it demands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.slice import GPU_NODES, Slice
from support.tenancy import PLANE
from testbed.cluster import Testbed
from testbed.controlplane import ControlPlane
from testbed.wait import wait_for


@pytest.fixture(scope="session")
def shared_slice(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Slice:
    """The testbed of all tests here, in a folder with a space in its name."""
    directory: Path = tmp_path_factory.mktemp("slice") / "a path with spaces"
    nodes = {"system-1": None, **GPU_NODES}
    testbed = Testbed(directory, nodes=nodes, control_plane=control_plane)
    return PLANE.enter(Slice(PLANE.enter(testbed)).released())


@pytest.fixture
def cluster(shared_slice: Slice) -> Slice:
    """The slice, installed and healthy."""
    shared_slice.make_healthy()
    return shared_slice


@pytest.fixture(scope="module")
def watched_slice(shared_slice: Slice) -> Iterator[Slice]:
    """The slice in mode Watch, for all tests of a module: two upgrades for each would cost more than they."""
    shared_slice.make_healthy()
    with shared_slice.watching():
        yield shared_slice


@pytest.fixture
def watched(watched_slice: Slice) -> Iterator[Slice]:
    """The slice in mode Watch, healthy before and after."""
    yield watched_slice
    for node in watched_slice.nodes:
        watched_slice.testbed.hardware(node).heal()
    wait_for(lambda: all(map(watched_slice.is_well, watched_slice.nodes)), what="all nodes healthy")
