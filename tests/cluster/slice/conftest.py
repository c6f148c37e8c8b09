"""The slice that all tests here share, so each gets it healthy: a release that is installed, hardware without
faults, and nodes that carry what it demands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.slice import GPU_NODES, Slice
from testbed.cluster import Testbed


@pytest.fixture(scope="session")
def shared_slice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slice]:
    """The testbed of all tests here, in a folder with a space in its name."""
    directory: Path = tmp_path_factory.mktemp("slice") / "a path with spaces"
    with Testbed(directory, nodes={"system-1": None, **GPU_NODES}) as testbed:
        yield Slice(testbed)


@pytest.fixture
def cluster(shared_slice: Slice) -> Slice:
    """The slice, installed and healthy."""
    shared_slice.make_healthy()
    return shared_slice
