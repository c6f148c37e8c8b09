"""One guarded release for all tests of the admission policies."""

from __future__ import annotations

import pytest

from support.guarded import Guarded, release
from support.tenancy import PLANE
from testbed.controlplane import ControlPlane


@pytest.fixture(scope="session")
def guarded(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Guarded:
    """A release with its policies in force; tests leave nothing behind."""
    return PLANE.enter(release(control_plane, tmp_path_factory.mktemp("guarded")))
