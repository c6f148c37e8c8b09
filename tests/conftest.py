"""What every test process needs, whoever started it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

# A shell starts background jobs with SIGINT ignored, and an ignored signal stays ignored in all children: the
# programs that tests start would never notice Ctrl-C.  A handler becomes the default action in a child.
signal.signal(signal.SIGINT, signal.default_int_handler)

GROUPS = ("chart", "images", "matrix")
"""Folders whose tests share what is expensive to make (an install, images, machines with every fault): with
several workers, each folder keeps to one.  Tests in cluster share a control plane per worker."""


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group the tests of these folders for `--dist loadgroup`."""
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0]
        if folder in GROUPS:
            item.add_marker(pytest.mark.xdist_group(folder))
