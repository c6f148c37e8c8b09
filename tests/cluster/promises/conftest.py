"""Fixtures of the tests that hold the operator to its promises."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.cluster_under_test import ClusterUnderTest, install_crds
from testbed.rest import Rest


@pytest.fixture
def rig(api: Rest, control_plane: Any, namespace: str, tmp_path: Path) -> Iterator[ClusterUnderTest]:
    """A corner of the cluster, with the CRDs installed."""
    install_crds(api)
    rig = ClusterUnderTest(api, namespace=namespace, directory=tmp_path, kubeconfig=control_plane.kubeconfig)
    yield rig
    rig.clean()
