"""The simulated kubelet's own calls, on the real API server."""

from __future__ import annotations

import contextlib
import gc
import uuid
import warnings

import pytest

from support.taint_history import NODES, TaintHistory
from testbed.controlplane import ControlPlane
from testbed.rest import Rest
from testbed.scripted import create_node
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster


def test_a_watch_closes_its_connection_without_the_api_server(control_plane: ControlPlane, api: Rest) -> None:
    """It stands still while the watch ends, and the event loop ends after it.  What stays open is collected
    at some later moment, and fails the test that runs then."""
    prefix = f"node-{uuid.uuid4().hex[:8]}"
    names = [f"{prefix}-{number}" for number in range(2)]
    with (
        contextlib.ExitStack() as standing_still,
        TaintHistory(control_plane.kubeconfig, prefix=prefix, kinds=(NODES,), to_the_end=False) as history,
    ):
        for count, name in enumerate(names, 1):  # the first is listed or watched, the second is watched
            create_node(api, name)
            wait_for(lambda least=count: len(list(history.moments())) >= least, what=f"{name} seen")
        standing_still.enter_context(control_plane.frozen("kube-apiserver"))
    for name in names:
        api.delete(f"{NODES}/{name}")
    with warnings.catch_warnings(record=True) as unclosed:
        warnings.simplefilter("always")
        gc.collect()
    assert [str(warning.message) for warning in unclosed] == []
