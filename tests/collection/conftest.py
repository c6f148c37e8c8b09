"""The collection as Ansible sees it, in a folder of the test's own."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from support import archive
from support.gpu_hosts import GpuHosts, staged
from support.playbook import Ansible, stage
from support.validated import simulate
from testbed import hostarchive


@pytest.fixture
def roles(tmp_path: Path, host_archive: Path) -> Ansible:
    """The collection with the archive, which makes the report's page; the modules are simulated."""
    simulate(stage(tmp_path, archive=host_archive))
    return Ansible(tmp_path)


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], ModuleType]]:
    folder = tmp_path_factory.mktemp("plugins")
    stage(folder)
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield lambda name: importlib.import_module(f"ansible_collections.nodegauge.gpu.plugins.{name}")
    for name in {name for name in sys.modules if name.startswith("ansible_collections")} - before:
        del sys.modules[name]


@pytest.fixture(scope="session")
def host_archive() -> Path:
    """The archive of this checkout; built by the first worker that asks, and kept in the cache."""
    return hostarchive.host_archive()


@pytest.fixture
def python(version: str) -> Path:
    """The Python of a test's `version`, where this machine has it."""
    if (program := archive.interpreter(version)) is None:
        pytest.skip(f"no python{version} on PATH or in $NODEGAUGE_PYTHONS")
    return program


@pytest.fixture
def hosts(tmp_path: Path, host_archive: Path) -> GpuHosts:
    return staged(tmp_path, host_archive)
