"""The collection as Ansible sees it, in a folder of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.gpu_hosts import GpuHosts, staged
from support.playbook import Ansible, stage
from support.validated import simulate
from testbed import hostarchive


@pytest.fixture
def ansible(tmp_path: Path) -> Ansible:
    """ansible-core with the collection staged."""
    stage(tmp_path)
    return Ansible(tmp_path)


@pytest.fixture
def roles(tmp_path: Path) -> Ansible:
    """The same, whose modules are simulated."""
    simulate(stage(tmp_path))
    return Ansible(tmp_path)


@pytest.fixture(scope="session")
def host_archive() -> Path:
    """The archive of this checkout; built by the first worker that asks, and kept in the cache."""
    return hostarchive.host_archive()


@pytest.fixture
def hosts(tmp_path: Path, host_archive: Path) -> GpuHosts:
    """No hosts yet; the collection contains the archive."""
    return staged(tmp_path, host_archive)
