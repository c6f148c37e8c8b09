"""What every test process needs, and which tests share a worker of pytest-xdist.

The tests of a file run on one worker, so that a fixture of a module is set up once; so do those of a folder
whose fixtures cost a minute; tests that mostly wait are handed out one by one.  What takes longest starts
first: at the end no worker waits for another.

Each worker has one control plane.  Its programs are found or built before the first test, with their progress
on the terminal: building takes minutes, longer than any test may, and a test that cannot have them must fail,
not skip.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

    from support.playbook import Ansible
    from testbed.controlplane import ControlPlane

# A shell starts background jobs with SIGINT ignored, and an ignored signal stays ignored in all children: the
# programs that tests start would never notice Ctrl-C.  A handler becomes the default action in a child.
signal.signal(signal.SIGINT, signal.default_int_handler)

# By default a busy machine fails a property whose example takes 0.2 s, or whose examples come slowly.
hypothesis.settings.register_profile(
    "busy",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("busy")

gc.set_threshold(50_000, 10, 10)
"""Of thousands of tests nothing is garbage: to look for it was a quarter of their collection's CPU time."""

IN_MEMORY = Path("/dev/shm")
FREE_BYTES = 2 * 1024**3
"""Far more than the tests hold at a time."""


def keep_temporary_files_in(folder: Path) -> None:
    """Have `tmp_path` in this folder, if it has room and programs may run there; else it stays on the disk.

    A simulated machine is up to 1,700 small files: on a disk, to write and remove them took a third of the
    quick tests' CPU time.  Docker's /dev/shm is small and noexec unless it is told otherwise.
    """
    if "PYTEST_DEBUG_TEMPROOT" in os.environ or not os.access(folder, os.W_OK):
        return
    about = os.statvfs(folder)
    if about.f_bavail * about.f_frsize >= FREE_BYTES and not about.f_flag & os.ST_NOEXEC:
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(folder)


keep_temporary_files_in(IN_MEMORY)

LONGEST = (
    "tests/cluster/test_practice.py",
    "tests/cluster/test_demo.py",
    "tests/cluster/slice/",
    "tests/matrix/",
    "tests/chart/",
    "tests/images/",
    "tests/cluster/",
    "tests/unit/test_life.py",
    "tests/collection/",
    "tests/unit/test_simulated_nccl_probe.py",
    "tests/probes/",
)
"""Files and folders, those that take longest first; what is not here comes after them."""
TOGETHER = (
    "tests/cluster/slice/",
    "tests/cluster/admission/",
    "tests/cluster/test_operator_role.py",
    "tests/cluster/placing/test_descheduler.py",
    "tests/cluster/placing/test_karpenter.py",
    "tests/cluster/placing/test_kueue.py",
    "tests/matrix/",
    "tests/chart/",
    "tests/images/",
)
"""What shares a fixture that costs a minute, and those that need an empty control plane."""
APART = ("tests/probes/test_load.py", "tests/probes/test_watch.py", "tests/probes/test_nccl_ranks.py")
"""Files whose tests mostly wait, minutes in all, and share nothing: each is handed out alone, among those
that compute."""


def _scope(nodeid: str) -> str:
    """What one worker runs as a whole."""
    return nodeid if nodeid.startswith(APART) else _together(nodeid) or nodeid.partition("::")[0]


def _together(nodeid: str) -> str:
    return next((folder for folder in TOGETHER if nodeid.startswith(folder)), "")


def _rank(nodeid: str) -> int:
    return next((n for n, at in enumerate(LONGEST) if nodeid.startswith(at)), len(LONGEST))


def _needs_none(nodeid: str) -> bool:
    """It is of no folder with a control plane."""
    return _rank(nodeid) > LONGEST.index("tests/cluster/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first; those that mostly wait are spread over what needs no control plane."""
    items.sort(key=lambda item: _rank(item.nodeid))
    scopes = list(dict.fromkeys(_scope(item.nodeid) for item in items))
    waiting = [scope for scope in scopes if scope.startswith(APART)]
    others = [scope for scope in scopes if scope not in waiting]
    late = sum(_needs_none(scope) for scope in others)
    turn = {scope: float(n) for n, scope in enumerate(others)}
    turn |= {scope: len(others) - late * (1 - n / len(waiting)) for n, scope in enumerate(waiting)}
    items.sort(key=lambda item: turn[_scope(item.nodeid)])


def pytest_collection_finish(session: pytest.Session) -> None:
    """Find or build the programs, outside of any test's time limit."""
    gc.freeze()
    if session.config.option.collectonly or not any(map(_on_control_plane, session.items)):
        return
    from testbed.binaries import find_or_build
    from testbed.errors import TestbedError

    capture = session.config.pluginmanager.getplugin("capturemanager")
    try:
        with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
            find_or_build()
    except TestbedError as error:
        raise pytest.UsageError(str(error)) from error


def _on_control_plane(item: pytest.Item) -> bool:
    return item.get_closest_marker("cluster") is not None or "helm" in getattr(item, "fixturenames", ())


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give the control plane to the folder of the next test, or end it after the last."""
    if item.get_closest_marker("cluster"):
        from support.tenancy import PLANE

        PLANE.take(_together(item.nodeid))
    elif _needs_none(item.nodeid) and (tenancy := sys.modules.get("support.tenancy")):
        tenancy.PLANE.pause()


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """The running control plane of this worker; `support.tenancy` says whose it is."""
    from support.tenancy import PLANE

    with PLANE.started(tmp_path_factory.mktemp("control-plane")) as control_plane:
        yield control_plane


@pytest.fixture
def ansible(tmp_path: Path) -> Ansible:
    """The collection as Ansible sees it, in a folder of the test's own."""
    from support.playbook import Ansible, stage

    stage(tmp_path)
    return Ansible(tmp_path)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Hand out files and folders in the order of their collection."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _scope(nodeid)

    config.option.loadscopereorder = False
    return ByFile(config, log)
