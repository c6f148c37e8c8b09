"""What every test process needs, and which tests share a worker of pytest-xdist.

The tests of a file run on one worker, so that a fixture of a module is set up once; so do those of a folder
whose fixtures cost a minute.  What takes longest starts first: at the end no worker waits for another.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

# A shell starts background jobs with SIGINT ignored, and an ignored signal stays ignored in all children: the
# programs that tests start would never notice Ctrl-C.  A handler becomes the default action in a child.
signal.signal(signal.SIGINT, signal.default_int_handler)

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
def pytest_xdist_make_scheduler(config: pytest.Config) -> LoadScopeScheduling:
    """Hand out files and folders in the order of their collection."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            folder = next((folder for folder in TOGETHER if nodeid.startswith(folder)), "")
            return folder or nodeid.partition("::")[0]

    config.option.loadscopereorder = False
    return ByFile(config)
