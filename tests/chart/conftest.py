"""helm for tests of the chart: the testbed's own, in a home folder of its own."""

from __future__ import annotations

import pytest

from chart_tools import Helm
from testbed.binaries import find_or_build


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """helm without a cluster."""
    return Helm(program=find_or_build().helm, home=tmp_path_factory.mktemp("helm"))
