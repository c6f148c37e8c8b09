"""What every test process needs, and which tests share a worker of pytest-xdist.

The tests of a file run on one worker, so that a fixture of a module is set up once; so do those of a folder
whose fixtures cost a minute.  What takes longest starts first: at the end no worker waits for another.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

# A shell starts background jobs with SIGINT ignored, and an ignored signal stays ignored in all children: the
# programs that tests start would never notice Ctrl-C.  A handler becomes the default action in a child.
signal.signal(signal.SIGINT, signal.default_int_handler)

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
    "tests/cluster/test_demo.py",
    "tests/cluster/slice/",
    "tests/matrix/",
    "tests/chart/",
    "tests/images/",
    "tests/cluster/",
    "tests/unit/test_simulated_nccl_probe.py",
    "tests/probes/",
)
"""Files and folders, those that take longest first; what is not here comes after them."""
TOGETHER = ("tests/cluster/slice/", "tests/matrix/", "tests/chart/", "tests/images/")
"""Folders whose tests share a fixture that costs a minute."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first."""
    items.sort(key=lambda item: next((n for n, at in enumerate(LONGEST) if item.nodeid.startswith(at)), 99))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Hand out files and folders in the order of their collection."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            folder = next((folder for folder in TOGETHER if nodeid.startswith(folder)), "")
            return folder or nodeid.partition("::")[0]

    config.option.loadscopereorder = False
    return ByFile(config, log)
